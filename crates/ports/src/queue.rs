//! What the pipeline needs of a queue: the consumption of one route's queue ([`Subscription`]), its deliveries, and
//! their verdicts.
//!
//! Settling consumes a delivery, so it cannot happen twice. A delivery that is dropped without a
//! verdict (a bug, a cancelled task) goes back to the queue instead of staying unacknowledged.

mod subscription;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::message::{HeaderValue, Message, Properties};
use crate::message::header;
use sluiced_core::judge::DeadReason;
use sluiced_core::parking::ParkedQueue;
use sluiced_core::time::Mono;

pub use self::subscription::{Leftover, ServeChannels, Subscription, time_to_close};

/// What becomes of a delivery.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The downstream has it.
    Done,
    /// Removed on purpose: the message has expired or is invalid, and its route drops such messages (`on_expired`,
    /// `on_invalid`); or its verdict was carried out with another copy of it.
    Dropped,
    /// Back to the work queue after a delay, through a wait queue: publish, confirm, then ack.
    Later {
        /// How long it waits.
        delay: Duration,
        /// Headers to set on the way (names of `message::header`); others are kept.
        headers: HeaderPatch,
    },
    /// Into a parked queue, to make room for those behind it: publish, confirm, then ack. It is
    /// delivered again like any other, within the prefetch of its parked queue.
    Parked {
        /// The parked queue of its tenant.
        parked_queue: ParkedQueue,
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

/// The headers to remove from a copy on which these are set (`header::CLEARED_WITH_HISTORY`).
pub fn headers_to_clear(patch: &[(&str, HeaderValue)]) -> impl Iterator<Item = &'static str> {
    let sets = |name: &str| patch.iter().any(|(set, _)| *set == name);
    let is_history = sets(header::ATTEMPTS);
    header::CLEARED_WITH_HISTORY
        .into_iter()
        .filter(move |name| is_history && !sets(name))
}

impl Verdict {
    /// The label of messages that the downstream has.
    pub const DONE: &'static str = "done";
    /// The label of messages that come back after a wait.
    pub const LATER: &'static str = "later";
    /// The label of dead letters.
    pub const DEAD: &'static str = "dead";

    /// The value of the metric label `verdict`.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Done => Self::DONE,
            Self::Dropped => "dropped",
            Self::Later { .. } => Self::LATER,
            Self::Parked { .. } => "parked",
            Self::GiveBack => "given_back",
            Self::Dead { .. } => Self::DEAD,
        }
    }

    /// The value that it writes into the header of this name; `None`: it writes none.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&HeaderValue> {
        let headers = match self {
            Self::Later { headers, .. }
            | Self::Parked { headers, .. }
            | Self::Dead { headers, .. } => headers,
            Self::Done | Self::Dropped | Self::GiveBack => return None,
        };
        let written = headers.iter().find(|(written, _)| *written == name);
        written.map(|(_, value)| value)
    }
}

/// A result: a message about the end of another one, published and confirmed before that one is settled.
#[derive(Clone, PartialEq)]
pub struct Publication {
    /// 1 to 255 bytes, the most that AMQP allows. The exchange is that of the results.
    pub routing_key: String,
    /// JSON, or what the template of the configuration made.
    pub body: Bytes,
    /// Message id, correlation id, content type and type are used.
    pub properties: Properties,
    /// The headers of ours that it gets.
    pub headers: HeaderPatch,
    /// The result is about a call that another delivery of the message made: the result of that call is better, if it
    /// is known.
    pub yields_to_call_result: bool,
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
    /// The result of what a message centre delivered.
    pub publication: Publication,
    /// Receives whether the broker has it. Dropped: it is not known.
    pub confirmed: oneshot::Sender<bool>,
}

/// A verdict on its way to the backend.
#[derive(Debug)]
pub struct Settlement {
    /// The backend's name for the delivery, unique within the session that it belongs to.
    pub tag: u64,
    /// Carried out once `result` is confirmed.
    pub verdict: Verdict,
    /// Published first. `None`: there is none to publish.
    pub result: Option<Publication>,
    /// The route that gave the verdict. Another one of the same queue may have received the message.
    pub route: Arc<str>,
}

/// The way of the verdicts to the session that delivered the messages. That session may end before.
#[derive(Clone, Debug)]
pub struct SettlementSender {
    settlements: mpsc::UnboundedSender<Settlement>,
    ended: Arc<AtomicBool>,
}

impl SettlementSender {
    /// A sender for verdicts, and the receiver of the session.
    #[must_use]
    pub fn new() -> (Self, mpsc::UnboundedReceiver<Settlement>) {
        let (settlements, receiver) = mpsc::unbounded_channel();
        let ended = Arc::default();
        (Self { settlements, ended }, receiver)
    }

    /// A sender to the same receiver for another session, with an end of its own.
    #[must_use]
    pub fn for_another_session(&self) -> Self {
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
    sink: Option<SettlementSender>,
}

impl Delivery {
    /// For backends: a delivery of a route. Its verdict goes to `sink` (bounded by the prefetch).
    #[must_use]
    pub fn new(
        message: Message,
        received: Mono,
        tag: u64,
        route: Arc<str>,
        sink: SettlementSender,
    ) -> Self {
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
        self.settle_with_result(verdict, None)
    }

    /// Gives the verdict, which is carried out once the result is published and confirmed. Returns as
    /// [`Self::settle`] does.
    pub fn settle_with_result(mut self, verdict: Verdict, result: Option<Publication>) -> bool {
        self.hand_over(verdict, result)
    }

    /// Whether the session that delivered it is gone. Sending it now would only make a repeat.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.sink.as_ref().is_none_or(SettlementSender::has_ended)
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

sluiced_core::labelled! {
    /// Where messages of a route are at the broker.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum QueuePart {
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
