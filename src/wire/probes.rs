//! Checks of a configuration by the backends: without connecting, and with a connection.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use secrecy::ExposeSecret as _;

use super::downstreams::{Built, Unusable, Uses, without_secrets};
use super::stores::{self, EMBEDDED, owned_names};
use super::{Trial, WireError, callers, options, reach};
use sluiced_amqp::rabbit::letters::Letters;
use sluiced_amqp::rabbit::management;
use sluiced_amqp::rabbit::probe::{self, QueueState};
use sluiced_amqp::rabbit::{RabbitError, RabbitOptions, RouteOptions};
use sluiced_core::distance::{TooFar, horizon_needed, millis};
use sluiced_core::headroom::Headroom;
use sluiced_core::owner::{self, Claim, FORM};
use sluiced_core::policy::as_written;
use sluiced_ports::connect::TlsError;
use sluiced_ports::message::Message;
use sluiced_ports::policies::PolicyOf;
use sluiced_ports::store::{Inspection, Owning, Present};
use sluiced_settings::secrets::Secrets;
use sluiced_settings::types::{Downstream, Limit, LimitBackend, QueueBackend, QueueType, Route};
use sluiced_settings::{Faults, KeyPath, Loaded};

/// A connection reports its own timeout before the probe gives up.
const SLACK: Duration = Duration::from_secs(1);

/// A try to reach something: its name, and the result in a few words without secrets.
pub type Probe = (String, BoxFuture<'static, Result<String, String>>);

/// The faults of a configuration that only a backend can find, at their places.
#[must_use]
pub fn misfits(loaded: &Loaded) -> Faults {
    let routes = loaded.settings.routes.iter();
    let found = routes.filter_map(|(name, route)| {
        let path = KeyPath::of(&["routes", name, "downstream"]);
        let route = without_secrets(route, &loaded.secrets);
        match Built::new(&route, &loaded.secrets, false, Uses::default()) {
            Ok(_) => None,
            Err(Unusable::Secret(error)) => Some((path, error.to_string())),
            Err(Unusable::Key(misfit)) => {
                // The name of a header may have dots of its own.
                let steps = misfit.key.splitn(2, '.');
                Some((steps.fold(path, |path, step| path.join(step)), misfit.why))
            }
        }
    });
    // Where nothing is connected, certificates need not exist.
    let connects = !loaded.secrets.are_made_up();
    let certificates = match connects {
        true => tls_misfits(loaded),
        false => Vec::new(),
    };
    let limits = loaded.settings.limits.iter();
    let uncounted = limits.filter_map(|(name, limit)| {
        let error = limit.rule().err()?;
        Some((KeyPath::of(&["limits", name]), error.to_string()))
    });
    let callers = loaded.settings.callers.iter();
    let refused = callers.filter(|_| connects).filter_map(|(name, callers)| {
        let why = callers::identity(&loaded.secrets, callers).err()?;
        Some((KeyPath::of(&["callers", name, "cert_file"]), why))
    });
    let all = found.chain(certificates).chain(uncounted).chain(refused);
    loaded.faults(all)
}

/// Certificates of the servers that cannot be used.
fn tls_misfits(loaded: &Loaded) -> Vec<(KeyPath, String)> {
    let (settings, secrets) = (&loaded.settings, &loaded.secrets);
    let mut tls = Vec::new();
    if settings.backend.queue == QueueBackend::Rabbitmq {
        tls.extend(options::rabbit(settings, secrets).map(|options| ("rabbitmq", options.tls)));
    }
    if settings.backend.limits == LimitBackend::Redis {
        tls.extend(options::redis(settings, secrets).map(|options| ("redis", options.tls)));
    }
    // Without certificates of its own a section can have no wrong ones.
    let written = tls
        .into_iter()
        .filter(|(_, tls)| tls.ca.is_some() || tls.certificate.is_some());
    let wrong = written.filter_map(|(section, tls)| {
        let error = tls.client_config().err()?;
        let key = match error {
            TlsError::Authority(_) | TlsError::NoAuthority => "ca_file",
            TlsError::Certificate(_) => "cert_file",
        };
        Some((KeyPath::of(&[section, key]), error.to_string()))
    });
    wrong.collect()
}

/// What `sluiced check --connect` tries: the backends in use, each bounded, none changed. An
/// unusable URL or secret is reported as a failure. `strict`: so is a first message that would be a dead letter.
#[must_use]
pub fn probes(loaded: &Loaded, strict: bool) -> Vec<Probe> {
    let mut probes = Vec::new();
    if loaded.settings.backend.queue == QueueBackend::Rabbitmq && !loaded.settings.routes.is_empty()
    {
        rabbit(loaded, strict, &mut probes);
    }
    if loaded.settings.backend.limits == LimitBackend::Redis {
        let options = options::redis(&loaded.settings, &loaded.secrets);
        // A limit that nothing names counts nothing, so the distance of Redis does not matter for it.
        let used: BTreeSet<_> = loaded.settings.named_limits().cloned().collect();
        let mut limits = loaded.settings.limits.clone();
        limits.retain(|name, _| used.contains(name));
        let probe = async move {
            let options = options.map_err(|e| e.why)?;
            match sluiced_store::redis::probe(&options).await {
                Ok(report) => {
                    let slow_trip = report.slow_trip;
                    with_distance(in_words(report), &limits, slow_trip)
                }
                Err(error) => Err({
                    // They differ only in their addresses.
                    let first = options.settings.addresses().first();
                    let first = first.map_or("", |url| url.expose_secret());
                    reach::explained(error.to_string(), first).await
                }),
            }
        };
        probes.push(("redis".to_owned(), probe.boxed()));
        probes.push(("fleet".to_owned(), fleet(loaded).boxed()));
    }
    for (name, route) in &loaded.settings.routes {
        let (route, secrets) = (route.clone(), loaded.secrets.clone());
        let limits = loaded.settings.limits.iter();
        let limits = limits.filter(|(limit, _)| route.limits.contains(limit));
        let limits = limits.map(|(name, limit)| (name.clone(), limit.clone()));
        let limits: Vec<_> = limits.collect();
        let probe = async move { open(route, &secrets, &limits).await };
        probes.push((format!("routes.{name}.downstream"), probe.boxed()));
    }
    for (name, callers) in &loaded.settings.callers {
        let looked = callers::look(callers, &loaded.secrets);
        let probe = std::future::ready(looked);
        probes.push((format!("callers.{name}.listen"), probe.boxed()));
    }
    probes
}

/// Looks whether another fleet has a name of this configuration, and claims nothing.
fn fleet(loaded: &Loaded) -> impl Future<Output = Result<String, String>> + use<> {
    let settings = &loaded.settings;
    let redis = options::redis(settings, &loaded.secrets).map_err(|e| e.why);
    let rabbit = options::rabbit(settings, &loaded.secrets).map_err(|e| e.why);
    let embedded = settings.backend.queue == QueueBackend::Embedded;
    let written = settings.redis.fleet.clone();
    let written = written.or_else(|| embedded.then(|| EMBEDDED.to_owned()));
    let names = owned_names(settings).into_iter().collect();
    let limits = settings.limits.clone();
    async move {
        let redis = redis?;
        let fleet = match written {
            Some(written) => vec![written],
            None => {
                let named = probe::fleet(&rabbit?).await;
                let named = named.map_err(|e| format!("its name comes from RabbitMQ: {e}"))?;
                named.to_vec()
            }
        };
        let claim = Claim {
            form: FORM,
            fleet,
            names,
        };
        let store = stores::store(&redis).await.map_err(|e| e.to_string())?;
        let foreign = store.own(Owning::Look, "", &claim).await;
        let foreign = foreign.map_err(|e| e.to_string())?;
        if foreign.is_empty() {
            let fleet = claim.shown();
            let own = format!("`{fleet}`: its limits and routes are free or its own");
            let mut said = vec![own];
            for (name, limit) in &limits {
                let found = PolicyOf::new(&*store, super::family(limit), name)
                    .inspect()
                    .await;
                let found = found.map_err(|e| e.to_string())?;
                said.extend(not_in_force(name, &limit.policy_line(), &found));
            }
            return Ok(said.join("; "));
        }
        let prefix = &redis.settings.prefix;
        Err(owner::in_words(claim.shown(), prefix, &foreign))
    }
}

/// What starting this file does to a limit that has other values in force, if it does.
fn not_in_force(name: &str, file: &str, found: &Inspection) -> Option<String> {
    let policy = found.policy.as_ref()?;
    if as_written(&policy.text) == as_written(file) {
        return None;
    }
    let same = |replica: &&Present| as_written(&replica.file) == as_written(&policy.text);
    let (have, all) = (
        found.replicas.iter().filter(same).count(),
        found.replicas.len(),
    );
    let becomes = if as_written(&policy.file) == as_written(file) {
        "an operator's value stays".to_owned()
    } else if all == 0 {
        "no replica runs, so the first one that starts with it puts it in force".to_owned()
    } else {
        format!(
            "it counts once more than half of the replicas have it, or with `sluiced limits adopt {name}`"
        )
    };
    let (now, file) = (&policy.text, file);
    Some(format!(
        "warning: in force for limits.{name} is {now}, in the files of {have} of {all} replicas; this file has {file}: {becomes}"
    ))
}

fn rabbit(loaded: &Loaded, strict: bool, probes: &mut Vec<Probe>) {
    let options = options::rabbit(&loaded.settings, &loaded.secrets).map_err(|e| e.why);
    let hosts = options
        .as_ref()
        .map_err(Clone::clone)
        .and_then(|options| probe::hosts(options).map_err(|e| e.to_string()));
    let (options, hosts) = match (options, hosts) {
        (Ok(options), Ok(hosts)) => (Arc::new(options), hosts),
        (_, Err(why)) | (Err(why), _) => {
            probes.push(("rabbitmq".to_owned(), std::future::ready(Err(why)).boxed()));
            return;
        }
    };
    for (index, host) in hosts.into_iter().enumerate() {
        let options = Arc::clone(&options);
        let probe = async move {
            match probe::broker(&options, index).await {
                Ok(()) => Ok("connected and logged in".to_owned()),
                Err(error) => {
                    let url = options.settings.urls[index].expose_secret();
                    Err(reach::explained(error.to_string(), url).await)
                }
            }
        };
        probes.push((format!("rabbitmq {host}"), probe.boxed()));
    }
    let all = loaded.settings.routes.iter();
    let all: Vec<_> = all
        .map(|(name, route)| options::route(&loaded.settings, name, Arc::new(route.clone())))
        .collect();
    let grant: Arc<str> = probe::grant_command(&options, &all).into();
    if options.settings.management.is_some() {
        let (options, all) = (Arc::clone(&options), all.clone());
        let probe = async move {
            let said = management::policies(&options, &all).await;
            let mut said = said.map_err(|error| error.to_string())?;
            said.insert(0, "policies and queues were read".to_owned());
            Ok(said.join("; warning: "))
        };
        probes.push(("rabbitmq.management".to_owned(), probe.boxed()));
    }
    for (name, route) in loaded.settings.routes.keys().zip(all) {
        let (options, grant) = (Arc::clone(&options), Arc::clone(&grant));
        let trial = Trial::new(loaded, name, &loaded.settings.routes[name]);
        let probe = async move {
            let said = look(&options, &route, &grant).await?;
            match first_message(&options, &route, trial).await {
                Err(dies) if strict => Err(said + &dies),
                Ok(fate) | Err(fate) => Ok(said + &fate),
            }
        };
        probes.push((format!("routes.{name}.queue"), probe.boxed()));
    }
}

async fn look(
    options: &RabbitOptions,
    route: &RouteOptions,
    grant: &str,
) -> Result<String, String> {
    match probe::queue(options, route).await {
        Ok(QueueState::Found {
            messages,
            consumers,
            classic,
            left_behind,
            as_they_are,
        }) => {
            let queue = &route.settings.queue;
            let mut said =
                format!("queue `{queue}`: ready messages {messages}, consumers {consumers}");
            if let Some(parked) = left_behind {
                said += &format!(
                    "; warning: {parked} messages stand parked in {queue}.parked.*, from when fair_by was set: they are consumed too; delete these queues when they are empty"
                );
            }
            for why in as_they_are {
                said += &format!("; warning: {why}");
            }
            if classic {
                said += "; warning: it is a classic queue: after a crash of the broker what was acknowledged in its last second comes again, and is called again; a quorum queue brings back only what was not acknowledged";
            }
            if route.settings.queue_type == QueueType::Classic {
                said += "; warning: queue_type = \"classic\": a classic wait queue drops what a full work queue refuses, and what moves while the broker dies; quorum keeps it";
            }
            if !route.settings.declare {
                said += "; not declared by sluiced: if it is a quorum queue with an x-delivery-limit, that must be at least 20, which is what RabbitMQ 4 sets by default";
            }
            Ok(said)
        }
        Ok(QueueState::Hidden { as_they_are }) => {
            let queue = &route.settings.queue;
            let mut said = format!(
                "queue `{queue}` can be consumed; warning: the user may not look at it (RabbitMQ 4.2.6 and 4.3.0 ask for the right to configure): messages at the broker are not counted"
            );
            for why in as_they_are {
                said += &format!("; warning: {why}");
            }
            Ok(said)
        }
        Ok(QueueState::WouldBeDeclared) => Ok(format!(
            "queue `{}` does not exist and would be declared",
            route.settings.queue
        )),
        Err(error @ RabbitError::Forbidden { .. }) => {
            Err(format!("{error}; `{grant}` grants what all routes need"))
        }
        Err(error) => Err(error.to_string()),
    }
}

/// What would happen to the first waiting message; an error, if it would be a dead letter. It goes back at once. A quorum queue counts that as a
/// return, as with `sluiced try --peek`; a replica copies the message before there are too many.
async fn first_message(
    options: &RabbitOptions,
    route: &RouteOptions,
    trial: Result<Trial, WireError>,
) -> Result<String, String> {
    let message = match peek(options, &route.settings.queue).await {
        Ok(Some(message)) => message,
        Ok(None) => return Ok(String::new()),
        Err(error) => return Ok(format!("; no message was looked at: {error}")),
    };
    let usable = trial.map_err(|error| error.why).and_then(|trial| {
        let label = trial.route.label(&message);
        let invalid = |why| format!("a limit cannot count it: {why}");
        label.map_err(invalid)?;
        let undecodable = |why| format!("no request can be made of it: {why}");
        trial.request(&message).map_err(undecodable)
    });
    let back = "; it was given back, which a quorum queue counts as a return";
    match usable {
        Ok(_) => Ok(format!(
            "; the first message that waits can be decoded and rendered{back}"
        )),
        Err(why) => Err(format!(
            "; warning: the first message that waits would be a dead letter: {why}{back}"
        )),
    }
}

/// The first message that is ready in a queue. It stays there. One that was returned often goes to the end as a copy, before
/// the broker drops it.
async fn peek(options: &RabbitOptions, queue: &str) -> Result<Option<Message>, RabbitError> {
    let Some(mut letters) = Letters::open(options, queue).await? else {
        return Ok(None);
    };
    let Some(first) = letters.first().await? else {
        return letters.close().await.map(|_| None);
    };
    let message = first.message.clone();
    letters.leave(first).await?;
    letters.close().await?;
    Ok(Some(message))
}

fn in_words(report: sluiced_store::redis::RedisFacts) -> String {
    let sluiced_store::redis::RedisFacts {
        servers,
        version,
        round_trip,
        slow_trip,
        warnings,
    } = report;
    let mut said = format!(
        "version {version}, {servers}, scripts allowed, {} there and back, {} when slow",
        millis(round_trip),
        millis(slow_trip)
    );
    for warning in warnings {
        said.push_str("; warning: ");
        said.push_str(&warning);
    }
    said
}

/// What is known of Redis, and whether each limit works with Redis so far away. A limit that could never send
/// is an error: everything else would look right, and no call would be made.
fn with_distance(
    said: String,
    limits: &BTreeMap<String, Limit>,
    slow_trip: Duration,
) -> Result<String, String> {
    let (mut near, mut far) = (Vec::new(), Vec::new());
    for (name, limit) in limits {
        match limit {
            Limit::Paced(paced) => near.push(covered(name, paced.paces().0.horizon(), slow_trip)),
            keyed => {
                let found = TooFar::find(longest(keyed), slow_trip);
                far.extend(found.map(|far| format!("limits.{name}: {far}")));
            }
        }
    }
    match far.as_slice() {
        [] => Ok([vec![said], near].concat().join("; ")),
        _ => Err([vec![said], far].concat().join("; ")),
    }
}

/// The headroom of a keyed limit; the longest one, if it follows the round trip.
fn longest(limit: &Limit) -> Headroom {
    let follows = limit.follows().map(|bounds| Headroom {
        late: bounds.most / 2,
        way: bounds.least.way,
    });
    follows.unwrap_or_else(|| limit.headroom())
}

/// Whether slots are leased far enough ahead.
fn covered(name: &str, horizon: Duration, slow_trip: Duration) -> String {
    let needed = horizon_needed(slow_trip);
    let of = millis(horizon);
    if needed <= horizon {
        return format!("the horizon of limits.{name}, {of}, covers that");
    }
    format!(
        "warning: the horizon of limits.{name}, {of}, does not cover that: slots may go unused; write horizon = \"{}ms\" or more",
        needed.as_millis()
    )
}

/// Opens one connection, TLS and bind and all, and makes no call; then measures the way.
async fn open(
    mut route: Route,
    secrets: &Secrets,
    limits: &[(String, Limit)],
) -> Result<String, String> {
    let bound = match &mut route.downstream {
        Downstream::Http(http) => {
            http.warm_connections = 1;
            http.connect_timeout.get()
        }
        Downstream::Smpp(smpp) => {
            smpp.binds = NonZeroU16::MIN;
            smpp.connect_timeout.get()
        }
    };
    let downstream =
        Built::new(&route, secrets, false, Uses::default()).map_err(|e| e.to_string())?;
    let (origin, done) = match &downstream {
        Built::Http(http) => (http.origin().map(ToString::to_string), "connected"),
        Built::Smpp(smpp) => (Some(smpp.name()), "connected and bound"),
    };
    let is_proxied = matches!(&downstream, Built::Http(http) if http.is_proxied());
    let Some(origin) = origin else {
        return Ok("not tried: the host differs from message to message".to_owned());
    };
    match downstream.as_port().warm(bound + SLACK).await {
        Ok(()) => {
            let way = reach::measured(downstream.as_port(), bound, limits).await;
            Ok(format!("{done}, no call made{way}"))
        }
        // A look at the server itself would go around the proxy.
        Err(why) if is_proxied => Err(why),
        Err(why) => Err(reach::explained(why, &origin).await),
    }
}
