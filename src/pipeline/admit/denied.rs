//! Settles a message that a keyed limit denied and that goes away: into the wait ladder, or wherever its
//! route says. Where a denied message waits, `core::scheduler::placing` decides.

use std::time::Duration;

use tracing::info;

use crate::core::outcome::DeadReason;
use crate::core::scheduler::Denied;
use crate::core::time::{Mono, StoreTime, micros};
use crate::pipeline::job::Waiting;
use crate::pipeline::verdict::{self, back, dead, invalid, later, too_dear};
use crate::ports::limits::Room;
use crate::settings::types::OnDenied;
use crate::telemetry::LogLimit;

static DENIED: LogLimit = LogLimit::new(Duration::from_secs(10));

/// Out of memory: through the wait ladder, or to the dead-letter queue if its route says so of a time that is
/// further away than `max_hold`.
pub(in crate::pipeline) fn send_away(waiting: Waiting, denied: &Denied, now: Mono) {
    let job = waiting.job;
    let (route, decided, wait) = (&job.route, denied.decided, denied.wait);
    let limit = &job.charges()[denied.by].limit;
    let mut verdict = if denied.is_late && route.policy.settings.on_denied == OnDenied::DeadLetter {
        let detail = format!("the limit `{}` would let it pass in {wait:?}", limit.name);
        dead(route, &job.history, DeadReason::Denied, detail, decided)
    } else {
        if let Some(more) = DENIED.event(now) {
            info!(route = %route.name, limit = %limit.name, wait_ms = micros(wait) / 1000,
                "denied: the message waits in the ladder, and others pass{more}");
        }
        later(&job.history, wait, decided)
    };
    if route.policy.settings.denied_headers {
        // Of a limit that is known to be full: the latest that the calls under way can last, unless they are
        // renewed.
        let room = denied.room.unwrap_or_else(|| Room {
            remaining: 0,
            reset_at: limit.policy().rule.forgotten_at(decided).as_micros(),
        });
        let explained = verdict::DeniedHeaders {
            name: &limit.name,
            limit: limit.policy().rule.most(),
            room,
            retry_after: denied.until.since(decided),
            now: decided,
        };
        verdict::explain(&mut verdict, &explained);
    }
    job.settle(verdict);
}

/// It costs more than its limit can ever let pass: the limit was lowered while the message was in memory. Once
/// messages died like this in a row, the others go back to their queue.
pub(in crate::pipeline) fn never(waiting: Waiting, by: usize, most: u64, now: StoreTime) {
    let job = waiting.job;
    if job.route.deaths.are_in_a_row() {
        let verdict = back(&job.history, Duration::ZERO, now);
        return job.settle(verdict);
    }
    let detail = too_dear(&job.charges()[by].limit.name, most);
    let verdict = invalid(&job.route, &job.history, detail, now);
    job.route.died_early(&verdict);
    job.settle(verdict);
}
