//! The verdicts that end a message or park it, with all that a person, a replay or the next round needs in its
//! headers. `history` makes those that send a message back; "done" is given where it is known.
//!
//! A message is unfit where no request can be made from it, or where a limit can never let it pass. `decode` finds most
//! of these, and `uncalled::sent_away` those that were in memory when a limit was lowered. Both ask [`judge_unfit`] for
//! the verdict (`route::fitness`).

use std::time::Duration;

use tracing::info;

use sluiced_core::gate::OnDenied;
use sluiced_core::judge::DeadReason;
use sluiced_core::limits::Room;
use sluiced_core::message::TenantShare;
use sluiced_core::parking::ParkedQueue;
use sluiced_core::time::{StoreTime, micros};
use sluiced_core::unfit_run::{ASIDE, WhenUnfit};
use sluiced_ports::clock;
use sluiced_ports::downstream::Answer;
use sluiced_ports::message::{HeaderValue, header};
use sluiced_ports::queue::Verdict;
use sluiced_telemetry::LogLimits;

use super::history::{History, time_header};
use super::route::Route;
use super::route::rules::WhenUnsendable;

static IN_PARTS: LogLimits = LogLimits::new(Duration::from_secs(10));
/// The largest part of an answer that a dead letter keeps, in bytes.
const MAX_KEPT: usize = 1024;

/// To the dead-letter queue. The queue adds the reason, the route and its own name.
pub(super) fn dead(
    history: &History,
    reason: DeadReason,
    detail: String,
    now: StoreTime,
) -> Verdict {
    let mut headers = history.headers();
    headers.extend([
        (header::DETAIL, HeaderValue::Text(detail)),
        (header::DIED, time_header(now)),
    ]);
    Verdict::Dead { reason, headers }
}

/// Keeps the beginning of the downstream's answer on a dead letter.
pub(super) fn add_answer(verdict: &mut Verdict, answer: &Answer) {
    if let Verdict::Dead { headers, .. } = verdict {
        let beginning = HeaderValue::Text(answer.beginning(MAX_KEPT));
        headers.push((header::ANSWER, beginning));
    }
}

/// For a message from which no request can be made, or that a limit cannot count.
pub(super) fn judge_unfit(
    route: &Route,
    history: &History,
    reason: DeadReason,
    detail: String,
    now: StoreTime,
) -> Verdict {
    let drops = route.rules.on_invalid == WhenUnsendable::Drop;
    if drops && reason == DeadReason::Invalid {
        return Verdict::Dropped;
    }
    let why = format!("{}: {detail}", reason.label());
    match route.fitness.record_unfit(&why) {
        WhenUnfit::Dies => dead(history, reason, detail, now),
        WhenUnfit::IsSetAside => {
            let mut verdict = history.later(ASIDE, now);
            if let Verdict::Later { headers, .. } = &mut verdict {
                headers.push((header::SET_ASIDE, HeaderValue::Text(why)));
            }
            verdict
        }
    }
}

/// For a message that is too old.
pub(super) fn expired(route: &Route, history: &History, now: StoreTime) -> Verdict {
    if route.rules.on_denied == OnDenied::TellCaller {
        // A caller is answered by this verdict; nothing waits.
        return history.later(Duration::ZERO, now);
    }
    match route.rules.on_expired {
        WhenUnsendable::Drop => Verdict::Dropped,
        WhenUnsendable::DeadLetter => {
            let detail = "older than max_age or its expiration".to_owned();
            dead(history, DeadReason::Expired, detail, now)
        }
    }
}

/// To the dead-letter queue, because a limit denies the message for longer than its route holds messages.
pub(super) fn denied(history: &History, limit: &str, wait: Duration, now: StoreTime) -> Verdict {
    let detail = format!("the limit `{limit}` would let it pass in {wait:?}");
    dead(history, DeadReason::Denied, detail, now)
}

/// The verdict of a message that was taken in part and leaves this replica or its route. It would be sent as a whole,
/// which spends an attempt: after its last one it is a dead letter. `None`: it may leave.
pub(super) fn leaves_in_parts(route: &Route, history: &History, now: StoreTime) -> Option<Verdict> {
    if !history.tries.partly_taken {
        return None;
    }
    let (spent, most) = (history.tries.spent(), route.rules.calls.max_attempts);
    if only_its_rest_is_left(route, history) {
        let detail = format!(
            "some of its segments were taken, and the others cannot be sent alone any more; {spent} of {most} attempts are spent"
        );
        return Some(dead(history, DeadReason::AttemptsExhausted, detail, now));
    }
    if let Some(more) = IN_PARTS.event(&route.name, clock::now()) {
        info!(route = %route.name, attempts = spent,
            "a message that was taken in part leaves this replica or its route: all of its segments are sent again, and an attempt is spent{more}");
    }
    None
}

/// Whether it was taken in part, and has no attempt left to be sent as a whole.
pub(super) fn only_its_rest_is_left(route: &Route, history: &History) -> bool {
    history.tries.partly_taken && history.tries.spent() >= route.rules.calls.max_attempts
}

/// Into a parked queue, so that the messages behind it pass. Nothing about the message changes.
pub(super) fn parked(share: TenantShare, history: &History, now: StoreTime) -> Verdict {
    let mut headers = history.headers();
    headers.push((header::PARKED, time_header(now)));
    Verdict::Parked {
        parked_queue: ParkedQueue::of(share.tenant),
        headers,
    }
}

/// The state of the limit that denied a message.
pub(super) struct DeniedHeaders<'a> {
    pub(super) name: &'a str,
    pub(super) limit: u64,
    pub(super) room: Room,
    pub(super) retry_after: Duration,
    pub(super) now: StoreTime,
}

/// Writes the state of the limit into a verdict's headers.
pub(super) fn add_denied_headers(verdict: &mut Verdict, denied: &DeniedHeaders<'_>) {
    let length = |length| time_header(StoreTime::from_micros(micros(length)));
    let reset = denied.room.reset_at.since(denied.now);
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
