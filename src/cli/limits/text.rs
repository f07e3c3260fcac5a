//! Texts about limits: policies and their updates.

use std::time::Duration;

use crate::cli::text::rough;
use crate::core::headroom::Headroom;
use crate::core::policy::{LimitPolicy, Origin, ends};
use crate::core::time::StoreTime;
use crate::ports::policy::Inspection;
use crate::settings::policy;
use crate::settings::text::HeadroomText;
pub(super) use crate::wire::inspected::{as_json, kind, state_word};

/// `2m3s ago`.
pub(super) fn ago(then: StoreTime, now: StoreTime) -> String {
    let length = now.since(then);
    if length < Duration::from_secs(1) {
        "just now".to_owned()
    } else {
        format!("{} ago", rough(length))
    }
}

/// The settings of a policy, without the kind, which is shown elsewhere.
pub(super) fn short(line: &str) -> String {
    let Ok(words) = policy::keys_of(line) else {
        return line.to_owned();
    };
    policy::line(words.into_iter().filter(|(name, _)| *name != "kind"))
}

/// Whether two policies differ in more than what replicas made of them.
pub(super) fn differ(one: &str, other: &str) -> bool {
    policy::as_written(one) != policy::as_written(other)
}

/// The parts of a headroom that follows what is measured.
pub(super) fn followed(line: &str) -> Option<Headroom> {
    let words = policy::words(line).ok()?;
    let word = words.iter().find(|(name, _)| *name == "headroom")?;
    match word.1.parse() {
        Ok(HeadroomText::Auto(parts)) => parts,
        _ => None,
    }
}

/// What `adaptive` made of the rate.
pub(super) fn adapted(line: &str) -> Option<&str> {
    let words = policy::words(line).ok()?;
    let word = words.iter().find(|(name, _)| *name == policy::ADAPTED)?;
    Some(word.1)
}

/// How long the policy is still in force, where it ends by itself.
pub(super) fn left(line: &str, now: StoreTime) -> Option<String> {
    let end = ends(line).1?;
    Some(format!("for another {}", rough(end.since(now))))
}

/// The most important value: the rate, or what the kind has instead.
pub(super) fn main_value(line: &str) -> String {
    let words = policy::words(line).unwrap_or_default();
    let value = |name: &str| words.iter().find(|(known, _)| *known == name).map(|w| w.1);
    match (value("rate"), value("capacity"), value("limit")) {
        (Some(rate), ..) => match adapted(line) {
            Some(lowered) => format!("{lowered} (adaptive, of {rate})"),
            None => rate.to_owned(),
        },
        (_, Some(capacity), _) => format!(
            "{capacity} +{}/{}",
            value("refill").unwrap_or("?"),
            value("interval").unwrap_or("?")
        ),
        (.., Some(limit)) => format!("{limit} at once"),
        _ => "?".to_owned(),
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
    let policy = found.policy.as_ref();
    let replicas = found.replicas.iter();
    replicas
        .filter(|present| policy.is_some_and(|policy| differ(&policy.text, &present.file)))
        .map(|present| (present.replica.as_str(), present.file.as_str()))
        .collect()
}
