//! From the callers of the configuration to routes of the pipeline whose queue and downstream are one listener.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::WireError;
use super::options::rotating_secret;
use super::pacers::Pacers;
use sluiced_callers::{
    AskedLimit, Callers, CallersOptions, CountVerdict, Identity, Inherited, KeyedLimits, Listener,
    NamesKey,
};
use sluiced_core::after_call::CallRules;
use sluiced_core::gate::OnDenied;
use sluiced_net::connect::Secret;
use sluiced_pipeline::meters::RouteMeters;
use sluiced_pipeline::{AnswerRules, Priority, RouteLimits, RouteRules, RouteSpec, WhenUnsendable};
use sluiced_settings::Loaded;
use sluiced_settings::fixed_or_template::Costing;
use sluiced_settings::secrets::Secrets;
use sluiced_settings::types::{self, Limit, Paced, Settings, callers_route};
use sluiced_telemetry::health::Health;
use sluiced_template::{CostOf, LimitCounting, LimitTemplates, RouteFigures, says_none};

/// The bound of the pipeline for messages that are held. It never ends a request: its wait (`max_wait`) is shorter.
const HELD: Duration = Duration::from_secs(24 * 3600);
/// A request's body has a bound of its own.
const MAX_BODY: u64 = 64 * 1024;

/// Adds the callers of a configuration to the pacers of their limits, each as a route.
pub(super) fn add(
    loaded: &Loaded,
    health: &Health,
    pacers: &mut Pacers<'_>,
) -> Result<(), WireError> {
    let Loaded {
        settings, secrets, ..
    } = loaded;
    let mut inherited = Inherited::from_environment();
    let waiting: Vec<u16> = settings.callers.values().map(|c| c.max_waiting).collect();
    let connections = sluiced_callers::connections(&waiting);
    for ((name, callers), connections) in settings.callers.iter().zip(connections) {
        let named = NamedCallers {
            settings,
            name,
            callers,
            route: callers_route(name).into(),
        };
        let listener = named.listener(&mut inherited)?;
        let meters = Arc::new(RouteMeters::new(&named.route));
        let options = named.options(secrets, pacers, connections)?;
        if connections < usize::from(callers.max_waiting) {
            tracing::warn!(
                callers = name,
                connections,
                max_waiting = callers.max_waiting,
                "fewer callers can wait than max_waiting says, because this process may not open as many files; raise its limit (LimitNOFILE= of systemd, ulimit -n)"
            );
        }
        tracing::info!(callers = name, listen = %callers.listen, "callers may ask here");
        let ports = sluiced_callers::start(options, listener, counting_verdicts(&meters));
        health.component(&format!("callers {name}"), ports.subscription.link());
        let spec = named.spec(ports, meters, pacers)?;
        pacers.add(&callers.limits, spec);
    }
    Ok(())
}

/// Callers of the configuration, by their name.
struct NamedCallers<'a> {
    settings: &'a Settings,
    name: &'a str,
    callers: &'a types::Callers,
    /// As which they are a route.
    route: Arc<str>,
}

impl NamedCallers<'_> {
    fn wrong(&self, key: &str, why: impl fmt::Display) -> WireError {
        WireError::new(format!("callers.{}.{key}", self.name), why)
    }

    /// Where they ask. An address that other machines reach needs a token and TLS.
    fn listener(&self, inherited: &mut Inherited) -> Result<Listener, WireError> {
        let callers = self.callers;
        let listener =
            Listener::bind(&callers.listen, inherited).map_err(|e| self.wrong("listen", e))?;
        let is_open = callers.token_file.is_none() || callers.cert_file.is_none();
        if let Some(address) = listener.reached_at().filter(|_| is_open) {
            let why = format!(
                "systemd opened {address}, which other machines reach: callers need a token, and TLS to hide it; write token_file, cert_file and key_file, or an address of loopback"
            );
            return Err(self.wrong("listen", why));
        }
        Ok(listener)
    }

    fn options(
        &self,
        secrets: &Secrets,
        pacers: &Pacers<'_>,
        connections: usize,
    ) -> Result<CallersOptions, WireError> {
        let (settings, callers) = (self.settings, self.callers);
        Ok(CallersOptions {
            route: Arc::clone(&self.route),
            limits: asked_limits(settings, callers),
            store: pacers.store_link(),
            keyed: KeyedLimits::new(pacers.keyed_store(), pacers.keyed_of(&callers.limits)),
            max_wait: callers.max_wait.get(),
            max_waiting: callers.max_waiting,
            use_within: callers.use_within.get(),
            counts: settings
                .counts_after(callers)
                .then(|| callers.ends_after.get()),
            token: rotating_secret(secrets, callers.token_file.as_deref())
                .map_err(|e| self.wrong("token_file", e))?,
            identity: identity(secrets, callers).map_err(|why| self.wrong("cert_file", why))?,
            connections,
        })
    }

    fn spec(
        &self,
        ports: Callers,
        meters: Arc<RouteMeters>,
        pacers: &Pacers<'_>,
    ) -> Result<RouteSpec, WireError> {
        let (settings, callers) = (self.settings, self.callers);
        let templates = templates(settings, callers).map_err(|e| self.wrong("limits", e))?;
        Ok(RouteSpec {
            name: Arc::clone(&self.route),
            rules: rules(settings, self.name, callers),
            counting: RouteLimits::new(templates, pacers.limits_of(&callers.limits)),
            downstream: ports.downstream,
            // What a downstream answers to callers is not seen here.
            figures: RouteFigures::none(),
            breaker: None,
            subscription: ports.subscription,
            meters,
            journal: None,
            results: None,
        })
    }
}

fn counting_verdicts(meters: &Arc<RouteMeters>) -> CountVerdict {
    let meters = Arc::clone(meters);
    Box::new(move |verdict| meters.settled(verdict, 1))
}

/// Whether the listener could open its address, and whether its certificate and key fit: for `sluiced check --connect`.
pub(super) fn check_listener(
    callers: &types::Callers,
    secrets: &Secrets,
) -> Result<String, String> {
    let identity = identity(secrets, callers)?;
    let place = Listener::look(&callers.listen).map_err(|e| e.to_string())?;
    Ok(match identity {
        Some(_) => format!("{place}; the certificate and its key fit"),
        None => place.to_owned(),
    })
}

/// The certificate of a listener.
pub(super) fn identity(
    secrets: &Secrets,
    callers: &types::Callers,
) -> Result<Option<Arc<Identity>>, String> {
    let Some(certificate) = &callers.cert_file else {
        return Ok(None);
    };
    let key: Option<Secret> =
        rotating_secret(secrets, callers.key_file.as_deref()).map_err(|e| e.to_string())?;
    let Some(key) = key else {
        return Err("a certificate needs its key; write key_file".to_owned());
    };
    let identity = Identity::new(certificate, key).map_err(|e| e.to_string())?;
    Ok(Some(Arc::new(identity)))
}

/// What requests may say of the limits.
fn asked_limits(settings: &Settings, callers: &types::Callers) -> Vec<AskedLimit> {
    let known_limits = callers.limits.iter().filter_map(|name| {
        let limit = settings.limits.get(name)?;
        Some(AskedLimit {
            name: name.clone(),
            key: names_key(limit),
            cost: match limit.cost() {
                Costing::Fixed(cost) => NonZeroU32::new(cost.get()).unwrap_or(NonZeroU32::MIN),
                // What the template makes of a message says nothing of a request.
                Costing::Template(_) => NonZeroU32::MIN,
            },
            most: limit
                .as_paced()
                .and_then(|paced| NonZeroU32::new(paced.largest_cost().get())),
        })
    });
    known_limits.collect()
}

fn names_key(limit: &Limit) -> NamesKey {
    match limit.key() {
        None => NamesKey::Never,
        Some(template) if says_none(template.as_str()) => NamesKey::OrNull,
        Some(_) => NamesKey::Always,
    }
}

/// The templates by which a request is counted. They read the body that the crate `callers` makes of the request.
fn templates(
    settings: &Settings,
    callers: &types::Callers,
) -> Result<LimitTemplates, sluiced_template::WrongLimitTemplate> {
    let named = callers.limits.iter().filter_map(|name| {
        let limit = settings.limits.get(name)?;
        let key = match names_key(limit) {
            NamesKey::Never => None,
            NamesKey::Always => Some(format!("{{{{ body.keys[\"{name}\"] }}}}")),
            NamesKey::OrNull => Some(format!(
                "{{{{ none if body.keys[\"{name}\"] is none else body.keys[\"{name}\"] }}}}"
            )),
        };
        let cost = format!("{{{{ body.cost[\"{name}\"] }}}}");
        Some((name, limit, key, cost))
    });
    let texts: Vec<_> = named.collect();
    let countings = texts.iter().map(|(name, limit, key, cost)| LimitCounting {
        limit: name,
        key: key.as_deref(),
        cost: CostOf::Made(cost),
        once: false,
        largest: limit.as_paced().map(Paced::largest_cost),
    });
    let each_limit: Vec<_> = countings.collect();
    LimitTemplates::new(&each_limit, Some("{{ body.tenant }}"))
}

fn rules(settings: &Settings, name: &str, callers: &types::Callers) -> RouteRules {
    let paced = settings.paced_of(&callers.limits).map(|(_, paced)| paced);
    RouteRules {
        queue: callers_route(name),
        standby_for: None,
        priority: Priority::Fixed(callers.priority),
        urgent_from: paced.and_then(Paced::urgent_from),
        prefetch: callers.max_waiting,
        ack_margin: HELD,
        hours: None,
        own_hours: None,
        max_unfit_in_a_row: None,
        calls: CallRules::unseen(callers.max_wait.get()),
        answers: AnswerRules::UNSEEN,
        on_denied: OnDenied::TellCaller,
        denied_headers: true,
        max_age: None,
        on_expired: WhenUnsendable::Drop,
        on_invalid: WhenUnsendable::DeadLetter,
        max_body: MAX_BODY,
        max_delay: None,
        tenants: None,
    }
}
