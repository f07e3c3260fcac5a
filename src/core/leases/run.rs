//! A lease, mapped to the clock of the replica that holds it.

use std::time::Duration;

use crate::schedule::{Grant, Pace};
use crate::time::{Mono, StoreTime};

/// A slot that may be used now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// When it fell due.
    pub at: Mono,
    /// The same on the store's clock, exactly.
    pub due: StoreTime,
    /// Until when the call may leave.
    pub leave_by: Mono,
    /// How far apart it and the others of the same message may lie.
    pub spread: Duration,
}

/// A lease: slots that lie behind each other at the distance of the pace that they were granted at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) grant: Grant,
    /// The pace that it was granted at.
    pub(super) pace: Pace,
    /// The local time of the grant's first slot, mapped when the grant came (a later step of the
    /// store's clock does not move slots that are already ours), and later by our doubt.
    pub(super) first: Mono,
    pub(super) used: u32,
    /// Whether an answer since the grant was fast enough to show that the mapping still holds.
    pub(super) sure: bool,
}

impl Run {
    pub(super) fn slot(&self, index: u32) -> Mono {
        self.first
            + self
                .grant
                .slot(&self.pace, u64::from(index))
                .since(self.grant.first)
    }

    pub(super) fn next(&self) -> Option<Mono> {
        (self.sure && self.used < self.grant.count.get()).then(|| self.slot(self.used))
    }

    pub(super) const fn left(&self) -> u64 {
        (self.grant.count.get() - self.used) as u64
    }
}
