//! What the schedule of a paced limit works with: its numbers ([`Pace`]: how fast, how far ahead, how late a slot may
//! be used), what a replica asks the store ([`Ask`]), and what the store returns ([`LeaseAnswer`]).

use std::num::NonZeroU32;
use std::time::Duration;

use crate::headroom::Headroom;
use crate::rate::{Cost, MAX_WINDOW, Rate};
use crate::time::{StoreTime, micros};
use crate::version::PolicyVersion;

/// The horizon (how far ahead slots are leased) of a limit that sets none, unless its headroom needs a longer one:
/// four times the headroom.
///
/// A longer horizon survives longer standstills of the store. With a shorter one a crashed replica
/// loses fewer slots, and changes apply sooner. In the simulation (400/s, four replicas, one
/// killed every 1.5 s), 150 ms uses 98.3 % of what the headroom leaves with 0.033 leases a message,
/// 250 ms 97.4 % with 0.033, 60 ms 98.9 % with 0.072.
pub const DEFAULT_HORIZON: Duration = Duration::from_millis(150);

/// By how much a prediction of the store's clock may be wrong. If the prediction is further ahead
/// of the clock, the clock stepped back. If it is further behind, the clock stepped forward or the
/// request was slow: the replica gets no slots, and finds out from the answer which of the two it
/// was.
pub(super) const STEP_TOLERANCE: u64 = 100_000;
/// The longest freeze; a longer one counts as this.
pub const FREEZE_MAX: Duration = MAX_WINDOW;

/// Where slots are further apart than this, a new replica does not wait for the interval between two.
const INTERVAL_TRUSTED: u64 = 1_000_000;
/// Added to every guard for the rounding of integer arithmetic and clock mapping.
const GUARD_SLACK: u64 = 1_000;
/// Bounds on what a configuration or a downstream may ask for. With them every number here stays
/// below 2^53 until the year 2250, so that no product overflows and Lua's doubles are exact.
const HORIZON_MAX: u64 = 60_000_000;
/// The longest horizon for messages that take several slots. A slow limit needs it: where no lease holds a whole
/// message, replicas take the slots of each other's messages, and none is ever complete. The price: after Redis lost
/// the row, the limit grants nothing for about as long as the horizon, and a replica that starts gets no slots for as
/// long.
const COST_HORIZON_MAX: u64 = 180_000_000;
/// The same as the longest window of a rate.
const HEADROOM_MAX: u64 = micros(MAX_WINDOW);

/// One paced limit in the integers that the schedule works with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    pub(super) units: u64,
    pub(super) period: u64,
    pub(super) horizon: u64,
    pub(super) headroom: u64,
    pub(super) late: u64,
    pub(super) slot_span: u64,
    pub(super) batch: u64,
    pub(super) max_cost: u64,
}

impl Pace {
    /// The pace that keeps `rate` in any window, when calls arrive at most `headroom` after
    /// their slots: its period is the window and the headroom. A horizon beyond a minute counts as
    /// a minute, a headroom beyond 366 days as that.
    #[must_use]
    pub fn new(rate: Rate, headroom: impl Into<Headroom>, horizon: Duration) -> Self {
        let parts = headroom.into();
        let units = u64::from(rate.units().get());
        let headroom = micros(parts.all()).min(HEADROOM_MAX);
        let period = micros(rate.window()) + headroom;
        let horizon = micros(horizon).clamp(1, HORIZON_MAX);
        Self {
            units,
            period,
            horizon,
            headroom,
            late: micros(parts.late).min(headroom),
            slot_span: 0,
            batch: batch(units, period, horizon),
            max_cost: 1,
        }
    }

    /// This pace for messages that take up to `most` slots and are sent at the last of them. Then up to
    /// `most - 1` units that are sent in a window may belong to slots before it. So the period grows until
    /// `units - (most - 1)` slots fill it. A cost above the units counts as the units.
    #[must_use]
    pub fn with_costs_up_to(self, most: Cost) -> Self {
        let beyond = (u64::from(most.get()) - 1).min(self.units - 1);
        if beyond == 0 {
            return self;
        }
        let stretched = (u128::from(self.period) * u128::from(self.units))
            .div_ceil(u128::from(self.units - beyond));
        let period = u64::try_from(stretched).unwrap_or(u64::MAX);
        let slot_span = period - self.period;
        let horizon = self
            .horizon
            .max(slot_span.saturating_mul(3).min(COST_HORIZON_MAX));
        // A replica that gets the slots of a message one by one, with slots of others in between,
        // could never send it. So one lease holds them all, if the horizon reaches that far.
        let max_cost = if slot_span.saturating_mul(2) <= horizon {
            beyond + 1
        } else {
            1
        };
        Self {
            batch: batch(self.units, period, horizon).max(max_cost),
            max_cost,
            horizon,
            period,
            slot_span,
            ..self
        }
    }

    /// This pace where the slots of one message lie up to `slot_span` apart: a call may be that much
    /// later.
    #[must_use]
    pub const fn with_slot_span(self, slot_span: Duration) -> Self {
        let slot_span = micros(slot_span);
        let period = self.period + slot_span;
        Self {
            period,
            slot_span,
            batch: batch(self.units, period, self.horizon),
            ..self
        }
    }

    /// How far apart the first and the last slot of one message may lie.
    #[must_use]
    pub const fn slot_span(&self) -> Duration {
        Duration::from_micros(self.slot_span)
    }

    /// The units that any window may hold, per second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        self.units as f64 / Duration::from_micros(self.window()).as_secs_f64()
    }

    /// Whether both keep the same rate: as many units in as long a window, whatever their headrooms.
    #[must_use]
    pub const fn has_rate_of(&self, other: &Self) -> bool {
        self.units == other.units && self.window() == other.window()
    }

    const fn window(&self) -> u64 {
        self.period - self.headroom - self.slot_span
    }

    /// Units per [`Pace::period`].
    #[must_use]
    pub const fn units(&self) -> u64 {
        self.units
    }

    /// Window, headroom and, where messages take several slots, the span of these, in microseconds.
    #[must_use]
    pub const fn period(&self) -> u64 {
        self.period
    }

    /// The horizon: no slot is ever leased further ahead than this.
    #[must_use]
    pub const fn horizon(&self) -> Duration {
        Duration::from_micros(self.horizon)
    }

    /// How late a call may leave after its slot.
    #[must_use]
    pub const fn late(&self) -> Duration {
        Duration::from_micros(self.late)
    }

    /// By how much the time of its way to the downstream may vary.
    #[must_use]
    pub const fn kept_for_the_way(&self) -> Duration {
        Duration::from_micros(self.headroom - self.late)
    }

    /// By how much the period is longer than the window: the headroom, and the span of the slots of one message.
    #[must_use]
    pub const fn headroom_in_all(&self) -> Duration {
        Duration::from_micros(self.headroom + self.slot_span)
    }

    /// How late a call may arrive after its slot.
    #[must_use]
    pub const fn headroom(&self) -> Duration {
        Duration::from_micros(self.headroom)
    }

    /// The most units that one lease grants.
    #[must_use]
    pub const fn batch(&self) -> u64 {
        self.batch
    }

    /// The cost of the most expensive message. One, if its slots lie more than 90 s apart: then no lease holds all of
    /// them, and only a replica that is alone sends such a message.
    #[must_use]
    pub const fn max_cost(&self) -> u64 {
        self.max_cost
    }

    /// The interval between two slots, rounded up to a whole microsecond.
    #[must_use]
    pub const fn interval(&self) -> Duration {
        Duration::from_micros(self.period.div_ceil(self.units))
    }

    /// How long after `now` a schedule must start when earlier grants are unknown: all of them have been used or
    /// dropped by then, and the next slot keeps its interval to the last of them.
    #[must_use]
    pub const fn guard(&self) -> Duration {
        Duration::from_micros(self.guard_micros())
    }

    pub(super) const fn guard_micros(&self) -> u64 {
        self.guard_beyond(self.horizon)
    }

    /// The guard against grants that reach up to `horizon` ahead.
    pub(super) const fn guard_beyond(&self, horizon: u64) -> u64 {
        horizon + self.headroom + self.period.div_ceil(self.units) + GUARD_SLACK
    }

    /// For how long a replica must have known a generation, and its own mapping of the store's
    /// clock must have held, before it may take slots. By then, replicas that have not noticed the
    /// step yet have used all of their slots. It is as long as the guard, but for limits slower
    /// than one a second it counts one second for the interval between two slots, so that a start does
    /// not take hours.
    #[must_use]
    pub const fn distrust(&self) -> Duration {
        Duration::from_micros(self.distrust_micros())
    }

    pub(super) const fn distrust_micros(&self) -> u64 {
        let interval = self.period.div_ceil(self.units);
        let counted = if interval < INTERVAL_TRUSTED {
            interval
        } else {
            INTERVAL_TRUSTED
        };
        self.horizon + self.headroom + counted + GUARD_SLACK
    }
}

/// The most that one lease grants: 100 ms of the rate, but always so little that a third of the
/// horizon is left for fetching the next lease.
const fn batch(units: u64, period: u64, horizon: u64) -> u64 {
    let two_thirds = horizon * 2 / 3;
    let span = if two_thirds < 100_000 {
        two_thirds
    } else {
        100_000
    };
    let batch = span as u128 * units as u128 / period as u128;
    // At most 100,000 times the units of a rate: far below what fits.
    if batch > 1 { batch as u64 } else { 1 }
}

/// When a replica's share lies within the horizon, and how large it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// When to ask.
    pub at: StoreTime,
    /// The units that are kept for it while others wait behind it.
    pub share: u64,
    /// How far the line had slipped when the turn was given, in microseconds ([`super::Schedule::slip`]).
    pub slip: u64,
}

/// What the replica knows of the store's clock and of the generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockView {
    /// The replica could not notice a step yet, and gets a turn instead of slots.
    Unproven,
    /// The mapping of the replica has held for [`Pace::distrust`] within this generation.
    Steady {
        /// The generation of the last answer.
        generation: u64,
        /// The store's time as it predicts it for the moment of sending.
        predicted: StoreTime,
    },
    /// The replica saw the clock step. If no other replica has reported that before, the row starts again.
    Stepped {
        /// The generation in which it saw that.
        generation: u64,
        /// As the mapping from before the step predicts it.
        predicted: StoreTime,
    },
}

/// What a replica sends the store to get slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Units wanted for messages that are ready; zero only reads the clock and the freeze.
    pub want: u64,
    /// The summed costs of the first of these messages: the first, the first two, and so on. A grant of fewer
    /// units than the last sum is one of these sums, because slots for a part of a message cannot be used.
    /// Empty: any number of units.
    pub sums: Vec<u64>,
    /// The turn that the last answer gave, if it was not used yet.
    pub turn: Option<Turn>,
    /// Whether it can trust its mapping of the store's clock.
    pub clock_view: ClockView,
    /// How long the answer may travel: the first slot is not before now plus this, or plus half the horizon if that is
    /// less.
    pub lead: Duration,
}

impl Ask {
    /// The largest number up to `units` that is for whole messages.
    pub(super) fn whole_messages(&self, units: u64) -> u64 {
        let fit = self.sums.partition_point(|sum| *sum <= units);
        if fit == self.sums.len() {
            units
        } else {
            fit.checked_sub(1).map_or(0, |last| self.sums[last])
        }
    }

    /// The cost of the next message after those that this many units are for; at least one.
    pub(super) fn next_cost(&self, units: u64) -> u64 {
        let next = self.sums.iter().find(|sum| **sum > units);
        next.map_or(1, |sum| sum - units)
    }
}

impl ClockView {
    /// The time that the replica predicts for the store, if it knows the clock of `generation`.
    pub(super) const fn predicted(self, generation: u64) -> Option<StoreTime> {
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
            Self::Unproven => 0,
        }
    }

    /// Whether this proves that the clock of `generation` stepped.
    pub(super) fn saw_a_step(self, generation: u64, now: u64) -> bool {
        self.predicted(generation).is_some_and(|predicted| {
            matches!(self, Self::Stepped { .. }) || predicted.as_micros() > now + STEP_TOLERANCE
        })
    }

    /// Whether this is good enough for slots of `generation`.
    pub(super) fn is_trusted(self, generation: u64, now: u64) -> bool {
        self.predicted(generation).is_some_and(|predicted| {
            matches!(self, Self::Steady { .. }) && now <= predicted.as_micros() + STEP_TOLERANCE
        })
    }
}

/// A run of slots that belongs to the replica that asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The first slot.
    pub first: StoreTime,
    /// The remainder at the first slot ([`super::Schedule::rem`]).
    pub rem: u64,
    /// How many slots.
    pub count: NonZeroU32,
}

impl Grant {
    /// Slot `index` of the run, counted from 0 (it may lie past its end: then it is where the next run starts).
    #[must_use]
    pub const fn slot(&self, pace: &Pace, index: u64) -> StoreTime {
        StoreTime::from_micros(
            self.first.as_micros() + (self.rem + index * pace.period) / pace.units,
        )
    }
}

/// The store's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseAnswer {
    /// The store's time when it decided.
    pub now: StoreTime,
    /// The generation that it decided in, and that the grant and the turn belong to.
    pub generation: u64,
    /// The slots that were leased, if any.
    pub grant: Option<Grant>,
    /// When to ask again, if more was wanted than granted.
    pub turn: Option<Turn>,
    /// The freeze that the downstream asked for ends then. `None`: the limit is not frozen at `now`.
    pub frozen_until: Option<StoreTime>,
    /// The pause of an operator ends then. `None`: the limit is not paused at `now`.
    pub paused_until: Option<StoreTime>,
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
    /// The end of the freeze.
    pub until: StoreTime,
    /// The generation whose clock both are on.
    pub generation: u64,
}
