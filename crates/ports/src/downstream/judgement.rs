//! The answer to a call, and what it means for the message.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use sluiced_core::after_call::AnswerStatus;
use sluiced_core::judge::{Outcome, Silence};
use sluiced_pdu::CommandStatus;

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
    pub const fn shows_away(self) -> bool {
        match self {
            Self::Http(code) => matches!(code, 401 | 403 | 407 | 500..),
            Self::Smpp(status) => status.shows_away(),
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
            shows_away: self.shows_away(),
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
