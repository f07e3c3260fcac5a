//! A rate as an operator writes it: `"400/1s"`, `"5/1h"`, `"300/5s"`.
//!
//! Durations carry their units and a rate is never zero. So no later code can divide by zero or
//! mistake a unit.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

/// This many units in any window of a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    units: NonZeroU32,
    window: Duration,
}

/// The shortest window that a rate may name.
const MIN_WINDOW: Duration = Duration::from_millis(1);
/// The longest window that a rate may name (366 days): `units * window` must fit 53 bits.
pub const MAX_WINDOW: Duration = Duration::from_secs(366 * 24 * 3600);
/// The most units in a window: 10 million.
pub const MAX_UNITS: u32 = 10_000_000;

/// Why a text is no rate. The message shows a valid one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    /// There is no `/`, or a side of it is empty.
    #[error("`{0}` is no rate; write units per window, such as \"400/1s\" or \"5/1h\"")]
    Shape(String),
    /// The part before the `/` is no whole number from 1 to [`MAX_UNITS`].
    #[error("`{0}` units: a whole number from 1 to {MAX_UNITS} is needed")]
    Units(String),
    /// The part after the `/` is no duration with a unit.
    #[error("window `{0}`: {1}")]
    Window(String, DurationError),
    /// The part after the `/` is a unit without its number.
    #[error("`{text}` has no number before its unit; write \"{right}\"")]
    Bare {
        /// The whole rate, as it is written.
        text: String,
        /// The rate with the number 1 before the unit.
        right: String,
    },
    /// The window is shorter than a millisecond, or longer than [`MAX_WINDOW`].
    #[error("window `{0}`: it must be from 1ms to 366d")]
    WindowRange(String),
}

impl Rate {
    /// `units` in any window of the length `window`.
    ///
    /// # Errors
    /// When the window or the units are out of range.
    pub fn new(units: NonZeroU32, window: Duration) -> Result<Self, RateError> {
        if units.get() > MAX_UNITS {
            return Err(RateError::Units(units.to_string()));
        }
        if window < MIN_WINDOW || window > MAX_WINDOW {
            return Err(RateError::WindowRange(format!("{window:?}")));
        }
        Ok(Self { units, window })
    }

    /// Units per window.
    #[must_use]
    pub const fn units(self) -> NonZeroU32 {
        self.units
    }

    /// The length of the window.
    #[must_use]
    pub const fn window(self) -> Duration {
        self.window
    }

    /// Units per second.
    #[must_use]
    pub fn per_second(self) -> f64 {
        f64::from(self.units.get()) / self.window.as_secs_f64()
    }
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let (units, window) = text
            .split_once('/')
            .map(|(units, window)| (units.trim(), window.trim()))
            .filter(|(units, window)| !units.is_empty() && !window.is_empty())
            .ok_or_else(|| RateError::Shape(text.to_owned()))?;
        let digits: String = units.chars().filter(|c| *c != '_').collect();
        let units = digits
            .parse()
            .map_err(|_| RateError::Units(units.to_owned()))?;
        let length = parse_duration(window).map_err(|e| match unit_length(window) {
            Some(length) => RateError::Bare {
                text: text.to_owned(),
                right: format!("{units}/{}", Span(length)),
            },
            None => RateError::Window(window.to_owned(), e),
        })?;
        Self::new(units, length)
    }
}

/// The length of a unit that stands alone: a second for `s`.
fn unit_length(unit: &str) -> Option<Duration> {
    let is_unit = unit.chars().all(|c| c.is_ascii_alphabetic());
    let length = is_unit.then(|| parse_duration(&format!("1{unit}")));
    length?.ok().filter(|length| !length.is_zero())
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.units, Span(self.window))
    }
}

/// How many units one message takes from a limit. Never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost(NonZeroU32);

impl Cost {
    /// One message, one unit.
    pub const ONE: Self = Self(NonZeroU32::MIN);

    /// A cost of `units`.
    #[must_use]
    pub const fn new(units: NonZeroU32) -> Self {
        Self(units)
    }

    /// The units.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0.get()
    }

    /// The units, to count with.
    #[must_use]
    pub const fn units(self) -> u64 {
        self.0.get() as u64
    }
}

/// Why a text is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// No number with a unit.
    #[error(
        "no duration; write a number with its unit, such as \"250ms\", \"10s\", \"5m\", \"1h30m\" or \"2d\""
    )]
    Shape,
    /// Below zero.
    #[error("a duration cannot be negative")]
    Negative,
}

/// Reads `"250ms"`, `"10s"`, `"1h30m"`, `"2d"`, `"1d12h"`: whatever [`Span`] writes; a bare number is refused.
///
/// Whole days come first, up to 2^32 - 1 of 24 hours each. Then come numbers with their units, each unit once, from
/// hours (`h`, `m`, `s`, `ms`, `us`) down to `ns`, up to 2^63 - 1 seconds. The last number may have a fraction
/// (`"1.5h"`). The words for these units that `jiff` knows (`"1 second"`) are read, too, and so is `"1:30:00"`. Weeks
/// and longer units are not, and neither is the form of ISO 8601 (`"PT5S"`).
///
/// # Errors
/// [`DurationError::Negative`] below zero, such as `"-5s"` and `"5s ago"`; [`DurationError::Shape`] for any other text.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let trimmed = text.trim();
    // Days are not fixed-length in a calendar, so jiff leaves them out; here a day is 24 hours.
    let (days, rest) = trimmed
        .split_once('d')
        .and_then(|(days, rest)| Some((days.trim().parse::<u32>().ok()?, rest.trim())))
        .unwrap_or((0, trimmed));
    let whole_days = Duration::from_secs(u64::from(days) * 24 * 3600);
    if rest.is_empty() && !trimmed.is_empty() {
        return Ok(whole_days);
    }
    let bare = rest.trim_start_matches(['+', '-']);
    let is_signed_rest = bare != rest && rest != trimmed;
    if is_signed_rest || bare.starts_with(['P', 'p']) || rest.parse::<f64>().is_ok() {
        return Err(DurationError::Shape);
    }
    let signed: jiff::SignedDuration = rest.parse().map_err(|_| DurationError::Shape)?;
    let below_a_day = Duration::try_from(signed).map_err(|_| DurationError::Negative)?;
    whole_days
        .checked_add(below_a_day)
        .ok_or(DurationError::Shape)
}

/// Writes a duration the way an operator would: `5ms`, `1s`, `1h30m`, `2d`.
#[derive(Clone, Copy, Debug)]
pub struct Span(pub Duration);

impl Span {
    /// For logs: in whole seconds, below one in whole milliseconds.
    #[must_use]
    pub const fn rough(length: Duration) -> Self {
        Self(match length.as_secs() {
            0 => Duration::from_millis(length.subsec_millis() as u64),
            seconds => Duration::from_secs(seconds),
        })
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_zero() {
            return f.write_str("0s");
        }
        let mut rest = super::time::micros(self.0);
        for (name, size) in [
            ("d", 86_400_000_000),
            ("h", 3_600_000_000),
            ("m", 60_000_000),
            ("s", 1_000_000),
            ("ms", 1_000),
            ("us", 1),
        ] {
            if rest >= size {
                write!(f, "{}{name}", rest / size)?;
                rest %= size;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert_eq, proptest};

    use super::*;

    #[test]
    fn rates_are_read_with_their_units() {
        let rate: Rate = "400/1s".parse().expect("a plain rate");
        assert_eq!(rate.units().get(), 400);
        assert_eq!(rate.window(), Duration::from_secs(1));
        let rate: Rate = " 1_000 / 1d ".parse().expect("underscores and days");
        assert_eq!(rate.window(), Duration::from_secs(86_400));
        assert_eq!(rate.to_string(), "1000/1d");
    }

    #[test]
    fn a_rough_length_is_short() {
        for (micros, said) in [
            (0, "0s"),
            (7_400, "7ms"),
            (1_999_999, "1s"),
            (3_600_000_001, "1h"),
        ] {
            assert_eq!(Span::rough(Duration::from_micros(micros)).to_string(), said);
        }
    }

    #[test]
    fn what_is_no_rate_says_what_would_be_right() {
        for text in [
            "400", "400/", "/1s", "0/1s", "-1/1s", "400/1", "400/0s", "1.5/1s", "4/-1s",
        ] {
            let error = text.parse::<Rate>().expect_err(text);
            assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn a_unit_without_its_number_is_told_the_rate() {
        for (text, right) in [
            ("400/s", "400/1s"),
            ("400 / sec", "400/1s"),
            ("5/h", "5/1h"),
            ("10/d", "10/1d"),
            ("10/min", "10/1m"),
        ] {
            let said = text.parse::<Rate>().expect_err(text).to_string();
            let wanted = format!("`{text}` has no number before its unit; write \"{right}\"");
            assert_eq!(said, wanted);
        }
        let said = "10/fortnight".parse::<Rate>().expect_err("no unit");
        assert!(matches!(said, RateError::Window(..)), "{said}");
    }

    #[test]
    fn durations_need_a_unit_and_print_back() {
        for text in ["5ms", "1s", "1h30m", "2d", "250us", "1m5s", "1d12h"] {
            let span = parse_duration(text).expect(text);
            assert_eq!(Span(span).to_string(), text);
        }
        let half = Duration::from_millis(500);
        for (text, length) in [
            ("36h", 36 * 3600 * 2),
            ("1 d 12 h", 36 * 3600 * 2),
            ("1 second", 2),
            ("1.5s", 3),
        ] {
            assert_eq!(parse_duration(text), Ok(half * length), "{text}");
        }
        for text in [
            "5",
            "",
            "s",
            "d",
            "ten seconds ago",
            "-5s",
            "-1d",
            "1d-5s",
            "1d+5s",
            "1d5",
            "2days",
            "1.5d",
            "PT5S",
            "+pt5s",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    proptest! {
        /// The texts of policies go through the store and come back.
        #[test]
        fn every_length_that_is_written_is_read_again(micros in 0..=(1_u64 << 53)) {
            let length = Duration::from_micros(micros);
            prop_assert_eq!(parse_duration(&Span(length).to_string()), Ok(length));
        }
    }
}
