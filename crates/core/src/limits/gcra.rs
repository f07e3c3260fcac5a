//! Emission intervals with a burst: the generic cell rate algorithm, as in `CL.THROTTLE`.
//!
//! One unit is emitted every `period / units` microseconds, and `burst` more may come early. The
//! state is the debt: what was taken and has not been emitted yet. It is counted in parts, `period`
//! of them for one unit, and `units` of them are emitted in each microsecond. So all is in whole
//! numbers, and no time is lost to rounding, however often a key is asked for.
//!
//! The period is the window plus the headroom, so that calls which arrive up to a headroom late
//! keep the window: with a burst of zero, any `units + 1` grants in a row span a period or more.
//!
//! The debt includes its own period. Under another rate the owed units stay owed, as if the new
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
    limit: u64,
    pub(super) headroom: Headroom,
}

/// The state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Debt {
    /// When the last unit was taken, in microseconds.
    pub at: u64,
    /// What was owed then, in parts.
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

    /// Limit (the burst and one), units and period, for the script.
    #[must_use]
    pub const fn numbers(&self) -> [u64; 3] {
        [self.limit, self.units, self.period]
    }

    /// The state of a key of which nothing was taken.
    pub(super) const fn untouched(&self, now: u64) -> Debt {
        Debt {
            at: now,
            parts: 0,
            period: self.period,
        }
    }

    /// How long it takes until all is back.
    const fn memory(&self) -> u64 {
        (self.limit * self.period).div_ceil(self.units)
    }

    /// What is owed at `now`, in parts.
    fn owed(&self, debt: Option<&Debt>, now: u64) -> u64 {
        let Some(debt) = debt else {
            return 0;
        };
        let most = self.limit * self.period;
        let parts = if debt.period == self.period {
            debt.parts.min(most)
        } else {
            // Taken under another rate: whole units, rounded up.
            debt.parts.div_ceil(debt.period.max(1)).min(self.limit) * self.period
        };
        let since = now.saturating_sub(debt.at);
        if since >= self.memory() {
            return 0;
        }
        parts.saturating_sub(since * self.units)
    }
}

impl Kind for Gcra {
    type TakenUnits = Debt;

    fn max_cost(&self) -> u64 {
        self.limit
    }

    fn settled(&self, debt: &Debt, now: u64) -> (Debt, bool) {
        let at = debt.at.min(now);
        (Debt { at, ..*debt }, debt.at > now)
    }

    fn fit(&self, debt: Option<&Debt>, now: u64, cost: u64) -> Fit {
        let room = (self.limit - cost) * self.period;
        match self.owed(debt, now).saturating_sub(room) {
            0 => Fit::Now,
            over => Fit::at(now + over.div_ceil(self.units)),
        }
    }

    fn take(&self, debt: Option<&Debt>, now: u64, cost: u64, _: Ticket) -> Debt {
        Debt {
            at: now,
            parts: self.owed(debt, now) + cost * self.period,
            period: self.period,
        }
    }

    /// Exact if nothing was taken since. Otherwise units emitted since stay spent: without the
    /// returned units the debt might have ended meanwhile, and emissions are not saved up.
    fn refund(&self, debt: &Debt, unused: &UnusedUnits, now: u64) -> Option<Debt> {
        let (at, cost) = (unused.at.as_micros(), unused.cost.units());
        if debt.period != self.period || at > debt.at {
            return None;
        }
        let emitted = if debt.at == at {
            0
        } else {
            unused.passed(now).min(self.memory()) * self.units
        };
        let back = (cost * self.period).saturating_sub(emitted);
        let parts = debt.parts.saturating_sub(back);
        (parts < debt.parts).then_some(Debt { parts, ..*debt })
    }

    fn room(&self, debt: Option<&Debt>, now: u64) -> Room {
        let owed = self.owed(debt, now);
        Room {
            remaining: (self.limit * self.period - owed) / self.period,
            reset_at: StoreTime::from_micros(now + owed.div_ceil(self.units)),
        }
    }

    fn spacing(&self, cost: u64, _: u64) -> u64 {
        (cost * self.period).div_ceil(self.units)
    }

    fn dies_at(&self, debt: &Debt) -> u64 {
        debt.at + self.owed(Some(debt), debt.at).div_ceil(self.units)
    }

    fn span(&self) -> u64 {
        self.memory()
    }
}
