//! What the downstream's answer means for a message, and what becomes of its delivery.

use std::time::Duration;

/// What one call came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The downstream took the message.
    Accepted,
    /// "Not now": no attempt is spent, and the limit is frozen for every replica.
    Throttled {
        /// As long as the downstream asked to wait, or as the route says.
        wait: Duration,
    },
    /// "Not now" for this message alone, because of its recipient, say: it waits, no attempt is spent, and
    /// nothing is frozen.
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
}

impl DeadReason {
    /// Every one.
    pub const ALL: [Self; 8] = [
        Self::Rejected,
        Self::AttemptsExhausted,
        Self::Undecodable,
        Self::Unreadable,
        Self::Oversized,
        Self::Expired,
        Self::Invalid,
        Self::Denied,
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
        }
    }
}
