//! What a message took of its keyed limits.
//!
//! However a message leaves our hands before it was sent (its slot never came, it expired, its
//! session is gone, the daemon stops), dropping its permit refunds what it took. A call counts in
//! `concurrency` limits until its permit is dropped.

use std::fmt;

use crate::core::time::StoreTime;
use crate::ports::limits::{CallUnderWay, Charge, Refund, Ticket};

use super::refunder::Refunder;

/// What a message took.
pub(super) struct Permit {
    refunds: Vec<Refund>,
    calls: Vec<CallUnderWay>,
    /// `None`: it took nothing.
    refunder: Option<Refunder>,
}

impl Permit {
    /// That of a message which took nothing.
    pub(super) const fn none() -> Self {
        Self {
            refunds: Vec::new(),
            calls: Vec::new(),
            refunder: None,
        }
    }

    /// For charges that were granted at `at`.
    pub(super) fn new(
        charges: &[Charge],
        at: StoreTime,
        ticket: Ticket,
        refunder: &Refunder,
    ) -> Self {
        let calls = calls(charges, ticket);
        refunder.began(&calls);
        let spent = charges.iter().filter(|c| !c.limit.is_concurrency());
        let refunds = spent.map(|charge| Refund {
            limit: charge.limit.clone(),
            key: charge.key,
            cost: charge.cost,
            at,
        });
        Self {
            refunds: refunds.collect(),
            calls,
            refunder: Some(refunder.clone()),
        }
    }

    /// The message may have been sent: what it took stays spent.
    pub(super) fn consume(&mut self) {
        if let Some(refunder) = &self.refunder {
            refunder.used(&self.refunds, &self.calls);
        }
        self.refunds.clear();
    }

    /// What is given back if the message was certainly not sent, without waiting for the drop.
    pub(super) fn take_back(&mut self) -> (Vec<Refund>, Vec<CallUnderWay>) {
        (
            std::mem::take(&mut self.refunds),
            std::mem::take(&mut self.calls),
        )
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let (refunds, calls) = self.take_back();
        if let Some(refunder) = &self.refunder {
            refunder.ended(calls);
            refunder.unused(refunds);
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("refunds", &self.refunds.len())
            .field("calls", &self.calls.len())
            .finish_non_exhaustive()
    }
}

/// The calls of a message that `concurrency` limits count.
pub(super) fn calls(charges: &[Charge], ticket: Ticket) -> Vec<CallUnderWay> {
    charges
        .iter()
        .filter(|charge| charge.limit.is_concurrency())
        .map(|charge| CallUnderWay::of(charge, ticket))
        .collect()
}
