//! Keeps queues of ours from expiring while they hold messages.
//!
//! Problem: a policy with `expires` on all queues deletes one that is unused for this long, with its messages. Unused
//! means: no consumers, nothing read, not declared again. A wait queue and the dead letters are never consumed. A
//! classic queue is kept by each look at it, so by counting its messages (`counts`). A quorum queue is not (tried on
//! RabbitMQ 3.10; its page about quorum queues says so too), only by reading from it. So one message of each quorum
//! queue that holds some is read now and then, and given back at once: it keeps its place and the time that it has
//! left. The broker counts that as a return. A dead letter or a parked message that was returned often is copied, so
//! that its count starts again (`letters`). A message leaves a wait queue before it was returned often.
//!
//! A policy whose `expires` is shorter than [`RENEW`](crate::rabbit::options::RENEW) cannot be kept off like this:
//! `check --connect` names it (`management`), and what it deletes is reported (`vanished`).

use std::sync::Arc;

use lapin::options::BasicGetOptions;
use tokio::time::sleep;

use super::RouteQueues;
use crate::rabbit::RabbitError;
use crate::rabbit::connections::live::LiveConnection;
use crate::rabbit::letters::Letters;
use crate::rabbit::topology::Target;
use sluiced_settings::types::QueueType;

/// Renews the queues of a route, for as long as its session lives.
pub(super) struct Renewal {
    pub(super) queues: Arc<RouteQueues>,
}

impl Renewal {
    pub(super) async fn run(self) {
        let route = &self.queues.route;
        if route.settings.queue_type != QueueType::Quorum || !route.counts {
            return;
        }
        loop {
            // The due time is the supervisor's: a session may be shorter than the interval.
            let due = self.queues.renewal_due();
            sleep(due).await;
            for target in self.queues.counts.holding() {
                // If more than this failed, the session notices that by itself.
                if let Err(error) = self.renew(target).await {
                    let queue = target.queue(route.queue());
                    tracing::debug!(route = %route.name, queue, %error, "a queue was not kept from expiring");
                }
            }
            self.queues.note_renewal();
        }
    }

    async fn renew(&self, target: Target) -> Result<(), RabbitError> {
        let queue = target.queue(self.queues.route.queue());
        match target {
            // It is consumed, and belongs to its operator.
            Target::Work => Ok(()),
            Target::Wait(_) => {
                let live = self.queues.connections.counting.acquire().await?;
                live.read_one(&queue).await
            }
            Target::Parked(_) | Target::Dead => {
                let Some(mut letters) = Letters::open(&self.queues.options, &queue).await? else {
                    return Ok(());
                };
                if let Some(letter) = letters.first().await? {
                    letters.leave(letter).await?;
                }
                letters.close().await.map(drop)
            }
        }
    }
}

impl LiveConnection {
    /// Reads a message, if there is one, and gives it back by ending its channel.
    pub(super) async fn read_one(&self, queue: &str) -> Result<(), RabbitError> {
        let channel = self.open_channel().await?;
        let options = BasicGetOptions { no_ack: false };
        self.answer_to("basic.get", channel.basic_get(queue.into(), options))
            .await?;
        self.close(&channel, "read").await
    }
}
