//! Messages that leave because of what their keyed limits said: into the wait ladder, or as `on_denied` says; as dead
//! letters; or as done, because a message of their key was accepted.

use std::sync::Arc;
use std::time::Duration;

use tracing::info;

use sluiced_core::judge::DeadReason;
use sluiced_core::limits::Room;
use sluiced_core::limits::once::NotCalled;
use sluiced_core::rate::Span;
use sluiced_core::scheduler::SentAway;
use sluiced_core::time::{Mono, StoreTime};
use sluiced_ports::queue::Verdict;
use sluiced_telemetry::LogLimits;

use crate::bounds::too_costly;
use crate::ends::journal::Why;
use crate::job::WaitingMessage;
use crate::verdict::{self, dead, denied, judge_unfit};
use sluiced_core::gate::OnDenied;

static DENIED: LogLimits = LogLimits::new(Duration::from_secs(10));

/// Removes a message from memory: into the wait ladder, or to the dead-letter queue if the wait is longer
/// than `max_hold` and its route says so.
pub(crate) fn send_away(waiting: WaitingMessage, away: &SentAway, now: Mono) {
    let job = waiting.job;
    let (route, decided, wait) = (&job.route, away.decided, away.wait);
    let limit = Arc::clone(&job.charges()[away.by].limit);
    let mut verdict = if away.is_far && route.rules.on_denied == OnDenied::DeadLetter {
        denied(job.history(), &limit.name, wait, decided)
    } else {
        if route.rules.on_denied != OnDenied::TellCaller
            && let Some(more) = DENIED.event(&route.name, now)
        {
            info!(route = %route.name, limit = %limit.name, wait = %Span::rough(wait),
                "denied: the message waits in the ladder, and others pass{more}");
        }
        job.history().later(wait, decided)
    };
    if route.rules.denied_headers {
        // For a limit that is known to be full: the latest end of the calls in flight, unless they are
        // renewed.
        let room = away.room.unwrap_or_else(|| Room {
            remaining: 0,
            reset_at: limit.policy().rule.forgotten_at(decided),
        });
        let explained = verdict::DeniedHeaders {
            name: &limit.name,
            limit: limit.policy().rule.max_cost(),
            room,
            retry_after: away.until.since(decided),
            now: decided,
        };
        verdict::add_denied_headers(&mut verdict, &explained);
    }
    job.settle_because(verdict, Some(Why::DeniedBy(&limit.name)), decided);
}

/// The message costs more than its limit can ever let pass: the limit was lowered while the message was in memory.
pub(crate) fn settle_too_costly(waiting: WaitingMessage, by: usize, most: u64, now: StoreTime) {
    let job = waiting.job;
    let detail = too_costly(&job.charges()[by].limit.name, most).to_string();
    let verdict = judge_unfit(&job.route, job.history(), DeadReason::Invalid, detail, now);
    job.settle(verdict, now);
}

/// The message is not called: a message of its key was accepted before, or may have been and must not be sent twice.
pub(crate) fn settle_not_called(
    waiting: WaitingMessage,
    by: usize,
    how: NotCalled,
    now: StoreTime,
) {
    let job = waiting.job;
    match how {
        NotCalled::Done => {
            job.route.meters.repeats.increment(1);
            job.settle_because(Verdict::Done, Some(Why::Repeat), now);
        }
        NotCalled::Unknown => {
            let detail = format!(
                "the replica that called it died or lost the store, so whether it was accepted is unknown (limits.{}.on_unknown)",
                job.charges()[by].limit.name
            );
            let verdict = dead(job.history(), DeadReason::Unknown, detail, now);
            job.settle(verdict, now);
        }
    }
}
