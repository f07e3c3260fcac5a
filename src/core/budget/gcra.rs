//! Emission intervals with a burst: the generic cell rate algorithm, as in `CL.THROTTLE`.
//!
//! One unit is emitted every `period / units` microseconds, and `burst` more may come early. The
//! state is the theoretical arrival time: when the next unit would be due if everybody kept the
//! even distance. It is an exact fraction (whole microseconds and a remainder in parts of
//! `units`), so that no time is lost to rounding, however often somebody asks.
//!
//! With a burst of zero, any `units + 1` units in a row span a period or more. The period is the
//! window plus the headroom, so that calls that arrive up to a headroom late keep the window.

use std::time::Duration;

use super::{Fit, RuleError, Usage, product, remembered};
use crate::core::rate::Rate;
use crate::core::time::micros;

/// The rule of a `gcra` limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gcra {
    units: u64,
    period: u64,
    limit: u64,
    pub(super) headroom: Duration,
}

/// The state: the theoretical arrival time `tat + rem / units`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    pub tat: u64,
    pub rem: u64,
}

impl Gcra {
    /// `rate` with up to `burst` units more at once (`max_burst` of `CL.THROTTLE`).
    ///
    /// # Errors
    /// When `(burst + 1) * (window + headroom)` is too large to be exact, or a spent burst would
    /// take years to come back.
    pub fn new(rate: Rate, burst: u32, headroom: Duration) -> Result<Self, RuleError> {
        let units = u64::from(rate.units().get());
        let period = micros(rate.window()).saturating_add(micros(headroom));
        let limit = u64::from(burst) + 1;
        let all = product("burst, window and headroom", limit, period)?;
        remembered(all.div_ceil(units))?;
        Ok(Self {
            units,
            period,
            limit,
            headroom,
        })
    }

    /// Units at once: the burst and one.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Units per [`Gcra::period`].
    #[must_use]
    pub const fn units(&self) -> u64 {
        self.units
    }

    /// Window plus headroom, in microseconds.
    #[must_use]
    pub const fn period(&self) -> u64 {
        self.period
    }

    pub(super) const fn memory(&self) -> u64 {
        (self.limit * self.period).div_ceil(self.units)
    }

    /// A remainder that another rate left is rounded up.
    const fn normal(&self, s: Arrival) -> Arrival {
        if s.rem < self.units {
            return s;
        }
        Arrival {
            tat: s.tat + 1,
            rem: 0,
        }
    }

    pub(super) fn earliest(&self, s: Option<Arrival>, from: u64, cost: u64) -> Option<Fit> {
        if cost > self.limit {
            return None;
        }
        let Some(s) = s.map(|s| self.normal(s)) else {
            return Some(Fit::firm(from));
        };
        let early = (self.limit - cost) * self.period;
        let up = u64::from(s.rem > early % self.units);
        let at = (s.tat + up).saturating_sub(early / self.units);
        Some(Fit::firm(at.max(from)))
    }

    pub(super) fn book(&self, s: Option<Arrival>, at: u64, cost: u64) -> Arrival {
        let base = match s.map(|s| self.normal(s)) {
            // Less than a microsecond before `at`: no time was left unused.
            Some(s) if s.tat + u64::from(s.rem > 0) >= at => s,
            _ => Arrival { tat: at, rem: 0 },
        };
        let taken = base.rem + cost * self.period;
        Arrival {
            tat: base.tat + taken / self.units,
            rem: taken % self.units,
        }
    }

    pub(super) fn usage(&self, s: Option<Arrival>, now: u64) -> Usage {
        let ahead = match s.map(|s| self.normal(s)) {
            Some(s) if s.tat >= now => (s.tat - now, s.rem),
            _ => (0, 0),
        };
        let taken = if ahead.0 >= self.memory() {
            self.limit
        } else {
            (ahead.0 * self.units + ahead.1).div_ceil(self.period)
        };
        Usage {
            limit: self.limit,
            remaining: self.limit.saturating_sub(taken),
            retry_after: Duration::ZERO,
            reset_after: Duration::from_micros(ahead.0 + u64::from(ahead.1 > 0)),
        }
    }

    /// What was owed at `since`, when this rule took the place of `old`, in its own emission intervals;
    /// places that were booked ahead are gone. Never more than a whole budget, never less than was owed.
    pub(super) fn amended(&self, old: &Self, s: Arrival, since: u64) -> Arrival {
        let ahead = (s.tat + u64::from(s.rem > 0)).saturating_sub(since);
        let owed = (ahead.min(old.memory()) * old.units).div_ceil(old.period);
        Arrival {
            tat: since + (owed.min(self.limit) * self.period).div_ceil(self.units),
            rem: 0,
        }
    }

    /// Nothing is left at `at`.
    pub(super) const fn spent(&self, at: u64) -> Arrival {
        Arrival {
            tat: at + self.memory(),
            rem: 0,
        }
    }

    pub(super) const fn dies_at(s: Arrival) -> u64 {
        s.tat + (s.rem > 0) as u64
    }

    /// Only what was booked last, when nothing else was owed, can be told apart from the rest: a
    /// budget that was whole before it is whole again after it.
    pub(super) fn undo(&self, s: Arrival, at: u64, cost: u64) -> Option<Arrival> {
        let s = self.normal(s);
        let taken = cost.checked_mul(self.period)?;
        let up = u64::from(s.rem < taken % self.units);
        let tat = s.tat.checked_sub(taken / self.units + up)?;
        let rem = s.rem + up * self.units - taken % self.units;
        let whole_before = (tat == at && rem == 0) || (tat + 1 == at && rem > 0);
        whole_before.then_some(Arrival { tat, rem })
    }
}
