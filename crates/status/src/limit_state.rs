//! Whether a limit grants anything now, and if not, why and for how long.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

/// Whether a limit grants anything now. Where several reasons hold, the first of these counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitState {
    /// An operator paused it; `by`: who did.
    Paused { left: Duration, by: String },
    /// The downstream asked to wait.
    Frozen { left: Duration },
    /// The store lost the state of the limit, or may have.
    Closed { left: Duration, why: String },
    /// It grants what it has.
    Open,
}

impl LimitState {
    /// The state in an entry of [`Limits`](crate::Limits).
    #[must_use]
    pub fn of(limit: &Value) -> Self {
        let text = |name: &str| limit[name].as_str().unwrap_or("?").to_owned();
        if let Some(left) = time_left(limit, "paused_until") {
            let by = text("paused_by");
            Self::Paused { left, by }
        } else if let Some(left) = time_left(limit, "frozen_until") {
            Self::Frozen { left }
        } else if let Some(left) = time_left(limit, "closed_until") {
            let why = text("closed_why");
            Self::Closed { left, why }
        } else {
            Self::Open
        }
    }

    /// In one word.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Paused { .. } => "paused",
            Self::Frozen { .. } => "frozen",
            Self::Closed { .. } => "closed",
            Self::Open => "open",
        }
    }

    /// For how long it grants nothing; `None`: it is open.
    #[must_use]
    pub const fn left(&self) -> Option<Duration> {
        match self {
            Self::Paused { left, .. } | Self::Frozen { left } | Self::Closed { left, .. } => {
                Some(*left)
            }
            Self::Open => None,
        }
    }
}

/// How long after `now` of a limit its time called `name` is; `None`: it has none.
fn time_left(limit: &Value, name: &str) -> Option<Duration> {
    let time = |name: &str| limit[name].as_str()?.parse::<Timestamp>().ok();
    let left = time(name)?.duration_since(time("now")?);
    Some(Duration::try_from(left).unwrap_or_default())
}
