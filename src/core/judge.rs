//! The outcome of a call: the answer of a downstream, or the lack of one, is judged. Here by the status codes
//! of HTTP, in `smpp` by those of SMPP.
//!
//! An operator lists status codes, classes, `timeout` and `connection`. A code beats its class.
//! What no list names follows the defaults:
//! - 2xx: accepted;
//! - 429: throttled;
//! - 503: throttled if it has a `Retry-After` (RFC 9110 section 10.2.3), else transient;
//! - 401, 403, 407, 408, 425 and other 5xx, and no answer: transient;
//! - everything else, redirects included: permanent.
//!
//! Texts in the body have precedence over the status: some downstreams answer 200 and say
//! "throttled". A date in `Retry-After` is compared with the answer's own `Date`, because both
//! come from one clock. Our own clock is used only if there is no `Date`.

mod entries;
pub mod quota;
pub mod smpp;
mod wait;

use std::time::{Duration, SystemTime};

use self::entries::{Entries, Entry};
pub use self::entries::{ListError, Listed, Lists, Texts};
pub use self::wait::{Hints, date, retry_after};
use super::smpp::CommandStatus;

/// The outcome of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The downstream took the message.
    Accepted,
    /// "Not now": no attempt is spent, and the limit is frozen for every replica.
    Throttled {
        /// The wait that the downstream asked for, or that of the route.
        wait: Duration,
    },
    /// "Not now" for this message alone, for example because of its recipient: it waits, no attempt is
    /// spent, and nothing is frozen.
    Held {
        /// At least so long.
        wait: Duration,
    },
    /// It may pass later: a retry with backoff, up to `max_attempts`.
    Transient,
    /// It can never pass: dead letter.
    Permanent,
}

impl Outcome {
    /// The value of the metric label `outcome`.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Throttled { .. } => "throttled",
            Self::Held { .. } => "held",
            Self::Transient => "transient",
            Self::Permanent => "permanent",
        }
    }
}

/// Why a message went to the dead-letter queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadReason {
    /// The downstream said that it can never pass.
    Rejected,
    /// Every attempt failed.
    AttemptsExhausted,
    /// The request could not be made from it.
    Undecodable,
    /// Its properties cannot be read.
    Unreadable,
    /// Its body is larger than `max_body`.
    Oversized,
    /// It was too old before it could be sent.
    Expired,
    /// A limit cannot count it: a field for a key or a cost is missing, the cost is no whole
    /// number from 1, or it can never fit.
    Invalid,
    /// Its limit denied it, and the route says `on_denied = "dead_letter"`.
    Denied,
    /// It may have been accepted, and its `once` limit says `on_unknown = "dead_letter"`.
    Unknown,
    /// The downstream refused it for too long, while it accepted others.
    Throttled,
}

impl DeadReason {
    /// Every one.
    pub const ALL: [Self; 10] = [
        Self::Rejected,
        Self::AttemptsExhausted,
        Self::Undecodable,
        Self::Unreadable,
        Self::Oversized,
        Self::Expired,
        Self::Invalid,
        Self::Denied,
        Self::Unknown,
        Self::Throttled,
    ];

    /// The value of the header `x-sluiced-reason` and of the metric label `reason`.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Rejected => "rejected",
            Self::AttemptsExhausted => "attempts_exhausted",
            Self::Undecodable => "undecodable",
            Self::Unreadable => "unreadable",
            Self::Oversized => "oversized",
            Self::Expired => "expired",
            Self::Invalid => "invalid",
            Self::Denied => "denied",
            Self::Unknown => "unknown",
            Self::Throttled => "throttled",
        }
    }
}

/// What an entry of the configuration means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    Accepted,
    Throttled,
    Transient,
    Permanent,
    /// "Not now", for this message.
    Held,
}

/// What a downstream answered, in its protocol's own numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Http(u16),
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

/// Why there was no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// A connection came about, but the answer did not come in time.
    Timeout,
    /// No connection came about, or it broke before the answer.
    Connection,
}

/// The parts of an answer that matter.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reply<'a> {
    /// 100 to 999.
    pub status: u16,
    pub hints: Hints<'a>,
    /// Its first bytes, if [`Judge::reads`] them.
    pub body: &'a [u8],
}

/// A text, and the meaning of an answer that contains it.
type Said = (Box<[u8]>, Meaning);

/// Judges answers, whose statuses the lists name by `E`.
#[derive(Clone, Debug)]
pub struct Judge<E> {
    entries: Entries<E>,
    texts: Vec<Said>,
    throttle_wait: Duration,
    max_throttle_wait: Duration,
}

impl<E: Listed> Judge<E> {
    /// Reads the lists. `throttle_wait` is for throttled answers without a wait of their own;
    /// `max_throttle_wait` bounds every wait.
    ///
    /// # Errors
    /// When an entry is no status, is in two lists, or would lose messages.
    pub fn new(
        lists: Lists<'_>,
        throttle_wait: Duration,
        max_throttle_wait: Duration,
    ) -> Result<Self, ListError> {
        let entries = Entries::parse(&lists)?;
        let accepts = |silence: &Silence| entries.silence(*silence) == Some(Meaning::Accepted);
        if E::NEVER_ACCEPTED.iter().any(accepts) {
            return Err(ListError::AcceptedUnsent);
        }
        Ok(Self {
            entries,
            texts: texts(lists.texts)?,
            throttle_wait,
            max_throttle_wait,
        })
    }

    /// What the lack of an answer means.
    #[must_use]
    pub fn silence(&self, silence: Silence) -> Outcome {
        let meaning = self.entries.silence(silence);
        self.outcome(meaning.unwrap_or(Meaning::Transient), || None)
    }

    /// `wait`: as long as the answer asks to wait. A wait of zero, one in the past and one that cannot be read
    /// count as none. Otherwise a downstream that throttles and answers "at once" would be called at once, again
    /// and again.
    fn outcome(&self, meaning: Meaning, wait: impl FnOnce() -> Option<Duration>) -> Outcome {
        let wait = || {
            wait()
                .unwrap_or(self.throttle_wait)
                .min(self.max_throttle_wait)
        };
        match meaning {
            Meaning::Accepted => Outcome::Accepted,
            Meaning::Transient => Outcome::Transient,
            Meaning::Permanent => Outcome::Permanent,
            Meaning::Held => Outcome::Held { wait: wait() },
            Meaning::Throttled => Outcome::Throttled { wait: wait() },
        }
    }
}

impl Judge<Code> {
    /// What an answer means. `now` is the fallback for a `Retry-After` date without a `Date`.
    #[must_use]
    pub fn reply(&self, reply: Reply<'_>, now: SystemTime) -> Outcome {
        let listed = |entry| self.entries.find(Entry::Status(entry));
        let meaning = self
            .said(reply.body)
            .or_else(|| listed(Code::One(reply.status)))
            .or_else(|| listed(Code::Class(reply.status / 100)))
            .unwrap_or_else(|| default_meaning(&reply));
        self.outcome(meaning, || reply.hints.wait(now))
    }

    /// What the texts in an answer mean; `None` if it has none of them.
    fn said(&self, body: &[u8]) -> Option<Meaning> {
        let mut texts = self.texts.iter();
        let said = texts.find(|(text, _)| contains(body, text));
        said.map(|(_, meaning)| *meaning)
    }

    /// Whether an answer has a text that means something.
    #[must_use]
    pub fn says(&self, body: &[u8]) -> bool {
        self.said(body).is_some()
    }

    /// Whether the bodies of answers matter.
    #[must_use]
    pub fn reads(&self) -> bool {
        !self.texts.is_empty()
    }
}

fn default_meaning(reply: &Reply<'_>) -> Meaning {
    match reply.status {
        200..=299 => Meaning::Accepted,
        429 => Meaning::Throttled,
        503 if reply.hints.retry_after.is_some() => Meaning::Throttled,
        // Unauthorised, forbidden, a proxy that does not know us: about us, as a rule, not the message.
        401 | 403 | 407 | 408 | 425 | 500..=599 => Meaning::Transient,
        _ => Meaning::Permanent,
    }
}

/// The texts with their meanings; those that are more about the message come last.
fn texts(lists: Texts<'_>) -> Result<Vec<Said>, ListError> {
    let lists = [
        (Meaning::Throttled, lists.throttled),
        (Meaning::Held, lists.held),
        (Meaning::Transient, lists.transient),
        (Meaning::Permanent, lists.permanent),
    ];
    let all = lists
        .iter()
        .flat_map(|(meaning, texts)| texts.iter().map(|text| (text.as_bytes().into(), *meaning)));
    let all: Vec<Said> = all.collect();
    if all.iter().any(|(text, _)| text.is_empty()) {
        return Err(ListError::EmptyText);
    }
    Ok(all)
}

fn contains(body: &[u8], text: &[u8]) -> bool {
    body.windows(text.len()).any(|part| part == text)
}

/// The statuses of HTTP that an entry names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    One(u16),
    /// Those that begin with this digit.
    Class(u16),
}

impl Listed for Code {
    const RIGHT: &'static str =
        "write a code such as \"409\", a class such as \"5xx\", \"timeout\" or \"connection\"";
    const NEVER_ACCEPTED: &'static [Silence] = &[Silence::Connection];

    fn read(text: &str) -> Option<Self> {
        match text.as_bytes() {
            [class @ b'1'..=b'5', b'x', b'x'] => Some(Self::Class(u16::from(class - b'0'))),
            [b'1'..=b'9', b'0'..=b'9', b'0'..=b'9'] => text.parse().ok().map(Self::One),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
