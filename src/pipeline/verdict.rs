//! The verdicts: what becomes of a message, with all that a person, a replay or the next round needs
//! in its headers. What has no headers (done, given back) is settled where it is decided.

use std::time::Duration;

use crate::core::limits::Room;
use crate::core::outcome::DeadReason;
use crate::core::parking::Space;
use crate::core::scheduler::Share;
use crate::core::time::{StoreTime, micros};
use crate::ports::message::{HeaderValue, header};
use crate::ports::queue::{HeaderPatch, Verdict};
use crate::settings::types::{OnExpired, OnInvalid};

use super::job::History;
use super::route::Route;

/// A time of the store as a header.
fn time_header(at: StoreTime) -> HeaderValue {
    HeaderValue::Int(i64::try_from(at.as_micros()).unwrap_or(i64::MAX))
}

impl History {
    /// The headers that carry it, through a wait queue or into the dead-letter queue.
    fn headers(&self) -> HeaderPatch {
        let mut patch = vec![
            (header::ATTEMPTS, HeaderValue::Int(i64::from(self.attempts))),
            (header::FIRST_SEEN, time_header(self.first_seen)),
        ];
        if let Some(id) = self.made_id {
            patch.push((header::MESSAGE_ID, HeaderValue::Text(id.to_string())));
        }
        if let Some(expires) = self.expires {
            patch.push((header::EXPIRES, time_header(expires)));
        }
        if let Some(status) = self.last_status {
            patch.push((header::LAST_STATUS, HeaderValue::Int(i64::from(status))));
        }
        if self.waited {
            patch.push((header::WAITED, HeaderValue::Bool(true)));
        }
        patch
    }
}

/// To the dead-letter queue, with the reason.
pub(super) fn dead(
    route: &Route,
    history: &History,
    reason: DeadReason,
    detail: String,
    now: StoreTime,
) -> Verdict {
    let mut headers = history.headers();
    headers.extend([
        (header::REASON, HeaderValue::Text(reason.label().to_owned())),
        (header::DETAIL, HeaderValue::Text(detail)),
        (header::DIED, time_header(now)),
        (header::ROUTE, HeaderValue::Text(route.name.to_string())),
        (
            header::QUEUE,
            HeaderValue::Text(route.policy.settings.queue.clone()),
        ),
    ]);
    route.meters.dead(reason.label());
    Verdict::Dead { reason, headers }
}

/// Keeps the beginning of the downstream's answer on a dead letter.
pub(super) fn keep(verdict: &mut Verdict, said: Option<String>) {
    if let (Verdict::Dead { headers, .. }, Some(said)) = (verdict, said) {
        headers.push((header::ANSWER, HeaderValue::Text(said)));
    }
}

/// For a message that a limit cannot count.
pub(super) fn invalid(route: &Route, history: &History, detail: String, now: StoreTime) -> Verdict {
    match route.policy.settings.on_invalid {
        OnInvalid::Drop => Verdict::Dropped,
        OnInvalid::DeadLetter => dead(route, history, DeadReason::Invalid, detail, now),
    }
}

/// Why a message is invalid that costs more than its limit can ever let pass.
pub(super) fn too_dear(limit: &str, most: u64) -> String {
    format!("limits.{limit}: it costs more than the {most} that can ever fit")
}

/// For a message that is too old.
pub(super) fn expired(route: &Route, history: &History, now: StoreTime) -> Verdict {
    match route.policy.settings.on_expired {
        OnExpired::Drop => Verdict::Dropped,
        OnExpired::DeadLetter => {
            let detail = "older than max_age or its expiration".to_owned();
            dead(route, history, DeadReason::Expired, detail, now)
        }
    }
}

/// Through the wait ladder: back in the work queue after `delay`.
pub(super) fn later(history: &History, delay: Duration, now: StoreTime) -> Verdict {
    let mut headers = history.headers();
    headers.push((header::NOT_BEFORE, time_header(now + delay)));
    Verdict::Later { delay, headers }
}

/// Back to its queue. A message that has failed before goes there by the wait ladder, and not before its
/// `wait` is over: its attempts would be forgotten otherwise.
pub(super) fn back(history: &History, wait: Duration, now: StoreTime) -> Verdict {
    if history.attempts > 0 {
        later(history, wait, now)
    } else {
        Verdict::GiveBack
    }
}

/// Beside the work queue, so that those behind it pass. Nothing about the message changes.
pub(super) fn parked(share: Share, history: &History, now: StoreTime) -> Verdict {
    let mut headers = history.headers();
    headers.push((header::PARKED, time_header(now)));
    Verdict::Parked {
        space: Space::of(share.tenant),
        headers,
    }
}

/// How the limit stood that denied a message.
pub(super) struct DeniedHeaders<'a> {
    pub(super) name: &'a str,
    pub(super) limit: u64,
    pub(super) room: Room,
    pub(super) retry_after: Duration,
    pub(super) now: StoreTime,
}

/// Writes how the limit stood into a verdict's headers.
pub(super) fn explain(verdict: &mut Verdict, denied: &DeniedHeaders<'_>) {
    let length = |length| time_header(StoreTime::from_micros(micros(length)));
    let reset = StoreTime::from_micros(denied.room.reset_at).since(denied.now);
    let units = |units| HeaderValue::Int(i64::try_from(units).unwrap_or(i64::MAX));
    if let Verdict::Later { headers, .. } | Verdict::Dead { headers, .. } = verdict {
        headers.extend([
            (header::DENIED_BY, HeaderValue::Text(denied.name.to_owned())),
            (header::LIMIT, units(denied.limit)),
            (header::REMAINING, units(denied.room.remaining)),
            (header::RETRY_AFTER, length(denied.retry_after)),
            (header::RESET_AFTER, length(reset)),
        ]);
    }
}
