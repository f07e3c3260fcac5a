//! The stores of limits and of their policies: those of the daemon, and those that commands ask.

use std::sync::Arc;

use secrecy::SecretString;

use super::{WireError, options};
use crate::core::policy::PolicyVersion;
use crate::limiter::memory::MemoryStore;
use crate::limiter::redis::{Family, RedisOptions, RedisPolicies, RedisStore};
use crate::ports::clock::Clock;
use crate::ports::connect::Link;
use crate::ports::limits::{KeyedLimit, LimitStore};
use crate::ports::store::PolicyStore;
use crate::ports::store::{PaceStore as _, StatusStore as _, Store};
use crate::settings::Loaded;
use crate::settings::secrets::Secrets;
use crate::settings::types::{Limit, LimitBackend, Settings};
use crate::status::Replica;
use crate::telemetry::health::Health;

/// All that the replicas share.
pub(super) struct Stores {
    pub(super) store: Arc<dyn Store>,
    pub(super) policies: PolicyStores,
}

/// The stores of the current policies.
#[derive(Clone, Debug)]
pub struct PolicyStores {
    pub paced: Arc<dyn PolicyStore>,
    pub keyed: Arc<dyn PolicyStore>,
}

impl PolicyStores {
    fn of(store: &Arc<RedisStore>) -> Self {
        let of = |family| Arc::new(RedisPolicies::new(Arc::clone(store), family));
        Self {
            paced: of(Family::Paced),
            keyed: of(Family::Keyed),
        }
    }
}

pub(super) fn stores(
    settings: &Settings,
    secrets: &Secrets,
    clock: Clock,
    health: &Health,
) -> Result<Stores, WireError> {
    match settings.backend.limits {
        LimitBackend::Memory => {
            let store = Arc::new(MemoryStore::new(clock));
            Ok(Stores {
                policies: PolicyStores {
                    paced: Arc::clone(&store) as Arc<dyn PolicyStore>,
                    keyed: Arc::clone(&store) as Arc<dyn PolicyStore>,
                },
                store,
            })
        }
        LimitBackend::Redis => {
            let options = options::redis(settings, secrets)?;
            let store = RedisStore::connect(&options).map_err(|e| WireError::new("redis", e))?;
            health.target("redis", store.link());
            let store = Arc::new(store);
            Ok(Stores {
                policies: PolicyStores::of(&store),
                store,
            })
        }
    }
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

/// The keyed limits in a Redis, connected.
///
/// # Errors
/// When Redis cannot be reached in time.
pub async fn keyed(options: &RedisOptions) -> Result<Arc<dyn LimitStore>, WireError> {
    Ok(connected(options).await?)
}

/// The current policies in a Redis, connected.
///
/// # Errors
/// When Redis cannot be reached in time.
pub async fn policies(options: &RedisOptions) -> Result<PolicyStores, WireError> {
    Ok(PolicyStores::of(&connected(options).await?))
}

/// What all replicas reported of themselves in a Redis.
///
/// # Errors
/// When Redis cannot be reached in time.
pub async fn replicas(options: &RedisOptions) -> Result<Vec<Replica>, WireError> {
    let heard = connected(options).await?.hear().await;
    let heard = heard.map_err(|e| WireError::new("redis", e))?;
    Ok(Replica::all(&heard))
}

async fn connected(options: &RedisOptions) -> Result<Arc<RedisStore>, WireError> {
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
