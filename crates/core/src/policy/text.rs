//! The text of a policy, as `kind=paced rate=400/1s headroom=5ms until=…`: what replicas added to it, and its end.

use crate::time::StoreTime;

/// The prefix of a policy's end, in microseconds of the store's time, which is the last word of its text.
const UNTIL: &str = " until=";

/// The word of a policy that has the rate of a paced limit which `adaptive` set.
pub const ADAPTED: &str = "adapted";

/// A policy as an operator or a file wrote it, without changes by replicas: `adapted=`, and the parts of a
/// headroom that follows what is measured.
#[must_use]
pub fn as_written(text: &str) -> Vec<&str> {
    text.split_ascii_whitespace()
        .filter(|word| word.split('=').next() != Some(ADAPTED))
        .map(|word| match word.split_once('(') {
            Some((auto @ "headroom=auto", _)) => auto,
            _ => word,
        })
        .collect()
}

/// Whether two policies are the same, apart from changes by replicas and from their ends.
#[must_use]
pub fn is_same(one: &str, other: &str) -> bool {
    as_written(ends(one).0) == as_written(ends(other).0)
}

/// A policy in place of `before`, with the same end.
#[must_use]
pub fn keeping_end(text: String, before: &str) -> String {
    match ends(before).1 {
        Some(end) => ending(&text, end),
        None => text,
    }
}

/// The text of a policy that ends at `until`: with the word `until=` and microseconds of the store's clock behind it.
#[must_use]
pub fn ending(text: &str, until: StoreTime) -> String {
    format!("{text}{UNTIL}{}", until.as_micros())
}

/// The text of a policy without its end, and its end if it has one.
#[must_use]
pub fn ends(text: &str) -> (&str, Option<StoreTime>) {
    let split = text.rsplit_once(UNTIL);
    let end = split.and_then(|(text, end)| Some((text, end.parse().ok()?)));
    match end {
        Some((text, end)) => (text, Some(StoreTime::from_micros(end))),
        None => (text, None),
    }
}

/// The word of a policy that names the kind of its limit.
pub(super) fn kind(text: &str) -> Option<&str> {
    text.split(' ').next()?.strip_prefix("kind=")
}
