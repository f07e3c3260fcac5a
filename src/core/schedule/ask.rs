//! What a replica asks the store of a `paced` limit, and what the store answers.

use std::num::NonZeroU32;
use std::time::Duration;

use super::{Pace, STEP_TOLERANCE};
use crate::policy::version::PolicyVersion;
use crate::time::StoreTime;

/// When a replica's share lies within the horizon, and how large it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// When to ask.
    pub at: StoreTime,
    /// The units that are kept for it while others wait behind it.
    pub share: u64,
    /// How far the line had slipped when the turn was given ([`super::Schedule::slip`]).
    pub slip: u64,
}

/// What the replica knows of the store's clock and of the generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockView {
    /// It could not notice a step yet, and gets a turn instead of slots.
    Young,
    /// Its mapping has held for [`Pace::distrust`] within this generation.
    Steady {
        generation: u64,
        /// The store's time as it predicts it for the moment of sending.
        predicted: StoreTime,
    },
    /// It saw the clock step. If no other replica did so before, the row starts again.
    Stepped {
        generation: u64,
        /// As the mapping of before the step predicts it.
        predicted: StoreTime,
    },
}

/// What a replica asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Units wanted for messages that are ready; zero only reads the clock and the freeze.
    pub want: u64,
    /// The turn that the last answer gave, if it was not used yet.
    pub turn: Option<Turn>,
    pub clock_view: ClockView,
    /// How long the answer may travel: the first slot is not before now plus this.
    pub lead: Duration,
}

impl ClockView {
    /// The time that the replica predicts for the store, if it knows the clock of `generation`.
    pub(super) const fn of(self, generation: u64) -> Option<StoreTime> {
        match self {
            Self::Steady {
                generation: known,
                predicted,
            }
            | Self::Stepped {
                generation: known,
                predicted,
            } if known == generation => Some(predicted),
            _ => None,
        }
    }

    pub(super) const fn generation(self) -> u64 {
        match self {
            Self::Steady { generation, .. } | Self::Stepped { generation, .. } => generation,
            Self::Young => 0,
        }
    }

    /// Whether this proves that the clock of `generation` stepped.
    pub(super) fn saw_a_step(self, generation: u64, now: u64) -> bool {
        self.of(generation).is_some_and(|predicted| {
            matches!(self, Self::Stepped { .. }) || predicted.as_micros() > now + STEP_TOLERANCE
        })
    }

    /// Whether this is good enough for slots of `generation`.
    pub(super) fn is_trusted(self, generation: u64, now: u64) -> bool {
        self.of(generation).is_some_and(|predicted| {
            matches!(self, Self::Steady { .. }) && now <= predicted.as_micros() + STEP_TOLERANCE
        })
    }
}

/// A run of slots that belongs to the replica that asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The first slot.
    pub first: StoreTime,
    /// The remainder at the first slot.
    pub rem: u64,
    /// How many slots.
    pub count: NonZeroU32,
}

impl Grant {
    /// Slot `index` of the run (which may lie past its end: then it is where the next run starts).
    #[must_use]
    pub const fn slot(&self, pace: &Pace, index: u64) -> StoreTime {
        StoreTime::from_micros(
            self.first.as_micros() + (self.rem + index * pace.period) / pace.units,
        )
    }

    /// The run from slot `index` on; `None` if nothing is left.
    #[must_use]
    pub fn tail(&self, pace: &Pace, index: u32) -> Option<Self> {
        let count = NonZeroU32::new(self.count.get().checked_sub(index)?)?;
        Some(Self {
            first: self.slot(pace, u64::from(index)),
            rem: (self.rem + u64::from(index) * pace.period) % pace.units,
            count,
        })
    }
}

/// The store's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The store's time when it decided.
    pub now: StoreTime,
    /// The generation that it decided in, and that the grant and the turn belong to.
    pub generation: u64,
    /// The slots that were leased, if any.
    pub grant: Option<Grant>,
    /// When to ask again, if more was wanted than granted.
    pub turn: Option<Turn>,
    /// The limit is frozen until then, if that lies ahead.
    pub frozen_until: Option<StoreTime>,
    /// The row was started behind its guard by this call: state was missing, written under
    /// another process, or the clock stepped.
    pub guarded: bool,
    /// The version of the limit's current policy; slots are only for replicas that know it.
    pub version: PolicyVersion,
}

/// A freeze as the store reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freeze {
    /// The store's time when it was reported.
    pub now: StoreTime,
    /// Its end.
    pub until: StoreTime,
    /// The generation whose clock both are on.
    pub generation: u64,
}
