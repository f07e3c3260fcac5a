//! The subscription that the pipeline holds, for any queue.
//!
//! One task serves a route for as long as it lives; the pipeline sees only the channels to and from
//! that task. What differs between the queues is the task and a [`Source`].

use std::fmt;
use std::future::pending;
use std::sync::Mutex;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::ports::link::Link;
use crate::ports::locks::lock;
use crate::ports::queue::{Delivery, Leftover, Subscription, Tap};

/// What only the queue itself knows of its subscription.
pub(super) trait Source: Send + Sync + fmt::Debug {
    /// See [`Subscription::parked`].
    fn parked(&self) -> Option<u64>;

    /// The task that served the route has ended: closes what it used, by `end` at the latest.
    fn leave(&self, _end: Instant) -> BoxFuture<'_, ()> {
        ready(()).boxed()
    }
}

/// Waits until the time to end at is known, and returns it.
pub(super) async fn time_to_close(closing: &mut watch::Receiver<Option<Instant>>) -> Instant {
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

/// The channels of the task that serves a route: commands come in, deliveries and states go out.
pub(super) struct ServeChannels {
    pub(super) tap: watch::Receiver<Tap>,
    /// The time to end at, once it is known.
    pub(super) closing: watch::Receiver<Option<Instant>>,
    pub(super) deliveries: mpsc::UnboundedSender<Delivery>,
    pub(super) link: watch::Sender<Link>,
    /// Set once, at the end.
    pub(super) leftover: watch::Sender<Option<Leftover>>,
}

/// A subscription. Dropping it ends its consumption without flushing.
pub(super) struct Served<S> {
    source: S,
    deliveries: Mutex<Option<mpsc::UnboundedReceiver<Delivery>>>,
    tap: watch::Sender<Tap>,
    link: watch::Receiver<Link>,
    closing: watch::Sender<Option<Instant>>,
    leftover: watch::Receiver<Option<Leftover>>,
    task: AbortOnDropHandle<()>,
}

impl<S: Source> Served<S> {
    /// Starts to serve, with the tap closed. Must be called inside a tokio runtime.
    pub(super) fn start<F>(source: S, serve: impl FnOnce(ServeChannels) -> F) -> Self
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
            source,
            deliveries: Mutex::new(Some(receiver)),
            tap,
            link: link_seen,
            closing,
            leftover: leftover_seen,
            task: AbortOnDropHandle::new(tokio::spawn(task)),
        }
    }
}

impl<S: Source> Subscription for Served<S> {
    fn deliveries(&self) -> Option<mpsc::UnboundedReceiver<Delivery>> {
        lock(&self.deliveries).take()
    }

    fn set_tap(&self, tap: Tap) {
        self.tap
            .send_if_modified(|old| std::mem::replace(old, tap) != tap);
    }

    fn parked(&self) -> Option<u64> {
        self.source.parked()
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.link.clone()
    }

    fn close(&self, bound: Duration) -> BoxFuture<'_, Leftover> {
        Box::pin(async move {
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
        })
    }
}

impl<S: Source> fmt::Debug for Served<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}
