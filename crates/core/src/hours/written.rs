//! How opening hours are written: ranges of times, and days of the week.
//!
//! Problem: a range that is read in another way than it was meant shows only when messages leave at night. So a text
//! that is not certain is refused, and the error says what would be right.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error as _};

use super::DAY;

/// The days as they are written, Monday first, with their full names.
const DAYS: [(&str, &str); 7] = [
    ("mon", "monday"),
    ("tue", "tuesday"),
    ("wed", "wednesday"),
    ("thu", "thursday"),
    ("fri", "friday"),
    ("sat", "saturday"),
    ("sun", "sunday"),
];

/// Why a text names no opening hours. The message says what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HoursError {
    /// The list of ranges is empty.
    #[error("no range: it would never open; write one such as \"08:00-21:00\"")]
    NoRange,
    /// The text has no `-`.
    #[error("`{0}` is no range of hours; write two times of day, such as \"08:00-21:00\"")]
    Range(String),
    /// A side of a range is no time of day.
    #[error("`{time}` in `{range}` is no time of day; write 00:00 to 24:00, such as \"08:30\"")]
    Time {
        /// The whole range, as it is written.
        range: String,
        /// The side that is wrong, without blanks around it.
        time: String,
    },
    /// The range starts at 24:00.
    #[error("`{0}` starts at the end of a day; write 00:00 for the start of the next")]
    StartsAtEnd(String),
    /// Both times of the range are the same.
    #[error("`{0}` starts and ends at the same time; write \"00:00-24:00\" for the whole day")]
    Empty(String),
    /// A word that is no day of the week; upper and lower case count the same.
    #[error("`{0}` is no day; write mon, tue, wed, thu, fri, sat or sun, or a range: \"mon-fri\"")]
    Day(String),
}

/// From one time of day to another, the second one excluded: `08:00-21:00`, `22:00-06:00` (over
/// midnight), `18:30-24:00`. Seconds are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HourRange {
    /// Seconds since midnight, less than a day.
    pub(super) start: u32,
    /// Seconds since that midnight; more than a day if it lies on the next.
    pub(super) end: u32,
}

impl FromStr for HourRange {
    type Err = HoursError;

    fn from_str(text: &str) -> Result<Self, HoursError> {
        let Some((start, end)) = text.split_once('-') else {
            return Err(HoursError::Range(text.to_owned()));
        };
        let time = |part: &str| {
            time_of_day(part.trim()).ok_or_else(|| HoursError::Time {
                range: text.to_owned(),
                time: part.trim().to_owned(),
            })
        };
        let (start, end) = (time(start)?, time(end)?);
        if start == DAY {
            return Err(HoursError::StartsAtEnd(text.to_owned()));
        }
        if start == end {
            return Err(HoursError::Empty(text.to_owned()));
        }
        let end = if end < start { end + DAY } else { end };
        Ok(Self { start, end })
    }
}

/// `08:30`, `8:30`, `08:30:15` or `24:00`, in seconds since midnight.
fn time_of_day(text: &str) -> Option<u32> {
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let two = |part: &str| (part.len() == 2 && digits(part)).then(|| part.parse::<u32>().ok())?;
    let (hours, rest) = text.split_once(':')?;
    let hours = (hours.len() <= 2 && digits(hours)).then(|| hours.parse::<u32>().ok())??;
    let (minutes, seconds) = match rest.split_once(':') {
        Some((minutes, seconds)) => (two(minutes)?, two(seconds)?),
        None => (two(rest)?, 0),
    };
    let time = hours * 3600 + minutes * 60 + seconds;
    (minutes < 60 && seconds < 60 && time <= DAY).then_some(time)
}

impl fmt::Display for HourRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = if self.end > DAY {
            self.end - DAY
        } else {
            self.end
        };
        let write = |f: &mut fmt::Formatter<'_>, time: u32| {
            write!(f, "{:02}:{:02}", time / 3600, time / 60 % 60)?;
            match time % 60 {
                0 => Ok(()),
                seconds => write!(f, ":{seconds:02}"),
            }
        };
        write(f, self.start)?;
        f.write_str("-")?;
        write(f, end)
    }
}

/// Days of the week, at least one: `sun`, `mon-fri`, `mon,wed,sat-sun`. A range may go on past
/// Sunday: `sat-mon`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Days(pub(super) [bool; 7]);

impl Days {
    /// All seven.
    pub const ALL: Self = Self([true; 7]);

    /// All days of this value and of the other one.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        for (day, on) in self.0.iter_mut().zip(other.0) {
            *day |= on;
        }
        self
    }

    fn range(text: &str) -> Result<Self, HoursError> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (day(first)?, day(last)?);
        let mut days = [false; 7];
        for step in 0..=(last + 7 - first) % 7 {
            if let Some(day) = days.get_mut((first + step) % 7) {
                *day = true;
            }
        }
        Ok(Self(days))
    }
}

impl Default for Days {
    fn default() -> Self {
        Self::ALL
    }
}

impl FromStr for Days {
    type Err = HoursError;

    fn from_str(text: &str) -> Result<Self, HoursError> {
        let mut parts = text.split(',');
        parts.try_fold(Self([false; 7]), |days, part| {
            Ok(days.and(Self::range(part)?))
        })
    }
}

impl fmt::Display for Days {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = DAYS.iter().zip(self.0).filter(|(_, on)| *on);
        let names: Vec<_> = named.map(|((short, _), _)| *short).collect();
        f.write_str(&names.join(","))
    }
}

fn day(text: &str) -> Result<usize, HoursError> {
    let word = text.trim().to_ascii_lowercase();
    DAYS.iter()
        .position(|(short, long)| word == *short || word == *long)
        .ok_or_else(|| HoursError::Day(text.trim().to_owned()))
}

impl<'de> Deserialize<'de> for HourRange {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Days {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_written_back() {
        for text in [
            "08:00-21:00",
            "22:00-06:00",
            "00:00-24:00",
            "09:30:05-09:31",
        ] {
            assert_eq!(text.parse::<HourRange>().unwrap().to_string(), text);
        }
        let loose: HourRange = " 8:00 - 9:05 ".parse().unwrap();
        assert_eq!(loose.to_string(), "08:00-09:05");
        for (text, days) in [
            ("mon", "mon"),
            ("Mon-FRI", "mon,tue,wed,thu,fri"),
            ("sat - mon", "mon,sat,sun"),
            ("wed, sunday", "wed,sun"),
        ] {
            assert_eq!(text.parse::<Days>().unwrap().to_string(), days);
        }
        assert_eq!("mon-sun".parse(), Ok(Days::ALL));
    }
}
