//! The quota that a downstream reports: how many units are left, and for how long.
//!
//! Providers report it in headers that differ in name and form. [`Format`] names the headers that are in use;
//! [`remaining`] and [`reset`] read one value in any of their forms, also one that a template made. A value
//! that cannot be read is `None`: the caller counts that and goes on.

use std::time::{Duration, SystemTime};

use super::moment::{self, Moment};
use super::number::decimal;
use super::pairs::{IETF, Pair};
use sluiced_core::judge::Remaining;

/// Headers that are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `RateLimit: "burst";r=50;t=30` with `RateLimit-Policy: "burst";q=100;w=60`
    /// (draft-ietf-httpapi-ratelimit-headers), and the forms of its earlier drafts: `RateLimit: limit=100,
    /// remaining=50, reset=30`, or `RateLimit-Remaining` and `RateLimit-Reset`.
    Ietf,
    /// A header for what is left, and one for the reset.
    Pair(Pair),
}

/// Reads an answer in a format. `get` returns the value of a header. `None`: it has nothing in this format,
/// or nothing that can be read.
#[must_use]
pub fn read<'a>(
    format: Format,
    get: impl Fn(&str) -> Option<&'a str>,
    now: SystemTime,
) -> Option<Vec<Remaining>> {
    let pair = |(left, until): Pair| {
        Some(vec![Remaining {
            units: remaining(get(left)?)?,
            reset: get(until).and_then(|text| reset(text, now)),
        }])
    };
    match format {
        Format::Pair(names) => pair(names),
        Format::Ietf => match get("ratelimit") {
            Some(text) => ietf(text, get("ratelimit-policy").unwrap_or_default()),
            None => pair(IETF),
        },
    }
}

/// Whole units, rounded down. Less than zero is zero. Parameters behind them (`76;w=21600`) do not count. Where two
/// servers add a header each, a proxy makes a list of them (RFC 9110, section 5.3), and the least counts. `None`: it is
/// no number.
#[must_use]
pub fn remaining(text: &str) -> Option<u64> {
    let each: Option<Vec<u64>> = text.split(", ").map(remaining_of_one).collect();
    each?.into_iter().min()
}

fn remaining_of_one(text: &str) -> Option<u64> {
    let text = text.split(';').next().unwrap_or_default().trim();
    let (digits, is_debt) = text.strip_prefix('-').map_or((text, false), |d| (d, true));
    let (whole, _) = decimal(digits)?;
    Some(if is_debt {
        0
    } else {
        whole.parse().unwrap_or(u64::MAX)
    })
}

/// How long until a reset, in any form of `moment`. One in the past is now. `None`: it is in none of the forms.
#[must_use]
pub fn reset(text: &str, now: SystemTime) -> Option<Duration> {
    Moment::read(text).map(|at| at.since(now))
}

/// What a `RateLimit` says of a policy, as far as it can be read.
pub(super) struct QuotaPolicy<'a> {
    item: &'a str,
    pub(super) left: Option<u64>,
    pub(super) reset: Option<Duration>,
}

pub(super) fn policies(text: &str) -> Vec<QuotaPolicy<'_>> {
    let read = |item, separator| {
        let value = |names| parameter(item, separator, names);
        QuotaPolicy {
            item,
            left: value(&["r", "remaining"]).and_then(remaining),
            reset: value(&["t", "reset"]).and_then(moment::seconds),
        }
    };
    if text.contains(';') {
        items(text).map(|item| read(item, ';')).collect()
    } else {
        // The earlier drafts: one policy, in parts.
        vec![read(text, ',')]
    }
}

/// The policies of a `RateLimit`, each with its window where it names no reset. Those that count calls under
/// way at a time (`qu="concurrent-requests"`) are no count over time.
fn ietf(text: &str, described: &str) -> Option<Vec<Remaining>> {
    let described = |policy: &QuotaPolicy<'_>, what: &str| {
        let mut named = items(described).filter(|item| name_of(item) == name_of(policy.item));
        parameter(named.next()?, ';', &[what])
    };
    let is_over_time = |policy: &QuotaPolicy<'_>| {
        described(policy, "qu").is_none_or(|unit| !unit.contains("concurren"))
    };
    let policies = policies(text).into_iter().filter(is_over_time);
    let read = policies.map(|policy| {
        let window = || described(&policy, "w").and_then(moment::seconds);
        Some(Remaining {
            units: policy.left?,
            reset: policy.reset.or_else(window),
        })
    });
    read.collect()
}

/// The items of a list of RFC 9651. A comma in a quoted name is no separator.
fn items(text: &str) -> impl Iterator<Item = &str> {
    let mut is_quoted = false;
    text.split(move |c| {
        is_quoted ^= c == '"';
        c == ',' && !is_quoted
    })
}

fn name_of(item: &str) -> &str {
    item.split(';').next().unwrap_or_default().trim()
}

/// The first parameter of an item that has one of these names.
fn parameter<'a>(item: &'a str, separator: char, names: &[&str]) -> Option<&'a str> {
    item.split(separator).find_map(|part| {
        let (name, value) = part.split_once('=')?;
        names.contains(&name.trim()).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests;
