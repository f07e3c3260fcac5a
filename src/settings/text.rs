//! Values that are written as text in a form of their own: durations, rates, sizes, shares, costs,
//! templates, names of time zones.

use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Error, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

use super::window::WindowRate;
use crate::core::hours::{Days, HourRange};
use crate::core::rate::{Cost, MAX_UNITS, Rate, parse_duration};
use crate::core::zone::Zone;

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

/// A rate: `"400/1s"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota(pub Rate);

/// A size in bytes, written with its unit: `"64KiB"`, `"1MiB"`, `"500B"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// A share: `"20%"`, `"0.5%"`; above nothing and below everything.
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

    /// The share as a part of one: 0.2 for 20 %.
    #[must_use]
    pub fn fraction(self) -> f64 {
        f64::from(self.hundredths) / 10_000.0
    }
}

/// Why a text is no share.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no share; write a percentage above 0 and below 100, such as \"20%\"")]
pub struct PercentError(String);

impl FromStr for Percent {
    type Err = PercentError;

    fn from_str(text: &str) -> Result<Self, PercentError> {
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
        parts
            .and_then(read)
            .ok_or_else(|| PercentError(text.to_owned()))
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", f64::from(self.hundredths) / 100.0)
    }
}

/// A template over a message, as written. Loading compiles it once to see that it is right.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct TemplateText(pub String);

impl TemplateText {
    /// The template.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What one message takes of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Costing {
    /// Every message the same.
    Units(Cost),
    /// What this template makes of the message: a whole number from 1.
    Made(TemplateText),
}

impl Costing {
    /// The units, if every message takes the same.
    #[must_use]
    pub const fn units(&self) -> Option<u32> {
        match self {
            Self::Units(cost) => Some(cost.get()),
            Self::Made(_) => None,
        }
    }
}

impl Default for Costing {
    fn default() -> Self {
        Self::Units(Cost::ONE)
    }
}

/// Why something is no cost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no cost; write a whole number from 1 to {MAX_UNITS}, or a template such as \"{{{{ body.text | sms_segments }}}}\""
)]
pub struct CostError(String);

impl CostError {
    /// Says that `text` is none.
    pub(super) fn of(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl FromStr for Costing {
    type Err = CostError;

    fn from_str(text: &str) -> Result<Self, CostError> {
        if text.contains("{{") || text.contains("{%") {
            return Ok(Self::Made(TemplateText(text.to_owned())));
        }
        let number = text.trim().parse::<NonZeroU32>().ok();
        number
            .filter(|number| number.get() <= MAX_UNITS)
            .map(|number| Self::Units(Cost::new(number)))
            .ok_or_else(|| CostError(text.to_owned()))
    }
}

/// Ranges of opening hours, at least one and at most `MAX_RANGES`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hours(pub Vec<HourRange>);

/// More ranges in a day than this are a mistake.
pub(super) const MAX_RANGES: usize = 24;
/// There are seven days.
pub(super) const MAX_DAYS: usize = 7;

impl<'de> Deserialize<'de> for Hours {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        one_or_more(deserializer, MAX_RANGES).map(Self)
    }
}

/// Reads one text of days, or a list of them.
pub(super) fn days<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Days>, D::Error> {
    let days: Vec<Days> = one_or_more(deserializer, MAX_DAYS)?;
    Ok(days.into_iter().reduce(Days::and))
}

/// Reads the name of a time zone.
pub(super) fn zone<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Zone>, D::Error> {
    let name = String::deserialize(deserializer)?;
    Zone::named(&name).map(Some).map_err(D::Error::custom)
}

/// Reads one text, or a list of one to `most` of them.
fn one_or_more<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    most: usize,
) -> Result<Vec<T>, D::Error>
where
    T: FromStr<Err: fmt::Display>,
{
    struct Texts<T>(usize, PhantomData<T>);

    impl<'de, T: FromStr<Err: fmt::Display>> Visitor<'de> for Texts<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a text, or a list of 1 to {} of them", self.0)
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Vec<T>, E> {
            Ok(vec![text.parse().map_err(E::custom)?])
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut texts: A) -> Result<Vec<T>, A::Error> {
            let mut all = Vec::new();
            while let Some(text) = texts.next_element::<String>()? {
                all.push(text.parse().map_err(A::Error::custom)?);
            }
            if all.is_empty() || all.len() > self.0 {
                return Err(A::Error::invalid_length(all.len(), &self));
            }
            Ok(all)
        }
    }

    deserializer.deserialize_any(Texts(most, PhantomData))
}

impl<'de> Deserialize<'de> for Costing {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl Visitor<'_> for Either {
            type Value = Costing;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number from 1, or a template")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Costing, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Costing, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Costing, E> {
                i64::try_from(number)
                    .map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
                    .and_then(|number| Self.visit_i64(number))
            }
        }

        deserializer.deserialize_any(Either)
    }
}

/// Reads a text by what `FromStr` says.
macro_rules! deserialize_from_str {
    ($($type:ty),*) => {$(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(D::Error::custom)
            }
        }
    )*};
}

deserialize_from_str!(Percent, WindowRate);

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_duration(&text)
            .map(Self)
            .map_err(|e| D::Error::custom(format!("`{text}` is {e}")))
    }
}

impl<'de> Deserialize<'de> for Quota {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(D::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = match text[digits.len()..].trim() {
            "B" => 1,
            "KiB" => 1024,
            "MiB" => 1024 * 1024,
            "GiB" => 1024 * 1024 * 1024,
            _ => 0,
        };
        digits
            .trim()
            .parse::<u64>()
            .ok()
            .and_then(|n| n.checked_mul(unit))
            .filter(|bytes| *bytes > 0)
            .map(Self)
            .ok_or_else(|| {
                D::Error::custom(format!(
                    "`{text}` is no size; write a number with its unit, such as \"64KiB\" or \"1MiB\""
                ))
            })
    }
}
