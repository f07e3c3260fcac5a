//! The parked queues of a route, and how many messages are in them, for all replicas together.
//!
//! Only the broker knows the number. It is asked every second while messages are parked, and less
//! often otherwise. What this replica parks is counted at once, so a single replica keeps the bound
//! of parking; several replicas together may exceed it by what the others park in a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::sleep;

use super::connections::Live;
use super::error::RabbitError;
use super::options::RouteOptions;
use super::topology::{Target, find, left_behind, open_channel, target_queues};
use crate::core::parking::Space;
use crate::queue::events::{Part, QueueEvents};

/// How often the broker is asked while messages are parked …
const OFTEN: Duration = Duration::from_secs(1);
/// … and so much less often while none is: another replica may begin to park.
const SELDOM: u32 = 10;
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
    pub(super) spaces: Vec<Space>,
    pub(super) events: Arc<dyn QueueEvents>,
    pub(super) bound: Duration,
}

impl ParkedCounter {
    pub(super) async fn run(self) {
        loop {
            match self.count().await {
                Ok(count) => {
                    self.events.counted(&self.route.route, Part::Parked, count);
                    // What was added meanwhile is in the next count.
                    self.parked_queues.set(count);
                }
                // If more than this question failed, the session notices by itself.
                Err(error) => {
                    tracing::debug!(route = self.route.route, %error, "parked messages are not counted");
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
        for space in &self.spaces {
            let queue = Target::Parked(*space).queue(&self.route.queue);
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

/// The spaces of parked messages that are consumed beside the work queue. A route that parks
/// declares all of them. A route that does not park consumes those that an earlier configuration
/// left behind, so that no message stays there.
///
/// `bare` remembers that a route that does not park found none left behind.
pub(super) async fn spaces(
    route: &RouteOptions,
    bare: &AtomicBool,
    live: &Live,
    bound: Duration,
) -> Result<Vec<Space>, RabbitError> {
    if route.parks {
        let targets = Space::all().map(Target::Parked);
        target_queues(live, route, targets, bound).await?;
        return Ok(Space::all().collect());
    }
    if bare.load(Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    let found = left_behind(&live.connection, route, bound).await?;
    bare.store(found.is_empty(), Ordering::Relaxed);
    if !found.is_empty() {
        let messages: u32 = found.iter().map(|(_, census)| census.messages).sum();
        tracing::info!(
            route = route.route,
            queue = route.queue,
            messages,
            "parked queues of an earlier configuration are consumed too; delete them when they are empty"
        );
    }
    Ok(found.into_iter().map(|(space, _)| space).collect())
}
