//! The store of limits: that of the daemon, and the one that commands ask; and the policies of limits: those in this
//! replica's files, for the tasks that keep it at the current ones, and those of all limits for the status page.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use secrecy::SecretString;
use tokio::sync::watch;
use tracing::{debug, error};

use super::files::{KeyedFile, PacedFile};
use super::stored_limit::with_losses;
use super::{WireError, options};
use sluiced_core::limits::Rule;
use sluiced_core::pacing::RowPaces;
use sluiced_core::version::PolicyVersion;
use sluiced_pipeline::{FileLimit, FileWatch};
use sluiced_ports::limits::KeyedLimit;
use sluiced_ports::link::Link;
use sluiced_ports::store::{Family, Store};
use sluiced_settings::Loaded;
use sluiced_settings::policy::PolicyTextError;
use sluiced_settings::types::{Limit, LimitBackend, Settings};
use sluiced_status::{LimitInspector, LimitStatus, Replica};
use sluiced_store::memory::MemoryStore;
use sluiced_store::redis::{RedisOptions, RedisStore};
use sluiced_telemetry::health::Health;

/// All that the replicas share.
pub(super) fn shared_store(loaded: &Loaded, health: &Health) -> Result<Arc<dyn Store>, WireError> {
    Ok(match loaded.settings.backend.limits {
        LimitBackend::Memory => Arc::new(MemoryStore::default()),
        LimitBackend::Redis => {
            let options = options::redis(loaded)?;
            let store = RedisStore::connect(&options).map_err(|e| WireError::new("redis", e))?;
            health.target("redis", store.link());
            Arc::new(store)
        }
    })
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
    let heard = store
        .read_reports()
        .await
        .map_err(|e| WireError::new("redis", e))?;
    Ok(Replica::read_all(&heard))
}

/// The family of limits in the store that a limit belongs to.
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
    /// Each as it was at the start.
    limits: BTreeMap<String, (Limit, FileSender)>,
}

/// Where the limit of a file goes when the file is read again. Whether it is paced changes with a restart only.
#[derive(Debug)]
enum FileSender {
    Paced(watch::Sender<Arc<dyn FileLimit<RowPaces>>>),
    Keyed(watch::Sender<Arc<dyn FileLimit<Rule>>>),
}

impl FileSender {
    fn new(limit: &Limit) -> Self {
        match family(limit) {
            Family::Paced => Self::Paced(watch::Sender::new(Arc::new(PacedFile(limit.clone())))),
            Family::Keyed => Self::Keyed(watch::Sender::new(Arc::new(KeyedFile(limit.clone())))),
        }
    }

    fn send(&self, limit: &Limit) {
        match (self, family(limit)) {
            (Self::Paced(sender), Family::Paced) => {
                sender.send_replace(Arc::new(PacedFile(limit.clone())));
            }
            (Self::Keyed(sender), Family::Keyed) => {
                sender.send_replace(Arc::new(KeyedFile(limit.clone())));
            }
            _ => {}
        }
    }
}

impl Policies {
    pub(super) fn new(settings: &Settings) -> Self {
        let limits = settings.limits.iter();
        Self {
            limits: limits
                .map(|(name, limit)| (name.clone(), (limit.clone(), FileSender::new(limit))))
                .collect(),
        }
    }

    /// For the task of a paced limit.
    pub(super) fn paced(&self, limit: &str) -> Option<FileWatch<RowPaces>> {
        match &self.limits.get(limit)?.1 {
            FileSender::Paced(sender) => Some(sender.subscribe()),
            FileSender::Keyed(_) => None,
        }
    }

    /// For the task of a keyed limit.
    pub(super) fn keyed(&self, limit: &str) -> Option<FileWatch<Rule>> {
        match &self.limits.get(limit)?.1 {
            FileSender::Keyed(sender) => Some(sender.subscribe()),
            FileSender::Paced(_) => None,
        }
    }

    /// The files were read again: what may change of the running limits is declared as an update. Messages are counted
    /// as before, so what they cost at most, and what is reserved, stay as they were.
    pub fn reload(&self, settings: &Settings) {
        for (name, limit) in &settings.limits {
            let Some((running, sender)) = self.limits.get(name) else {
                continue;
            };
            match running.with_live_keys_of(limit) {
                Ok(changed) => sender.send(&changed),
                // It needs a restart, as the log says already.
                Err(PolicyTextError::Kind(..)) => {}
                Err(why) => error!(limit = name, %why, "the limit keeps the values that it has"),
            }
        }
    }
}

/// What this replica is called: as it is configured, else by its host and process.
#[must_use]
pub fn replica(settings: &Settings) -> String {
    if let Some(instance) = &settings.service.instance {
        return instance.clone();
    }
    let host = rustix::system::uname();
    format!(
        "{}:{}",
        host.nodename().to_string_lossy(),
        std::process::id()
    )
}

/// The limits of a configuration, in their store.
pub(super) struct InspectedLimits {
    pub(super) store: Arc<dyn Store>,
    pub(super) limits: BTreeMap<String, Limit>,
}

impl LimitInspector for InspectedLimits {
    fn inspect(&self) -> BoxFuture<'_, Vec<LimitStatus>> {
        async move {
            let mut all = Vec::new();
            for (name, limit) in &self.limits {
                let found = self.store.inspect(family(limit), name).await;
                match with_losses(&*self.store, name, limit, found).await {
                    Ok(stored) => all.push(stored.status(name, &limit.policy_line())),
                    // All others are shown: a pause of one of them must not be hidden.
                    Err(error) => debug!(limit = name, %error, "its state is not shown"),
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
