//! What the pipeline needs of a downstream.
//!
//! A call is prepared before its slot is due. So a message from which no request can be made
//! never costs a slot, and when the slot comes only sending is left.

mod inbound;
mod judgement;

use std::fmt;
use std::time::Duration;

use futures::future::BoxFuture;

pub use self::inbound::{Inbound, InboundEvent, InboundKind, Segment};
pub use self::judgement::{Answer, Judgement, MAX_ANSWER, Rest, Status};
use super::clock;
use super::message::Message;
use sluiced_core::headroom::Spread;
use sluiced_core::time::Mono;

/// What a template may use besides the message.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The name of the route that has the message.
    pub route: &'a str,
    /// Calls that were made and failed before this one, plus one: 1 for the first.
    pub attempt: u32,
    /// An earlier call of the message may have been taken.
    pub may_repeat: bool,
    /// The most bytes that are made of a body that is compressed.
    pub max_body: u64,
}

/// Why a message is unfit: no request or result can be made of it, or a limit can never let it pass. It goes to the
/// dead-letter queue with this text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub struct UnfitReason {
    /// Which part: `body`, `header X-Tenant`, `url` …
    pub what: String,
    /// What is wrong with it. Never a message's content.
    pub why: String,
}

/// The last moment at which a call may leave.
#[derive(Clone, Copy, Debug)]
pub struct LeaveBy(Mono);

impl LeaveBy {
    /// A call may leave until `at`, that moment included.
    #[must_use]
    pub const fn new(at: Mono) -> Self {
        Self(at)
    }

    /// At any time, for calls that no limit counts.
    #[must_use]
    pub const fn any_time() -> Self {
        Self(Mono::NEVER)
    }

    /// Whether it is too late to leave.
    #[must_use]
    pub fn has_passed(&self) -> bool {
        clock::now() > self.0
    }

    /// How long until then; zero if it has passed.
    #[must_use]
    pub fn left(&self) -> Duration {
        self.0.since(clock::now())
    }
}

/// Why a call was not made: not a byte of it has left, and its slot is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSent {
    /// The program or the machine was too slow.
    #[error("the slot had passed before the request could be written")]
    TooLate,
    /// A connection, room in its window, a token or a current signature was missing.
    #[error("what the request needs was not there before its slot had passed")]
    NotReady,
}

impl NotSent {
    /// As a label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::TooLate => "too_late",
            Self::NotReady => "not_ready",
        }
    }
}

/// A request that only has to be sent.
pub trait Call: Send {
    /// Sends it, if it can leave by `leave_by`. Ends within the downstream's own timeout.
    /// Nothing is written before the first poll, and the caller polls at the slot.
    fn send(self: Box<Self>, leave_by: LeaveBy) -> BoxFuture<'static, Result<Judgement, NotSent>>;
}

/// A rate-limited service that messages go to.
pub trait Downstream: Send + Sync + fmt::Debug {
    /// Makes the request.
    ///
    /// # Errors
    /// When the message lacks what the templates need.
    fn prepare(&self, message: &Message, facts: Facts<'_>) -> Result<Box<dyn Call>, UnfitReason>;

    /// Makes the request that sends the rest of a message. A downstream that sends messages whole has no rests.
    ///
    /// # Errors
    /// As [`Downstream::prepare`].
    fn go_on(
        &self,
        message: &Message,
        facts: Facts<'_>,
        rest: Rest,
    ) -> Result<Box<dyn Call>, UnfitReason> {
        drop(rest);
        self.prepare(message, facts)
    }

    /// Opens connections without making a call, so that the first slot does not pay for a
    /// handshake. Best effort, within `bound`; must run on the runtime that will send.
    ///
    /// # Errors
    /// When not all of them could be opened, or a token that calls need is missing. The text says for a person how many
    /// were opened and why one failed. Calls can be made all the same: they open what they need.
    fn warm(&self, bound: Duration) -> BoxFuture<'_, Result<(), String>>;

    /// Ends its connections as its protocol requires, within a second; no call is made after it. Must run on
    /// the runtime that sends.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Makes the handshake of a connection, without a call. `bound` holds for each step of it: looking the name up,
    /// connecting, and each read or write of a proxy. `None`: it could not be made, or the host differs from message to
    /// message.
    fn handshake(&self, bound: Duration) -> BoxFuture<'_, Option<Handshake>>;

    /// By how much the time from a call to its arrival varies, where the downstream knows that itself: no handshake
    /// is made then.
    fn known_way(&self) -> Option<Spread> {
        None
    }
}

/// The handshake of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Handshake {
    /// From the request of the handshake to its answer, without the time in which its thread waited for a processor.
    /// Through a proxy: from the request to the proxy. Zero if `is_local`.
    pub took: Duration,
    /// The connection leads to this host, and no handshake is made: what varies then is the time that processes get,
    /// and no way.
    pub is_local: bool,
}
