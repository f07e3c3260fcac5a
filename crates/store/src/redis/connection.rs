//! The way from a script to the server that runs it, however Redis is run: one server, the primary
//! that Sentinels name, or the node of a cluster that serves the keys.
//!
//! A Sentinel that was cut off may still name the old primary. Each change of the primary has an
//! epoch of its own that only grows, so the answer with the highest epoch counts, and the server
//! itself must report that it is a primary before it is used. Connections to Sentinels are kept,
//! because a primary in use is compared with their answer every second: one that was cut off
//! together with this replica would go on granting beside its successor.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use redis::{FromRedisValue, RedisError};
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, timeout};

use super::RedisOptions;
use super::access::{Access, Peer};
use super::cluster::Cluster;
use super::scripts::ScriptCall;
use super::server::{Locator, Server};
use super::stream::Driven;
use super::{refused, unreachable};
use sluiced_ports::connect::Link;
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
                To::one(Locator::Elected(sentinels), &access)
            }
            RedisMode::Single => {
                let at = access.seeds.first().cloned();
                let at = at.ok_or_else(|| unreachable("there is no URL"))?;
                To::one(Locator::At(at), &access)
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
    /// that is heard out, and at once while that server is out of reach. A script is never sent twice.
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
    pub(super) fn listening_post(&self) -> Result<Address, StoreError> {
        let at = match &self.to {
            To::One(server) => server.address(),
            To::Many(cluster) => cluster.listening_post(),
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
    fn one(place: Locator, access: &Arc<Access>) -> Self {
        let access = Arc::clone(access);
        Self::One(Arc::new(Server::new(place, access, Arc::default())))
    }
}

/// A host, by name or number, and its port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Address {
    pub(super) host: Arc<str>,
    pub(super) port: u16,
}

impl Address {
    pub(super) fn new(host: &str, port: u16) -> Self {
        Self {
            host: Arc::from(host),
            port,
        }
    }

    /// `host:port` as redirections write it: IPv6 without brackets, and no host at all if it is
    /// that of `asked`.
    pub(super) fn redirected(text: &str, asked: &Self) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse().ok()?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Some(Self {
            host: Self::or_own(host, asked),
            port,
        })
    }

    /// A node that does not know its own name reports nothing or `?`: its address is the one that was
    /// asked.
    pub(super) fn or_own(host: &str, asked: &Self) -> Arc<str> {
        match host {
            "" | "?" => Arc::clone(&asked.host),
            host => Arc::from(host),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// How long the last Sentinels are waited for once a majority has answered.
const GRACE: Duration = Duration::from_millis(50);

/// All Sentinels that the configuration names.
pub(super) struct Sentinels {
    access: Arc<Access>,
    service: String,
    all: Vec<Sentinel>,
}

/// One of them.
struct Sentinel {
    at: Address,
    connection: Mutex<Option<Driven>>,
}

/// The answer of one Sentinel.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sighting {
    epoch: u64,
    primary: Address,
}

impl Sentinels {
    pub(super) fn new(access: Arc<Access>, service: String) -> Self {
        let all = access.seeds.iter().map(|at| Sentinel {
            at: at.clone(),
            connection: Mutex::new(None),
        });
        Self {
            all: all.collect(),
            access,
            service,
        }
    }

    /// The primary by the latest change that a majority of the Sentinels know, or those that
    /// can be reached. Ends within the connect and the response timeout.
    pub(super) async fn primary(&self) -> Result<Address, StoreError> {
        let mut asked: FuturesUnordered<_> = self.all.iter().map(|one| self.ask(one)).collect();
        let majority = self.all.len() / 2 + 1;
        let mut seen: Vec<Sighting> = Vec::new();
        let mut failure = None;
        loop {
            let answer = if seen.len() < majority {
                asked.next().await
            } else {
                timeout(GRACE, asked.next()).await.unwrap_or_default()
            };
            let Some(answer) = answer else { break };
            match answer {
                Ok(sighting) => seen.push(sighting),
                // A wrong name or password is a more useful error than a Sentinel that is gone.
                Err(error) if failure.is_none() || !error.is_transient() => failure = Some(error),
                Err(_) => {}
            }
        }
        let latest = seen.into_iter().max_by_key(|sighting| sighting.epoch);
        latest
            .map(|sighting| sighting.primary)
            .ok_or_else(|| failure.unwrap_or_else(|| refused("there is no Sentinel to ask")))
    }

    async fn ask(&self, one: &Sentinel) -> Result<Sighting, StoreError> {
        self.question(one).await.map_err(|error| match error {
            StoreError::Unreachable { reason, .. } => {
                unreachable(&format!("the Sentinel at {}: {reason}", one.at))
            }
            StoreError::Refused { reason, .. } => {
                refused(&format!("the Sentinel at {}: {reason}", one.at))
            }
            StoreError::Timeout { .. } => error,
        })
    }

    async fn question(&self, one: &Sentinel) -> Result<Sighting, StoreError> {
        let mut kept = one.connection.lock().await;
        let mut connection = match kept.as_ref() {
            Some(connection) => connection.clone(),
            None => kept.insert(self.connect(one).await?).clone(),
        };
        let mut question = redis::cmd("SENTINEL");
        question.arg("MASTER").arg(&self.service);
        let bound = self.access.response_timeout();
        let asked = timeout(bound, question.query_async(&mut connection)).await;
        if !matches!(asked, Ok(Ok(_))) {
            *kept = None;
        }
        if let Ok(Err(error)) = &asked
            && let Some(reason) = self.mistake(error)
        {
            return Err(refused(&reason));
        }
        let said: HashMap<String, String> = self.access.answer(asked, bound)?;
        sighting(&said).ok_or_else(|| refused("it names no address"))
    }

    async fn connect(&self, one: &Sentinel) -> Result<Driven, StoreError> {
        let bound = self.access.connect_timeout();
        let connecting = self.access.connection(Peer::Sentinel, &one.at);
        let connected = timeout(bound, connecting).await;
        self.access.answer(connected, bound)
    }

    /// What an operator must change, if an error is about that.
    fn mistake(&self, error: &RedisError) -> Option<String> {
        let said = error.detail()?;
        let service = &self.service;
        if said.contains("unknown command") {
            return Some("this is no Sentinel".to_owned());
        }
        said.contains("No such master")
            .then(|| format!("it knows no `{service}`: see `sentinel monitor` in its file"))
    }
}

fn sighting(said: &HashMap<String, String>) -> Option<Sighting> {
    let number = |name| said.get(name)?.parse::<u64>().ok();
    Some(Sighting {
        epoch: number("config-epoch")?,
        primary: Address::new(said.get("ip")?, u16::try_from(number("port")?).ok()?),
    })
}

#[cfg(test)]
mod tests;
