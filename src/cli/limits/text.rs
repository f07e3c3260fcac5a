//! Texts for people: times, updates, the state of a limit.

use std::time::Duration;

use crate::core::policy::{LimitPolicy, Origin};
use crate::core::rate::Span;
use crate::core::schedule::FREEZE_MAX;
use crate::core::time::StoreTime;
use crate::ports::policy::Inspection;
use crate::settings::policy;
pub(super) use crate::wire::inspected::{as_json, kind, state_word};

/// A pause that ends later than this was meant to last until it is resumed.
const FOR_EVER: Duration = FREEZE_MAX.saturating_sub(Duration::from_secs(30 * 24 * 3600));

/// A duration with its two largest units at most: `3m20s`, `2d4h`.
pub(in crate::cli) fn rough(length: Duration) -> String {
    let seconds = length.as_secs();
    let unit = match seconds {
        0..60 => 1,
        60..3_600 => 1,
        3_600..86_400 => 60,
        _ => 3_600,
    };
    Span(Duration::from_secs(seconds / unit * unit)).to_string()
}

/// `2m3s ago`.
pub(super) fn ago(then: StoreTime, now: StoreTime) -> String {
    let length = now.since(then);
    if length < Duration::from_secs(1) {
        "just now".to_owned()
    } else {
        format!("{} ago", rough(length))
    }
}

/// The policy without the kind, which is shown elsewhere.
pub(super) fn short(line: &str) -> String {
    let Ok(words) = policy::words(line) else {
        return line.to_owned();
    };
    policy::line(words.into_iter().filter(|(name, _)| *name != "kind"))
}

/// The most important value: the rate, or what the kind has instead.
pub(super) fn main_value(line: &str) -> String {
    let words = policy::words(line).unwrap_or_default();
    let value = |name: &str| words.iter().find(|(known, _)| *known == name).map(|w| w.1);
    match (value("rate"), value("capacity"), value("limit")) {
        (Some(rate), ..) => rate.to_owned(),
        (_, Some(capacity), _) => format!(
            "{capacity} +{}/{}",
            value("refill").unwrap_or("?"),
            value("interval").unwrap_or("?")
        ),
        (.., Some(limit)) => format!("{limit} at once"),
        _ => "?".to_owned(),
    }
}

/// An operator's pause, and how long it lasts.
pub(in crate::cli) fn paused(by: &str, left: Duration) -> String {
    if left > FOR_EVER {
        format!("paused by {by} until resumed")
    } else {
        format!("paused by {by} for another {}", rough(left))
    }
}

/// Whether anything passes.
pub(in crate::cli) fn state(found: &Inspection) -> String {
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

/// The replica or the operator that updated it, and when.
pub(super) fn updated_by(policy: &LimitPolicy, now: StoreTime) -> String {
    let how = match policy.origin {
        Origin::File => "file of",
        Origin::Live => "set by",
    };
    format!("{how} {}, {}", policy.by, ago(policy.changed.since(), now))
}

/// The replicas whose file differs from what is in force.
pub(super) fn differing(found: &Inspection) -> Vec<(&str, &str)> {
    let in_force = found.policy.as_ref().map(|policy| policy.text.as_str());
    let replicas = found.replicas.iter();
    replicas
        .filter(|present| in_force.is_some_and(|in_force| in_force != present.file))
        .map(|present| (present.replica.as_str(), present.file.as_str()))
        .collect()
}
