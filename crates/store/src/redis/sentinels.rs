//! The Sentinels, and the primary that they name.
//!
//! A Sentinel that was cut off may still name the old primary. Each change of the primary has an
//! epoch of its own that only grows, so the answer with the highest epoch counts, and the server
//! itself must report that it is a primary before it is used. Connections to Sentinels are kept,
//! because a primary in use is compared with their answer every second: one that was cut off
//! together with this replica would go on granting beside its successor.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use redis::RedisError;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::access::{Access, Peer};
use super::address::Address;
use super::stream::DrivenConnection;
use super::{refused, unreachable};
use sluiced_ports::store::StoreError;

/// How long the last Sentinels are waited for once a majority has answered.
const GRACE: Duration = Duration::from_millis(50);

/// All Sentinels that the configuration names.
pub(super) struct Sentinels {
    access: Arc<Access>,
    service: String,
    all: Vec<Sentinel>,
}

/// A Sentinel that the configuration names.
struct Sentinel {
    at: Address,
    connection: Mutex<Option<DrivenConnection>>,
}

/// The answer of one Sentinel.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SentinelAnswer {
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

    /// The primary in the answer with the highest epoch. A majority of the Sentinels is waited for; if fewer can be
    /// reached, these decide. Ends within the connect and the response timeout.
    pub(super) async fn primary(&self) -> Result<Address, StoreError> {
        let mut asked: FuturesUnordered<_> =
            self.all.iter().map(|sentinel| self.ask(sentinel)).collect();
        let majority = self.all.len() / 2 + 1;
        let mut seen: Vec<SentinelAnswer> = Vec::new();
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

    async fn ask(&self, sentinel: &Sentinel) -> Result<SentinelAnswer, StoreError> {
        self.question(sentinel).await.map_err(|error| match error {
            StoreError::Unreachable { reason, .. } => {
                unreachable(&format!("the Sentinel at {}: {reason}", sentinel.at))
            }
            StoreError::Refused { reason, .. } => {
                refused(&format!("the Sentinel at {}: {reason}", sentinel.at))
            }
            StoreError::Timeout { .. } => error,
        })
    }

    async fn question(&self, sentinel: &Sentinel) -> Result<SentinelAnswer, StoreError> {
        let mut kept = sentinel.connection.lock().await;
        let mut connection = match kept.as_ref() {
            Some(connection) => connection.clone(),
            None => kept.insert(self.connect(sentinel).await?).clone(),
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
        let fields: HashMap<String, String> = self.access.answer(asked, bound)?;
        sighting(&fields).ok_or_else(|| refused("it names no address"))
    }

    async fn connect(&self, sentinel: &Sentinel) -> Result<DrivenConnection, StoreError> {
        let bound = self.access.connect_timeout();
        let connecting = self.access.connection(Peer::Sentinel, &sentinel.at);
        let connected = timeout(bound, connecting).await;
        self.access.answer(connected, bound)
    }

    /// What an operator must change, if an error is about that.
    fn mistake(&self, error: &RedisError) -> Option<String> {
        let detail = error.detail()?;
        let service = &self.service;
        if detail.contains("unknown command") {
            return Some("this is no Sentinel".to_owned());
        }
        detail
            .contains("No such master")
            .then(|| format!("it knows no `{service}`: see `sentinel monitor` in its file"))
    }
}

fn sighting(said: &HashMap<String, String>) -> Option<SentinelAnswer> {
    let number = |name| said.get(name)?.parse::<u64>().ok();
    Some(SentinelAnswer {
        epoch: number("config-epoch")?,
        primary: Address::new(said.get("ip")?, u16::try_from(number("port")?).ok()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sighting_needs_an_address_and_an_epoch() {
        let mut said: HashMap<String, String> = [
            ("ip", "10.0.0.1"),
            ("port", "6379"),
            ("config-epoch", "7"),
            ("flags", "master"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        let seen = sighting(&said).expect("a sighting");
        assert_eq!(
            (seen.epoch, seen.primary),
            (7, Address::new("10.0.0.1", 6379))
        );
        said.insert("port".to_owned(), "70000".to_owned());
        assert_eq!(sighting(&said), None);
    }
}
