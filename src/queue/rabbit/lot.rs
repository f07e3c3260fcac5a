//! How many messages stand parked on a route, all replicas' together.
//!
//! Only the broker knows, and it is asked: every second while messages are parked or stand there,
//! and now and then else. What this replica parks counts at once, so the bound of parking holds for
//! a replica alone; several may go beyond it by what the others park in a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::sleep;

use super::connections::Live;
use super::error::RabbitError;
use super::options::RouteOptions;
use super::topology::{Target, find, open_channel};
use crate::core::parking::Space;
use crate::queue::events::QueueEvents;

/// How often the broker is asked while something stands parked …
const OFTEN: Duration = Duration::from_secs(1);
/// … and so much less often while nothing does: another replica may have begun.
const SELDOM: u32 = 10;
/// Nothing can be parked.
const UNKNOWN: u64 = u64::MAX;

/// A route's parked messages. Survives its sessions.
#[derive(Debug)]
pub(super) struct Lot(AtomicU64);

impl Default for Lot {
    fn default() -> Self {
        Self(AtomicU64::new(UNKNOWN))
    }
}

impl Lot {
    /// How many stand there; `None` while nobody knows.
    pub(super) fn standing(&self) -> Option<u64> {
        match self.0.load(Ordering::Relaxed) {
            UNKNOWN => None,
            standing => Some(standing),
        }
    }

    /// One more is on its way.
    pub(super) fn add(&self) {
        let more = |standing| (standing != UNKNOWN).then(|| standing + 1);
        // What is unknown stays unknown.
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .ok();
    }

    fn set(&self, standing: u64) {
        self.0.store(standing, Ordering::Relaxed);
    }
}

/// Keeps a lot up to date for as long as its session lives; unknown afterwards.
pub(super) struct Counting {
    pub(super) lot: Arc<Lot>,
    pub(super) live: Arc<Live>,
    pub(super) route: Arc<RouteOptions>,
    pub(super) spaces: Vec<Space>,
    pub(super) events: Arc<dyn QueueEvents>,
    pub(super) bound: Duration,
}

impl Counting {
    pub(super) async fn run(self) {
        loop {
            match self.count().await {
                Ok(standing) => {
                    self.events.parked(&self.route.route, standing);
                    // What was added meanwhile is in the next count.
                    self.lot.set(standing);
                }
                // The session notices by itself if it is more than this question that failed.
                Err(error) => {
                    tracing::debug!(route = self.route.route, %error, "parked messages are not counted");
                    self.lot.set(UNKNOWN);
                }
            }
            for _ in 0..SELDOM {
                sleep(OFTEN).await;
                if self.lot.standing() != Some(0) {
                    break;
                }
            }
        }
    }

    async fn count(&self) -> Result<u64, RabbitError> {
        let channel = open_channel(&self.live.connection, self.bound).await?;
        let mut standing = 0;
        for space in &self.spaces {
            let queue = Target::Parked(*space).queue(&self.route.queue);
            standing += u64::from(find(&channel, &queue, self.bound).await?.messages);
        }
        // Its answer changes nothing.
        channel.close(200, "counted".into()).await.ok();
        Ok(standing)
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        self.lot.set(UNKNOWN);
    }
}
