//! The store of limits: that of the daemon, and the one that commands ask; and the policies of limits: those in this
//! replica's files, for the tasks that keep it at the current ones, and how all limits stand, for programs: what
//! `sluiced limits --json` prints and the status page shows.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use secrecy::SecretString;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::queues::Queues;
use super::{WireError, options};
use crate::pipeline::{Owned, Owner, PolicySpec, Read};
use crate::status::{Limits, Replica};
use sluiced_core::limits::Rule;
use sluiced_core::owner::LIMITS;
use sluiced_core::policy::{PolicyVersion, ends};
use sluiced_core::schedule::Pace;
use sluiced_core::time::StoreTime;
use sluiced_ports::clock::Clock;
use sluiced_ports::connect::Link;
use sluiced_ports::limits::KeyedLimit;
use sluiced_ports::store::{Family, FleetNames, Inspection, Store};
use sluiced_settings::secrets::Secrets;
use sluiced_settings::types::{Limit, LimitBackend, Paced, Settings};
use sluiced_settings::{Loaded, policy};
use sluiced_store::memory::MemoryStore;
use sluiced_store::redis::{RedisOptions, RedisStore};
use sluiced_telemetry::health::Health;

/// All that the replicas share.
pub(super) fn shared_store(
    settings: &Settings,
    secrets: &Secrets,
    clock: Clock,
    health: &Health,
) -> Result<Arc<dyn Store>, WireError> {
    Ok(match settings.backend.limits {
        LimitBackend::Memory => Arc::new(MemoryStore::new(clock)),
        LimitBackend::Redis => {
            let options = options::redis(settings, secrets)?;
            let store = RedisStore::connect(&options).map_err(|e| WireError::new("redis", e))?;
            health.target("redis", store.link());
            Arc::new(store)
        }
    })
}

/// Claims the names of `settings` for the fleet, which is called as written there, else as `queues` say.
pub(super) fn owned(settings: &Settings, store: &Arc<dyn Store>, queues: &Queues) -> Owned {
    if settings.backend.limits == LimitBackend::Memory {
        return Owned::alone();
    }
    let fleet = match (&settings.redis.fleet, queues) {
        (Some(written), _) => named(written),
        (None, Queues::Rabbit(queue)) => queue.fleet(),
        (None, Queues::Embedded { .. }) => named(EMBEDDED),
    };
    Owned::keep(Owner {
        store: Arc::clone(store),
        prefix: settings.redis.prefix.clone(),
        replica: replica(),
        fleet,
        names: owned_names(settings),
    })
}

/// The fleet of lists that are sent without RabbitMQ.
pub(super) const EMBEDDED: &str = "embedded";

/// A name that is known from the start.
fn named(fleet: &str) -> watch::Receiver<Option<FleetNames>> {
    watch::channel(Some([fleet.to_owned()].into())).1
}

/// What a configuration keeps under names in the store: its limits, and the breakers of its routes.
pub(super) fn owned_names(settings: &Settings) -> Vec<(String, bool)> {
    let limits = settings.limits.iter();
    let limits = limits.map(|(name, limit)| (format!("{LIMITS}{name}"), limit.shared()));
    let routes = settings.routes.keys();
    let routes = routes.map(|name| (format!("routes.{name}"), false));
    limits.chain(routes).collect()
}

/// The Redis of a configuration.
///
/// # Errors
/// When a secret cannot be read.
pub fn redis_of(loaded: &Loaded) -> Result<RedisOptions, WireError> {
    options::redis(&loaded.settings, &loaded.secrets)
}

/// The one Redis at `url`, with the prefix and the timeouts of `default.toml`.
#[must_use]
pub fn redis_at(url: SecretString) -> RedisOptions {
    RedisOptions {
        keyed: true,
        ..RedisOptions::single(url, "sluiced")
    }
}

/// A keyed limit under the policy of `version`; `None` if it is paced.
///
/// # Errors
/// When its numbers are too large to be counted exactly.
pub fn keyed_limit(
    name: &str,
    limit: &Limit,
    version: PolicyVersion,
) -> Result<Option<KeyedLimit>, WireError> {
    let rule = limit
        .rule()
        .map_err(|e| WireError::new(format!("limits.{name}"), e))?;
    Ok(rule.map(|rule| KeyedLimit::under(name, rule, limit.lost_wait(), version)))
}

/// The store in a Redis, connected.
///
/// # Errors
/// When Redis cannot be reached in time.
pub async fn store(options: &RedisOptions) -> Result<Arc<dyn Store>, WireError> {
    let store = RedisStore::connect(options).map_err(|e| WireError::new("redis", e))?;
    let mut link = store.link();
    // To find the server, and to connect to it.
    let bound =
        2 * options.settings.connect_timeout.get() + options.settings.response_timeout.get();
    let up = tokio::time::timeout(bound, link.wait_for(Link::is_up))
        .await
        .is_ok_and(|link| link.is_ok());
    if !up {
        let why = match &*link.borrow() {
            Link::Down(reason) => reason.to_string(),
            _ => format!("no connection within {bound:?}"),
        };
        return Err(WireError::new("redis", why));
    }
    Ok(Arc::new(store))
}

/// What all replicas reported of themselves.
///
/// # Errors
/// When Redis does not answer.
pub async fn replicas(store: &dyn Store) -> Result<Vec<Replica>, WireError> {
    let heard = store.hear().await;
    let heard = heard.map_err(|e| WireError::new("redis", e))?;
    Ok(Replica::all(&heard))
}

/// Where a limit is.
#[must_use]
pub fn family(limit: &Limit) -> Family {
    match limit.as_paced() {
        Some(_) => Family::Paced,
        None => Family::Keyed,
    }
}

/// The limits of this replica that can change while it runs.
#[derive(Debug)]
pub struct Policies {
    store: Arc<dyn Store>,
    replica: String,
    limits: BTreeMap<String, watch::Sender<Limit>>,
}

impl Policies {
    pub(super) fn new(settings: &Settings, store: Arc<dyn Store>) -> Self {
        let limits = settings.limits.iter();
        Self {
            store,
            replica: replica(),
            limits: limits
                .map(|(name, limit)| (name.clone(), watch::Sender::new(limit.clone())))
                .collect(),
        }
    }

    /// For the task of a paced limit.
    pub(super) fn paced(&self, limit: &str) -> Option<PolicySpec<Vec<Pace>>> {
        self.spec(Family::Paced, limit, paces)
    }

    /// For the task of a keyed limit.
    pub(super) fn keyed(&self, limit: &str) -> Option<PolicySpec<Rule>> {
        self.spec(Family::Keyed, limit, rule)
    }

    fn spec<T>(&self, family: Family, limit: &str, read: Read<T>) -> Option<PolicySpec<T>> {
        Some(PolicySpec {
            store: Arc::clone(&self.store),
            family,
            replica: self.replica.clone(),
            file: self.limits.get(limit)?.subscribe(),
            read,
        })
    }

    /// The files were read again: their values of the running limits are declared as an update.
    pub fn reload(&self, settings: &Settings) {
        for (name, limit) in &settings.limits {
            // Whether a limit is paced changes with a restart only.
            let sender = self.limits.get(name);
            if let Some(sender) = sender.filter(|s| family(&s.borrow()) == family(limit)) {
                sender.send_replace(limit.clone());
            }
        }
    }
}

/// The rule of a keyed limit.
fn rule(_: &Limit, limit: &Limit) -> Result<Rule, String> {
    let rule = limit.rule().map_err(|why| why.to_string())?;
    rule.ok_or_else(|| "it is paced".to_owned())
}

/// The rows of a paced limit: as many as the file gives it.
fn paces(file: &Limit, limit: &Limit) -> Result<Vec<Pace>, String> {
    let (paces, now) = (rows(limit.as_paced()), rows(file.as_paced()));
    if paces.len() == now.len() {
        Ok(paces)
    } else {
        Err("it leaves nothing to keep in reserve".to_owned())
    }
}

/// The rows of a paced limit: the main one, and the reserve if it keeps one.
pub(super) fn rows(paced: Option<&Paced>) -> Vec<Pace> {
    let paces = paced.map(Paced::paces);
    let rows = paces.map(|(main, reserve)| [Some(main), reserve]);
    rows.into_iter().flatten().flatten().collect()
}

/// What this replica is called: its host and process.
#[must_use]
pub fn replica() -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    format!("{host}:{}", std::process::id())
}

/// The limits of a configuration, in their store.
pub(super) struct InspectedLimits {
    pub(super) store: Arc<dyn Store>,
    pub(super) limits: BTreeMap<String, Limit>,
}

impl Limits for InspectedLimits {
    fn inspect(&self) -> BoxFuture<'_, Vec<Value>> {
        async move {
            let mut all = Vec::new();
            for (name, limit) in &self.limits {
                match self.store.inspect(family(limit), name).await {
                    Ok(found) => all.push(as_json(name, &limit.policy_line(), &found)),
                    Err(_) => return Vec::new(),
                }
            }
            all
        }
        .boxed()
    }
}

impl fmt::Debug for InspectedLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.limits.keys()).finish()
    }
}

/// The kind in a policy.
#[must_use]
pub fn kind(line: &str) -> &str {
    let kind = policy::words(line).ok().and_then(|words| {
        let kind = words.into_iter().find(|(name, _)| *name == "kind")?;
        Some(kind.1)
    });
    kind.unwrap_or("?")
}

/// Whether anything passes, in one word.
#[must_use]
pub fn state_word(found: &Inspection) -> &'static str {
    let paused = found
        .policy
        .as_ref()
        .and_then(|s| s.paused_until(found.now));
    match (paused, found.frozen_until) {
        (Some(_), _) => "paused",
        (None, Some(_)) => "frozen",
        (None, None) => "open",
    }
}

/// Everything about a limit, for programs.
#[must_use]
pub fn as_json(name: &str, file: &str, found: &Inspection) -> Value {
    let policy = found.policy.as_ref();
    let in_force = policy.map_or("", |policy| &policy.text);
    let values = |line: &str| {
        let words = policy::keys_of(line).unwrap_or_default();
        let pairs = words
            .into_iter()
            .map(|(name, value)| (name.to_owned(), Value::from(value)));
        Value::Object(pairs.collect())
    };
    let adapted = policy::words(in_force).ok();
    let adapted =
        adapted.and_then(|words| words.into_iter().find(|word| word.0 == policy::ADAPTED));
    let adapted = adapted.map(|word| word.1);
    let paused_until = policy.and_then(|policy| policy.paused_until(found.now));
    json!({
        "name": name,
        "kind": kind(if in_force.is_empty() { file } else { in_force }),
        "in_force": policy.map(|policy| values(&policy.text)),
        "adapted": adapted,
        "ends_us": ends(in_force).1.map(StoreTime::as_micros),
        "file": (!file.is_empty()).then(|| values(file)),
        "version": policy.map(|policy| policy.updates),
        "origin": policy.map(|policy| policy.origin.name()),
        "by": policy.map(|policy| &policy.by),
        "since_us": policy.map(|policy| policy.changed.since().as_micros()),
        "state": state_word(found),
        "paused_until_us": paused_until.map(StoreTime::as_micros),
        "paused_by": paused_until.and(policy).and_then(|s| s.pause.as_ref()).map(|p| &p.by),
        "frozen_until_us": found.frozen_until.map(StoreTime::as_micros),
        "now_us": found.now.as_micros(),
        "replicas": found.replicas.iter().map(|present| json!({
            "name": present.replica,
            "file": values(&present.file),
            "differs": values(&present.file) != values(in_force),
        })).collect::<Vec<_>>(),
    })
}
