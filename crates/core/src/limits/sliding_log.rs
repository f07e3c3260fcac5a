//! Exactly a number of units in any window: the times at which they were taken.
//!
//! An entry counts for a period, which is the window plus the headroom; at its end it no longer
//! counts. The log forgets entries that no longer count whenever something is taken. It has the
//! time of each unit, so it holds under any rate.
//!
//! The script reads only the entries that a decision depends on: a long log is cheap to ask.

use super::{Fit, Kind, Room, RuleError, Ticket, UnusedUnits, remembered};
use crate::headroom::Headroom;
use crate::rate::Rate;
use crate::time::{StoreTime, micros};

/// The most units of a `sliding_log` limit. Each entry has one unit at least, so no log has more entries that count.
pub const LIMIT_MAX: u64 = 10_000;

/// The rule of a `sliding_log` limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingLog {
    limit: u64,
    period: u64,
    pub(super) headroom: Headroom,
}

/// The state: times and units, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// When units were taken, in microseconds of the store's clock, and how many: at least 1. Times may be equal.
    pub entries: Vec<(u64, u64)>,
}

impl SlidingLog {
    /// `rate` in any window.
    ///
    /// # Errors
    /// When the rate has more than [`LIMIT_MAX`] units, or its window and the headroom together are longer
    /// than two years.
    pub fn new(rate: Rate, headroom: impl Into<Headroom>) -> Result<Self, RuleError> {
        let headroom = headroom.into();
        let limit = u64::from(rate.units().get());
        if limit > LIMIT_MAX {
            return Err(RuleError::TooMany {
                what: "the units of a sliding_log",
                value: limit,
                most: LIMIT_MAX,
            });
        }
        let period = micros(rate.window()).saturating_add(micros(headroom.all()));
        remembered(period)?;
        Ok(Self {
            limit,
            period,
            headroom,
        })
    }

    /// Units in any window.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Limit (in units) and period (in microseconds), for the script.
    #[must_use]
    pub const fn numbers(&self) -> [u64; 2] {
        [self.limit, self.period]
    }

    /// What counts at `now`.
    fn counted<'a>(
        &self,
        log: Option<&'a Log>,
        now: u64,
    ) -> impl DoubleEndedIterator<Item = (u64, u64)> + use<'a> {
        let entries = log.map_or(&[][..], |log| &log.entries);
        let period = self.period;
        let alive = move |(time, _): &(u64, u64)| time + period > now;
        entries.iter().copied().filter(alive)
    }
}

impl Kind for SlidingLog {
    type KindState = Log;

    fn max_cost(&self) -> u64 {
        self.limit
    }

    fn as_of(&self, log: &Log, now: u64) -> (Log, bool) {
        if log.entries.last().is_some_and(|(time, _)| *time > now) {
            // The clock went back: all of it counts as taken now.
            let total = log.entries.iter().map(|(_, units)| units).sum();
            let entries = vec![(now, total)];
            return (Log { entries }, true);
        }
        let entries = self.counted(Some(log), now).collect();
        (Log { entries }, false)
    }

    fn fit(&self, log: Option<&Log>, now: u64, cost: u64) -> Fit {
        let total: u64 = self.counted(log, now).map(|(_, units)| units).sum();
        let mut over = (total + cost).saturating_sub(self.limit);
        if over == 0 {
            return Fit::Now;
        }
        // The oldest go first.
        for (time, units) in self.counted(log, now) {
            over = over.saturating_sub(units);
            if over == 0 {
                return Fit::at(time + self.period);
            }
        }
        // Not reached: if none of them counts, the cost fits.
        Fit::at(now + self.period)
    }

    fn take(&self, log: Option<&Log>, now: u64, cost: u64, _: Ticket) -> Log {
        let mut entries: Vec<_> = self.counted(log, now).collect();
        entries.push((now, cost));
        Log { entries }
    }

    fn refund(&self, log: &Log, unused: &UnusedUnits, now: u64) -> Option<Log> {
        let (at, cost) = (unused.at.as_micros(), unused.cost.units());
        let mut entries: Vec<_> = self.counted(Some(log), now).collect();
        let entry = entries
            .iter_mut()
            .find(|(time, units)| *time == at && *units >= cost)?;
        entry.1 -= cost;
        entries.retain(|(_, units)| *units > 0);
        Some(Log { entries })
    }

    fn room(&self, log: Option<&Log>, now: u64) -> Room {
        let total: u64 = self.counted(log, now).map(|(_, units)| units).sum();
        let last = self.counted(log, now).next_back();
        Room {
            remaining: self.limit.saturating_sub(total),
            reset_at: StoreTime::from_micros(last.map_or(now, |(time, _)| time + self.period)),
        }
    }

    fn spacing(&self, cost: u64, _: u64) -> u64 {
        (cost * self.period).div_ceil(self.limit)
    }

    fn expires_at(&self, log: &Log) -> u64 {
        let last = log.entries.last();
        last.map_or(0, |(time, _)| time + self.period)
    }

    fn span(&self) -> u64 {
        self.period
    }
}
