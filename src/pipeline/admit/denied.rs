//! Puts a denied message where it waits, as `core::scheduler::placing` says: in memory, in the wait ladder, or
//! wherever its route says.

use std::sync::Arc;
use std::time::Duration;

use tracing::info;

use super::{Admission, ClosedRoutes, close};
use crate::core::outcome::DeadReason;
use crate::core::scheduler::{Denial, Destination, Scheduler, Terms};
use crate::core::time::{Mono, micros};
use crate::pipeline::job::Waiting;
use crate::pipeline::verdict::{self, dead, expired, later};
use crate::ports::limits::{Charge, Room};
use crate::settings::types::OnDenied;
use crate::telemetry::LogLimit;

static DENIED: LogLimit = LogLimit::new(Duration::from_secs(10));

/// What the store said of a denied message, beside where it waits.
pub(super) struct Denied {
    pub(super) charge: Charge,
    pub(super) denial: Denial,
    pub(super) room: Room,
}

impl Admission {
    /// Places a denied message: in memory, in the wait ladder, or wherever its route says.
    pub(super) fn denied(
        &self,
        mut waiting: Waiting,
        denied: &Denied,
        scheduler: &mut Scheduler<Waiting>,
        closed: &mut ClosedRoutes,
        now: Mono,
    ) {
        let Denied { charge, denial, .. } = denied;
        let route = Arc::clone(&waiting.job.route);
        route.meters.denials.increment(1);
        if let Some(meters) = self.keyed.limit_meters.get(&charge.limit.name) {
            meters.denials.increment(1);
        }
        let policy = &route.policy;
        let terms = Terms {
            is_for_all: route.is_for_all(denial.key),
            holds: policy.on_denied == OnDenied::Hold,
            max_hold: policy.max_hold,
            age: denial.decided.since(waiting.job.history.first_seen),
        };
        match scheduler.destination(&waiting, denial, &terms, |at| policy.opening(at), now) {
            Destination::ForCalls(room) => scheduler.denied(waiting, denial.key, room),
            Destination::Near(room) => {
                waiting.job.history.waited = true;
                scheduler.denied(waiting, denial.key, room);
            }
            Destination::Route(room, until) => {
                close(closed, &route, until);
                scheduler.denied(waiting, denial.key, room);
            }
            Destination::Away(room, wait) => {
                scheduler.set_room(denial.key, room);
                scheduler.gone(&waiting);
                send_away(waiting, denied, wait, now);
            }
            Destination::Expired => {
                scheduler.gone(&waiting);
                let verdict = expired(&route, &waiting.job.history, denial.decided);
                waiting.job.settle(verdict);
            }
        }
    }
}

/// Out of memory: through the wait ladder, or to the dead-letter queue if its route says so.
fn send_away(waiting: Waiting, denied: &Denied, wait: Duration, now: Mono) {
    let (limit, denial) = (&denied.charge.limit.name, &denied.denial);
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
        let explained = verdict::DeniedHeaders {
            limit,
            room: denied.room,
            retry_after,
            now: denial.decided,
        };
        verdict::explain(&mut verdict, &explained);
    }
    job.settle(verdict);
}
