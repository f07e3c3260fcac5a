//! What a limit granted, and what an answer reported about a key.
//!
//! Units stay spent once a message may have been sent, and can be returned before. A call of a `concurrency` limit and
//! a claim of a `once` limit count until they are ended, so each has a name in the store.

use std::sync::Arc;
use std::time::Duration;

use super::{Charge, KeyedLimit, LimitKey};
use crate::clock;
use sluiced_core::limits::{Rule, Ticket, UnusedUnits};
use sluiced_core::rate::Cost;
use sluiced_core::time::{Mono, StoreTime};

/// A charge that was granted, with its name in the store. The kind of the limit at that moment counts: a
/// policy may change it later.
#[derive(Clone, Debug)]
pub enum GrantedCharge {
    /// Units. They stay spent once the message may have been sent.
    Units {
        /// The limit, its key and the cost.
        charge: Charge,
        /// Without this time they cannot be taken back.
        at: GrantedAt,
    },
    /// A call that counts in a `concurrency` limit until it ends.
    Call {
        /// The limit, its key, and how many units the call counts.
        charge: Charge,
        /// The name by which the call is renewed and ended.
        ticket: Ticket,
    },
    /// The claim of a key in a `once` limit, until it is known what became of the call.
    Claim {
        /// The limit and the key, at a cost of 1.
        charge: Charge,
        /// The name by which the claim is renewed and ended.
        ticket: Ticket,
    },
}

/// When units were granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantedAt {
    /// On the store's clock.
    pub at: StoreTime,
    /// When they were asked for, on ours: that of the store may go back meanwhile.
    pub asked: Mono,
}

impl GrantedAt {
    /// So many units that were granted then and were not used.
    #[must_use]
    pub fn unused(&self, cost: Cost) -> UnusedUnits {
        UnusedUnits {
            at: self.at,
            cost,
            age: clock::now().since(self.asked),
        }
    }
}

impl GrantedCharge {
    /// A charge of a message with this ticket that was granted then.
    #[must_use]
    pub fn new(charge: &Charge, at: GrantedAt, ticket: Ticket) -> Self {
        if charge.limit.counts_calls() {
            return Self::call(charge, ticket);
        }
        let charge = charge.clone();
        Self::Units { charge, at }
    }

    /// A call or a claim of a message with this ticket, granted or not: ending one that does not count
    /// changes nothing.
    #[must_use]
    pub fn call(charge: &Charge, ticket: Ticket) -> Self {
        let charge = charge.clone();
        match charge.limit.policy().rule {
            Rule::Once(_) => Self::Claim { charge, ticket },
            _ => Self::Call { charge, ticket },
        }
    }

    /// The limit that granted it, its key and the cost.
    #[must_use]
    pub const fn charge(&self) -> &Charge {
        match self {
            Self::Units { charge, .. } | Self::Call { charge, .. } | Self::Claim { charge, .. } => {
                charge
            }
        }
    }

    /// The name by which it is renewed and ended; `None`: it is units.
    #[must_use]
    pub const fn ticket(&self) -> Option<Ticket> {
        match self {
            Self::Units { .. } => None,
            Self::Call { ticket, .. } | Self::Claim { ticket, .. } => Some(*ticket),
        }
    }

    /// Whether it is a call or a claim: it counts until its lease ends.
    #[must_use]
    pub const fn is_leased(&self) -> bool {
        self.ticket().is_some()
    }

    /// Whether it is the claim of a key.
    #[must_use]
    pub const fn is_claim(&self) -> bool {
        matches!(self, Self::Claim { .. })
    }
}

/// What an answer reported about a key.
#[derive(Clone, Debug)]
pub struct Correction {
    /// The limit that the answer was about. If this replica does not know its current policy, the correction is not
    /// done.
    pub limit: Arc<KeyedLimit>,
    /// The key that the message of the answer has in this limit.
    pub key: LimitKey,
    /// What to write.
    pub what: Corrected,
}

/// The correction to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Corrected {
    /// The downstream says that this many units are left, for this long (`core::limits::cell::tighten`).
    Quota {
        /// In units of the limit. 0: nothing passes.
        units: u64,
        /// From the moment at which the store writes it; more than 24 hours count as 24. Zero: it is over already.
        length: Duration,
    },
    /// A call used this many units less than were granted then (`core::limits::cell::refund`).
    Less {
        /// In units of the limit.
        units: Cost,
        /// When the units of the call were granted.
        at: GrantedAt,
    },
    /// A call used this many units more than were granted (`core::limits::add_debt`).
    More {
        /// In units of the limit. The key owes them.
        units: u64,
    },
    /// An operator forgives what the key owes, and what the downstream said is left (`core::limits::forgive`).
    Forgiven,
}
