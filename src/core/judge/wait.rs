//! How long a downstream that says "not now" asks to wait, in the headers that are in use.

use std::time::{Duration, SystemTime};

use super::quota;

/// A reset beyond this is a point in time (in seconds since 1970), not a length.
const EPOCH_SECONDS: u64 = 1_000_000_000;
/// And beyond this, in milliseconds.
const EPOCH_MILLIS: u64 = 1_000_000_000_000;

/// The headers of an answer that ask to wait, each as it came; `""` if it is no text.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hints<'a> {
    /// `Retry-After`.
    pub retry_after: Option<&'a str>,
    /// `Date`.
    pub date: Option<&'a str>,
    /// `RateLimit`: `"default";r=0;t=30` (draft-ietf-httpapi-ratelimit-headers), or `limit=10,
    /// remaining=0, reset=30` (its earlier drafts).
    pub rate_limit: Option<&'a str>,
    /// `RateLimit-Reset` or `X-RateLimit-Reset`: seconds to wait, or a point in time.
    pub reset: Option<&'a str>,
}

impl Hints<'_> {
    /// The wait, from the most precise header. `now` is the fallback for an answer without a
    /// `Date`. Zero, a time in the past, and values that cannot be read count as none.
    #[must_use]
    pub fn wait(&self, now: SystemTime) -> Option<Duration> {
        let now = self.date.and_then(date).unwrap_or(now);
        let some = |wait: Option<Duration>| wait.filter(|wait| !wait.is_zero());
        some(self.retry_after.and_then(|text| retry_after(text, now)))
            .or_else(|| some(self.rate_limit.and_then(rate_limit)))
            .or_else(|| some(self.reset.and_then(|text| reset(text, now))))
    }
}

/// A date of HTTP, as in `Date`.
#[must_use]
pub fn date(text: &str) -> Option<SystemTime> {
    httpdate::parse_http_date(text.trim()).ok()
}

/// How long a `Retry-After` asks to wait: seconds, or a date. A fraction of a second is not in
/// the standard, but occurs; it counts as a whole second. `None` if it is neither or in the past.
#[must_use]
pub fn retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    match seconds(text.trim()) {
        Some(seconds) => Some(Duration::from_secs(seconds)),
        None => date(text)?.duration_since(now).ok(),
    }
}

/// The longest wait among the policies that have nothing left.
fn rate_limit(text: &str) -> Option<Duration> {
    let policies = quota::policies(text).into_iter();
    let spent = policies.filter(|policy| policy.left == Some(0));
    spent.filter_map(|policy| policy.reset).max()
}

fn reset(text: &str, now: SystemTime) -> Option<Duration> {
    moment(text.trim()).map(|moment| moment.since(now))
}

/// When a reset comes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Moment {
    In(Duration),
    At(SystemTime),
}

impl Moment {
    /// How long that is from `now`; zero if it is past.
    pub(super) fn since(self, now: SystemTime) -> Duration {
        match self {
            Self::In(wait) => wait,
            Self::At(at) => at.duration_since(now).unwrap_or_default(),
        }
    }
}

/// A reset in digits: seconds from now, or a point in time since 1970.
pub(super) fn moment(text: &str) -> Option<Moment> {
    let number = seconds(text)?;
    let at = match number {
        EPOCH_MILLIS.. => Duration::from_millis(number),
        EPOCH_SECONDS.. => Duration::from_secs(number),
        _ => return Some(Moment::In(Duration::from_secs(number))),
    };
    SystemTime::UNIX_EPOCH.checked_add(at).map(Moment::At)
}

/// Whole seconds, rounded up. More digits than fit mean "very long", not a fault.
pub(super) fn seconds(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    let more = u64::from(fraction.bytes().any(|b| b != b'0'));
    Some(whole.parse().unwrap_or(u64::MAX).saturating_add(more))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_800_000_000);

    fn wait(hints: Hints<'_>) -> Option<u64> {
        let wait = hints.wait(SystemTime::UNIX_EPOCH + NOW)?;
        Some(wait.as_secs())
    }

    #[test]
    fn the_rate_limit_headers_that_are_in_use_are_understood() {
        let rate_limit = |text| {
            wait(Hints {
                rate_limit: Some(text),
                ..Hints::default()
            })
        };
        assert_eq!(rate_limit("\"default\";r=0;t=30"), Some(30));
        assert_eq!(
            rate_limit("\"second\";r=0;t=1, \"day\";r=0;t=3600"),
            Some(3600)
        );
        assert_eq!(
            rate_limit("\"second\";r=0;t=1, \"day\";r=9;t=3600"),
            Some(1)
        );
        assert_eq!(rate_limit("\"a,b\";r=0;t=2"), Some(2));
        assert_eq!(rate_limit("limit=10, remaining=0, reset=7"), Some(7));
        assert_eq!(rate_limit("limit=10, remaining=3, reset=7"), None);
        for text in ["", "default", ";;;", "\"a\";r=x;t=y", "r=0;t=-4"] {
            assert_eq!(rate_limit(text), None, "{text}");
        }
        let reset = |text| {
            wait(Hints {
                reset: Some(text),
                ..Hints::default()
            })
        };
        assert_eq!(reset("12"), Some(12));
        assert_eq!(reset("1800000012"), Some(12));
        assert_eq!(reset("1800000012000"), Some(12));
        assert_eq!(reset("1799999999"), None);
        assert_eq!(reset("soon"), None);
    }

    #[test]
    fn the_header_that_says_it_best_counts() {
        let all = Hints {
            retry_after: Some("2"),
            rate_limit: Some("\"a\";r=0;t=3"),
            reset: Some("4"),
            date: None,
        };
        assert_eq!(wait(all), Some(2));
        let zero = Hints {
            retry_after: Some("0"),
            ..all
        };
        assert_eq!(wait(zero), Some(3));
        let none = Hints {
            retry_after: Some("never"),
            rate_limit: None,
            ..all
        };
        assert_eq!(wait(none), Some(4));
    }
}
