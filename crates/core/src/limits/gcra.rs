//! Emission intervals with a burst: the generic cell rate algorithm, as in `CL.THROTTLE`.
//!
//! One unit is emitted every `period / units` microseconds, and `burst` more may come early. The state is the level:
//! what was taken and has not been emitted yet (the theoretical arrival time of the next unit, minus now, counted in
//! parts). `period` parts are one unit, and `units` parts are emitted in each microsecond.
//! So all is in whole numbers, and no time is lost to rounding, however often a key is asked for.
//!
//! The period is the window plus the headroom, so that calls which arrive up to a headroom late
//! keep the window: with a burst of zero, any `units + 1` grants in a row span a period or more.
//!
//! The level includes its own period. Under another rate the units that were not emitted stay, as if the new
//! rate had been the current one since the last grant.

use super::{Fit, Kind, Room, RuleError, Ticket, UnusedUnits, product, remembered};
use crate::headroom::Headroom;
use crate::rate::Rate;
use crate::time::{StoreTime, micros};

/// The rule of a `gcra` limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gcra {
    units: u64,
    period: u64,
    /// The burst and one, in units.
    capacity: u64,
    pub(super) headroom: Headroom,
}

/// The state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GcraLevel {
    /// When the last unit was taken, in microseconds.
    pub at: u64,
    /// The level then, in parts.
    pub parts: u64,
    /// Parts of one unit.
    pub period: u64,
}

impl Gcra {
    /// `rate` with up to `burst` units more at once (`max_burst` of `CL.THROTTLE`).
    ///
    /// # Errors
    /// When `(burst + 1) * (window + headroom)` is too large to be exact, or a spent burst would
    /// take years to come back.
    pub fn new(rate: Rate, burst: u32, headroom: impl Into<Headroom>) -> Result<Self, RuleError> {
        let headroom = headroom.into();
        let units = u64::from(rate.units().get());
        let period = micros(rate.window()).saturating_add(micros(headroom.all()));
        let capacity = u64::from(burst) + 1;
        let all = product("burst, window and headroom", capacity, period)?;
        remembered(all.div_ceil(units))?;
        Ok(Self {
            units,
            period,
            capacity,
            headroom,
        })
    }

    /// Capacity (the burst and one), units and period, for the script.
    #[must_use]
    pub const fn numbers(&self) -> [u64; 3] {
        [self.capacity, self.units, self.period]
    }

    /// The state of a key of which nothing was taken.
    pub(super) const fn untouched(&self, now: u64) -> GcraLevel {
        GcraLevel {
            at: now,
            parts: 0,
            period: self.period,
        }
    }

    /// How long it takes until all is back.
    const fn memory(&self) -> u64 {
        (self.capacity * self.period).div_ceil(self.units)
    }

    /// The level at `now`, in parts.
    fn level(&self, state: Option<&GcraLevel>, now: u64) -> u64 {
        let Some(state) = state else {
            return 0;
        };
        let most = self.capacity * self.period;
        let parts = if state.period == self.period {
            state.parts.min(most)
        } else {
            // Taken under another rate: whole units, rounded up.
            state.parts.div_ceil(state.period.max(1)).min(self.capacity) * self.period
        };
        let since = now.saturating_sub(state.at);
        if since >= self.memory() {
            return 0;
        }
        parts.saturating_sub(since * self.units)
    }
}

impl Kind for Gcra {
    type KindState = GcraLevel;

    fn max_cost(&self) -> u64 {
        self.capacity
    }

    fn as_of(&self, state: &GcraLevel, now: u64) -> (GcraLevel, bool) {
        let at = state.at.min(now);
        (GcraLevel { at, ..*state }, state.at > now)
    }

    fn fit(&self, state: Option<&GcraLevel>, now: u64, cost: u64) -> Fit {
        let room = (self.capacity - cost) * self.period;
        match self.level(state, now).saturating_sub(room) {
            0 => Fit::Now,
            over => Fit::at(now + over.div_ceil(self.units)),
        }
    }

    fn take(&self, state: Option<&GcraLevel>, now: u64, cost: u64, _: Ticket) -> GcraLevel {
        GcraLevel {
            at: now,
            parts: self.level(state, now) + cost * self.period,
            period: self.period,
        }
    }

    /// Exact if nothing was taken since. Otherwise units emitted since stay spent: without the
    /// returned units the level might have been zero meanwhile, and emissions are not saved up.
    fn refund(&self, state: &GcraLevel, unused: &UnusedUnits, now: u64) -> Option<GcraLevel> {
        let (at, cost) = (unused.at.as_micros(), unused.cost.units());
        if state.period != self.period || at > state.at {
            return None;
        }
        let emitted = if state.at == at {
            0
        } else {
            unused.passed(now).min(self.memory()) * self.units
        };
        let back = (cost * self.period).saturating_sub(emitted);
        let parts = state.parts.saturating_sub(back);
        (parts < state.parts).then_some(GcraLevel { parts, ..*state })
    }

    fn room(&self, state: Option<&GcraLevel>, now: u64) -> Room {
        let level = self.level(state, now);
        Room {
            remaining: (self.capacity * self.period - level) / self.period,
            reset_at: StoreTime::from_micros(now + level.div_ceil(self.units)),
        }
    }

    fn spacing(&self, cost: u64, _: u64) -> u64 {
        (cost * self.period).div_ceil(self.units)
    }

    fn expires_at(&self, state: &GcraLevel) -> u64 {
        state.at + self.level(Some(state), state.at).div_ceil(self.units)
    }

    fn span(&self) -> u64 {
        self.memory()
    }
}
