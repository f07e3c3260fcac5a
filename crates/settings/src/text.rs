//! Values that are written as text in a form of their own: durations, rates, sizes, shares,
//! templates.
//!
//! Each is read by `FromStr`, whose error names a valid form, and written by `Display`.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use sluiced_core::calendar::CalendarUnit;
use sluiced_core::headroom::Headroom;
use sluiced_core::limits::generation::LostWait;
use sluiced_core::rate::{MAX_UNITS, Rate, RateError, Span, parse_duration};

/// Why a text is not in its form, and a valid one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TextError(pub(super) String);

/// A duration written with its unit: `"250ms"`, `"10s"`, `"1h30m"`, `"2d"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Length(pub Duration);

impl Length {
    /// The duration.
    #[must_use]
    pub const fn get(self) -> Duration {
        self.0
    }
}

impl FromStr for Length {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let read = parse_duration(text).map(Self);
        read.map_err(|why| TextError(format!("`{text}` is {why}")))
    }
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Span(self.0).fmt(f)
    }
}

/// A headroom: a duration, or `"auto"`. In a current policy `auto` is followed by its parts, as the replicas
/// measured them: `auto(1500us+500us)`, for calls that leave late and for the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadroomText {
    Fixed(Length),
    /// `None`: nothing was measured yet.
    Auto(Option<Headroom>),
}

/// The word for a headroom that follows what is measured.
pub const AUTO: &str = "auto";

impl FromStr for HeadroomText {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let Some(parts) = text.strip_prefix(AUTO) else {
            let fixed = text.parse().map(Self::Fixed);
            return fixed.map_err(|TextError(why)| TextError(format!("{why}, or \"{AUTO}\"")));
        };
        if parts.is_empty() {
            return Ok(Self::Auto(None));
        }
        let parts = parts
            .strip_prefix('(')
            .and_then(|parts| parts.strip_suffix(')'))
            .and_then(|parts| parts.split_once('+'));
        let length = |text| parse_duration(text).ok();
        let read = parts.and_then(|(late, way)| {
            let (late, way) = (length(late)?, length(way)?);
            Some(Self::Auto(Some(Headroom { late, way })))
        });
        read.ok_or_else(|| {
            TextError(format!(
                "`{text}` is no headroom; write a duration such as \"5ms\", or \"auto\""
            ))
        })
    }
}

impl fmt::Display for HeadroomText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(length) => length.fmt(f),
            Self::Auto(None) => f.write_str(AUTO),
            Self::Auto(Some(Headroom { late, way })) => {
                write!(f, "{AUTO}({}+{})", Span(*late), Span(*way))
            }
        }
    }
}

/// A rate: `"400/1s"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateText(pub Rate);

impl FromStr for RateText {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        text.parse().map(Self).map_err(|error: RateError| match error {
            RateError::Window(window, _) if window.parse::<CalendarUnit>().is_ok() => TextError(format!(
                "window `{window}`: only kind = \"fixed_window\" goes by the calendar; write a duration, such as \"1s\" or \"1d\""
            )),
            error => TextError(error.to_string()),
        })
    }
}

impl fmt::Display for RateText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The rate of a fixed window: `"10/1d"`, or `"1000/month"` by the calendar.
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

impl WindowRate {
    /// Units a second, to compare it with others.
    #[must_use]
    pub fn per_second(self) -> f64 {
        match self {
            Self::Every(rate) => rate.per_second(),
            Self::Calendar { units, each } => f64::from(units.get()) / each.usual().as_secs_f64(),
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
            Self::Calendar { each, .. } => each.longest(),
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
        let parsed = digits.trim().parse::<NonZeroU32>().ok();
        let units = parsed
            .filter(|units| units.get() <= MAX_UNITS)
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

/// A size in bytes, written with its unit: `"64KiB"`, `"1MiB"`, `"500B"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = match text[digits.len()..].trim() {
            "B" => 1,
            "KiB" => 1024,
            "MiB" => 1024 * 1024,
            "GiB" => 1024 * 1024 * 1024,
            _ => 0,
        };
        let number = digits.trim().parse::<u64>().ok();
        number
            .and_then(|number| number.checked_mul(unit))
            .filter(|bytes| *bytes > 0)
            .map(Self)
            .ok_or_else(|| {
                TextError(format!(
                    "`{text}` is no size; write a number with its unit, such as \"64KiB\" or \"1MiB\""
                ))
            })
    }
}

/// A share: `"20%"`, `"0.5%"`; above 0 % and below 100 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent {
    /// Hundredths of a percent, from 1 to 9,999.
    hundredths: u16,
}

impl Percent {
    /// This share of `units`, rounded up.
    #[must_use]
    pub const fn of(self, units: u32) -> u32 {
        let share = (units as u64 * self.hundredths as u64).div_ceil(10_000);
        // Below the whole, so it fits.
        share as u32
    }
}

impl FromStr for Percent {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let number = text.trim().strip_suffix('%').map(str::trim_end);
        let parts = number.map(|number| number.split_once('.').unwrap_or((number, "0")));
        let digits = |part: &str, most| {
            let fine = (1..=most).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
            part.parse::<u16>().ok().filter(|_| fine)
        };
        let read = |(whole, part): (&str, &str)| {
            let tenth = if part.len() == 1 { 10 } else { 1 };
            let hundredths = digits(whole, 2)? * 100 + digits(part, 2)? * tenth;
            (hundredths > 0).then_some(Self { hundredths })
        };
        parts.and_then(read).ok_or_else(|| {
            TextError(format!(
                "`{text}` is no share; write a percentage above 0 and below 100, such as \"20%\""
            ))
        })
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", f64::from(self.hundredths) / 100.0)
    }
}

/// How long a keyed limit waits after the store lost its state, as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossWait(pub LostWait);

impl FromStr for LossWait {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        if text == "forever" {
            return Ok(Self(LostWait::Forever));
        }
        let length = parse_duration(text).map(|length| Self(LostWait::For(length)));
        length.map_err(|_| {
            TextError(format!(
                "`{text}` is no time to wait; write a duration such as \"1m\", \"0s\" for none, or \"forever\" for as long as anything that was spent can count"
            ))
        })
    }
}

impl fmt::Display for LossWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            LostWait::For(length) => Span(length).fmt(f),
            LostWait::Forever => f.write_str("forever"),
        }
    }
}

/// A template over a message, as written. Loading compiles it once to check it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct TemplateText(pub String);

impl TemplateText {
    /// The template.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Reads a text with `FromStr`, and a number like its text.
macro_rules! read_as_text {
    ($($type:ty),*) => {$(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let written = config::Value::deserialize(from)?;
                written.to_string().parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}

/// Writes a value with `Display`.
macro_rules! write_as_text {
    ($($type:ty),*) => {$(
        impl Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }
    )*};
}

read_as_text!(
    HeadroomText,
    Length,
    LossWait,
    Percent,
    RateText,
    Size,
    WindowRate
);
write_as_text!(
    HeadroomText,
    Length,
    LossWait,
    Percent,
    RateText,
    WindowRate
);
