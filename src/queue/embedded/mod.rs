//! A queue in this process: messages come from a file, from stdin or from memory.
//!
//! It keeps the contract of a broker's queue without one: the prefetch bounds what is out, a
//! message that waits comes back by a timer, and what could not be delivered ends in a file. It
//! ends when its input is exhausted and everything is settled.

mod leftover;
mod lines;
mod store;

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

pub use self::lines::Input;

use self::store::Store;
use super::events::QueueEvents;
use crate::ports::clock::Clock;
use crate::ports::link::Link;
use crate::ports::queue::{Delivery, Leftover, Subscription, Tap};

/// How the embedded queue serves its one route.
#[derive(Clone, Debug)]
pub struct EmbeddedOptions {
    /// For logs and events.
    pub route: String,
    /// How many deliveries are out at most; at least 1.
    pub prefetch: u16,
    /// Where messages go that are dead or were not delivered; nowhere if absent.
    pub leftover: Option<PathBuf>,
}

/// The subscription to an input.
pub struct EmbeddedQueue {
    route: String,
    deliveries: Mutex<Option<mpsc::UnboundedReceiver<Delivery>>>,
    tap: watch::Sender<Tap>,
    link: watch::Receiver<Link>,
    closing: watch::Sender<Option<Instant>>,
    leftover: watch::Receiver<Option<Leftover>>,
    parked: Arc<AtomicU64>,
    store: AbortOnDropHandle<()>,
}

impl fmt::Debug for EmbeddedQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedQueue")
            .field("route", &self.route)
            .finish_non_exhaustive()
    }
}

impl EmbeddedQueue {
    /// Starts to serve the input, with the tap closed. Must be called inside a tokio runtime. An
    /// input that cannot be opened shows as a link that is down.
    #[must_use]
    pub fn start(
        input: Input,
        options: EmbeddedOptions,
        clock: Clock,
        events: Arc<dyn QueueEvents>,
    ) -> Arc<dyn Subscription> {
        let (deliveries, receiver) = mpsc::unbounded_channel();
        let (tap, tap_seen) = watch::channel(Tap::Closed);
        let (link, link_seen) = watch::channel(Link::Connecting);
        let (closing, closing_seen) = watch::channel(None);
        let (leftover, leftover_seen) = watch::channel(None);
        let route = options.route.clone();
        let parked = Arc::new(AtomicU64::new(0));
        let standing = Arc::clone(&parked);
        let store = async move {
            let left = Store::new(options, clock, events, deliveries, standing)
                .run(input, tap_seen, closing_seen, &link)
                .await;
            link.send_replace(Link::Down("the input is done".into()));
            leftover.send_replace(Some(left));
        };
        Arc::new(Self {
            route,
            deliveries: Mutex::new(Some(receiver)),
            tap,
            link: link_seen,
            closing,
            leftover: leftover_seen,
            parked,
            store: AbortOnDropHandle::new(tokio::spawn(store)),
        })
    }
}

impl Subscription for EmbeddedQueue {
    fn deliveries(&self) -> Option<mpsc::UnboundedReceiver<Delivery>> {
        self.deliveries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    fn set_tap(&self, tap: Tap) {
        self.tap
            .send_if_modified(|old| std::mem::replace(old, tap) != tap);
    }

    fn parked(&self) -> Option<u64> {
        Some(self.parked.load(Ordering::Relaxed))
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.link.clone()
    }

    fn close(&self, bound: Duration) -> BoxFuture<'_, Leftover> {
        Box::pin(async move {
            self.closing
                .send_replace(Some(Instant::now() + bound.mul_f64(0.8)));
            let mut leftover = self.leftover.clone();
            let left = match timeout(bound, leftover.wait_for(Option::is_some)).await {
                Ok(Ok(left)) => left.unwrap_or_default(),
                _ => Leftover::default(),
            };
            self.store.abort();
            left
        })
    }
}
