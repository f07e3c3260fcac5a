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
use super::quota;

/// The value of a header by its name in lower case; `""` if it is no text.
pub type Headers<'a> = &'a dyn Fn(&str) -> Option<&'a str>;

/// How long to wait at least, in milliseconds. More precise than the standard header that may stand beside them.
const MILLIS: [&str; 2] = [
    // OpenAI and Azure OpenAI.
    "retry-after-ms",
    // Azure Cosmos DB and Azure Communication Services.
    "x-ms-retry-after-ms",
];

/// When to come back, in any form.
const AFTER: [&str; 2] = [
    // RFC 9110, section 10.2.3.
    "retry-after",
    // Docker Hub: seconds since 1970.
    "x-retry-after",
];

/// What is left, and the reset.
const QUOTAS: [(&str, &str); 12] = [
    // Discord.
    ("x-ratelimit-remaining", "x-ratelimit-reset-after"),
    // Earlier drafts of the IETF; Zendesk, GitLab, Resend.
    ("ratelimit-remaining", "ratelimit-reset"),
    // GitHub, SendGrid, Vonage, Sinch.
    ("x-ratelimit-remaining", "x-ratelimit-reset"),
    // X, Okta.
    ("x-rate-limit-remaining", "x-rate-limit-reset"),
    // OpenAI.
    (
        "x-ratelimit-remaining-requests",
        "x-ratelimit-reset-requests",
    ),
    ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
    // Anthropic.
    (
        "anthropic-ratelimit-requests-remaining",
        "anthropic-ratelimit-requests-reset",
    ),
    (
        "anthropic-ratelimit-tokens-remaining",
        "anthropic-ratelimit-tokens-reset",
    ),
    (
        "anthropic-ratelimit-input-tokens-remaining",
        "anthropic-ratelimit-input-tokens-reset",
    ),
    (
        "anthropic-ratelimit-output-tokens-remaining",
        "anthropic-ratelimit-output-tokens-reset",
    ),
    // Brevo.
    ("x-sib-ratelimit-remaining", "x-sib-ratelimit-reset"),
    // Amazon Marketplace Web Service.
    ("x-mws-quota-remaining", "x-mws-quota-resetson"),
];

/// What an answer says of when to come back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Waits {
    /// The first two kinds: it asks for this wait, whatever its status.
    pub(super) asked: Option<Duration>,
    /// The third kind.
    pub(super) reset: Option<Duration>,
}

impl Waits {
    /// Reads an answer. `said` is what a template of the operator found, which is clearer than all headers. `now`
    /// counts if the answer has no `Date`.
    pub(super) fn read(headers: Headers<'_>, said: Option<&str>, now: SystemTime) -> Self {
        let now = headers("date").and_then(date).unwrap_or(now);
        let asked = some(said.and_then(|text| since(text, now)))
            .or_else(|| after(headers, now))
            .or_else(|| some(headers("ratelimit").and_then(rate_limit)))
            .or_else(|| spent(headers, now));
        Self {
            asked,
            reset: resets(headers, now, None),
        }
    }

    /// For an answer that means "not now".
    pub(super) fn longest_known(self) -> Option<Duration> {
        self.asked.or(self.reset)
    }
}

fn some(wait: Option<Duration>) -> Option<Duration> {
    wait.filter(|wait| !wait.is_zero())
}

fn since(text: &str, now: SystemTime) -> Option<Duration> {
    Moment::read(text).map(|moment| moment.since(now))
}

fn after(headers: Headers<'_>, now: SystemTime) -> Option<Duration> {
    let millis = |name: &&str| some(headers(name).and_then(moment::millis));
    let any = |name: &&str| some(headers(name).and_then(|text| since(text, now)));
    let precise = MILLIS.iter().find_map(millis);
    precise.or_else(|| AFTER.iter().find_map(any))
}

/// The longest wait among the policies of `RateLimit` that have nothing left: `"default";r=0;t=4`
/// (draft-ietf-httpapi-ratelimit-headers), or `limit=10, remaining=0, reset=4` (its earlier drafts).
fn rate_limit(text: &str) -> Option<Duration> {
    let policies = quota::policies(text).into_iter();
    let spent = policies.filter(|policy| policy.left == Some(0));
    spent.filter_map(|policy| policy.reset).max()
}

/// The longest wait among the quotas that have nothing left.
fn spent(headers: Headers<'_>, now: SystemTime) -> Option<Duration> {
    resets(headers, now, Some(0))
}

/// The longest of the resets beside which so much is left; `None`: nothing is said of that.
fn resets(headers: Headers<'_>, now: SystemTime, left: Option<u64>) -> Option<Duration> {
    let said = |name| headers(name).and_then(quota::remaining);
    let quotas = QUOTAS
        .iter()
        .filter(|(remaining, _)| said(remaining) == left);
    let resets = quotas.filter_map(|(_, reset)| since(headers(reset)?, now));
    some(resets.max())
}

#[cfg(test)]
mod tests;
