//! The nodes of a Redis Cluster: which one serves a limit, and a connection to each in use.
//!
//! Any node is asked for the map of the slots, again after every redirection or loss, and now and
//! then. A redirected script has not run, but it is not sent again here: the caller asks again,
//! with a new time. So one call is one script, and a node that fails affects only the limits that
//! it serves.

use std::collections::BTreeMap;
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
use super::address::Address;
use super::hash_slots::HashSlotMap;
use super::scripts::ScriptCall;
use super::server::{Locator, Server};
use super::{refused, unreachable};
use sluiced_ports::link::Link;
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
    map: Mutex<HashSlotMap>,
    nodes: Mutex<BTreeMap<Address, Node>>,
    link: watch::Sender<Link>,
    /// The map may be out of date, or a link changed.
    stale: Arc<Notify>,
    /// Callers have runtimes of their own, which end before this one.
    runtime: Handle,
}

struct Node {
    server: Arc<Server>,
    /// Its link as of the last round.
    link: watch::Receiver<Link>,
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
        let slot = call.hash_slot();
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
                lock(&self.map).note_moved(slot, to);
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
                link: server.link(),
                server,
                _supervisor: AbortOnDropHandle::new(supervisor),
            }
        });
        Arc::clone(&node.server)
    }

    /// Keeps the map up to date for as long as it is polled.
    pub(super) async fn supervise(&self) {
        let mut last_reason = None;
        loop {
            let found = self.discover().await;
            let failure = found.err();
            if let Some(error) = &failure {
                let reason = error.to_string();
                if last_reason.as_ref() != Some(&reason) {
                    warn!(reason, "cannot learn which node serves what, trying again");
                    last_reason = Some(reason);
                }
            } else {
                last_reason = None;
            }
            let (link, has_changed) = self.state(failure.as_ref());
            let well = link.is_up() && failure.is_none();
            // What waits for a connection that was replaced must not take each round for one, nor miss one that was
            // replaced between two rounds.
            self.link.send_if_modified(|old| {
                let is_new = *old != link || has_changed;
                *old = link;
                is_new
            });
            sleep(PAUSE).await;
            let rest = if well { CALM } else { TROUBLE };
            // The next round also reports the links of the nodes.
            drop(timeout(rest, self.stale.notified()).await);
        }
    }

    /// The link to the cluster, from those of all nodes in use, and whether one of them changed since this was called
    /// last.
    fn state(&self, failure: Option<&StoreError>) -> (Link, bool) {
        let (mut down, mut has_changed) = (None, false);
        for (at, node) in lock(&self.nodes).iter_mut() {
            has_changed |= node.link.has_changed().unwrap_or(false);
            if let Link::Down(reason) = &*node.link.borrow_and_update() {
                down = down.or_else(|| Some(format!("{at}: {reason}")));
            }
        }
        if lock(&self.map).is_empty() {
            let reason = failure.map_or_else(String::new, ToString::to_string);
            return (Link::Down(reason.into()), has_changed);
        }
        let link = down.map_or(Link::Up, |reason| Link::Down(reason.into()));
        (link, has_changed)
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
    async fn ask(&self) -> Result<HashSlotMap, StoreError> {
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

    async fn ask_one(&self, at: Address) -> Result<HashSlotMap, StoreError> {
        let asking = async {
            let mut connection = self.access.connection(Peer::Redis, &at).await?;
            let mut question = redis::cmd("CLUSTER");
            question.arg("SLOTS");
            question.query_async::<Value>(&mut connection).await
        };
        let bound = self.access.connect_timeout();
        let asked = timeout(bound, asking).await;
        if let Ok(Err(error)) = &asked
            && let Some(detail) = error.detail()
            && detail.contains("cluster support disabled")
        {
            let reason = "is no node of a cluster: set redis.mode to \"single\"";
            return Err(refused(&format!("{at} {reason}")));
        }
        let reply = self.access.explain(asked, bound)?;
        HashSlotMap::read(&reply, &at)
            .filter(|map| !map.is_empty())
            .ok_or_else(|| unreachable(&format!("{at} knows no slots of its cluster")))
    }

    /// The masters, and the number of slots that none of them serves.
    pub(super) fn masters(&self) -> (Vec<Address>, usize) {
        let map = lock(&self.map);
        (map.masters().into_iter().cloned().collect(), map.missing())
    }

    /// A node to subscribe to: notices go to all of them.
    pub(super) fn subscription_address(&self) -> Option<Address> {
        let (mut masters, _) = self.masters();
        masters.shuffle(&mut rand::rng());
        masters.pop()
    }
}
