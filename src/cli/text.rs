//! Texts for people that several commands print: lengths of time, and whether a limit lets anything pass.

use std::time::Duration;

use crate::core::policy::UNTIL_RESUMED;
use crate::core::rate::Span;
use crate::ports::policy::Inspection;

/// A duration with its two largest units at most: `3m20s`, `2d4h`.
pub(super) fn rough(length: Duration) -> String {
    let seconds = length.as_secs();
    let unit = match seconds {
        0..60 => 1,
        60..3_600 => 1,
        3_600..86_400 => 60,
        _ => 3_600,
    };
    Span(Duration::from_secs(seconds / unit * unit)).to_string()
}

/// An operator's pause, and how long it lasts.
pub(super) fn paused(by: &str, left: Duration) -> String {
    if left > UNTIL_RESUMED {
        format!("paused by {by} until resumed")
    } else {
        format!("paused by {by} for another {}", rough(left))
    }
}

/// Whether anything passes.
pub(super) fn state(found: &Inspection) -> String {
    let now = found.now;
    let pause = found.policy.as_ref().and_then(|policy| {
        let until = policy.paused_until(now)?;
        let by = policy.pause.as_ref().map_or("", |pause| &pause.by);
        Some((until.since(now), by))
    });
    match (pause, found.frozen_until) {
        (Some((left, by)), _) => paused(by, left),
        (None, Some(until)) => format!(
            "frozen by the downstream for another {}",
            rough(until.since(now))
        ),
        (None, None) => "open".to_owned(),
    }
}
