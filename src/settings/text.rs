//! Values that are written as text with a unit: durations, rates, sizes.

use std::time::Duration;

use serde::{Deserialize, Deserializer, de::Error};

use crate::core::rate::{Rate, parse_duration};

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
