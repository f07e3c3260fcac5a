//! When to come back, as answers say it in headers.
//!
//! Problem: each provider has its own header for it, and many send a reset with every answer, successes included. So
//! there are three kinds, from the clearest on:
//! 1. "Come back after": `Retry-After` and its relatives. They count on any answer without success.
//! 2. A quota that has nothing left, with its reset. It counts likewise.
//! 3. A reset without a word about what is left. It counts only where the answer means "not now": an error of the
//!    server has nothing to do with it.
//!
//! A reset beside units that are left says nothing: GitHub's secondary limits refuse while the primary one has
//! thousands left until its reset in most of an hour.
//!
//! A point in time is compared with the answer's own `Date`, because both come from one clock. Zero, a time in the
//! past, and values that cannot be read count as none: a downstream that refuses and answers "at once" would be called
//! at once, again and again.

use std::time::{Duration, SystemTime};

use super::moment::{self, Moment, date};
use super::pairs::{self, Pair};
use super::quota;
use sluiced_core::judge::AskedWait;

/// The value of a header by its name in lower case. Several headers of one name are one value, with commas between.
pub type Headers<'a> = &'a dyn Fn(&str) -> Option<&'a str>;

/// How long to wait at least, in milliseconds. More precise than the standard header that may stand beside them.
const MILLIS: [&str; 3] = [
    // OpenAI and Azure OpenAI.
    "retry-after-ms",
    // Azure.
    "x-ms-retry-after-ms",
    // AWS.
    "x-amz-retry-after",
];

/// When to come back, in any form.
const AFTER: [&str; 3] = [
    // RFC 9110, section 10.2.3.
    "retry-after",
    // Docker Hub: seconds since 1970.
    "x-retry-after",
    // Braze, MailerLite.
    "x-ratelimit-retry-after",
];

/// What is left, and the reset.
const QUOTAS: [Pair; 12] = [
    pairs::DISCORD,
    pairs::IETF,
    pairs::GITHUB,
    pairs::X,
    pairs::OPENAI_REQUESTS,
    pairs::OPENAI_TOKENS,
    pairs::OPENAI_PROJECT_TOKENS,
    pairs::ANTHROPIC_REQUESTS,
    pairs::ANTHROPIC_TOKENS,
    pairs::ANTHROPIC_INPUT_TOKENS,
    pairs::ANTHROPIC_OUTPUT_TOKENS,
    pairs::BREVO,
];

/// Reads when to come back from an answer. `said` is what a template of the operator found, which is clearer than all
/// headers. `now` counts if the answer has no `Date`.
///
/// `asked` has the first two kinds, and `reset` the third.
#[must_use]
pub fn waits(headers: Headers<'_>, said: Option<&str>, now: SystemTime) -> AskedWait {
    let now = headers("date").and_then(date).unwrap_or(now);
    let asked = nonzero(said.and_then(|text| since(text, now)))
        .or_else(|| after(headers, now))
        .or_else(|| rate_limit(headers, Some(0)))
        .or_else(|| resets(headers, now, Some(0)));
    AskedWait {
        asked,
        reset: rate_limit(headers, None).or_else(|| resets(headers, now, None)),
    }
}

/// Zero counts as none.
fn nonzero(wait: Option<Duration>) -> Option<Duration> {
    wait.filter(|wait| !wait.is_zero())
}

fn since(text: &str, now: SystemTime) -> Option<Duration> {
    Moment::read(text).map(|moment| moment.since(now))
}

fn after(headers: Headers<'_>, now: SystemTime) -> Option<Duration> {
    let millis = |name: &&str| nonzero(headers(name).and_then(moment::millis));
    let any = |name: &&str| nonzero(headers(name).and_then(|text| since(text, now)));
    let precise = MILLIS.iter().find_map(millis);
    precise.or_else(|| AFTER.iter().find_map(any))
}

/// The longest wait among the policies of `RateLimit` that have this much left; `None`: they do not say it. As in
/// `"default";r=0;t=4` (draft-ietf-httpapi-ratelimit-headers), or `limit=10, remaining=0, reset=4` (its earlier
/// drafts).
fn rate_limit(headers: Headers<'_>, left: Option<u64>) -> Option<Duration> {
    let resets = quota::policies(headers("ratelimit")?)
        .into_iter()
        .filter(|policy| policy.left == left)
        .filter_map(|policy| policy.reset);
    nonzero(resets.max())
}

/// The longest of the resets beside which this much is left; `None`: nothing is said of that.
fn resets(headers: Headers<'_>, now: SystemTime, left: Option<u64>) -> Option<Duration> {
    let said = |name| headers(name).and_then(quota::remaining);
    let quotas = QUOTAS
        .iter()
        .filter(|(remaining, _)| said(remaining) == left);
    let resets = quotas.filter_map(|(_, reset)| since(headers(reset)?, now));
    nonzero(resets.max())
}

#[cfg(test)]
mod tests;
