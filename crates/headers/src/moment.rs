//! A time as answers write it, in every form that is in use: one parser for `Retry-After`, for resets, and for what
//! templates find.
//!
//! | form | example | where |
//! |---|---|---|
//! | seconds, also with a fraction | `4`, `4.0`, `0.25` | RFC 9110 section 10.2.3; Shopify, Discord |
//! | a point in time in seconds or milliseconds since 1970 | `1795708583`, `1795708583000` | GitHub, SendGrid |
//! | a length as Go and people write it | `4s`, `4m0s`, `6ms`, `4 seconds` | OpenAI, `google.rpc.RetryInfo` |
//! | a date of HTTP in its three forms | `Thu, 26 Nov 2026 15:56:23 GMT` | RFC 9110 section 5.6.7 |
//! | a date of mail, with any zone | `Thu, 26 Nov 2026 15:56:23 +0000`, `… UTC` | RFC 5322 section 3.3 |
//! | ISO 8601 and RFC 3339 | `2026-11-26T15:56:23Z` | Anthropic |
//! | a date of JavaScript | `Thu Nov 26 2026 15:56:23 GMT+0000` | lemlist |
//! | one of these twice | `4, 4` | two servers in a row, each of which added the header |
//!
//! A number above 10^9 is a point in time and no length: it would be 31 years. Of several values the latest counts.

use std::time::{Duration, SystemTime};

use jiff::civil;
use jiff::fmt::rfc2822;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;

use super::number::decimal;

/// A number beyond this is a point in time (in seconds since 1970), not a length.
const EPOCH_SECONDS: u64 = 1_000_000_000;
/// And beyond this, in milliseconds.
const EPOCH_MILLIS: u64 = 1_000_000_000_000;

/// What a time means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    In(Duration),
    At(SystemTime),
}

impl Moment {
    /// Reads one in any of the forms above. `None`: it is none of them.
    pub(super) fn read(text: &str) -> Option<Self> {
        single(text.trim()).or_else(|| latest_of(text))
    }

    /// How long that is from `now`; zero if it is past.
    pub(super) fn since(self, now: SystemTime) -> Duration {
        match self {
            Self::In(wait) => wait,
            Self::At(at) => at.duration_since(now).unwrap_or_default(),
        }
    }

    /// Of two, the later one, as far as that is known without a clock: a point in time is no earlier than a length.
    fn later(self, other: Self) -> Self {
        match (self, other) {
            (Self::In(first), Self::In(second)) => Self::In(first.max(second)),
            (Self::At(first), Self::At(second)) => Self::At(first.max(second)),
            (at @ Self::At(_), Self::In(_)) | (Self::In(_), at @ Self::At(_)) => at,
        }
    }
}

/// A date of HTTP, as in `Date` (RFC 9110, section 5.6.7). `None`: it is no such date.
#[must_use]
pub fn date(text: &str) -> Option<SystemTime> {
    httpdate::parse_http_date(text.trim()).ok()
}

/// Milliseconds, whole or not.
pub(super) fn millis(text: &str) -> Option<Duration> {
    let seconds = seconds(text.trim())?;
    Some(seconds / 1000)
}

/// Seconds, whole or not, exact to the nanosecond. More digits than fit mean "very long", not a fault.
pub(super) fn seconds(text: &str) -> Option<Duration> {
    let (whole, fraction) = decimal(text)?;
    let digits = fraction.bytes().chain(std::iter::repeat(b'0')).take(9);
    let nanos = digits.fold(0, |nanos, digit| nanos * 10 + u32::from(digit - b'0'));
    Some(Duration::new(whole.parse().unwrap_or(u64::MAX), nanos))
}

/// Lists are made where two servers add a header each; a date has a comma of its own.
fn latest_of(text: &str) -> Option<Moment> {
    let mut parts = text.split(',').peekable();
    let mut found: Option<Moment> = None;
    while let Some(part) = parts.next() {
        let with_next = parts
            .peek()
            .and_then(|next| single(&format!("{},{next}", part.trim())));
        if with_next.is_some() {
            parts.next();
        }
        if let Some(moment) = with_next.or_else(|| single(part.trim())) {
            found = Some(found.map_or(moment, |before| before.later(moment)));
        }
    }
    found
}

fn single(text: &str) -> Option<Moment> {
    number(text)
        .or_else(|| length(text).map(Moment::In))
        .or_else(|| point(text).map(Moment::At))
}

fn number(text: &str) -> Option<Moment> {
    let number = seconds(text)?;
    let since_1970 = match number.as_secs() {
        EPOCH_MILLIS.. => number / 1000,
        EPOCH_SECONDS.. => number,
        _ => return Some(Moment::In(number)),
    };
    SystemTime::UNIX_EPOCH
        .checked_add(since_1970)
        .map(Moment::At)
}

/// A length of time: `6m0s`, `1h2m3.5s`, `20ms`, `4 seconds`.
fn length(text: &str) -> Option<Duration> {
    let (mut rest, mut nanos) = (text, 0.0);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, behind) = rest.split_at(digits);
        let behind = behind.trim_start();
        let unit = behind.find(|c: char| !c.is_alphabetic());
        let (unit, behind) = behind.split_at(unit.unwrap_or(behind.len()));
        nanos += number.parse::<f64>().ok()? * nanos_of(unit)?;
        rest = behind.trim_start();
    }
    let length = Duration::try_from_secs_f64(nanos / 1e9);
    (!text.is_empty()).then(|| length.unwrap_or(Duration::MAX))
}

fn nanos_of(unit: &str) -> Option<f64> {
    Some(match unit {
        "d" | "day" | "days" => 86_400e9,
        "h" | "hour" | "hours" => 3_600e9,
        "m" | "min" | "minute" | "minutes" => 60e9,
        "s" | "sec" | "secs" | "second" | "seconds" => 1e9,
        "ms" | "millisecond" | "milliseconds" => 1e6,
        "us" | "\u{b5}s" | "\u{3bc}s" => 1e3,
        "ns" => 1.0,
        _ => return None,
    })
}

fn point(text: &str) -> Option<SystemTime> {
    date(text)
        .or_else(|| mail(text))
        .or_else(|| iso_8601(text))
        .or_else(|| javascript(text))
}

/// A wrong weekday does no harm: the rest of the date is complete without it.
fn mail(text: &str) -> Option<SystemTime> {
    static PARSER: rfc2822::DateTimeParser = rfc2822::DateTimeParser::new().relaxed_weekday(true);
    // Names of the same zone that the standard does not have.
    let without_zone = [" UTC", " Z"]
        .into_iter()
        .find_map(|zone| text.strip_suffix(zone));
    let at = match without_zone {
        Some(local) => PARSER.parse_timestamp(format!("{local} GMT")),
        None => PARSER.parse_timestamp(text),
    };
    at.ok().map(SystemTime::from)
}

/// With a fraction, an offset, or neither: then it is UTC.
fn iso_8601(text: &str) -> Option<SystemTime> {
    if let Ok(at) = text.parse::<jiff::Timestamp>() {
        return Some(SystemTime::from(at));
    }
    if !text.contains(':') {
        return None;
    }
    let local: civil::DateTime = text.parse().ok()?;
    let at = local.to_zoned(TimeZone::UTC).ok()?;
    Some(SystemTime::from(at.timestamp()))
}

/// `Date.prototype.toString` of ECMAScript. It writes the name of the zone in parentheses.
fn javascript(text: &str) -> Option<SystemTime> {
    let text = text.split(" (").next().unwrap_or_default();
    let parsed = strtime::parse("%a %b %d %Y %H:%M:%S GMT%z", text).ok()?;
    Some(SystemTime::from(parsed.to_timestamp().ok()?))
}
