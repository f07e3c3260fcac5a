//! What the pipeline needs of a queue: the consumption of one route's queue, its deliveries, and their verdicts.
//!
//! Settling consumes a delivery, so it cannot happen twice. A delivery that is dropped without a
//! verdict (a bug, a cancelled task) goes back to the queue instead of staying unacknowledged.
//!
//! One task of the queue's crate serves a route for as long as it lives, over all connections; the pipeline has only
//! the channels to and from that task ([`Subscription`]).

use std::fmt;
use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::connect::Link;
use super::lock;
use super::message::{HeaderValue, Message, Properties};
use sluiced_core::gate::Tap;
use sluiced_core::judge::DeadReason;
use sluiced_core::parking::Space;
use sluiced_core::time::Mono;

/// What becomes of a delivery.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The downstream has it.
    Done,
    /// Removed on purpose: the message has expired or is invalid, and its route drops such messages (`on_expired`,
    /// `on_invalid`).
    Dropped,
    /// Back to the work queue after a delay, through a wait queue: publish, confirm, then ack.
    Later {
        /// How long it waits.
        delay: Duration,
        /// Headers to set on the way (names of `message::header`); others are kept.
        headers: HeaderPatch,
    },
    /// Into a parked queue, to make room for those behind it: publish, confirm, then ack. It is
    /// delivered again like any other, within the prefetch of its space.
    Parked {
        /// The space of its tenant.
        space: Space,
        /// Headers to set on the way; others are kept.
        headers: HeaderPatch,
    },
    /// Back to the head of its queue, as if it had not been consumed.
    GiveBack,
    /// To the dead-letter queue: publish, confirm, then ack.
    Dead {
        /// Why. The queue writes it into a header, with the route and its own name.
        reason: DeadReason,
        /// Headers to set on the way; others are kept.
        headers: HeaderPatch,
    },
}

/// Headers to set, by their names in `message::header`.
pub type HeaderPatch = Vec<(&'static str, HeaderValue)>;

impl Verdict {
    /// The value of the metric label `verdict`.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Dropped => "dropped",
            Self::Later { .. } => "later",
            Self::Parked { .. } => "parked",
            Self::GiveBack => "given_back",
            Self::Dead { .. } => "dead",
        }
    }
}

/// A result: a message about the end of another one, published and confirmed before that one is settled.
#[derive(Clone, PartialEq)]
pub struct Publication {
    pub routing_key: String,
    pub body: Bytes,
    /// Message id, correlation id, content type and type are used.
    pub properties: Properties,
    pub headers: HeaderPatch,
    /// It is about a call that another delivery of the message made: the result of that call is better, if it is known.
    pub stands_in: bool,
}

impl fmt::Debug for Publication {
    /// Does not show the body: it may repeat content of the message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publication")
            .field("bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// A publication that belongs to no delivery.
#[derive(Debug)]
pub struct PublishRequest {
    pub publication: Publication,
    /// Receives whether the broker has it. Dropped: it is not known.
    pub confirmed: oneshot::Sender<bool>,
}

/// A verdict on its way to the backend.
#[derive(Debug)]
pub struct Settlement {
    /// The backend's name for the delivery, unique within the session that it belongs to.
    pub tag: u64,
    pub verdict: Verdict,
    /// Published first.
    pub result: Option<Publication>,
    /// The route that gave the verdict. Another one of the same queue may have received the message.
    pub route: Arc<str>,
}

/// The way of the verdicts to the session that delivered the messages. That session may end before.
#[derive(Clone, Debug)]
pub struct Sink {
    settlements: mpsc::UnboundedSender<Settlement>,
    ended: Arc<AtomicBool>,
}

impl Sink {
    /// A way, and its end.
    #[must_use]
    pub fn new() -> (Self, mpsc::UnboundedReceiver<Settlement>) {
        let (settlements, receiver) = mpsc::unbounded_channel();
        let ended = Arc::default();
        (Self { settlements, ended }, receiver)
    }

    /// The same way for another session, which ends by itself.
    #[must_use]
    pub fn apart(&self) -> Self {
        Self {
            settlements: self.settlements.clone(),
            ended: Arc::default(),
        }
    }

    /// For the session: it has ended, and can settle nothing any more. What still comes shows what became of messages
    /// that will be delivered again.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed) || self.settlements.is_closed()
    }
}

/// A message with the duty to settle it.
pub struct Delivery {
    message: Message,
    received: Mono,
    tag: u64,
    /// The route that received the message, and the one that has it.
    home: Arc<str>,
    route: Arc<str>,
    /// `None` once settled. It belongs to one session of the backend: when that ends, the broker delivers the message
    /// again.
    sink: Option<Sink>,
}

impl Delivery {
    /// For backends: a delivery of a route. Its verdict goes to `sink` (bounded by the prefetch).
    #[must_use]
    pub fn new(message: Message, received: Mono, tag: u64, route: Arc<str>, sink: Sink) -> Self {
        Self {
            message,
            received,
            tag,
            home: Arc::clone(&route),
            route,
            sink: Some(sink),
        }
    }

    /// Another route of the same queue has the message now. Its verdict still goes to the session that delivered it.
    pub fn move_to(&mut self, route: &Arc<str>) {
        self.route = Arc::clone(route);
    }

    /// The route that received it.
    #[must_use]
    pub const fn home(&self) -> &Arc<str> {
        &self.home
    }

    /// The message.
    #[must_use]
    pub const fn message(&self) -> &Message {
        &self.message
    }

    /// Gives an id to a message that came without one.
    pub fn identify(&mut self, id: String) {
        self.message.made_id = Some(id);
    }

    /// When this process received it.
    #[must_use]
    pub const fn received(&self) -> Mono {
        self.received
    }

    /// Passes the verdict to the queue. Returns `false` if the session that delivered the message is gone: the broker
    /// will deliver it again.
    pub fn settle(self, verdict: Verdict) -> bool {
        self.settle_with(verdict, None)
    }

    /// Gives the verdict, which is carried out once the result is published and confirmed. Returns as
    /// [`Self::settle`] does.
    pub fn settle_with(mut self, verdict: Verdict, result: Option<Publication>) -> bool {
        self.hand_over(verdict, result)
    }

    /// Whether the session that delivered it is gone. Sending it now would only make a repeat.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.sink.as_ref().is_none_or(Sink::has_ended)
    }

    fn hand_over(&mut self, verdict: Verdict, result: Option<Publication>) -> bool {
        self.sink.take().is_some_and(|sink| {
            let settlement = Settlement {
                tag: self.tag,
                verdict,
                result,
                route: Arc::clone(&self.route),
            };
            let has_ended = sink.has_ended();
            sink.settlements.send(settlement).is_ok() && !has_ended
        })
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        self.hand_over(Verdict::GiveBack, None);
    }
}

impl fmt::Debug for Delivery {
    /// Never the body: it may hold a one-time password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("tag", &self.tag)
            .field("bytes", &self.message.body.len())
            .finish_non_exhaustive()
    }
}

/// What was left when a subscription was closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leftover {
    /// Deliveries that went back to the queue without a verdict of the pipeline.
    pub given_back: u64,
    /// Verdicts that could not be made safe in time (a confirm or an ack is missing): the broker
    /// delivers these again.
    pub unsettled: u64,
}

sluiced_core::labelled! {
    /// Where messages of a route are at the broker.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Part {
        /// In the work queue, not handed out.
        Ready = "ready",
        /// In wait queues.
        Waiting = "waiting",
        /// Parked beside the work queue.
        Parked = "parked",
        /// In the dead-letter queue.
        Dead = "dead",
    }

    /// The value of the metric label `part`.
    pub const fn label(self) -> &'static str;
}

/// The channels of the task that serves a route: commands come in, deliveries and states go out.
#[derive(Debug)]
pub struct ServeChannels {
    pub tap: watch::Receiver<Tap>,
    /// The time to end at, once it is known.
    pub closing: watch::Receiver<Option<Instant>>,
    pub deliveries: mpsc::UnboundedSender<Delivery>,
    pub link: watch::Sender<Link>,
    /// See [`Subscription::parked`].
    pub parked: watch::Sender<Option<u64>>,
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
    leave: Mutex<Option<Leave>>,
    deliveries: Mutex<Option<mpsc::UnboundedReceiver<Delivery>>>,
    tap: watch::Sender<Tap>,
    link: watch::Receiver<Link>,
    parked: watch::Receiver<Option<u64>>,
    closing: watch::Sender<Option<Instant>>,
    leftover: watch::Receiver<Option<Leftover>>,
    task: AbortOnDropHandle<()>,
}

/// Closes what the task used, by a time at the latest.
type Leave = Box<dyn FnOnce(Instant) -> BoxFuture<'static, ()> + Send>;

impl Subscription {
    /// Starts to serve, with the tap closed. Must be called inside a tokio runtime.
    pub fn start<F>(serve: impl FnOnce(ServeChannels) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (deliveries, receiver) = mpsc::unbounded_channel();
        let (tap, tap_seen) = watch::channel(Tap::Closed);
        let (link, link_seen) = watch::channel(Link::Connecting);
        let (parked, parked_seen) = watch::channel(None);
        let (closing, closing_seen) = watch::channel(None);
        let (leftover, leftover_seen) = watch::channel(None);
        let task = serve(ServeChannels {
            tap: tap_seen,
            closing: closing_seen,
            deliveries,
            link,
            parked,
            leftover,
        });
        Self {
            leave: Mutex::new(None),
            deliveries: Mutex::new(Some(receiver)),
            tap,
            link: link_seen,
            parked: parked_seen,
            closing,
            leftover: leftover_seen,
            task: AbortOnDropHandle::new(tokio::spawn(task)),
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
                leftover,
                deliveries,
                ..
            } = channels;
            link.send_replace(Link::Up);
            time_to_close(&mut closing).await;
            leftover.send_replace(Some(Leftover::default()));
            // The route ends only now.
            drop(deliveries);
        })
    }

    /// The deliveries: at most the prefetch at a time from the work queue, and at most
    /// [`Space::prefetch`](sluiced_core::parking::Space::prefetch) from each space of parked messages. Can be taken
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
        let mut leftover = self.leftover.clone();
        let left = match timeout(bound, leftover.wait_for(Option::is_some)).await {
            Ok(Ok(left)) => left.unwrap_or_default(),
            _ => Leftover::default(),
        };
        self.task.abort();
        let leave = lock(&self.leave).take();
        if let Some(leave) = leave {
            leave(now + bound).await;
        }
        left
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("link", &self.link)
            .finish_non_exhaustive()
    }
}
