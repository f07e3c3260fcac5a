//! The outcome of a call: the answer of a downstream, or the lack of one, is judged. Here by the status codes
//! of HTTP, in `smpp` by those of SMPP.
//!
//! An operator lists status codes, classes, `timeout` and `connection`. A code beats its class.
//! What no list names follows the defaults:
//! - 2xx: accepted;
//! - 420, 429 and 430: throttled;
//! - 403, 503 and 529: throttled if they say when to come back, else transient;
//! - 401, 407, 408, 421, 423, 425 and other 5xx, and no answer: transient;
//! - 409: transient if the call may be a repeat of one that was taken, since the first one may still run
//!   (draft-ietf-httpapi-idempotency-key-header, section 2.7);
//! - every other 4xx that says when to come back: transient;
//! - everything else, redirects included: permanent.
//!
//! Texts in the body have precedence over the status: some downstreams answer 200 and say "throttled". A template of
//! the operator has precedence over both. What an answer says of when to come back is read in `wait`.

mod entries;
mod moment;
pub mod quota;
pub mod smpp;
mod table;
mod texts;
mod wait;

use std::fmt;
use std::time::{Duration, SystemTime};

use self::entries::{Entries, Entry};
pub use self::entries::{ListError, Listed, Lists, Texts};
pub use self::moment::date;
use self::texts::Said;
pub use self::wait::Headers;
use self::wait::Waits;
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
    Transient {
        /// At least so long, if the downstream asked for it.
        wait: Option<Duration>,
    },
    /// It can never pass: dead letter.
    Permanent,
}

impl Outcome {
    /// It may pass later, and nothing says when.
    pub const TRANSIENT: Self = Self::Transient { wait: None };

    /// The value of the metric label `outcome`.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Throttled { .. } => "throttled",
            Self::Held { .. } => "held",
            Self::Transient { .. } => "transient",
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

/// What an entry of the configuration, or a template over an answer, says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    Accepted,
    Throttled,
    /// "Not now", for this message.
    Held,
    Transient,
    Permanent,
}

impl Meaning {
    /// Every one.
    pub const ALL: [Self; 5] = [
        Self::Accepted,
        Self::Throttled,
        Self::Held,
        Self::Transient,
        Self::Permanent,
    ];

    /// As the configuration writes it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Throttled => "throttled",
            Self::Held => "held",
            Self::Transient => "transient",
            Self::Permanent => "permanent",
        }
    }
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
    /// An answer came that cannot be read as far as its meaning depends on it.
    Unreadable,
}

/// The parts of an answer that matter.
#[derive(Clone, Copy)]
pub struct Reply<'a> {
    /// 100 to 999.
    pub status: u16,
    pub headers: Headers<'a>,
    /// Its first bytes, if [`Judge::reads`] them.
    pub body: &'a [u8],
    /// Its body matters, and a part of it did not come or cannot be decoded.
    pub lacks: bool,
    /// An earlier call of this message may have been taken, or the downstream recognizes repeats by a key.
    pub may_repeat: bool,
    pub read: Read<'a>,
}

impl fmt::Debug for Reply<'_> {
    /// Shows neither its headers nor its body: both may repeat content of the message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply")
            .field("status", &self.status)
            .field("bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// What the templates of the operator found in an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Read<'a> {
    pub outcome: Found,
    /// When to come back, as it stands there.
    pub wait: Option<&'a str>,
}

/// The result of the template `outcome`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Found {
    /// There is no template, or it makes nothing of this answer.
    #[default]
    Nothing,
    Meaning(Meaning),
    /// It cannot be applied to this answer, or makes a word that is no meaning.
    Failed,
}

/// The meaning of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judged {
    pub outcome: Outcome,
    /// The wait that the answer asked for, where it is longer than `max_throttle_wait` and was cut to that.
    pub cut_from: Option<Duration>,
}

/// Judges answers, whose statuses the lists name by `E`.
#[derive(Clone, Debug)]
pub struct Judge<E> {
    entries: Entries<E>,
    texts: Said,
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
            texts: Said::new(lists.texts)?,
            throttle_wait,
            max_throttle_wait,
        })
    }

    /// What the lack of an answer means.
    #[must_use]
    pub fn silence(&self, silence: Silence) -> Outcome {
        let meaning = self.entries.silence(silence);
        self.judged(meaning.unwrap_or(Meaning::Transient), Waits::default())
            .outcome
    }

    /// With the wait of an answer that says when to come back, within `max_throttle_wait`.
    fn judged(&self, meaning: Meaning, waits: Waits) -> Judged {
        let waited = match meaning {
            Meaning::Accepted | Meaning::Permanent => None,
            Meaning::Transient => waits.asked,
            Meaning::Held | Meaning::Throttled => waits.longest_known(),
        };
        let most = self.max_throttle_wait;
        let wait = waited.unwrap_or(self.throttle_wait).min(most);
        let outcome = match meaning {
            Meaning::Accepted => Outcome::Accepted,
            Meaning::Transient => Outcome::Transient {
                wait: waited.map(|wait| wait.min(most)),
            },
            Meaning::Permanent => Outcome::Permanent,
            Meaning::Held => Outcome::Held { wait },
            Meaning::Throttled => Outcome::Throttled { wait },
        };
        Judged {
            outcome,
            cut_from: waited.filter(|wait| *wait > most),
        }
    }
}

impl Judge<Code> {
    /// What an answer means. `None`: nothing is certain, because what it lacks, or what cannot be read, may decide.
    /// `now` counts for points in time if the answer has no `Date`.
    #[must_use]
    pub fn reply(&self, reply: Reply<'_>, now: SystemTime) -> Option<Judged> {
        let said = match reply.read.outcome {
            Found::Meaning(meaning) => Some(meaning),
            Found::Nothing | Found::Failed => self.texts.find(reply.body),
        };
        let waits = || Waits::read(reply.headers, reply.read.wait, now);
        let meaning = match said.or_else(|| self.listed(reply.status)) {
            Some(meaning) => meaning,
            // The usual answer needs no more.
            None if reply.status / 100 == 2 => Meaning::Accepted,
            None => default_meaning(reply.status, waits().asked.is_some(), reply.may_repeat),
        };
        let is_unsure = match meaning {
            Meaning::Accepted => reply.lacks || reply.read.outcome == Found::Failed,
            Meaning::Permanent => reply.lacks && said.is_none(),
            _ => false,
        };
        let needs_wait = !matches!(meaning, Meaning::Accepted | Meaning::Permanent);
        let waits = if needs_wait {
            waits()
        } else {
            Waits::default()
        };
        (!is_unsure).then(|| self.judged(meaning, waits))
    }

    fn listed(&self, status: u16) -> Option<Meaning> {
        let listed = |entry| self.entries.find(Entry::Status(entry));
        listed(Code::One(status)).or_else(|| listed(Code::Class(status / 100)))
    }

    /// Whether the bodies of answers matter.
    #[must_use]
    pub fn reads(&self) -> bool {
        !self.texts.is_empty()
    }
}

/// `asks`: the answer says when to come back. `may_repeat`: as in [`Reply`].
const fn default_meaning(status: u16, asks: bool, may_repeat: bool) -> Meaning {
    match status {
        200..=299 => Meaning::Accepted,
        // 420 is X's, and 430 Shopify's.
        420 | 429 | 430 => Meaning::Throttled,
        // A limit (GitHub answers 403), a maintenance, and an overload (529 is Anthropic's): about all messages.
        403 | 503 | 529 if asks => Meaning::Throttled,
        // Unauthorized, forbidden, a proxy that does not know us: about us, as a rule, not the message. The others
        // are about the moment: too slow, the wrong server, locked, too early.
        401 | 403 | 407 | 408 | 421 | 423 | 425 | 500..=599 => Meaning::Transient,
        409 if may_repeat => Meaning::Transient,
        400..=499 if asks => Meaning::Transient,
        _ => Meaning::Permanent,
    }
}

/// The statuses of HTTP that an entry names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    One(u16),
    /// Those that begin with this digit.
    Class(u16),
}

impl Listed for Code {
    const RIGHT: &'static str = "write a code such as \"409\", a class such as \"5xx\", \"timeout\", \"connection\" or \"unreadable\"";
    const CAN_BE_UNREADABLE: bool = true;
    const NEVER_ACCEPTED: &'static [Silence] = &[Silence::Connection, Silence::Unreadable];

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
