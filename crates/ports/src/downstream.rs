//! What the pipeline needs of a downstream.
//!
//! A call is prepared before its slot is due. So a message from which no request can be made
//! never costs a slot, and when the slot comes only sending is left.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use tokio::sync::oneshot;

use super::clock::Clock;
use super::message::Message;
use sluiced_core::judge::Outcome;
pub use sluiced_core::judge::{Silence, Status};
use sluiced_core::smpp::Receipt;
use sluiced_core::time::Mono;

/// What a template may use besides the message.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    pub route: &'a str,
    /// Calls that were made and failed before this one, plus one: 1 for the first.
    pub attempt: u32,
}

/// Why no request can be made from a message. It goes to the dead-letter queue with this text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub struct Undecodable {
    /// Which part: `body`, `header X-Tenant`, `url` …
    pub what: String,
    /// What is wrong with it. Never a message's content.
    pub why: String,
}

/// The longest body of an answer that is kept, in bytes.
pub const MAX_ANSWER: usize = 64 * 1024;

/// The answer of the downstream, for users that need more of it than its meaning.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// The number of the status.
    pub status: u32,
    /// By name, in lower case. Several with one name are joined by commas (RFC 9110, section 5.3).
    pub headers: BTreeMap<String, String>,
    /// At most the first [`MAX_ANSWER`] bytes.
    pub body: Bytes,
    /// Whether `body` is all of it.
    pub is_whole: bool,
}

impl Answer {
    /// The beginning of its body as a text for an operator, at most `most` bytes of it.
    #[must_use]
    pub fn beginning(&self, most: usize) -> String {
        let text = String::from_utf8_lossy(&self.body[..self.body.len().min(most)]);
        text.trim().to_owned()
    }
}

impl fmt::Debug for Answer {
    /// Shows neither its headers nor its body: both may repeat content of the message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer")
            .field("status", &self.status)
            .field("bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// The result of one call, with details for an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    pub outcome: Outcome,
    /// The status code, or why there was no answer.
    pub reply: Result<Status, Silence>,
    /// For a person: `503 Service Unavailable`, `no answer within 10s`. Never a message's content.
    pub detail: String,
    /// The answer, if the configuration uses it.
    pub answer: Option<Answer>,
    /// Whether the downstream may have received the request. `false` only if that is certain: no
    /// connection came about, or it closed before anything was written to it. A repeat after
    /// `true` may be a duplicate; a repeat after `false` cannot.
    pub maybe_delivered: bool,
    /// The wait that the answer asked for, where it was cut to `max_throttle_wait`.
    pub cut_from: Option<Duration>,
    /// What is left of a message that was taken in part. `None`: nothing of it was taken, or all of it.
    pub rest: Option<Rest>,
}

/// A message that is sent in parts, of which the downstream has taken some: what is still to be sent. Only the
/// downstream that made it reads it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Rest {
    /// For each part of the message the downstream's id, once it was taken; empty if it gave none.
    pub taken: Vec<Option<String>>,
    /// The other parts in their order, as they were made for the first call.
    pub left: Vec<Vec<u8>>,
}

impl Rest {
    /// All parts of a message.
    #[must_use]
    pub fn all(parts: Vec<Vec<u8>>) -> Self {
        Self {
            taken: vec![None; parts.len()],
            left: parts,
        }
    }

    /// What is left after a call. `ids` has one entry for each part that was sent: the id of one that was taken.
    #[must_use]
    pub fn after(self, ids: impl IntoIterator<Item = Option<String>>) -> Self {
        let (mut taken, mut left) = (self.taken, Vec::new());
        let sent = taken.iter_mut().filter(|id| id.is_none());
        for ((part, place), id) in self.left.into_iter().zip(sent).zip(ids) {
            match id {
                Some(id) => *place = Some(id),
                None => left.push(part),
            }
        }
        Self { taken, left }
    }

    /// Whether some parts were taken and others were not.
    #[must_use]
    pub fn is_in_between(&self) -> bool {
        !self.left.is_empty() && self.left.len() < self.taken.len()
    }
}

impl fmt::Debug for Rest {
    /// Shows nothing of the message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rest")
            .field("parts", &self.taken.len())
            .field("left", &self.left.len())
            .finish_non_exhaustive()
    }
}

impl Judgement {
    /// The number of the status, if there was an answer.
    #[must_use]
    pub fn status(&self) -> Option<u32> {
        self.reply.ok().map(Status::number)
    }

    /// The value of the metric label `answer`.
    #[must_use]
    pub const fn reply_label(&self) -> &'static str {
        match self.reply {
            Ok(status) => status.label(),
            Err(Silence::Timeout) => "timeout",
            Err(Silence::Connection) => "connection",
            Err(Silence::Unreadable) => "unreadable",
        }
    }
}

/// Until when a call may leave.
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    clock: Clock,
    leave_by: Mono,
}

impl Gate {
    /// A gate that closes right after `leave_by`.
    #[must_use]
    pub const fn new(clock: Clock, leave_by: Mono) -> Self {
        Self { clock, leave_by }
    }

    /// A gate that never closes, for calls that no limit counts.
    #[must_use]
    pub const fn open(clock: Clock) -> Self {
        Self {
            clock,
            leave_by: Mono::from_micros(u64::MAX),
        }
    }

    /// Whether it is too late to leave.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.clock.now() > self.leave_by
    }

    /// How long it is still open.
    #[must_use]
    pub fn left(&self) -> Duration {
        self.leave_by.since(self.clock.now())
    }
}

/// The call was held back: not a byte of it has left, and its slot is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the slot had passed before the request could be written")]
pub struct TooLate;

/// A downstream's report about a message, long after its call.
#[derive(Debug)]
pub struct ReceiptArrival {
    pub receipt: Receipt,
    /// The addresses of the receipt: its source is the recipient of the message.
    pub source: String,
    pub destination: String,
    /// Receives whether it is safe. Dropped, or `false`: the downstream keeps it.
    pub confirmed: oneshot::Sender<bool>,
}

/// A request that only has to be sent.
pub trait Call: Send {
    /// Sends it, if it can leave while `gate` is open. Ends within the downstream's own timeout.
    /// Nothing is written before the first poll, and the caller polls at the slot.
    fn send(self: Box<Self>, gate: Gate) -> BoxFuture<'static, Result<Judgement, TooLate>>;
}

/// A rate-limited service that messages go to.
pub trait Downstream: Send + Sync + fmt::Debug {
    /// Makes the request.
    ///
    /// # Errors
    /// When the message lacks what the templates need.
    fn prepare(&self, message: &Message, facts: Facts<'_>) -> Result<Box<dyn Call>, Undecodable>;

    /// Makes the request that sends the rest of a message. A downstream that sends messages whole has no rests.
    ///
    /// # Errors
    /// As [`Downstream::prepare`].
    fn go_on(
        &self,
        message: &Message,
        facts: Facts<'_>,
        rest: Rest,
    ) -> Result<Box<dyn Call>, Undecodable> {
        drop(rest);
        self.prepare(message, facts)
    }

    /// Opens connections without making a call, so that the first slot does not pay for a
    /// handshake. Best effort, within `bound`; must run on the runtime that will send.
    fn warm(&self, bound: Duration) -> BoxFuture<'_, Result<(), String>>;

    /// Ends its connections as its protocol requires, within a second; no call is made after it. Must run on
    /// the runtime that sends.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Makes the handshake of a connection, within `bound`, without a call. `None`: it could not be made, or the host
    /// differs from message to message.
    fn handshake(&self, bound: Duration) -> BoxFuture<'_, Option<Handshake>>;
}

/// The handshake of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Handshake {
    pub took: Duration,
    /// It leads to this host, and is not made: what varies then is the time that processes get, and no way.
    pub is_local: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_is_not_left() {
        let all = Rest::all(vec![vec![1], vec![2], vec![3]]);
        assert!(!all.is_in_between());
        let id = |text: &str| Some(text.to_owned());
        let some = all.after([None, id("b"), None]);
        assert_eq!(some.taken, [None, id("b"), None]);
        assert_eq!(some.left, [[1], [3]]);
        assert!(some.is_in_between());
        let one = some.after([id("a"), None]);
        assert_eq!(one.left, [[3]]);
        let none = one.after([id("")]);
        assert_eq!(none.taken, [id("a"), id("b"), id("")]);
        assert!(!none.is_in_between());
    }
}
