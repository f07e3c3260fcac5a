//! The way from a script to the server that runs it, however Redis is run: one server, the primary
//! that Sentinels name, or the node of a cluster that serves the keys.

use std::sync::Arc;

use redis::FromRedisValue;
use tokio::sync::watch;
use tokio::time::Instant;

use super::RedisOptions;
use super::access::Access;
use super::address::Address;
use super::cluster::Cluster;
use super::scripts::ScriptCall;
use super::sentinels::Sentinels;
use super::server::{Locator, Server};
use super::unreachable;
use sluiced_ports::link::Link;
use sluiced_ports::store::StoreError;
use sluiced_settings::types::RedisMode;

/// Supervised connections to all servers that are needed.
pub(super) struct Connection {
    access: Arc<Access>,
    to: To,
}

enum To {
    One(Arc<Server>),
    Many(Cluster),
}

impl Connection {
    /// Reads the options. Does not connect yet. Must be called on the runtime of the connections.
    pub(super) fn new(options: &RedisOptions) -> Result<Self, StoreError> {
        let access = Arc::new(Access::read(options)?);
        let to = match options.settings.mode {
            RedisMode::Cluster => To::Many(Cluster::new(Arc::clone(&access))),
            RedisMode::Sentinel => {
                let service = options.settings.sentinel_service.clone();
                let sentinels = Sentinels::new(Arc::clone(&access), service.unwrap_or_default());
                To::single(Locator::Elected(sentinels), &access)
            }
            RedisMode::Single => {
                let seed = access.seeds.first().cloned();
                let address = seed.ok_or_else(|| unreachable("there is no URL"))?;
                To::single(Locator::At(address), &access)
            }
        };
        Ok(Self { access, to })
    }

    pub(super) fn access(&self) -> &Arc<Access> {
        &self.access
    }

    /// Whether all servers in use can be reached.
    pub(super) fn link(&self) -> watch::Receiver<Link> {
        match &self.to {
            To::One(server) => server.link(),
            To::Many(cluster) => cluster.link(),
        }
    }

    /// Calls a script on the server of its first key. Ends within the response timeout, except for a call
    /// that is heard out, and at once while that server is out of reach. A script that may have run is not sent again.
    pub(super) async fn call<T: FromRedisValue>(
        &self,
        call: &ScriptCall<'_>,
    ) -> Result<T, StoreError> {
        let end = Instant::now() + self.access.response_timeout();
        match &self.to {
            To::One(server) => {
                let answer = server.call(call, end).await;
                answer.map_err(|failure| failure.error)
            }
            To::Many(cluster) => cluster.call(call, end).await,
        }
    }

    /// Keeps the connections up for as long as it is polled.
    pub(super) async fn supervise(self: Arc<Self>) {
        match &self.to {
            To::One(server) => Arc::clone(server).supervise().await,
            To::Many(cluster) => cluster.supervise().await,
        }
    }

    /// A server to subscribe to for notices.
    pub(super) fn subscription_address(&self) -> Result<Address, StoreError> {
        let at = match &self.to {
            To::One(server) => server.address(),
            To::Many(cluster) => cluster.subscription_address(),
        };
        at.ok_or_else(|| unreachable("not connected yet"))
    }

    /// Whether notices still reach `at`.
    pub(super) fn reaches(&self, at: &Address) -> bool {
        match &self.to {
            To::One(server) => server.address().is_none_or(|now| now == *at),
            To::Many(cluster) => {
                let (masters, _) = cluster.masters();
                masters.is_empty() || masters.contains(at)
            }
        }
    }

    /// The servers to try, and how they were found.
    pub(super) async fn servers(&self) -> Result<(Vec<Arc<Server>>, String), StoreError> {
        match &self.to {
            To::One(server) => {
                let how = match self.access.mode() {
                    RedisMode::Sentinel => "the primary that the Sentinels name",
                    RedisMode::Single | RedisMode::Cluster => "one server",
                };
                Ok((vec![Arc::clone(server)], how.to_owned()))
            }
            To::Many(cluster) => {
                cluster.discover().await?;
                let (masters, missing) = cluster.masters();
                let how = match missing {
                    0 => format!("a cluster of {} masters", masters.len()),
                    missing => format!(
                        "a cluster of {} masters, which leave {missing} slots unserved",
                        masters.len()
                    ),
                };
                let servers = masters.into_iter().map(|at| {
                    let access = Arc::clone(&self.access);
                    Arc::new(Server::new(Locator::At(at), access, Arc::default()))
                });
                Ok((servers.collect(), how))
            }
        }
    }
}

impl To {
    fn single(place: Locator, access: &Arc<Access>) -> Self {
        let access = Arc::clone(access);
        Self::One(Arc::new(Server::new(place, access, Arc::default())))
    }
}
