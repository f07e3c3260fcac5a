//! Values of a route that are the same for all its messages, or made of each message by a template.

use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error as _};

use super::text::TemplateText;
use sluiced_core::zone::{UnknownZone, Zone};
use sluiced_template::is_template;

/// The highest priority of a route, as RabbitMQ advises for messages.
pub(super) const MAX_PRIORITY: u8 = 9;

/// The priority of the messages of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PriorityText {
    /// From 0 to 9.
    Fixed(u8),
    Made(TemplateText),
}

/// The zone whose clock counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ZoneText {
    Fixed(Zone),
    Made(TemplateText),
}

/// A text that is no priority.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` does not fit; write a whole number from 0 to {MAX_PRIORITY}, or a template that makes one, such as \"{{{{ body.priority }}}}\""
)]
pub struct WrongPriority(String);

impl PriorityText {
    /// The template, if there is one.
    #[must_use]
    pub fn made(&self) -> Option<&str> {
        match self {
            Self::Fixed(_) => None,
            Self::Made(template) => Some(template.as_str()),
        }
    }

    /// The lowest that a message can have.
    #[must_use]
    pub const fn least(&self) -> u8 {
        match self {
            Self::Fixed(priority) => *priority,
            Self::Made(_) => 0,
        }
    }

    /// The highest that a message can have.
    #[must_use]
    pub const fn most(&self) -> u8 {
        match self {
            Self::Fixed(priority) => *priority,
            Self::Made(_) => MAX_PRIORITY,
        }
    }
}

impl ZoneText {
    /// The template, if there is one.
    #[must_use]
    pub fn made(&self) -> Option<&str> {
        match self {
            Self::Fixed(_) => None,
            Self::Made(template) => Some(template.as_str()),
        }
    }
}

impl FromStr for PriorityText {
    type Err = WrongPriority;

    fn from_str(text: &str) -> Result<Self, WrongPriority> {
        if is_template(text) {
            return Ok(Self::Made(TemplateText(text.to_owned())));
        }
        let number = text.trim().parse().ok();
        let number = number.filter(|number| *number <= MAX_PRIORITY);
        number
            .map(Self::Fixed)
            .ok_or_else(|| WrongPriority(text.to_owned()))
    }
}

impl FromStr for ZoneText {
    type Err = UnknownZone;

    fn from_str(text: &str) -> Result<Self, UnknownZone> {
        if is_template(text) {
            return Ok(Self::Made(TemplateText(text.to_owned())));
        }
        Zone::named(text).map(Self::Fixed)
    }
}

impl<'de> Deserialize<'de> for PriorityText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let written = config::Value::deserialize(from)?;
        written.to_string().parse().map_err(D::Error::custom)
    }
}

impl<'de> Deserialize<'de> for ZoneText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}
