//! What a replica knows of a limit, as plain values: its current policy, its rows of slots, and what was measured of
//! the calls under it.
//!
//! | module | what it is |
//! |---|---|
//! | `facts` | a limit as the file has it, and what follows from its current policy |
//! | `rows` | the rows of slots of a paced limit |
//! | `measures` | how late calls leave, how far away the store is, whether the downstream refused |
//!
//! The tasks that keep these values current are in `policies`.

pub(super) mod facts;
pub(super) mod measures;
pub(super) mod rows;

use std::sync::Arc;

use sluiced_core::policy::{LimitPolicy, keeping_end};
use sluiced_core::time::StoreTime;

use facts::{Change, LimitFacts};

/// The current policy of a limit: parsed once, when it was received.
#[derive(Debug)]
pub(super) struct CurrentPolicy {
    /// As the store keeps it.
    pub(super) stored: Arc<LimitPolicy>,
    /// What follows from it.
    pub(super) facts: LimitFacts,
}

impl CurrentPolicy {
    /// The text of this policy with another value, and with its end.
    pub(super) fn with(&self, change: Change) -> Option<String> {
        let text = (self.facts.changed)(change)?;
        Some(keeping_end(text, &self.stored.text))
    }

    /// An operator paused the limit until then. May be over.
    pub(super) fn paused_until(&self) -> Option<StoreTime> {
        self.stored.pause.as_ref().map(|pause| pause.until)
    }
}
