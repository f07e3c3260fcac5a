//! The rate of a fixed window: `"10/1d"`, or `"1000/month"` by the calendar.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use super::text::{TextError, read_as_text, write_as_text};
use crate::core::calendar::CalendarUnit;
use crate::core::rate::{MAX_UNITS, Rate, RateError};

/// So many units in each window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowRate {
    /// A window of a fixed length.
    Every(Rate),
    /// A window that the calendar of a time zone gives: days with 23 to 25 hours, months of 28 to
    /// 31 days.
    Calendar {
        units: NonZeroU32,
        each: CalendarUnit,
    },
}

const HOUR: u64 = 3600;

/// The longest that a window of the calendar is as a rule: an hour has up to 90 minutes where
/// clocks change by 30, a day up to 25 hours.
const fn longest(unit: CalendarUnit) -> Duration {
    Duration::from_secs(match unit {
        CalendarUnit::Second => 1,
        CalendarUnit::Minute => 60,
        CalendarUnit::Hour => HOUR * 3 / 2,
        CalendarUnit::Day => 25 * HOUR,
        CalendarUnit::Week => (7 * 24 + 1) * HOUR,
        CalendarUnit::Month => (31 * 24 + 1) * HOUR,
    })
}

/// How long a window of the calendar is where no clock changes; a month in the mean.
const fn usual(unit: CalendarUnit) -> Duration {
    Duration::from_secs(match unit {
        CalendarUnit::Second => 1,
        CalendarUnit::Minute => 60,
        CalendarUnit::Hour => HOUR,
        CalendarUnit::Day => 24 * HOUR,
        CalendarUnit::Week => 7 * 24 * HOUR,
        CalendarUnit::Month => 365 * 24 * HOUR / 12,
    })
}

impl WindowRate {
    /// Units a second, to compare it with others.
    #[must_use]
    pub fn per_second(self) -> f64 {
        match self {
            Self::Every(rate) => rate.per_second(),
            Self::Calendar { units, each } => f64::from(units.get()) / usual(each).as_secs_f64(),
        }
    }

    /// Units per window.
    #[must_use]
    pub const fn units(self) -> NonZeroU32 {
        match self {
            Self::Every(rate) => rate.units(),
            Self::Calendar { units, .. } => units,
        }
    }

    /// The longest that a window of it can be.
    #[must_use]
    pub const fn longest(self) -> Duration {
        match self {
            Self::Every(rate) => rate.window(),
            Self::Calendar { each, .. } => longest(each),
        }
    }
}

impl FromStr for WindowRate {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let (units, window) = text.split_once('/').unwrap_or((text, ""));
        let Ok(each) = window.parse() else {
            return text.parse().map(Self::Every).map_err(|error| match error {
                RateError::Window(window, _) => TextError(format!(
                    "window `{window}`: write a duration such as 1d, or a word of the calendar: second, minute, hour, day, week, month"
                )),
                error => TextError(error.to_string()),
            });
        };
        let digits = units.replace('_', "");
        let units = digits.trim().parse::<NonZeroU32>().ok();
        let units = units.filter(|units| units.get() <= MAX_UNITS);
        let units = units
            .ok_or_else(|| TextError(RateError::Units(digits.trim().to_owned()).to_string()))?;
        Ok(Self::Calendar { units, each })
    }
}

impl fmt::Display for WindowRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Every(rate) => rate.fmt(f),
            Self::Calendar { units, each } => write!(f, "{units}/{each}"),
        }
    }
}

read_as_text!(WindowRate);
write_as_text!(WindowRate);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_words() {
        for text in ["10/1d", "1000/month", "5/250ms", "1/week"] {
            let rate: WindowRate = text.parse().expect(text);
            assert_eq!(rate.to_string(), text);
        }
        let spaced: WindowRate = " 1_000 / day ".parse().expect("spaces");
        assert_eq!(spaced.to_string(), "1000/day");
        for text in [
            "10/days",
            "0/day",
            "x/day",
            "10",
            "/day",
            "10/",
            "99999999/day",
        ] {
            assert!(text.parse::<WindowRate>().is_err(), "{text}");
        }
    }
}
