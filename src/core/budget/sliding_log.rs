//! Exactly so many in any window: the times of what was taken.
//!
//! An entry counts for a period, which is the window plus the headroom, and not at its end any
//! more. Units can be taken in any order: who is granted a moment ahead keeps nobody away who fits before
//! him, for what counts in every period is looked at, also in those that begin later. The log holds what
//! may still count beside something that is granted now.

use std::time::Duration;

use super::plan::{Pattern, insert};
use super::{Fit, RuleError, Usage, remembered};
use crate::core::rate::Rate;
use crate::core::time::micros;

/// The longest log.
pub const LIMIT_MAX: u64 = 10_000;
/// A clock may stand before what was granted last by this without anybody noticing
/// (`core::budget::epoch`), in microseconds.
const STEP: u64 = 100_000;

/// The rule of a `sliding_log` limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingLog {
    limit: u64,
    period: u64,
    pub(super) headroom: Duration,
}

/// The state: times and units, oldest first, no time twice. The newest entry stays even if nothing
/// of it is left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    pub entries: Vec<(u64, u64)>,
}

impl SlidingLog {
    /// `rate` in any window.
    ///
    /// # Errors
    /// When more than [`LIMIT_MAX`] units would have to be remembered, or for years.
    pub fn new(rate: Rate, headroom: Duration) -> Result<Self, RuleError> {
        let limit = u64::from(rate.units().get());
        if limit > LIMIT_MAX {
            return Err(RuleError::TooMany {
                what: "the units of a sliding_log",
                value: limit,
                most: LIMIT_MAX,
            });
        }
        let period = micros(rate.window()).saturating_add(micros(headroom));
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

    /// Window plus headroom, in microseconds.
    #[must_use]
    pub const fn period(&self) -> u64 {
        self.period
    }

    /// So many units in any period.
    pub(super) const fn pattern(&self) -> Pattern {
        Pattern::exact(self.limit, self.period)
    }

    /// What counts at `at` or later.
    fn alive<'a>(&self, s: Option<&'a Log>, at: u64) -> &'a [(u64, u64)] {
        let entries = s.map_or(&[][..], |s| &s.entries);
        let gone = entries.partition_point(|(time, _)| time + self.period <= at);
        &entries[gone..]
    }

    pub(super) fn earliest(&self, s: Option<&Log>, from: u64, cost: u64) -> Option<Fit> {
        let entries = s.map_or(&[][..], |s| &s.entries);
        let fits = cost <= self.limit;
        fits.then(|| Fit::firm(self.pattern().earliest(entries, from, cost)))
    }

    /// With units at `at`. What cannot count any more beside anything that is granted at `now`, as of a
    /// headroom before, is forgotten.
    pub(super) fn book(&self, s: Option<&Log>, at: u64, cost: u64, now: u64) -> Log {
        let margin = micros(self.headroom) + STEP;
        let mut entries = self.alive(s, now.saturating_sub(margin)).to_vec();
        insert(&mut entries, at, cost);
        Log { entries }
    }

    pub(super) fn usage(&self, s: Option<&Log>, now: u64) -> Usage {
        let alive = self.alive(s, now);
        let total: u64 = alive.iter().map(|(_, count)| count).sum();
        let reset = alive
            .iter()
            .rfind(|(_, count)| *count > 0)
            .map_or(0, |(time, _)| time + self.period - now);
        Usage {
            limit: self.limit,
            remaining: self.limit.saturating_sub(total),
            retry_after: Duration::ZERO,
            reset_after: Duration::from_micros(reset),
        }
    }

    pub(super) fn dies_at(&self, s: &Log) -> u64 {
        s.entries.last().map_or(0, |(time, _)| time + self.period)
    }

    /// Takes the units out of their entry.
    pub(super) fn undo(&self, s: &Log, at: u64, cost: u64) -> Option<Log> {
        let index = s
            .entries
            .iter()
            .position(|(time, count)| *time == at && *count >= cost)?;
        let mut entries = s.entries.clone();
        entries[index].1 -= cost;
        if entries[index].1 == 0 && index + 1 < entries.len() {
            entries.remove(index);
        }
        Some(Log { entries })
    }
}
