//! The consumers of a session: that of the work queue, and those of the parked queues beside it.
//!
//! They open and close together, on one channel, each with a prefetch of its own. Deliveries are
//! taken from them in turn, so that none waits behind a queue that is always full.

use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::try_join_all;
use futures::stream::select_all;
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Consumer};
use tokio::time::{Instant, sleep_until, timeout};

use super::error::RabbitError;
use super::topology::answered;

pub(super) type Item = lapin::message::Delivery;

/// What a consumer delivered.
pub(super) enum Received {
    Delivery(Box<Item>),
    Failed(lapin::Error),
    /// The broker cancelled it: its queue was deleted, or moved with its node.
    Ended {
        queue: String,
    },
}

/// Queues that are consumed with one prefetch each.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) queues: Vec<String>,
    pub(super) prefetch: u16,
}

impl Group {
    /// The same queues, with that prefetch at most.
    pub(super) fn at_most(&self, prefetch: u16) -> Self {
        Self {
            queues: self.queues.clone(),
            prefetch: self.prefetch.min(prefetch),
        }
    }
}

/// The open consumers; none while the tap is closed.
#[derive(Debug, Default)]
pub(super) struct Consumers {
    open: Vec<(String, Consumer)>,
    /// The consumer that is next.
    turn: usize,
}

impl Consumers {
    pub(super) fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Starts to consume all queues. None is open if one fails: the channel is over then.
    pub(super) async fn start(
        &mut self,
        channel: &Channel,
        groups: &[Group],
        bound: Duration,
    ) -> Result<(), RabbitError> {
        // The usual priority. A stream refuses any, and so is never consumed.
        let mut usual = FieldTable::default();
        usual.insert("x-priority".into(), AMQPValue::LongInt(0));
        for Group { queues, prefetch } in groups {
            // It counts for consumers that are opened after it.
            let qos = channel.basic_qos((*prefetch).max(1), BasicQosOptions::default());
            answered("basic.qos", bound, qos).await?;
            let starting = queues
                .iter()
                .map(|queue| consume(channel, queue, usual.clone(), bound));
            let consumers = try_join_all(starting).await?;
            self.open.extend(queues.iter().cloned().zip(consumers));
        }
        Ok(())
    }

    /// The next of any consumer. Without one it waits forever.
    pub(super) async fn next(&mut self) -> Received {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Received> {
        let count = self.open.len();
        for step in 0..count {
            let index = (self.turn + step) % count;
            let (_, consumer) = &mut self.open[index];
            let received = match consumer.poll_next_unpin(cx) {
                Poll::Pending => continue,
                Poll::Ready(Some(Ok(delivery))) => Received::Delivery(Box::new(delivery)),
                Poll::Ready(Some(Err(error))) => Received::Failed(error),
                Poll::Ready(None) => {
                    let (queue, _) = self.open.remove(index);
                    return Poll::Ready(Received::Ended { queue });
                }
            };
            self.turn = index + 1;
            return Poll::Ready(received);
        }
        Poll::Pending
    }

    /// Cancels all. What still comes until the broker's answer goes to `each`, as it comes: a buffer would
    /// hold all of it. That may be a whole prefetch of large messages on a slow way, so `bound` is for the
    /// time in which nothing comes.
    pub(super) async fn stop(
        &mut self,
        channel: &Channel,
        bound: Duration,
        mut each: impl FnMut(Item),
    ) -> Result<(), RabbitError> {
        let (tags, streams): (Vec<_>, Vec<_>) = std::mem::take(&mut self.open)
            .into_iter()
            .map(|(_, consumer)| (consumer.tag(), consumer))
            .unzip();
        let cancelling = tags
            .into_iter()
            .map(|tag| channel.basic_cancel(tag, BasicCancelOptions::default()));
        let mut cancelling = pin!(try_join_all(cancelling));
        let mut rest = select_all(streams);
        let (mut is_cancelled, mut is_drained) = (false, false);
        let mut end = Instant::now() + bound;
        while !is_cancelled || !is_drained {
            tokio::select! {
                answer = &mut cancelling, if !is_cancelled => {
                    answer.map_err(|error| RabbitError::from_lapin(&error))?;
                    is_cancelled = true;
                }
                // A stream ends behind the last delivery before the broker's answer.
                item = rest.next(), if !is_drained => match item {
                    Some(item) => {
                        each(item.map_err(|error| RabbitError::from_lapin(&error))?);
                        end = Instant::now() + bound;
                    }
                    None => is_drained = true,
                },
                () = sleep_until(end) => {
                    let what = "basic.cancel";
                    return Err(RabbitError::Timeout { what, waited: bound });
                }
            }
        }
        Ok(())
    }
}

/// Begins to consume.
pub(super) async fn consume(
    channel: &Channel,
    queue: &str,
    arguments: FieldTable,
    bound: Duration,
) -> Result<Consumer, RabbitError> {
    let consuming = channel.basic_consume(
        queue.into(),
        "".into(),
        BasicConsumeOptions::default(),
        arguments,
    );
    match timeout(bound, consuming).await {
        Ok(answer) => answer.map_err(|error| lost(queue, &error)),
        Err(_) => Err(RabbitError::Timeout {
            what: "basic.consume",
            waited: bound,
        }),
    }
}

/// The error for the end of a channel that consumed that queue. It is never a mismatch: nothing was
/// declared.
pub(super) fn lost(queue: &str, error: &lapin::Error) -> RabbitError {
    match RabbitError::about_queue(queue, error) {
        RabbitError::Mismatch { reason, .. } => RabbitError::Lost { reason },
        other => other,
    }
}
