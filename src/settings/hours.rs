//! Opening hours as an operator writes them: `"08:00-21:00"`, `"mon-fri"`.
//!
//! Only the texts are read here; when a route opens next is decided in `core`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};

use super::text::one_or_more;

/// Minutes of a day.
const DAY: u16 = 24 * 60;
/// More ranges than this are a mistake.
pub(super) const MAX_RANGES: usize = 24;

/// From one time of day to another, the second one excluded. A range that ends before it begins
/// goes on past midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HourRange {
    /// Minutes since midnight, below 1440.
    from: u16,
    /// Minutes since midnight, at most 1440, never `from`.
    to: u16,
}

impl HourRange {
    /// Its beginning, in minutes since midnight (0 to 1439).
    #[must_use]
    pub const fn from(self) -> u16 {
        self.from
    }

    /// Its end, in minutes since midnight (0 to 1440). If it is less than the beginning, it is on
    /// the next day.
    #[must_use]
    pub const fn to(self) -> u16 {
        self.to
    }
}

/// The ranges of a day, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hours(Vec<HourRange>);

impl Hours {
    /// The ranges, as written.
    #[must_use]
    pub fn ranges(&self) -> &[HourRange] {
        &self.0
    }
}

/// Days of the week, at least one; a range over midnight belongs to the day on which it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Days([bool; 7]);

/// The days as they are written, Monday first.
pub const DAY_NAMES: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

impl Days {
    /// All seven.
    pub const ALL: Self = Self([true; 7]);

    /// Whether a day is among them; 0 is Monday.
    #[must_use]
    pub fn has(self, day: usize) -> bool {
        self.0.get(day).copied().unwrap_or_default()
    }
}

impl Default for Days {
    fn default() -> Self {
        Self::ALL
    }
}

/// Why a text is no range of hours or days.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HoursError {
    #[error(
        "`{0}` is no range of hours; write two times of the day, such as \"08:00-21:00\" or \"22:00-06:00\""
    )]
    Hours(String),
    #[error("`{0}` has no length; leave `open` out for a route that never closes")]
    Empty(String),
    #[error(
        "`{0}` is no day; write \"mon\", \"mon-fri\" or [\"mon\", \"wed\"] with mon, tue, wed, thu, fri, sat, sun"
    )]
    Days(String),
}

impl FromStr for HourRange {
    type Err = HoursError;

    fn from_str(text: &str) -> Result<Self, HoursError> {
        let wrong = || HoursError::Hours(text.to_owned());
        let (from, to) = text.split_once('-').ok_or_else(wrong)?;
        let from = minutes(from).filter(|from| *from < DAY).ok_or_else(wrong)?;
        let to = minutes(to).ok_or_else(wrong)?;
        if from == to {
            return Err(HoursError::Empty(text.to_owned()));
        }
        Ok(Self { from, to })
    }
}

/// `08:00` in minutes since midnight, up to `24:00`.
fn minutes(text: &str) -> Option<u16> {
    let (hours, minutes) = text.trim().split_once(':')?;
    let number = |text: &str| -> Option<u16> {
        let digits = text.len() <= 2 && text.bytes().all(|b| b.is_ascii_digit());
        text.parse().ok().filter(|_| digits)
    };
    let minute = number(minutes).filter(|minute| *minute < 60 && minutes.len() == 2)?;
    let all = number(hours)? * 60 + minute;
    (all <= DAY).then_some(all)
}

impl fmt::Display for HourRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = (self.from, self.to);
        write!(
            f,
            "{:02}:{:02}-{:02}:{:02}",
            from / 60,
            from % 60,
            to / 60,
            to % 60
        )
    }
}

impl FromStr for Days {
    type Err = HoursError;

    /// One day or a range of days, which may go on past Sunday.
    fn from_str(text: &str) -> Result<Self, HoursError> {
        let day = |name: &str| {
            let name = name.trim();
            let found = DAY_NAMES
                .iter()
                .position(|day| day.eq_ignore_ascii_case(name));
            found.ok_or_else(|| HoursError::Days(text.to_owned()))
        };
        let (first, last) = match text.split_once('-') {
            Some((first, last)) => (day(first)?, day(last)?),
            None => (day(text)?, day(text)?),
        };
        let mut days = [false; 7];
        for step in 0..=(last + 7 - first) % 7 {
            days[(first + step) % 7] = true;
        }
        Ok(Self(days))
    }
}

impl fmt::Display for Days {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = DAY_NAMES.iter().zip(self.0).filter(|(_, open)| *open);
        let names: Vec<_> = named.map(|(name, _)| *name).collect();
        f.write_str(&names.join(","))
    }
}

impl<'de> Deserialize<'de> for Hours {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        one_or_more(deserializer, MAX_RANGES).map(Self)
    }
}

impl<'de> Deserialize<'de> for Days {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let parts: Vec<Self> = one_or_more(deserializer, DAY_NAMES.len())?;
        let mut days = [false; 7];
        for part in parts {
            for (day, open) in days.iter_mut().zip(part.0) {
                *day |= open;
            }
        }
        Ok(Self(days))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_written_back() {
        for text in ["08:00-21:00", "22:00-06:00", "00:00-24:00", "09:30-09:31"] {
            let range: HourRange = text.parse().expect(text);
            assert_eq!(range.to_string(), text);
        }
        let loose: HourRange = " 8:00 - 9:05 ".parse().expect("spaces and one digit");
        assert_eq!((loose.from(), loose.to()), (480, 545));
        for text in [
            "",
            "8-21",
            "08:00",
            "08:00-",
            "24:00-01:00",
            "08:60-09:00",
            "08:00-24:01",
            "08:00-08:00",
            "+8:00-09:00",
            "08:0-09:00",
            "008:00-09:00",
            "08:00-09:00-10:00",
        ] {
            assert!(text.parse::<HourRange>().is_err(), "{text}");
        }
    }

    #[test]
    fn days_are_one_or_a_range() {
        for (text, days) in [
            ("mon", "mon"),
            ("Mon-FRI", "mon,tue,wed,thu,fri"),
            ("sat - mon", "mon,sat,sun"),
            ("mon-sun", "mon,tue,wed,thu,fri,sat,sun"),
        ] {
            assert_eq!(text.parse::<Days>().expect(text).to_string(), days);
        }
        for text in ["", "monday", "mon-", "mon,tue", "1-5"] {
            assert!(text.parse::<Days>().is_err(), "{text}");
        }
    }
}
