//! The consumption of one route's queue.
//!
//! One task of the queue's crate serves a route for as long as it lives, over all connections; the pipeline has only
//! the channels to and from that task ([`Subscription`]).

use std::fmt;
use std::future::pending;
use std::sync::Mutex;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::Delivery;
use crate::link::Link;
use crate::lock;
use sluiced_core::gate::Tap;

/// What was left when a subscription was closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leftover {
    /// Deliveries that went back to the queue without a verdict of the pipeline.
    pub given_back: u64,
    /// Verdicts that could not be made safe in time (a confirm or an ack is missing): the broker
    /// delivers these again.
    pub unsettled: u64,
    /// The queue did not report its end: it is not known whether the verdicts that were given are safe.
    pub is_unknown: bool,
}

/// The channels of the task that serves a route: commands come in, deliveries and states go out.
#[derive(Debug)]
pub struct ServeChannels {
    /// Whether the route wants deliveries. [`Tap::Closed`] at the start.
    pub tap: watch::Receiver<Tap>,
    /// The time to end at, once it is known.
    pub closing: watch::Receiver<Option<Instant>>,
    /// The deliveries. Their number is bounded by the prefetch; the channel is not. Dropped: nothing more can come.
    pub deliveries: mpsc::UnboundedSender<Delivery>,
    /// Whether the queue can be consumed. [`Link::Connecting`] at the start.
    pub link: watch::Sender<Link>,
    /// See [`Subscription::parked`].
    pub parked: watch::Sender<Option<u64>>,
}

/// Waits until the time to end at is known, and returns it.
pub async fn time_to_close(closing: &mut watch::Receiver<Option<Instant>>) -> Instant {
    loop {
        if let Some(end) = *closing.borrow_and_update() {
            return end;
        }
        if closing.changed().await.is_err() {
            // The sender is gone, and this task is about to be aborted.
            pending::<()>().await;
        }
    }
}

/// A subscription, supervised: it outlives connections. Dropping it ends its consumption without flushing.
pub struct Subscription {
    leave: Mutex<Option<Leave>>,
    deliveries: Mutex<Option<mpsc::UnboundedReceiver<Delivery>>>,
    tap: watch::Sender<Tap>,
    link: watch::Receiver<Link>,
    parked: watch::Receiver<Option<u64>>,
    closing: watch::Sender<Option<Instant>>,
    /// Taken once, at the end.
    task: Mutex<Option<AbortOnDropHandle<Leftover>>>,
}

/// Closes what the task used, by a time at the latest.
type Leave = Box<dyn FnOnce(Instant) -> BoxFuture<'static, ()> + Send>;

impl Subscription {
    /// Starts to serve, with the tap closed. `serve` ends with what it left. Must be called inside a tokio runtime.
    pub fn start<F>(serve: impl FnOnce(ServeChannels) -> F) -> Self
    where
        F: Future<Output = Leftover> + Send + 'static,
    {
        let (deliveries, receiver) = mpsc::unbounded_channel();
        let (tap, tap_seen) = watch::channel(Tap::Closed);
        let (link, link_seen) = watch::channel(Link::Connecting);
        let (parked, parked_seen) = watch::channel(None);
        let (closing, closing_seen) = watch::channel(None);
        let task = serve(ServeChannels {
            tap: tap_seen,
            closing: closing_seen,
            deliveries,
            link,
            parked,
        });
        Self {
            leave: Mutex::new(None),
            deliveries: Mutex::new(Some(receiver)),
            tap,
            link: link_seen,
            parked: parked_seen,
            closing,
            task: Mutex::new(Some(AbortOnDropHandle::new(tokio::spawn(task)))),
        }
    }

    /// This subscription, with what closes what the task used. It is called once the task has ended.
    #[must_use]
    pub fn leaving<F>(self, leave: impl FnOnce(Instant) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self {
            leave: Mutex::new(Some(Box::new(|end| leave(end).boxed()))),
            ..self
        }
    }

    /// A subscription that delivers nothing, for a route that gets its messages from another one.
    #[must_use]
    pub fn idle() -> Self {
        Self::start(|channels| async move {
            let ServeChannels {
                mut closing,
                link,
                deliveries,
                ..
            } = channels;
            link.send_replace(Link::Up);
            time_to_close(&mut closing).await;
            // The route ends only now.
            drop(deliveries);
            Leftover::default()
        })
    }

    /// The deliveries: at most the prefetch at a time from the work queue, and at most
    /// [`ParkedQueue::prefetch`](sluiced_core::parking::ParkedQueue::prefetch) from each parked queue. Can be taken
    /// once. Ends when nothing more can come (the embedded queue is empty and settled, or the subscription was
    /// closed).
    pub fn deliveries(&self) -> Option<mpsc::UnboundedReceiver<Delivery>> {
        lock(&self.deliveries).take()
    }

    /// Opens or closes the tap. Remembered over reconnections.
    pub fn set_tap(&self, tap: Tap) {
        self.tap
            .send_if_modified(|old| std::mem::replace(old, tap) != tap);
    }

    /// About how many messages all replicas together have parked. `None`: nothing can be parked now. Those
    /// of this replica are counted at once, those of others within seconds.
    #[must_use]
    pub fn parked(&self) -> Option<u64> {
        *self.parked.borrow()
    }

    /// Whether the route's queue can be consumed now.
    #[must_use]
    pub fn link(&self) -> watch::Receiver<Link> {
        self.link.clone()
    }

    /// Whether it can be consumed at this moment.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.link.borrow().is_up()
    }

    /// Stops consuming, makes the verdicts that were given safe, gives everything else back. Takes no longer than
    /// `bound`.
    pub async fn close(&self, bound: Duration) -> Leftover {
        let now = Instant::now();
        // The last fifth is for closing connections.
        self.closing.send_replace(Some(now + bound.mul_f64(0.8)));
        let task = lock(&self.task).take();
        let ended = match task {
            Some(task) => timeout(bound, task).await.ok().and_then(Result::ok),
            None => None,
        };
        let left_at_end = ended.unwrap_or(Leftover {
            is_unknown: true,
            ..Leftover::default()
        });
        let leave = lock(&self.leave).take();
        if let Some(leave) = leave {
            leave(now + bound).await;
        }
        left_at_end
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("link", &self.link)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_a_queue_that_does_not_report_left_is_unknown() {
        let bound = Duration::from_secs(5);
        let silent = Subscription::start(|channels| async move {
            let _channels = channels;
            pending().await
        });
        assert!(silent.close(bound).await.is_unknown);
        let idle = Subscription::idle().close(bound).await;
        assert_eq!(idle, Leftover::default());
    }
}
