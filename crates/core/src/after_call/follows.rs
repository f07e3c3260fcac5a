//! What follows from a call: what comes out of the decision.
//!
//! Problem: the end of a call concerns the message, its limits, its keys and the breaker at once. So the decision is
//! one list, [`AfterCall`], with a field for each of them, and the code that carries it out decides nothing.

use std::time::Duration;

use super::Tries;
use super::figures::{QuotaOutcome, Used};
use crate::breaker::BreakerReport;
use crate::gate::DownstreamState;
use crate::judge::DeadReason;
use crate::message::KeyId;
use crate::time::Mono;

/// What follows from a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AfterCall {
    /// What becomes of the message.
    pub next: NextStep,
    /// What its calls have done to it, this one included.
    pub tries: Tries,
    /// What the store is told about the claims of the message in its `once` limits.
    pub claims: ClaimsEnd,
    /// What the call took of limits with a key is refunded: the downstream is away because it refuses the credentials,
    /// and one call at a time probes. Where others are accepted meanwhile, a refused call may have counted.
    pub refunds_units: bool,
    /// The downstream refused the message for now: that is counted with the denials.
    pub is_refused: bool,
    /// The call before was refused without a named reason, and this one is accepted: so the call before came too early.
    pub came_early: bool,
    /// The limit is frozen for this long, for every replica.
    pub freeze_for: Option<Duration>,
    /// The key that the answer names has nothing left for this long, for every replica.
    pub close_key_for: Option<Duration>,
    /// Which of its keys pass again, and which are refused.
    pub keys: KeyChanges,
    /// What must be reported to the store of the breaker.
    pub report: Option<BreakerReport>,
    /// The call opened the breaker, or kept it open: its answer is the reason.
    pub kept_breaker_open: bool,
    /// For which replicas the downstream is away after this call, and how many calls it rejected in a row.
    pub downstream: DownstreamState,
    /// The gate of the route may have changed.
    pub gate_may_change: bool,
    /// For each [`CallEnd::used`](super::CallEnd::used).
    pub used: Vec<Used>,
    /// For each [`CallEnd::quotas`](super::CallEnd::quotas).
    pub quotas: Vec<QuotaOutcome>,
}

/// What becomes of a message after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// The downstream has it.
    Done,
    /// The message is a dead letter, for this reason.
    Dead(DeadReason),
    /// The message is called again.
    Again {
        /// Where it waits, and for how long.
        waits: NextWait,
        /// Another route is tried first: the downstream is away, or the first refusal lasts longer than `max_hold`.
        other_route_first: bool,
    },
}

/// Where a message waits for its next call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextWait {
    /// In memory, until this time at least; `None`: as long as its route waits.
    Here(Option<Mono>),
    /// In a wait queue, for this long.
    InQueue(Duration, Cause),
}

/// Why a message is called again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The call of the message failed, and that counts as an attempt.
    Failed,
    /// The downstream refused it while others may pass: that is no attempt.
    Refused,
}

/// What becomes of the claims of a message in its `once` limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimsEnd {
    /// The store is told that the message was accepted, before it is settled.
    Accepted,
    /// The message may have been accepted: the claims end with their leases.
    Unknown,
    /// The next call of the message claims again.
    Released,
}

/// What an answer shows about the keys of its message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyChanges {
    /// These keys were refused, and pass again.
    pub pass: Vec<KeyId>,
    /// Other keys go before these, until then.
    pub behind: Vec<(KeyId, Mono)>,
    /// These keys are refused until then, with all of their messages.
    pub refused: Vec<(KeyId, Mono)>,
}

impl KeyChanges {
    /// Only that these keys pass again.
    pub(super) fn pass(pass: Vec<KeyId>) -> Self {
        Self {
            pass,
            ..Self::default()
        }
    }

    /// The answer shows nothing new.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pass.is_empty() && self.behind.is_empty() && self.refused.is_empty()
    }
}
