//! The outcome of a call, whatever the protocol: what an operator says that answers mean, and what follows from a
//! meaning.
//!
//! A downstream's crate knows the statuses of its protocol, their meanings by default, and where an answer says when to
//! come back (`http::answers::judge`, `smpp::judge`). The operator lists statuses, `timeout` and `connection` as they
//! are named there ([`Listed`]), and texts in the body, which have precedence over the status: some downstreams answer
//! 200 and say "throttled".

mod entries;
mod texts;

use std::time::Duration;

use self::entries::{Entries, ListEntry};
pub use self::entries::{ListError, Listed, Lists, Texts};
use self::texts::TextList;

/// The outcome of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The downstream took the message.
    Accepted,
    /// "Not now". `refusals` decides whether the message waits, its key, or the whole limit.
    Throttled {
        /// The wait that the downstream asked for, or that of the route.
        wait: Duration,
    },
    /// "Not now" for this message alone, for example because of its recipient: it waits, no attempt is
    /// spent, and nothing is frozen.
    Held {
        /// At least this long.
        wait: Duration,
    },
    /// The message may pass later: a retry with backoff, up to `max_attempts`.
    Transient {
        /// At least this long, if the downstream asked for it.
        wait: Option<Duration>,
    },
    /// The message can never pass: dead letter.
    Permanent,
}

impl Outcome {
    /// The message may pass later, and nothing says when.
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

crate::labelled! {
    /// Why a message went to the dead-letter queue.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum DeadReason {
        /// The downstream said that it can never pass.
        Rejected = "rejected",
        /// Every attempt failed.
        AttemptsExhausted = "attempts_exhausted",
        /// The request could not be made from it.
        Undecodable = "undecodable",
        /// The properties of the message cannot be read.
        Unreadable = "unreadable",
        /// The body of the message is larger than `max_body`.
        Oversized = "oversized",
        /// The message was too old before it could be sent.
        Expired = "expired",
        /// A limit cannot count it: a field for a key or a cost is missing, the cost is no whole
        /// number from 1, or it can never fit.
        Invalid = "invalid",
        /// A limit of the message denied it, and the route says `on_denied = "dead_letter"`.
        Denied = "denied",
        /// The message may have been accepted, and its `once` limit says `on_unknown = "dead_letter"`.
        Unknown = "unknown",
        /// The downstream refused it for too long, while it accepted others.
        Throttled = "throttled",
    }

    /// The value of the header `x-sluiced-reason` and of the metric label `reason`.
    pub const fn label(self) -> &'static str;
}

crate::labelled! {
    /// What an entry of the configuration, or a template over an answer, says.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Meaning {
        /// The downstream took the message.
        Accepted = "accepted",
        /// "Not now": `refusals` decides whether that is about the message, a key of it, or all messages.
        Throttled = "throttled",
        /// "Not now", for this message.
        Held = "held",
        /// The call failed, and may succeed later.
        Transient = "transient",
        /// The downstream will never take the message: a dead letter.
        Permanent = "permanent",
    }

    /// As the configuration writes it.
    pub const fn word(self) -> &'static str;
}

/// Why there is no answer that can be judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// A connection came about, but the answer did not come in time.
    Timeout,
    /// No connection came about, or it broke before the answer.
    Connection,
    /// An answer came that cannot be read as far as its meaning depends on it.
    Unreadable,
}

/// The result of the template `outcome`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TemplateOutcome {
    /// There is no template, or it makes nothing of this answer.
    #[default]
    Nothing,
    /// The template says what the answer means.
    Meaning(Meaning),
    /// The template cannot be applied to this answer, or makes a word that is no meaning.
    Failed,
}

/// What an answer says of when to come back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AskedWait {
    /// The answer asks for this wait, whatever its status.
    pub asked: Option<Duration>,
    /// A reset that says nothing of what is left: it counts only where the answer means "not now".
    pub reset: Option<Duration>,
}

impl AskedWait {
    /// For an answer that means "not now". What it asks for counts, also where the reset is later: the reset may belong
    /// to a quota that still has units.
    fn asked_or_reset(self) -> Option<Duration> {
        self.asked.or(self.reset)
    }
}

/// What is left of one of the downstream's own quotas, as an answer says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remaining {
    /// Units that are left in a window of the downstream, by its own count.
    pub units: u64,
    /// The longest time until all of it is back; `None`: the answer does not say it, or it cannot be read.
    pub reset: Option<Duration>,
}

/// The meaning of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerMeaning {
    /// What the answer means, with a wait of `max_throttle_wait` at most.
    pub outcome: Outcome,
    /// The wait that the answer asked for, where it is longer than `max_throttle_wait` and was cut to that.
    pub cut_from: Option<Duration>,
}

/// Judges answers, whose statuses the lists name by `E`.
#[derive(Clone, Debug)]
pub struct Judge<E> {
    entries: Entries<E>,
    texts: TextList,
    throttle_wait: Duration,
    max_throttle_wait: Duration,
}

impl<E: Listed> Judge<E> {
    /// Reads the lists. `throttle_wait` is for throttled answers without a wait of their own;
    /// `max_throttle_wait` bounds every wait.
    ///
    /// # Errors
    /// When an entry is no status, is in two lists, or would lose messages, or a text is empty.
    pub fn new(
        lists: Lists<'_>,
        throttle_wait: Duration,
        max_throttle_wait: Duration,
    ) -> Result<Self, ListError> {
        let entries = Entries::parse(&lists)?;
        let accepts = |silence: &Silence| {
            entries.find(ListEntry::Silence(*silence)) == Some(Meaning::Accepted)
        };
        if E::NEVER_ACCEPTED.iter().any(accepts) {
            return Err(ListError::AcceptedUnsent);
        }
        Ok(Self {
            entries,
            texts: TextList::new(lists.texts)?,
            throttle_wait,
            max_throttle_wait,
        })
    }

    /// What the lists say of a status.
    #[must_use]
    pub fn listed(&self, status: E) -> Option<Meaning> {
        self.entries.find(ListEntry::Status(status))
    }

    /// What the lists say of the lack of an answer.
    #[must_use]
    pub fn listed_silence(&self, silence: Silence) -> Option<Meaning> {
        self.entries.find(ListEntry::Silence(silence))
    }

    /// What the texts say of the body of an answer.
    #[must_use]
    pub fn said(&self, body: &[u8]) -> Option<Meaning> {
        self.texts.find(body)
    }

    /// Whether there are texts, so that the bodies of answers matter.
    #[must_use]
    pub fn has_texts(&self) -> bool {
        !self.texts.is_empty()
    }

    /// What the lack of an answer means.
    #[must_use]
    pub fn silence(&self, silence: Silence) -> Outcome {
        let meaning = self.listed_silence(silence);
        self.judged(meaning.unwrap_or(Meaning::Transient), AskedWait::default())
            .outcome
    }

    /// What follows from the meaning of an answer and its waits, which count up to `max_throttle_wait`.
    #[must_use]
    pub fn judged(&self, meaning: Meaning, waits: AskedWait) -> AnswerMeaning {
        let waited = match meaning {
            Meaning::Accepted | Meaning::Permanent => None,
            Meaning::Transient => waits.asked,
            Meaning::Held | Meaning::Throttled => waits.asked_or_reset(),
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
        AnswerMeaning {
            outcome,
            cut_from: waited.filter(|wait| *wait > most),
        }
    }
}
