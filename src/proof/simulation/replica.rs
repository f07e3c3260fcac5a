//! One replica: the scheduler of production, a clock of its own, and what it holds.

use std::collections::BTreeSet;

use sluiced_core::leases::{LeaseHolder, Phase};
use sluiced_core::policy::LimitPolicy;
use sluiced_core::schedule::{Pace, Turn};
use sluiced_core::scheduler::{Queued, Scheduler};
use sluiced_core::time::Mono;

use super::dice::{Dice, mix};

/// A message in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parcel {
    pub(super) id: u32,
}

impl Queued for Parcel {
    fn priority(&self) -> u16 {
        // Some are more urgent than others.
        u16::from(self.id.is_multiple_of(16))
    }
}

/// How far a replica is from its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Running,
    /// Waits for its calls under way.
    Leaving,
}

/// A running replica.
#[derive(Debug)]
pub(super) struct Replica {
    pub(super) id: u32,
    pub(super) scheduler: Scheduler<Parcel>,
    pub(super) stage: Stage,
    /// Delivered and not settled.
    pub(super) unsettled: BTreeSet<u32>,
    /// Calls that were started or are about to be, and not settled.
    pub(super) calls: u32,
    /// It consumes once it has heard from the store.
    pub(super) consuming: bool,
    pub(super) paused_until: u64,
    /// Only the last wake that was set is heeded.
    pub(super) wake: u64,
    /// The ask that is under way.
    pub(super) asking: Option<u64>,
    /// The turn that the last answer gave, for the check that it does not ask before it.
    pub(super) turn: Option<Turn>,
    pub(super) last_ask: u64,
    /// What it knows of the limit's policy.
    pub(super) known: Option<LimitPolicy>,
    /// It has asked what is in force.
    pub(super) declaring: bool,
    /// What its ways to the store and back take beyond the usual.
    pub(super) detour: (u64, u64),
    /// When its clock was started, where it stood, and how many millionths it is fast.
    born: u64,
    zero: u64,
    drift: i64,
}

impl Replica {
    pub(super) fn new(id: u32, t: u64, pace: Pace, drift: i64, dice: &mut Dice) -> Self {
        let drift_range = drift.unsigned_abs();
        let drift = i64::try_from(dice.below(drift_range * 2 + 1)).unwrap_or_default() - drift;
        Self {
            id,
            scheduler: Scheduler::new(LeaseHolder::new(pace, Phase::new(mix(u64::from(id) + 1)))),
            stage: Stage::Running,
            unsettled: BTreeSet::new(),
            calls: 0,
            consuming: false,
            paused_until: 0,
            wake: 0,
            asking: None,
            turn: None,
            last_ask: 0,
            known: None,
            declaring: false,
            detour: (0, 0),
            born: t,
            zero: 3_600_000_000 + dice.below(1_000_000_000_000),
            drift,
        }
    }

    /// Its clock at a true time.
    pub(super) fn mono(&self, t: u64) -> Mono {
        let age = t - self.born;
        let shift = i64::try_from(age).unwrap_or(i64::MAX) * self.drift / 1_000_000;
        Mono::from_micros((self.zero + age).saturating_add_signed(shift))
    }

    /// The first true time at which its clock shows `at` or later; not before `t`.
    pub(super) fn true_time(&self, at: Mono, t: u64) -> u64 {
        let age = at.as_micros().saturating_sub(self.zero);
        let shift = i64::try_from(age).unwrap_or(i64::MAX) / 1_000_000 * self.drift;
        let mut guess = self
            .born
            .saturating_add(age)
            .saturating_add_signed(-shift)
            .saturating_sub(200)
            .max(t);
        while self.mono(guess) < at {
            let missing = at.since(self.mono(guess));
            guess += u64::try_from(missing.as_micros()).unwrap_or(1).max(1);
        }
        guess
    }
}
