//! The parked queues of a route, and how many messages are in them, for all replicas together.
//!
//! Only the broker knows the number. It is asked every second while messages are parked, and less
//! often otherwise. What this replica parks is counted at once, so a single replica keeps the bound
//! of parking; several replicas together may exceed it by what the others park in a second.
//!
//! A route that does not park consumes what an earlier configuration left in such queues, so that no message
//! stays there ([`LeftBehind`]). They may appear at any time: another replica with the other configuration
//! makes them, and ends.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::sleep;

use super::connections::Live;
use super::error::RabbitError;
use super::options::RouteOptions;
use super::topology::{Target, find, left_behind, open_channel};
use crate::core::parking::Space;
use crate::queue::events::{Part, QueueEvents};

/// How often the broker is asked while messages are parked …
const OFTEN: Duration = Duration::from_secs(1);
/// … and so much less often while none is: another replica may begin to park.
const SELDOM: u32 = 10;
/// How often a route that does not park looks for parked queues, in the end: a look for a queue that is
/// missing costs a channel, and a line in the broker's log. After a start it looks more often, for other
/// replicas that still park are likely to stop now.
const LOOK: Duration = Duration::from_secs(60);
/// Once there are some, what is in them is counted as often as all other queues are.
const COUNT: Duration = Duration::from_secs(10);
/// The number is not known, so nothing can be parked.
const UNKNOWN: u64 = u64::MAX;

/// The number of a route's parked messages. Outlives its sessions.
#[derive(Debug)]
pub(super) struct ParkedQueues(AtomicU64);

impl Default for ParkedQueues {
    fn default() -> Self {
        Self(AtomicU64::new(UNKNOWN))
    }
}

impl ParkedQueues {
    /// How many messages are parked; `None` while that is unknown.
    pub(super) fn messages(&self) -> Option<u64> {
        match self.0.load(Ordering::Relaxed) {
            UNKNOWN => None,
            count => Some(count),
        }
    }

    /// One more is being parked.
    pub(super) fn add(&self) {
        let more = |count| (count != UNKNOWN).then(|| count + 1);
        // What is unknown stays unknown.
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .ok();
    }

    fn set(&self, count: u64) {
        self.0.store(count, Ordering::Relaxed);
    }
}

/// Keeps the count up to date for as long as its session lives; unknown afterwards.
pub(super) struct ParkedCounter {
    pub(super) parked_queues: Arc<ParkedQueues>,
    pub(super) live: Arc<Live>,
    pub(super) route: Arc<RouteOptions>,
    pub(super) events: Arc<dyn QueueEvents>,
    pub(super) bound: Duration,
}

impl ParkedCounter {
    pub(super) async fn run(self) {
        loop {
            match self.count().await {
                Ok(count) => {
                    self.events.counted(&self.route.name, Part::Parked, count);
                    // What was added meanwhile is in the next count.
                    self.parked_queues.set(count);
                }
                // If more than this question failed, the session notices by itself.
                Err(error) => {
                    tracing::debug!(route = self.route.name, %error, "parked messages are not counted");
                    self.parked_queues.set(UNKNOWN);
                }
            }
            for _ in 0..SELDOM {
                sleep(OFTEN).await;
                if self.parked_queues.messages() != Some(0) {
                    break;
                }
            }
        }
    }

    async fn count(&self) -> Result<u64, RabbitError> {
        let channel = open_channel(&self.live.connection, self.bound).await?;
        let mut count = 0;
        for space in Space::all() {
            let queue = Target::Parked(space).queue(&self.route.settings.queue);
            count += u64::from(find(&channel, &queue, self.bound).await?.messages);
        }
        // Its answer changes nothing.
        channel.close(200, "counted".into()).await.ok();
        Ok(count)
    }
}

impl Drop for ParkedCounter {
    fn drop(&mut self) {
        self.parked_queues.set(UNKNOWN);
    }
}

/// Looks for parked queues of a route that does not park, for as long as its session lives.
pub(super) struct LeftBehind {
    pub(super) live: Arc<Live>,
    pub(super) route: Arc<RouteOptions>,
    pub(super) events: Arc<dyn QueueEvents>,
    pub(super) bound: Duration,
    /// To the session: those that are there. It knows which it consumes.
    pub(super) found: mpsc::UnboundedSender<Vec<Space>>,
}

impl LeftBehind {
    pub(super) async fn run(self) {
        let (mut known, mut pause) = (BTreeSet::new(), COUNT);
        loop {
            // If more than this question failed, the session notices by itself.
            if let Err(error) = self.look(&mut known).await {
                tracing::debug!(route = self.route.name, %error, "no look for parked messages");
            }
            sleep(if known.is_empty() { pause } else { COUNT }).await;
            pause = LOOK.min(pause * 2);
        }
    }

    async fn look(&self, known: &mut BTreeSet<Space>) -> Result<(), RabbitError> {
        let found = left_behind(&self.live.connection, &self.route, self.bound).await?;
        let messages = found
            .iter()
            .map(|(_, counts)| u64::from(counts.messages))
            .sum();
        let spaces: BTreeSet<Space> = found.into_iter().map(|(space, _)| space).collect();
        if !spaces.is_subset(known) {
            tracing::info!(
                route = self.route.name,
                queue = self.route.settings.queue,
                messages,
                "parked queues of an earlier configuration are consumed too; delete them when they are empty"
            );
        }
        *known = spaces;
        if !known.is_empty() {
            // Without its session this task ends too.
            drop(self.found.send(known.iter().copied().collect()));
            self.events
                .counted(&self.route.name, Part::Parked, messages);
        }
        Ok(())
    }
}
