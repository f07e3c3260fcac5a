//! The verdicts: what becomes of a message, with all that a person, a replay or the next round needs in its
//! headers. Verdicts without headers (done, given back) are made where they are decided.
//!
//! Dead letters and dropped messages are logged. Problem: messages that die without a line in the log are
//! found weeks later, when they are missed. So each reason of death is logged, at most once in a while for
//! each route, with the id of one message and how many more died for it. The metrics count every one.
//!
//! A message is unfit where no request can be made from it, or where a limit can never let it pass. `decode` finds
//! most of these, and `admit` those that were in memory when a limit was lowered. Both ask [`unfit`] for the
//! verdict. Once many in a row have died like this, `core::stall` puts a brake on: unfit messages are set aside in
//! the wait ladder with the reason, and are tried again when they come back.

use std::sync::Mutex;
use std::time::Duration;

use tracing::{info, warn};

use sluiced_core::judge::DeadReason;
use sluiced_core::limits::Room;
use sluiced_core::parking::Space;
use sluiced_core::scheduler::Share;
use sluiced_core::stall::{ASIDE, Dying, Unfit};
use sluiced_core::time::{StoreTime, micros};
use sluiced_ports::clock::Clock;
use sluiced_ports::connect::Link;
use sluiced_ports::downstream::Answer;
use sluiced_ports::lock;
use sluiced_ports::message::{HeaderValue, Message, header};
use sluiced_ports::queue::{HeaderPatch, Verdict};
use sluiced_settings::types::{OnExpired, OnInvalid};
use sluiced_telemetry::LogLimit;

use super::history::{History, time_header};
use super::route::Route;

/// How often each reason of death is logged for a route.
const EVERY: Duration = Duration::from_secs(10);
static IN_PARTS: LogLimit = LogLimit::new(EVERY);
/// The largest part of an answer that a dead letter keeps, in bytes.
const MAX_KEPT: usize = 1024;

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
pub(super) fn keep(verdict: &mut Verdict, answer: &Answer) {
    if let Verdict::Dead { headers, .. } = verdict {
        let beginning = HeaderValue::Text(answer.beginning(MAX_KEPT));
        headers.push((header::ANSWER, beginning));
    }
}

/// For a message from which no request can be made, or that a limit cannot count.
pub(super) fn unfit(
    route: &Route,
    history: &History,
    reason: DeadReason,
    detail: String,
    now: StoreTime,
) -> Verdict {
    let drops = route.policy.settings.on_invalid == OnInvalid::Drop;
    if drops && reason == DeadReason::Invalid {
        return Verdict::Dropped;
    }
    let why = format!("{}: {detail}", reason.label());
    match route.unfit(&why) {
        Unfit::Dies => dead(route, history, reason, detail, now),
        Unfit::IsSetAside => {
            let mut verdict = later(history, ASIDE, now);
            if let Verdict::Later { headers, .. } = &mut verdict {
                headers.push((header::SET_ASIDE, HeaderValue::Text(why)));
            }
            verdict
        }
    }
}

/// The reason for a message that costs more than its limit can ever let pass.
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

/// Back to its queue. A message that has failed or was refused before, or was taken in part, goes there through the
/// wait ladder, when its `wait` is over: otherwise that would be forgotten.
pub(super) fn back(history: &History, wait: Duration, now: StoreTime) -> Verdict {
    if history.spent() > 0 || history.throttled.is_some() {
        later(history, wait, now)
    } else {
        Verdict::GiveBack
    }
}

/// The verdict of a message that was taken in part and leaves this replica. It would be sent as a whole, which spends an
/// attempt: after its last one it is a dead letter. `None`: nothing else follows.
pub(super) fn leaves_in_parts(
    route: &Route,
    history: &History,
    verdict: &Verdict,
) -> Option<Verdict> {
    let Verdict::Later { delay, headers } = verdict else {
        return None;
    };
    if !history.in_parts {
        return None;
    }
    let not_before = value(headers, header::NOT_BEFORE).and_then(HeaderValue::as_int);
    let not_before = StoreTime::from_micros(not_before.map_or(0, |at| at.unsigned_abs()));
    let (spent, most) = (history.spent(), route.policy.settings.max_attempts);
    if spent >= most {
        let detail = format!(
            "some of its segments were taken, and the others cannot be sent from this replica; {spent} of {most} attempts are spent"
        );
        let now = not_before - *delay;
        return Some(dead(
            route,
            history,
            DeadReason::AttemptsExhausted,
            detail,
            now,
        ));
    }
    if let Some(more) = IN_PARTS.event(route.deaths.clock.now()) {
        info!(route = %route.name, attempts = spent,
            "a message that was taken in part leaves this replica: all of its segments are sent again, and an attempt is spent{more}");
    }
    None
}

/// Into a parked queue, so that the messages behind it pass. Nothing about the message changes.
pub(super) fn parked(share: Share, history: &History, now: StoreTime) -> Verdict {
    let mut headers = history.headers();
    headers.push((header::PARKED, time_header(now)));
    Verdict::Parked {
        space: Space::of(share.tenant),
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

/// The dead letters of a route.
#[derive(Debug)]
pub(super) struct Deaths {
    clock: Clock,
    reasons: [LogLimit; DeadReason::ALL.len()],
    dropped: LogLimit,
    dying: Mutex<Dying>,
    /// For the lines about the brake: right and wrong messages may take turns.
    braked: LogLimit,
    released: LogLimit,
}

impl Deaths {
    /// None yet.
    pub(super) fn new(dying: Dying) -> Self {
        Self {
            clock: Clock::start(),
            reasons: DeadReason::ALL.map(|_| LogLimit::new(EVERY)),
            dropped: LogLimit::new(EVERY),
            dying: Mutex::new(dying),
            braked: LogLimit::new(EVERY),
            released: LogLimit::new(EVERY),
        }
    }

    /// Whether unfit messages are set aside, because so many died in a row.
    pub(super) fn are_braked(&self) -> bool {
        lock(&self.dying).is_braked()
    }

    /// For how long no message is taken, because so many are set aside; `None`: they are taken.
    pub(super) fn rest(&self) -> Option<Duration> {
        lock(&self.dying).rest(self.clock.now())
    }

    /// Logs a verdict that ends a message of the route without a delivery.
    pub(super) fn log(&self, route: &str, message: &Message, verdict: &Verdict) {
        let (reason, headers) = match verdict {
            Verdict::Dead { reason, headers } => (reason, headers),
            // Because of on_expired or on_invalid: such a message is in no queue any more.
            Verdict::Dropped => {
                if let Some(more) = self.dropped.event(self.clock.now()) {
                    let message_id = message.id().unwrap_or_default();
                    info!(
                        route,
                        message_id,
                        "dropped, as the route says for what is too old or invalid{more}"
                    );
                }
                return;
            }
            _ => return,
        };
        let limits = DeadReason::ALL.iter().zip(&self.reasons);
        for (_, limit) in limits.filter(|(known, _)| *known == reason) {
            if let Some(more) = limit.event(self.clock.now()) {
                warn!(
                    route,
                    reason = reason.label(),
                    message_id = message.id().unwrap_or_default(),
                    attempts = value(headers, header::ATTEMPTS).and_then(HeaderValue::as_int),
                    detail = value(headers, header::DETAIL).and_then(HeaderValue::as_text),
                    "dead letter{more}"
                );
            }
        }
    }
}

impl Route {
    /// A message cannot be sent, for this reason.
    fn unfit(&self, why: &str) -> Unfit {
        let now = self.deaths.clock.now();
        let mut dying = lock(&self.deaths.dying);
        let was_braked = dying.is_braked();
        let fate = dying.unfit(now);
        if dying.is_braked() {
            let count = dying.in_a_row();
            let reason = format!(
                "{count} messages died in a row, {why}; such messages are set aside, others pass"
            );
            self.usable.send_replace(Link::Down(reason.into()));
            if !was_braked {
                self.meters.setting_aside.set(1.0);
                // Messages that others would move here may be set aside at once.
                self.sharing.show(false, false);
                if let Some(more) = self.deaths.braked.event(now) {
                    warn!(route = %self.name, count, why,
                        "messages died in a row: none dies now, such messages are set aside for a minute, others pass{more}");
                }
            }
        }
        fate
    }

    /// A message can be sent.
    pub(super) fn fit(&self) {
        let mut dying = lock(&self.deaths.dying);
        if dying.is_braked() {
            self.meters.setting_aside.set(0.0);
            self.usable.send_replace(Link::Up);
            if let Some(more) = self.deaths.released.event(self.deaths.clock.now()) {
                info!(route = %self.name, "a message can be sent again: none is set aside any more{more}");
            }
        }
        dying.fit();
    }
}

/// The value that a verdict writes into a header.
pub(super) fn value<'a>(headers: &'a HeaderPatch, name: &str) -> Option<&'a HeaderValue> {
    let found = headers.iter().find(|(known, _)| *known == name);
    found.map(|(_, value)| value)
}
