//! Exactly so many in any window: the times of what was taken.
//!
//! An entry counts for a period, which is the window plus the headroom, and not at its end any
//! more. The log only ever holds what may count together with its newest entry: at most the limit,
//! however many places are booked ahead.

use std::time::Duration;

use super::{Fit, RuleError, Usage, remembered};
use crate::core::rate::Rate;
use crate::core::time::micros;

/// The longest log.
pub const LIMIT_MAX: u64 = 10_000;

/// The rule of a `sliding_log` limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingLog {
    limit: u64,
    period: u64,
    pub(super) headroom: Duration,
}

/// The state: times and units, oldest first, no time twice. The newest entry stays even if nothing
/// of it is left: nothing is booked before it.
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

    /// What counts at `at`.
    fn alive<'a>(&self, s: Option<&'a Log>, at: u64) -> &'a [(u64, u64)] {
        let entries = s.map_or(&[][..], |s| &s.entries);
        let gone = entries.partition_point(|(time, _)| time + self.period <= at);
        &entries[gone..]
    }

    pub(super) fn earliest(&self, s: Option<&Log>, from: u64, cost: u64) -> Option<Fit> {
        if cost > self.limit {
            return None;
        }
        let from = from.max(
            s.and_then(|s| s.entries.last())
                .map_or(0, |(time, _)| *time),
        );
        let alive = self.alive(s, from);
        let total: u64 = alive.iter().map(|(_, count)| count).sum();
        let mut over = (total + cost).saturating_sub(self.limit);
        let mut at = from;
        for (time, count) in alive {
            if over == 0 {
                break;
            }
            over = over.saturating_sub(*count);
            at = time + self.period;
        }
        Some(Fit::firm(at))
    }

    pub(super) fn book(&self, s: Option<&Log>, at: u64, cost: u64) -> Log {
        let mut entries = self.alive(s, at).to_vec();
        match entries.last_mut() {
            Some((time, count)) if *time >= at => *count += cost,
            _ => entries.push((at, cost)),
        }
        Log { entries }
    }

    pub(super) fn usage(&self, s: Option<&Log>, now: u64) -> Usage {
        let last = s
            .and_then(|s| s.entries.last())
            .map_or(0, |(time, _)| *time);
        let alive = self.alive(s, now);
        let total: u64 = alive.iter().map(|(_, count)| count).sum();
        let reset = alive
            .iter()
            .rfind(|(_, count)| *count > 0)
            .map_or(0, |(time, _)| time + self.period - now);
        Usage {
            limit: self.limit,
            remaining: if last > now {
                0
            } else {
                self.limit.saturating_sub(total)
            },
            retry_after: Duration::ZERO,
            reset_after: Duration::from_micros(reset),
        }
    }

    /// What was taken up to `since`, when another rule took the place of this one. Places that were
    /// booked ahead are gone; what was forgotten for them counts as a full period before the last one.
    pub(super) fn ended(&self, s: &Log, since: u64) -> Log {
        let newest = s.entries.last().map_or(0, |(time, _)| *time);
        let ahead = newest > since;
        let forgotten = since.min(newest.saturating_sub(self.period));
        let kept = |time: u64| time <= since && !(ahead && time <= forgotten);
        let mut entries: Vec<_> = s
            .entries
            .iter()
            .filter(|(time, _)| kept(*time))
            .copied()
            .collect();
        let total: u64 = entries.iter().map(|(_, count)| count).sum();
        if ahead && total < self.limit {
            entries.insert(0, (forgotten, self.limit - total));
        }
        if entries.is_empty() {
            entries.push((since, 0));
        }
        Log { entries }
    }

    /// Nothing is left at `at`.
    pub(super) fn spent(&self, at: u64) -> Log {
        Log {
            entries: vec![(at, self.limit)],
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
