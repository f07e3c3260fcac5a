//! Windows of the calendar: "10 a day" counted from local midnight to local midnight.
//!
//! Problem: the store knows no time zones. So a replica computes the next boundaries and passes
//! them to the store. All replicas have the same rules (`core::zone`) and compute the same
//! boundaries.
//!
//! Windows are half open, without gaps between them, and none is empty. Where the local clock
//! jumps:
//! - A **second, minute or hour** begins whenever the local clock shows a full one. When clocks go
//!   back by an hour, the repeated hour is two windows; when they go forward, the skipped hour is
//!   none. A jump of half an hour (Lord Howe) leaves one window of 90 minutes: longer, but never
//!   two in one hour.
//! - A **day, week or month** begins when the local clock first reaches its midnight, or jumps over
//!   it, and never begins twice. So a day usually has 23 to 25 hours, a day without a midnight
//!   begins when the jump ends, and a day that a country skipped is none. Weeks begin on Monday.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::ToSpan as _;
use jiff::civil::{Date, Time, Weekday};

use super::time::StoreTime;
use super::zone::{Zone, second, store_time};

crate::labelled! {
    /// The length of a window of the calendar.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum CalendarUnit {
        /// Begins whenever the local clock shows a full second.
        Second = "second",
        /// Begins whenever the local clock shows a full minute.
        Minute = "minute",
        /// Begins whenever the local clock shows a full hour.
        Hour = "hour",
        /// From local midnight to local midnight: 23 to 25 hours where clocks change by one.
        Day = "day",
        /// From local midnight on Monday.
        Week = "week",
        /// From local midnight on the first of a month.
        Month = "month",
    }

    /// The word for it in a rate: the `day` of `10/day`.
    pub const fn word(self) -> &'static str;
}

/// A word that names no [`CalendarUnit`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no window of the calendar; second, minute, hour, day, week and month are")]
pub struct UnknownUnit(String);

const HOUR: u64 = 3600;

impl CalendarUnit {
    /// The usual longest length of such a window: an hour has up to 90 minutes where clocks change by 30, a
    /// day up to 25 hours.
    #[must_use]
    pub const fn longest(self) -> Duration {
        Duration::from_secs(match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => HOUR * 3 / 2,
            Self::Day => 25 * HOUR,
            Self::Week => (7 * 24 + 1) * HOUR,
            Self::Month => (31 * 24 + 1) * HOUR,
        })
    }

    /// How long such a window is where no clock changes; for a month, the mean.
    #[must_use]
    pub const fn usual(self) -> Duration {
        Duration::from_secs(match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => HOUR,
            Self::Day => 24 * HOUR,
            Self::Week => 7 * 24 * HOUR,
            Self::Month => 365 * 24 * HOUR / 12,
        })
    }

    /// How it is counted.
    const fn kind(self) -> Division {
        match self {
            Self::Second => Division::Multiples(1),
            Self::Minute => Division::Multiples(60),
            Self::Hour => Division::Multiples(3600),
            Self::Day => Division::Dates(Dates::Day),
            Self::Week => Division::Dates(Dates::Week),
            Self::Month => Division::Dates(Dates::Month),
        }
    }
}

impl FromStr for CalendarUnit {
    type Err = UnknownUnit;

    fn from_str(text: &str) -> Result<Self, UnknownUnit> {
        Self::ALL
            .into_iter()
            .find(|unit| unit.word() == text.trim())
            .ok_or_else(|| UnknownUnit(text.trim().to_owned()))
    }
}

impl fmt::Display for CalendarUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

enum Division {
    /// Whenever the seconds of the local clock are a multiple of this.
    Multiples(i64),
    Dates(Dates),
}

#[derive(Clone, Copy)]
enum Dates {
    Day,
    Week,
    Month,
}

impl Dates {
    /// The first date of the window that `date` lies in.
    fn first(self, date: Date) -> Option<Date> {
        match self {
            Self::Day => Some(date),
            Self::Week => {
                let past = i64::from(date.weekday().since(Weekday::Monday));
                date.checked_sub(past.days()).ok()
            }
            Self::Month => Some(date.first_of_month()),
        }
    }

    /// The first date of the window after the one that begins on `first`.
    fn next(self, first: Date) -> Option<Date> {
        let length = match self {
            Self::Day => 1.day(),
            Self::Week => 1.week(),
            Self::Month => 1.month(),
        };
        first.checked_add(length).ok()
    }
}

/// The windows of one unit in one zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calendar {
    /// How long the windows are.
    pub unit: CalendarUnit,
    /// The zone whose local clock says when they begin.
    pub zone: Zone,
}

impl Calendar {
    /// The windows of `unit` in `zone`.
    #[must_use]
    pub const fn new(unit: CalendarUnit, zone: Zone) -> Self {
        Self { unit, zone }
    }

    /// The boundaries of the window that `at` lies in and of those after it, `count` windows
    /// together: `count + 1` boundaries, `b[0] <= at < b[1] < b[2] …`.
    #[must_use]
    pub fn windows_from(&self, at: StoreTime, count: usize) -> Vec<StoreTime> {
        let bounds = self.bounds(second(at));
        bounds.take(count + 1).map(store_time).collect()
    }

    /// The last boundary up to `at`, and all that follow. It never ends.
    fn bounds(&self, at: i64) -> Box<dyn Iterator<Item = i64> + '_> {
        match self.unit.kind() {
            Division::Multiples(length) => {
                let next = move |boundary: &i64| Some(self.boundary_after(*boundary, length));
                Box::new(std::iter::successors(
                    Some(self.boundary_until(at, length)),
                    next,
                ))
            }
            Division::Dates(dates) => Box::new(DateBounds::new(&self.zone, dates, at)),
        }
    }

    /// The last boundary up to `at`.
    fn boundary_until(&self, mut at: i64, length: i64) -> i64 {
        // Once for each change of the offset in between: hardly ever twice.
        loop {
            let boundary = at - (at + self.zone.offset(at)).rem_euclid(length);
            match self.zone.change_until(at) {
                // Before this change the clock had another offset.
                Some(change) if change > boundary => at = change - 1,
                _ => return boundary,
            }
        }
    }

    /// The first boundary after `at`.
    fn boundary_after(&self, mut at: i64, length: i64) -> i64 {
        loop {
            let boundary = at + length - (at + self.zone.offset(at)).rem_euclid(length);
            match self.zone.change_after(at) {
                Some(change) if change <= boundary => {
                    if (change + self.zone.offset(change)).rem_euclid(length) == 0 {
                        return change;
                    }
                    at = change;
                }
                _ => return boundary,
            }
        }
    }
}

/// Boundaries at dates.
struct DateBounds<'a> {
    zone: &'a Zone,
    dates: Dates,
    /// The next boundary to answer, and its date.
    next: i64,
    date: Date,
}

impl<'a> DateBounds<'a> {
    fn new(zone: &'a Zone, dates: Dates, at: i64) -> Self {
        let today = zone.reading(at).date();
        let date = dates.first(today).unwrap_or(today);
        let start = zone.first_reading(date.to_datetime(Time::midnight()));
        let mut bounds = Self {
            zone,
            dates,
            next: start.unwrap_or(at).min(at),
            date,
        };
        // A clock that goes back over midnight shows the date of yesterday although today has
        // begun.
        loop {
            let (date, next) = bounds.after();
            if next > at {
                return bounds;
            }
            (bounds.date, bounds.next) = (date, next);
        }
    }

    /// The boundary after the present one: the next date that begins later than this one. A date
    /// that the zone skipped begins no later than the one after it.
    fn after(&self) -> (Date, i64) {
        let mut date = self.date;
        while self.next < i64::MAX
            && let Some(next) = self.dates.next(date)
        {
            match self.zone.first_reading(next.to_datetime(Time::midnight())) {
                Some(start) if start > self.next => return (next, start),
                Some(_) => date = next,
                None => break,
            }
        }
        // The years of the calendar are over; thousands of years after the last `StoreTime`.
        (date, i64::MAX)
    }
}

impl Iterator for DateBounds<'_> {
    type Item = i64;

    fn next(&mut self) -> Option<i64> {
        let answer = self.next;
        (self.date, self.next) = self.after();
        Some(answer)
    }
}

#[cfg(test)]
mod tests;
