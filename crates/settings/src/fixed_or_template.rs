//! Values that are the same for all messages, or made of each message by a template.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error as _};
use serde::ser::{Serialize, Serializer};

use super::text::{TemplateText, TextError};
use sluiced_core::rate::{Cost, MAX_UNITS};
use sluiced_core::zone::Zone;
use sluiced_template::{MAX_PRIORITY, is_template};

/// A value as it is written, or a template that makes it of each message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FixedOrTemplate<T> {
    /// The same for every message.
    Fixed(T),
    /// Made of each message.
    Template(TemplateText),
}

/// A value that a template can make instead.
pub trait ParseValue: Sized {
    /// Reads the value as it is written.
    ///
    /// # Errors
    /// When the text is no such value, with a valid form.
    fn read(text: &str) -> Result<Self, TextError>;
}

/// What one message takes of a limit; a template makes a whole number from 1.
pub type Costing = FixedOrTemplate<Cost>;

/// The priority of the messages of a route.
pub type PriorityText = FixedOrTemplate<Priority>;

/// The zone whose clock counts.
pub type ZoneText = FixedOrTemplate<Zone>;

/// A number of one octet.
pub type OctetText = FixedOrTemplate<Octet>;

/// A priority from 0 to 9.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority(pub u8);

/// A number from 0 to 255.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Octet(pub u8);

impl<T> FixedOrTemplate<T> {
    /// The template, if there is one.
    #[must_use]
    pub fn template(&self) -> Option<&str> {
        match self {
            Self::Fixed(_) => None,
            Self::Template(template) => Some(template.as_str()),
        }
    }
}

impl PriorityText {
    /// The lowest that a message can have.
    #[must_use]
    pub const fn least(&self) -> u8 {
        match self {
            Self::Fixed(Priority(priority)) => *priority,
            Self::Template(_) => 0,
        }
    }

    /// The highest that a message can have.
    #[must_use]
    pub const fn most(&self) -> u8 {
        match self {
            Self::Fixed(Priority(priority)) => *priority,
            Self::Template(_) => MAX_PRIORITY,
        }
    }
}

impl<T: ParseValue> FromStr for FixedOrTemplate<T> {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        if is_template(text) {
            return Ok(Self::Template(TemplateText(text.to_owned())));
        }
        T::read(text).map(Self::Fixed)
    }
}

impl ParseValue for Cost {
    fn read(text: &str) -> Result<Self, TextError> {
        let number = text.trim().parse::<NonZeroU32>().ok();
        number
            .filter(|number| number.get() <= MAX_UNITS)
            .map(Self::new)
            .ok_or_else(|| {
                TextError(format!(
                    "`{text}` is no cost; write a whole number from 1 to {MAX_UNITS}, or a template such as \"{{{{ body.text | sms_segments }}}}\""
                ))
            })
    }
}

impl ParseValue for Priority {
    fn read(text: &str) -> Result<Self, TextError> {
        let number = text.trim().parse().ok();
        let priority = number.filter(|number| *number <= MAX_PRIORITY);
        priority.map(Self).ok_or_else(|| {
            TextError(format!(
                "`{text}` does not fit; write a whole number from 0 to {MAX_PRIORITY}, or a template that makes one, such as \"{{{{ body.priority }}}}\""
            ))
        })
    }
}

impl ParseValue for Zone {
    fn read(text: &str) -> Result<Self, TextError> {
        Self::named(text).map_err(|unknown| TextError(unknown.to_string()))
    }
}

impl ParseValue for Octet {
    fn read(text: &str) -> Result<Self, TextError> {
        text.trim().parse().map(Self).map_err(|_| {
            TextError(format!(
                "`{text}` does not fit; write a whole number from 0 to 255, or a template that makes one"
            ))
        })
    }
}

impl fmt::Display for Costing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(cost) => cost.get().fmt(f),
            Self::Template(template) => f.write_str(template.as_str()),
        }
    }
}

impl Serialize for Costing {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de, T: ParseValue> Deserialize<'de> for FixedOrTemplate<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let written = config::Value::deserialize(from)?;
        written.to_string().parse().map_err(D::Error::custom)
    }
}
