//! The consumption of one route's queue, as the pipeline holds it, from whichever queue.
//!
//! One task of the queue's room serves a route for as long as it lives, over all connections; the pipeline sees only
//! the channels to and from that task. What differs between the queues is the task and a [`Source`].

use std::fmt;
use std::future::pending;
use std::sync::Mutex;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::connect::Link;
use super::lock;
use super::queue::{Delivery, Leftover, Tap};

/// What only the queue itself knows of its subscription.
pub trait Source: Send + Sync + fmt::Debug {
    /// See [`Subscription::parked`].
    fn parked(&self) -> Option<u64>;

    /// The task that served the route has ended: closes what it used, by `end` at the latest.
    fn leave(&self, _end: Instant) -> BoxFuture<'_, ()> {
        ready(()).boxed()
    }
}

/// The channels of the task that serves a route: commands come in, deliveries and states go out.
#[derive(Debug)]
pub struct ServeChannels {
    pub tap: watch::Receiver<Tap>,
    /// The time to end at, once it is known.
    pub closing: watch::Receiver<Option<Instant>>,
    pub deliveries: mpsc::UnboundedSender<Delivery>,
    pub link: watch::Sender<Link>,
    /// Set once, at the end.
    pub leftover: watch::Sender<Option<Leftover>>,
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
    source: Box<dyn Source>,
    deliveries: Mutex<Option<mpsc::UnboundedReceiver<Delivery>>>,
    tap: watch::Sender<Tap>,
    link: watch::Receiver<Link>,
    closing: watch::Sender<Option<Instant>>,
    leftover: watch::Receiver<Option<Leftover>>,
    task: AbortOnDropHandle<()>,
}

impl Subscription {
    /// Starts to serve, with the tap closed. Must be called inside a tokio runtime.
    pub fn start<F>(source: impl Source + 'static, serve: impl FnOnce(ServeChannels) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (deliveries, receiver) = mpsc::unbounded_channel();
        let (tap, tap_seen) = watch::channel(Tap::Closed);
        let (link, link_seen) = watch::channel(Link::Connecting);
        let (closing, closing_seen) = watch::channel(None);
        let (leftover, leftover_seen) = watch::channel(None);
        let task = serve(ServeChannels {
            tap: tap_seen,
            closing: closing_seen,
            deliveries,
            link,
            leftover,
        });
        Self {
            source: Box::new(source),
            deliveries: Mutex::new(Some(receiver)),
            tap,
            link: link_seen,
            closing,
            leftover: leftover_seen,
            task: AbortOnDropHandle::new(tokio::spawn(task)),
        }
    }

    /// The deliveries: at most the prefetch at a time from the work queue, and at most
    /// [`Space::prefetch`](crate::core::parking::Space::prefetch) from each space of parked messages. Can be taken
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

    /// About how many messages are parked beside the queue by all replicas. `None`: nothing can be parked at
    /// present. Those of this replica are counted at once, those of others within seconds.
    #[must_use]
    pub fn parked(&self) -> Option<u64> {
        self.source.parked()
    }

    /// Whether the route's queue can be consumed at present.
    #[must_use]
    pub fn link(&self) -> watch::Receiver<Link> {
        self.link.clone()
    }

    /// Stops consuming, makes the verdicts that were given safe, gives everything else back. Takes no longer than
    /// `bound`.
    pub async fn close(&self, bound: Duration) -> Leftover {
        let now = Instant::now();
        // The last fifth is for closing connections.
        self.closing.send_replace(Some(now + bound.mul_f64(0.8)));
        let mut leftover = self.leftover.clone();
        let left = match timeout(bound, leftover.wait_for(Option::is_some)).await {
            Ok(Ok(left)) => left.unwrap_or_default(),
            _ => Leftover::default(),
        };
        self.task.abort();
        self.source.leave(now + bound).await;
        left
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}
