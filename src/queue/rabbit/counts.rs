//! How many messages of a route stand at the broker: ready, in wait queues, dead.
//!
//! Problem: a backlog that grows and dead letters that pile up are the first things that an operator
//! wants to see, and the broker's own metrics do not say which queues belong to a route. So each
//! replica asks the broker every 10 seconds, by passive declarations, on a channel of its own. Parked
//! messages are counted beside it (`parked`), more often, because parking is bounded by their number.

use std::sync::Arc;
use std::time::Duration;

use lapin::Channel;
use tokio::time::sleep;

use super::connections::Live;
use super::error::RabbitError;
use super::options::RouteOptions;
use super::topology::{Target, answered, find, open_channel};
use crate::core::ladder::Step;
use crate::queue::events::{Part, QueueEvents};

/// How often the broker is asked.
const EVERY: Duration = Duration::from_secs(10);
/// A wait queue that is missing is looked for again after so many rounds: each look costs a channel.
const PATIENCE: u32 = 6;

/// Counts for as long as its session lives.
pub(super) struct Counter {
    pub(super) live: Arc<Live>,
    pub(super) route: Arc<RouteOptions>,
    pub(super) events: Arc<dyn QueueEvents>,
    pub(super) bound: Duration,
}

/// A wait queue, and in how many rounds it is looked for.
type Wait = (Step, u32);

impl Counter {
    pub(super) async fn run(self) {
        let mut waits: Vec<Wait> = self.route.ladder().steps().map(|step| (step, 0)).collect();
        loop {
            // If more than this question failed, the session notices by itself.
            if let Err(error) = self.count(&mut waits).await {
                tracing::debug!(route = self.route.name, %error, "its messages are not counted");
            }
            sleep(EVERY).await;
        }
    }

    async fn count(&self, waits: &mut [Wait]) -> Result<(), RabbitError> {
        let mut channel = self.channel().await?;
        for (target, part) in [(Target::Work, Part::Ready), (Target::Dead, Part::Dead)] {
            let count = self.messages(&channel, target).await?;
            self.tell(part, count.into());
        }
        let mut waiting = 0;
        for (step, rounds) in waits {
            if *rounds > 0 {
                *rounds -= 1;
                continue;
            }
            match self.messages(&channel, Target::Wait(*step)).await {
                Ok(count) => waiting += u64::from(count),
                Err(RabbitError::Missing { .. }) => {
                    *rounds = PATIENCE;
                    channel = self.channel().await?;
                }
                Err(error) => return Err(error),
            }
        }
        self.tell(Part::Waiting, waiting);
        let closing = channel.close(200, "counted".into());
        answered("channel.close", self.bound, closing).await
    }

    async fn channel(&self) -> Result<Channel, RabbitError> {
        open_channel(&self.live.connection, self.bound).await
    }

    async fn messages(&self, channel: &Channel, target: Target) -> Result<u32, RabbitError> {
        let queue = target.queue(&self.route.settings.queue);
        Ok(find(channel, &queue, self.bound).await?.messages)
    }

    fn tell(&self, part: Part, count: u64) {
        self.events.counted(&self.route.name, part, count);
    }
}
