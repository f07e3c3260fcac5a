//! What the pipeline needs of a queue.
//!
//! Settling consumes a delivery, so it cannot happen twice. A delivery that is dropped without a
//! verdict (a bug, a cancelled task) goes back to the queue instead of staying unacknowledged.

use std::fmt;
use std::time::Duration;

use tokio::sync::mpsc;

use super::message::{HeaderValue, Message};
pub use crate::core::gate::Tap;
use crate::core::judge::DeadReason;
use crate::core::parking::Space;
use crate::core::time::Mono;

/// What becomes of a delivery.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The downstream has it.
    Done,
    /// Removed on purpose without a call (it has expired, and the route is configured to drop it).
    Dropped,
    /// Back to the work queue after a delay, through a wait queue: publish, confirm, then ack.
    Later {
        /// How long it waits.
        delay: Duration,
        /// Headers to set on the way (names of `message::header`); others are kept.
        headers: HeaderPatch,
    },
    /// Beside the work queue, to make room for those behind it: publish, confirm, then ack. It is
    /// delivered again like any other, within the prefetch of its space.
    Parked {
        /// Its tenant's.
        space: Space,
        /// Headers to set on the way; others are kept.
        headers: HeaderPatch,
    },
    /// Back to the head of its queue, as if never consumed.
    GiveBack,
    /// To the dead-letter queue: publish, confirm, then ack.
    Dead {
        /// Why.
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

/// A verdict on its way to the backend.
#[derive(Debug)]
pub struct Settlement {
    /// The backend's name for the delivery, unique within the session that it belongs to.
    pub tag: u64,
    pub verdict: Verdict,
}

/// A message with the duty to settle it.
pub struct Delivery {
    message: Message,
    received: Mono,
    tag: u64,
    /// `None` once settled. The channel belongs to one session of the backend: when that ends,
    /// verdicts go nowhere and the broker delivers the message again.
    sink: Option<mpsc::UnboundedSender<Settlement>>,
}

impl Delivery {
    /// For backends: a delivery whose verdict goes into `sink` (bounded by the prefetch).
    #[must_use]
    pub fn new(
        message: Message,
        received: Mono,
        tag: u64,
        sink: mpsc::UnboundedSender<Settlement>,
    ) -> Self {
        Self {
            message,
            received,
            tag,
            sink: Some(sink),
        }
    }

    /// The message.
    #[must_use]
    pub const fn message(&self) -> &Message {
        &self.message
    }

    /// Gives the message an id, which it came without.
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
    pub fn settle(mut self, verdict: Verdict) -> bool {
        self.hand_over(verdict)
    }

    /// Whether the session that delivered it is gone. Sending it now would only make a repeat.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.sink
            .as_ref()
            .is_none_or(mpsc::UnboundedSender::is_closed)
    }

    fn hand_over(&mut self, verdict: Verdict) -> bool {
        self.sink.take().is_some_and(|sink| {
            sink.send(Settlement {
                tag: self.tag,
                verdict,
            })
            .is_ok()
        })
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        self.hand_over(Verdict::GiveBack);
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

/// Where messages of a route stand at the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// In the work queue, not handed out.
    Ready,
    /// In wait queues.
    Waiting,
    /// Parked beside the work queue.
    Parked,
    /// In the dead-letter queue.
    Dead,
}

impl Part {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Ready, Self::Waiting, Self::Parked, Self::Dead];

    /// The value of the metric label `part`.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Waiting => "waiting",
            Self::Parked => "parked",
            Self::Dead => "dead",
        }
    }
}
