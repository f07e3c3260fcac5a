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
use sluiced_core::after_call::AnswerStatus;
use sluiced_core::headroom::Spread;
use sluiced_core::judge::{Outcome, Silence};
use sluiced_core::time::Mono;
use sluiced_pdu::{CommandStatus, Receipt};

/// What a template may use besides the message.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The name of the route that has the message.
    pub route: &'a str,
    /// Calls that were made and failed before this one, plus one: 1 for the first.
    pub attempt: u32,
    /// The most bytes that are made of a body that is compressed.
    pub max_body: u64,
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
    /// The number of the status, as [`Status::number`] gives it.
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

/// What a downstream answered, in its protocol's own numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The status code of HTTP (RFC 9110, section 15).
    Http(u16),
    /// The `command_status` of a `submit_sm_resp` or of a `generic_nack`. Of a message of several segments it is that
    /// of the segment that decides.
    Smpp(CommandStatus),
}

impl Status {
    /// The number, as headers and logs have it.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Http(code) => code as u32,
            Self::Smpp(CommandStatus(code)) => code,
        }
    }

    /// Whether an answer with this status shows that no message passes now: an error of the downstream
    /// itself, or refused credentials.
    #[must_use]
    pub const fn is_about_us(self) -> bool {
        match self {
            Self::Http(code) => matches!(code, 401 | 403 | 407 | 500..),
            Self::Smpp(status) => status.is_about_us(),
        }
    }

    /// Whether an answer with this status refuses the credentials, before the message was looked at.
    #[must_use]
    pub const fn is_about_credentials(self) -> bool {
        match self {
            Self::Http(code) => matches!(code, 401 | 403 | 407),
            Self::Smpp(status) => status.is_about_credentials(),
        }
    }

    /// As what follows from a call is decided by it.
    #[must_use]
    pub const fn as_answer(self) -> AnswerStatus {
        AnswerStatus {
            number: self.number(),
            is_about_us: self.is_about_us(),
            refuses_credentials: self.is_about_credentials(),
        }
    }

    /// The value of the metric label `answer`: the codes that ask for an action of their own, and classes for the
    /// others.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Http(code) => match code {
                401 => "401",
                403 => "403",
                429 => "429",
                503 => "503",
                ..300 => "2xx",
                300..400 => "3xx",
                400..500 => "4xx",
                500.. => "5xx",
            },
            Self::Smpp(status) => status.label(),
        }
    }
}

/// The result of one call, with details for an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// What the answer means, or that there is none.
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
    /// The downstream refused the credentials of this call, and they have been replaced since: a repeat has others.
    pub renewed: bool,
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

    /// Whether the downstream refused the credentials: it did not look at the message.
    #[must_use]
    pub const fn refuses_credentials(&self) -> bool {
        matches!(self.outcome, Outcome::Transient { .. })
            && matches!(self.reply, Ok(status) if status.is_about_credentials())
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

/// The last moment at which a call may leave.
#[derive(Clone, Copy, Debug)]
pub struct LeaveBy {
    clock: Clock,
    at: Mono,
}

impl LeaveBy {
    /// A call may leave until `at`, that moment included. `at` is a time of `clock`: clocks that were started apart
    /// have different zeros.
    #[must_use]
    pub const fn new(clock: Clock, at: Mono) -> Self {
        Self { clock, at }
    }

    /// At any time, for calls that no limit counts.
    #[must_use]
    pub const fn any_time(clock: Clock) -> Self {
        Self {
            clock,
            at: Mono::NEVER,
        }
    }

    /// Whether it is too late to leave.
    #[must_use]
    pub fn has_passed(&self) -> bool {
        self.clock.now() > self.at
    }

    /// How long until then; zero if it has passed.
    #[must_use]
    pub fn left(&self) -> Duration {
        self.at.since(self.clock.now())
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

/// What a message centre delivers by itself, perhaps hours after a call.
#[derive(Debug)]
pub struct InboundEvent {
    /// A receipt, or a message from a phone.
    pub what: InboundKind,
    /// Of a receipt the recipient of the message, of a message the phone. Empty if the delivery cannot be read.
    pub source: String,
    /// Of a receipt the sender of the message, of a message the number that the phone wrote to. Empty if the delivery
    /// cannot be read.
    pub destination: String,
    /// Receives whether it is safe. Dropped, or `false`: the downstream keeps it.
    pub confirmed: oneshot::Sender<bool>,
}

/// What arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InboundKind {
    /// What became of a message.
    Receipt(Receipt),
    /// A message from a phone.
    Inbound(Inbound),
}

/// A message from a phone, or a segment of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inbound {
    /// The text without the header of user data; of a segment, its own part of the text. It is read in the GSM alphabet
    /// for a `data_coding` of 0, as UCS-2 for 8, and otherwise as UTF-8 or, if it is not that, as Latin 1. What is no
    /// character becomes U+FFFD.
    pub text: String,
    /// How the text was written (SMPP 3.4, section 5.2.19).
    pub data_coding: u8,
    /// `None`: it is whole.
    pub segment: Option<Segment>,
}

/// Which segment of a longer message it is, as a header of user data (TS 23.040, section 9.2.3.24) or the `sar_`
/// parameters of SMPP say. Segments come in any order. The numbers are those that came: they are not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// All segments of a message have the same. Phones use a reference again. With the shorter header it is at most
    /// 255.
    pub reference: u16,
    /// From 1.
    pub number: u8,
    /// How many segments the message has.
    pub of: u8,
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
