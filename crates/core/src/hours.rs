//! Opening hours: when a route may send at all, by the local clock of a time zone. How their texts are read, and the
//! faults in them, is in `written`.
//!
//! Ranges such as `08:00-21:00` repeat on the days they are given for. The route is open while the
//! local clock shows a time within a range. So when clocks jump forward over the start of a range,
//! the route opens right after the jump. A range that lies within the jump does not open on that
//! day. A range that comes twice, when clocks go back, is open twice.
//!
//! The ranges are kept as spans of the week, merged where they touch. The next change is computed
//! from one change of the zone's offset to the next, never by trying.

mod written;

use std::time::Duration;

use super::time::StoreTime;
use super::zone::{Zone, second, store_time};

pub use written::{Days, HourRange, HoursError};

const DAY: u32 = 86_400;
const WEEK: u32 = 7 * DAY;
/// The epoch was a Thursday: three days after a Monday.
const SINCE_MONDAY: i64 = 3 * DAY as i64;
/// The search for the next opening looks past this many changes of the zone's offset. There are two
/// a year.
const LOOKAHEAD: u32 = 32;

/// Longer than any stretch, clocks that change included.
const LONGEST: Duration = Duration::from_secs(8 * 86_400);

/// Part of a week, in seconds since Monday 00:00 of the local clock; half open, never empty.
type WeekRange = (u32, u32);

/// When a route may send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpeningHours {
    zone: Zone,
    /// By their start; they neither touch nor overlap, and there is one at least.
    open: Vec<WeekRange>,
}

/// Open or closed, and for how long it stays so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Whether messages may be sent.
    pub open: bool,
    /// The first moment at which that changes; `None`: never (always open).
    pub until: Option<StoreTime>,
}

impl OpeningHours {
    /// Open within `ranges` that begin on `days`, by the clock of `zone`.
    ///
    /// # Errors
    /// Without a range: hours that never open are a mistake.
    pub fn new(ranges: &[HourRange], days: Days, zone: Zone) -> Result<Self, HoursError> {
        if ranges.is_empty() {
            return Err(HoursError::NoRange);
        }
        let open = week(ranges, days);
        Ok(Self { zone, open })
    }

    /// The same hours by the clock of another zone.
    #[must_use]
    pub fn in_zone(&self, zone: Zone) -> Self {
        Self {
            zone,
            open: self.open.clone(),
        }
    }

    /// The zone whose clock counts.
    #[must_use]
    pub const fn zone(&self) -> &Zone {
        &self.zone
    }

    /// Whether it is open at `at`, and until when that stays so. For callers that keep the result.
    #[must_use]
    pub fn stretch(&self, at: StoreTime) -> Stretch {
        let second = second(at);
        let open = self.reads_open(second);
        let until = (!self.is_always()).then(|| store_time(self.change_after(second, open)));
        Stretch { open, until }
    }

    /// The first moment from `at` on at which it is open: `at` itself if it is.
    #[must_use]
    pub fn opens(&self, at: StoreTime) -> StoreTime {
        match self.stretch(at) {
            Stretch {
                open: false,
                until: Some(opening),
            } => opening,
            _ => at,
        }
    }

    /// Since when it is open at `at`; `None`: it is closed, or always open.
    #[must_use]
    pub fn opened(&self, at: StoreTime) -> Option<StoreTime> {
        if self.is_always() {
            return None;
        }
        // Each week has an hour that is closed, so no stretch is longer than this.
        let mut from = at - LONGEST;
        loop {
            let stretch = self.stretch(from);
            match stretch.until {
                Some(until) if until <= at => from = until,
                _ => return stretch.open.then_some(from),
            }
        }
    }

    fn is_always(&self) -> bool {
        self.open == [(0, WEEK)]
    }

    fn reads_open(&self, at: i64) -> bool {
        let reading = self.second_of_week(at);
        let past = self.open.partition_point(|span| span.1 <= reading);
        self.open.get(past).is_some_and(|span| span.0 <= reading)
    }

    /// What the local clock reads, in seconds since Monday 00:00.
    fn second_of_week(&self, at: i64) -> u32 {
        let local = at + self.zone.offset(at) + SINCE_MONDAY;
        u32::try_from(local.rem_euclid(i64::from(WEEK))).unwrap_or(0)
    }

    /// The first second after `at` at which it is not `open` any more (or not closed any more). If
    /// the zone's clock changes too often, a moment before that: the caller asks again then.
    fn change_after(&self, at: i64, open: bool) -> i64 {
        let mut from = at;
        for _ in 0..LOOKAHEAD {
            let edge = from + i64::from(self.to_edge(self.second_of_week(from), open));
            match self.zone.change_after(from) {
                Some(change) if change <= edge => {
                    if self.reads_open(change) != open {
                        return change;
                    }
                    from = change;
                }
                _ => return edge,
            }
        }
        from
    }

    /// How long until the spans open or close, on a clock that runs evenly.
    fn to_edge(&self, reading: u32, open: bool) -> u32 {
        let edge = |span: &WeekRange| if open { span.1 } else { span.0 };
        let first = self.open.first().map_or(0, edge);
        let next = self.open.iter().map(edge).find(|edge| *edge > reading);
        match next {
            // A span that ends with the week goes on if the next week begins with one.
            Some(WEEK) if self.open.first().is_some_and(|span| span.0 == 0) => {
                WEEK + first - reading
            }
            Some(edge) => edge - reading,
            None => WEEK + first - reading,
        }
    }
}

/// The spans of the week in which the ranges are open: sorted, merged where they touch.
fn week(ranges: &[HourRange], days: Days) -> Vec<WeekRange> {
    let mut spans = Vec::new();
    for range in ranges {
        let starts = (0..7_u32).zip(days.0).filter(|(_, on)| *on);
        for (start, end) in starts.map(|(day, _)| (day * DAY + range.start, day * DAY + range.end))
        {
            spans.push((start, end.min(WEEK)));
            if end > WEEK {
                // From Sunday into Monday.
                spans.push((0, end - WEEK));
            }
        }
    }
    merge(spans)
}

fn merge(mut spans: Vec<WeekRange>) -> Vec<WeekRange> {
    spans.sort_unstable();
    let mut merged: Vec<WeekRange> = Vec::with_capacity(spans.len());
    for (start, end) in spans {
        match merged.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    merged
}

#[cfg(test)]
mod tests;
