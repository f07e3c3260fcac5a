//! The nodes of a Redis Cluster: which one serves a limit, and a connection to each in use.
//!
//! From the cluster specification: a key lies in one of 16384 slots, which is CRC16 (XMODEM) of the key modulo 16384, and
//! where a key holds a non-empty text in braces, only that text counts. All keys of one decision carry the same tag, so
//! they lie in one slot, and one script may touch them all.
//!
//! Any node is asked for the map of the slots, again after every redirection or loss, and now and
//! then. A redirected script has not run, but it is not sent again here: the caller asks again,
//! with a new time. So one call is one script, and a node that fails affects only the limits that
//! it serves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use rand::seq::SliceRandom as _;
use redis::{FromRedisValue, Value};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, warn};

use super::access::{Access, Peer};
use super::connection::Address;
use super::scripts::ScriptCall;
use super::server::{Locator, Server};
use super::{refused, unreachable};
use sluiced_ports::connect::Link;
use sluiced_ports::lock;
use sluiced_ports::store::StoreError;

/// How often the map is asked for normally, and during a fault.
const CALM: Duration = Duration::from_secs(30);
const TROUBLE: Duration = Duration::from_secs(1);
/// The map is never asked for more often.
const PAUSE: Duration = Duration::from_millis(100);
/// How many nodes are asked before giving up for now, and how long each has before the next one
/// is asked as well.
const ASKED: usize = 8;
const HEAD_START: Duration = Duration::from_millis(250);

/// The nodes.
pub(super) struct Cluster {
    access: Arc<Access>,
    map: Mutex<SlotMap>,
    nodes: Mutex<BTreeMap<Address, Node>>,
    link: watch::Sender<Link>,
    /// The map may be out of date, or a link changed.
    stale: Arc<Notify>,
    /// Callers have runtimes of their own, which end before this one.
    runtime: Handle,
}

struct Node {
    server: Arc<Server>,
    _supervisor: AbortOnDropHandle<()>,
}

impl Cluster {
    /// Does not connect yet. Must be called on the runtime of the connections.
    pub(super) fn new(access: Arc<Access>) -> Self {
        Self {
            access,
            map: Mutex::default(),
            nodes: Mutex::default(),
            link: watch::Sender::new(Link::Connecting),
            stale: Arc::new(Notify::new()),
            runtime: Handle::current(),
        }
    }

    pub(super) fn link(&self) -> watch::Receiver<Link> {
        self.link.subscribe()
    }

    /// Calls a script on the master of its keys.
    pub(super) async fn call<T: FromRedisValue>(
        &self,
        call: &ScriptCall<'_>,
        end: Instant,
    ) -> Result<T, StoreError> {
        let slot = call.slot();
        self.mapped(end).await;
        let Some(master) = lock(&self.map).master(slot).cloned() else {
            self.stale.notify_one();
            return Err(match &*self.link.borrow() {
                Link::Down(reason) => unreachable(reason),
                _ => unreachable(&format!("no node of the cluster serves slot {slot}")),
            });
        };
        let server = self.node(&master);
        server.call(call, end).await.map_err(|failure| {
            if let Some((slot, to)) = failure.moved {
                debug!(slot, %to, "a slot moved");
                lock(&self.map).follow(slot, to);
            }
            if failure.stale {
                self.stale.notify_one();
            }
            failure.error
        })
    }

    /// Waits for the first map.
    async fn mapped(&self, end: Instant) {
        let mut link = self.link.subscribe();
        let tried = link.wait_for(|link| *link != Link::Connecting);
        // Without a map the caller gets an error for that.
        drop(timeout_at(end, tried).await);
    }

    /// The node at `at`, connecting since its first use.
    fn node(&self, at: &Address) -> Arc<Server> {
        let mut nodes = lock(&self.nodes);
        let node = nodes.entry(at.clone()).or_insert_with(|| {
            let server = Arc::new(Server::new(
                Locator::At(at.clone()),
                Arc::clone(&self.access),
                Arc::clone(&self.stale),
            ));
            let supervisor = self.runtime.spawn(Arc::clone(&server).supervise());
            Node {
                server,
                _supervisor: AbortOnDropHandle::new(supervisor),
            }
        });
        Arc::clone(&node.server)
    }

    /// Keeps the map up to date for as long as it is polled.
    pub(super) async fn supervise(&self) {
        let mut said = None;
        loop {
            let found = self.discover().await;
            let failure = found.err();
            if let Some(error) = &failure {
                let reason = error.to_string();
                if said.as_ref() != Some(&reason) {
                    warn!(reason, "cannot learn which node serves what, trying again");
                    said = Some(reason);
                }
            } else {
                said = None;
            }
            let link = self.state(failure.as_ref());
            let well = link.is_up() && failure.is_none();
            self.link.send_replace(link);
            sleep(PAUSE).await;
            let rest = if well { CALM } else { TROUBLE };
            // The next round also reports the links of the nodes.
            drop(timeout(rest, self.stale.notified()).await);
        }
    }

    /// The link to the cluster, from those of all nodes in use.
    fn state(&self, failure: Option<&StoreError>) -> Link {
        if lock(&self.map).is_empty() {
            let reason = failure.map_or_else(String::new, ToString::to_string);
            return Link::Down(reason.into());
        }
        let nodes = lock(&self.nodes);
        let down = nodes.iter().find_map(|(at, node)| {
            let link = node.server.link();
            match &*link.borrow() {
                Link::Down(reason) => Some(format!("{at}: {reason}")),
                Link::Connecting | Link::Up => None,
            }
        });
        down.map_or(Link::Up, |reason| Link::Down(reason.into()))
    }

    /// Asks for the map and lets go of nodes that are no masters any more.
    pub(super) async fn discover(&self) -> Result<(), StoreError> {
        let map = self.ask().await?;
        let masters = map.masters();
        lock(&self.nodes).retain(|at, _| masters.contains(at));
        *lock(&self.map) = map;
        Ok(())
    }

    /// The map of the first node that answers: the known nodes are asked in a random order, each
    /// with a head start on the next.
    async fn ask(&self) -> Result<SlotMap, StoreError> {
        let mut waiting = self.known();
        let mut asked = FuturesUnordered::new();
        let mut failure = None;
        loop {
            if let Some(at) = waiting.pop() {
                asked.push(self.ask_one(at));
            } else if asked.is_empty() {
                return Err(failure.unwrap_or_else(|| unreachable("no node is known")));
            }
            let answer = if waiting.is_empty() {
                asked.next().await
            } else {
                timeout(HEAD_START, asked.next()).await.unwrap_or_default()
            };
            match answer {
                Some(Ok(map)) => return Ok(map),
                // An error that needs a change is more useful than a node that is gone.
                Some(Err(error)) if failure.is_none() || !error.is_transient() => {
                    failure = Some(error);
                }
                Some(Err(_)) | None => {}
            }
        }
    }

    /// Some of the known nodes, the seeds last, because they may be long gone.
    fn known(&self) -> Vec<Address> {
        let mut masters: Vec<_> = lock(&self.map).masters().into_iter().cloned().collect();
        let mut seeds = self.access.seeds.clone();
        seeds.retain(|seed| !masters.contains(seed));
        masters.shuffle(&mut rand::rng());
        seeds.shuffle(&mut rand::rng());
        // Some seeds are asked even if no master of a large cluster answers.
        masters.truncate(ASKED / 2);
        seeds.truncate(ASKED - masters.len());
        seeds.extend(masters);
        seeds
    }

    async fn ask_one(&self, at: Address) -> Result<SlotMap, StoreError> {
        let asking = async {
            let mut connection = self.access.connection(Peer::Redis, &at).await?;
            let mut question = redis::cmd("CLUSTER");
            question.arg("SLOTS");
            question.query_async::<Value>(&mut connection).await
        };
        let bound = self.access.connect_timeout();
        let asked = timeout(bound, asking).await;
        if let Ok(Err(error)) = &asked
            && let Some(said) = error.detail()
            && said.contains("cluster support disabled")
        {
            let reason = "is no node of a cluster: set redis.mode to \"single\"";
            return Err(refused(&format!("{at} {reason}")));
        }
        let reply = self.access.explain(asked, bound)?;
        SlotMap::read(&reply, &at)
            .filter(|map| !map.is_empty())
            .ok_or_else(|| unreachable(&format!("{at} knows no slots of its cluster")))
    }

    /// The masters, and the number of slots that none of them serves.
    pub(super) fn masters(&self) -> (Vec<Address>, usize) {
        let map = lock(&self.map);
        (map.masters().into_iter().cloned().collect(), map.missing())
    }

    /// A node to subscribe to: notices go to all of them.
    pub(super) fn listening_post(&self) -> Option<Address> {
        let (mut masters, _) = self.masters();
        masters.shuffle(&mut rand::rng());
        masters.pop()
    }
}

/// One of the 16384.
pub(super) type Slot = u16;

/// How many there are.
const SLOTS: u16 = 16384;

/// The slot of a key.
pub(super) fn slot_of(key: &str) -> Slot {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map(|(tag, _)| tag)
        .filter(|tag| !tag.is_empty());
    crc16(tag.unwrap_or(key).as_bytes()) % SLOTS
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            let shifted = crc << 1;
            if crc & 0x8000 == 0 {
                shifted
            } else {
                shifted ^ 0x1021
            }
        })
    })
}

/// Which master serves which slots, as one node reported it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SlotMap {
    ranges: Vec<(Slot, Slot, Address)>,
    /// Slots that were redirected since.
    moved: Vec<(Slot, Address)>,
}

impl SlotMap {
    /// Reads the reply of `CLUSTER SLOTS` of the node at `teller`. `None`: it is no such reply.
    pub(super) fn read(reply: &Value, teller: &Address) -> Option<Self> {
        let mut ranges = Vec::new();
        for range in array(reply)? {
            let [first, last, master, ..] = array(range)? else {
                return None;
            };
            let [host, port, ..] = array(master)? else {
                return None;
            };
            let host = match host {
                Value::Nil => "",
                other => text(other)?,
            };
            let address = Address {
                host: Address::or_own(host, teller),
                port: number(port)?,
            };
            ranges.push((number(first)?, number(last)?, address));
        }
        Some(Self {
            ranges,
            moved: Vec::new(),
        })
    }

    /// Whether no slot is known at all.
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The master of a slot.
    pub(super) fn master(&self, slot: Slot) -> Option<&Address> {
        let moved = self.moved.iter().rev();
        moved
            .filter(|(at, _)| *at == slot)
            .map(|(_, to)| to)
            .next()
            .or_else(|| {
                let mut ranges = self.ranges.iter();
                let range = ranges.find(|(first, last, _)| (*first..=*last).contains(&slot));
                range.map(|(_, _, master)| master)
            })
    }

    /// Every master, once.
    pub(super) fn masters(&self) -> BTreeSet<&Address> {
        let moved = self.moved.iter().map(|(_, to)| to);
        let ranges = self.ranges.iter().map(|(_, _, master)| master);
        ranges.chain(moved).collect()
    }

    /// A redirection: `slot` is served by `to` now.
    pub(super) fn follow(&mut self, slot: Slot, to: Address) {
        self.moved.retain(|(at, _)| *at != slot);
        self.moved.push((slot, to));
    }

    /// Slots that no master serves.
    pub(super) fn missing(&self) -> usize {
        let served: usize = self
            .ranges
            .iter()
            .map(|(first, last, _)| usize::from(last.saturating_sub(*first)) + 1)
            .sum();
        usize::from(SLOTS).saturating_sub(served)
    }
}

fn array(value: &Value) -> Option<&[Value]> {
    match value {
        Value::Array(values) => Some(values),
        _ => None,
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

fn number(value: &Value) -> Option<u16> {
    match value {
        Value::Int(number) => u16::try_from(*number).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
