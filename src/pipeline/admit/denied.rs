//! Where a denied message waits: in memory for its key, in the wait ladder, or wherever its route says.

use std::sync::Arc;
use std::time::Duration;

use tracing::info;

use super::{Admission, FULL, Outcome, room_of};
use crate::core::outcome::DeadReason;
use crate::core::scheduler::{Queued as _, Scheduler};
use crate::core::time::{Mono, StoreTime, micros};
use crate::pipeline::job::Waiting;
use crate::pipeline::verdict::{self, dead, expired, later};
use crate::ports::limits::{Charge, Fit, Room};
use crate::settings::types::OnDenied;
use crate::telemetry::LogLimit;

static DENIED: LogLimit = LogLimit::new(Duration::from_secs(10));

/// A denial, with what is needed to place the message.
pub(super) struct Denial {
    pub(super) charge: Charge,
    pub(super) fits: Fit,
    pub(super) until: StoreTime,
    pub(super) room: Room,
    pub(super) decided: StoreTime,
}

impl Admission {
    /// Places a denied message: in memory, in the wait ladder, or wherever its route says.
    pub(super) fn denied(
        &self,
        waiting: Waiting,
        denial: &Denial,
        scheduler: &mut Scheduler<Waiting>,
        outcome: &mut Outcome,
        now: Mono,
    ) {
        let limit = &denial.charge.limit;
        let route = Arc::clone(&waiting.job.route);
        route.meters.denials.increment(1);
        if let Some(meters) = self.keyed.limit_meters.get(&limit.name) {
            meters.denials.increment(1);
        }
        let key = denial.charge.id();
        let key_room = room_of(denial.fits, 0, scheduler, now);
        let for_all = route.is_for_all(key);
        if denial.fits == Fit::Full && (for_all || scheduler.has_room(&waiting, key)) {
            return scheduler.denied(waiting, key, key_room);
        }
        // Without a known time: not in memory, for then one key would block all others.
        let fits = match denial.fits {
            Fit::At(at) => StoreTime::from_micros(at),
            Fit::Now | Fit::Full => denial.decided + FULL,
        };
        if waiting
            .deadline()
            .is_some_and(|end| end <= scheduler.local_time(fits, now))
        {
            scheduler.gone(&waiting);
            let verdict = expired(&route, &waiting.job.history, denial.decided);
            return waiting.job.settle(verdict);
        }
        let near = route.policy.opening(fits).since(denial.decided) <= route.policy.max_hold;
        if near && scheduler.has_room(&waiting, key) {
            let mut waiting = waiting;
            waiting.job.history.waited = true;
            return scheduler.denied(waiting, key, key_room);
        }
        if for_all && route.policy.on_denied == OnDenied::Hold {
            outcome.close(&route, scheduler.local_time(fits, now));
            return scheduler.denied(waiting, key, key_room);
        }
        scheduler.said(key, key_room);
        scheduler.gone(&waiting);
        let opening = route.policy.opening(denial.until.max(fits));
        send_away(waiting, denial, opening.since(denial.decided), now);
    }
}

/// Out of memory: through the wait ladder, or to the dead-letter queue if its route says so.
fn send_away(waiting: Waiting, denial: &Denial, wait: Duration, now: Mono) {
    let limit = &denial.charge.limit.name;
    let mut job = waiting.job;
    job.history.waited = true;
    let route = &job.route;
    let mut verdict = if route.policy.on_denied == OnDenied::DeadLetter {
        let detail = format!("the limit `{limit}` would let it pass in {wait:?}");
        dead(
            route,
            &job.history,
            DeadReason::Denied,
            detail,
            denial.decided,
        )
    } else {
        if let Some(more) = DENIED.event(now) {
            info!(route = %route.name, %limit, wait_ms = micros(wait) / 1000,
                "denied: the message waits in the ladder, and others pass{more}");
        }
        later(&job.history, wait, denial.decided)
    };
    if route.policy.denied_headers {
        let retry_after = denial.until.since(denial.decided);
        let denied = verdict::Denied {
            limit,
            room: denial.room,
            retry_after,
            now: denial.decided,
        };
        verdict::explain(&mut verdict, &denied);
    }
    job.settle(verdict);
}
