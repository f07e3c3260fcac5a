//! Puts a denied message where it waits, as `core::scheduler::placing` says: in memory, in the wait ladder, or
//! wherever its route says.

use std::time::Duration;

use tracing::info;

use super::{Admission, ClosedRoutes, close};
use crate::core::outcome::DeadReason;
use crate::core::scheduler::{Denial, Destination, KeyId, Scheduler, Terms};
use crate::core::time::{Mono, StoreTime, micros};
use crate::pipeline::job::Waiting;
use crate::pipeline::verdict::{self, dead, expired, later};
use crate::ports::limits::{Charge, Fit, Room};
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
        let denial = &denied.denial;
        match self.destination(&waiting, denied, scheduler, now) {
            Destination::ForCalls(room) => scheduler.denied(waiting, denial.key, room),
            Destination::Near(room) => {
                waiting.job.history.waited = true;
                scheduler.denied(waiting, denial.key, room);
            }
            Destination::Route(room, until) => {
                close(closed, &waiting.job.route, until);
                scheduler.denied(waiting, denial.key, room);
            }
            Destination::Away(room, wait) => {
                scheduler.set_room(denial.key, room);
                scheduler.gone(&waiting);
                send_away(waiting, denied, wait, now);
            }
            Destination::Expired => {
                scheduler.gone(&waiting);
                end(waiting, denial);
            }
        }
    }

    /// Sends a message away whose key is known to be full: there is no room for it in memory.
    pub(in crate::pipeline) fn full(
        &self,
        waiting: Waiting,
        key: KeyId,
        scheduler: &mut Scheduler<Waiting>,
        (decided, now): (StoreTime, Mono),
    ) {
        let charge = waiting.job.charges().iter().find(|own| own.id() == key);
        let Some(charge) = charge.cloned() else {
            return scheduler.push(waiting, now);
        };
        // The latest that the calls under way can last, unless they are renewed.
        let reset_at = charge.limit.policy().rule.forgotten_at(decided);
        let denied = Denied {
            charge,
            denial: Denial {
                key,
                fits: Fit::Full,
                until: StoreTime::default(),
                decided,
            },
            room: Room {
                remaining: 0,
                reset_at: reset_at.as_micros(),
            },
        };
        match self.destination(&waiting, &denied, scheduler, now) {
            Destination::Away(_, wait) => send_away(waiting, &denied, wait, now),
            Destination::Expired => end(waiting, &denied.denial),
            // There is room by now.
            _ => scheduler.push(waiting, now),
        }
    }

    /// Counts a denial. Answers where the message waits.
    fn destination(
        &self,
        waiting: &Waiting,
        denied: &Denied,
        scheduler: &Scheduler<Waiting>,
        now: Mono,
    ) -> Destination {
        let Denied { charge, denial, .. } = denied;
        let route = &waiting.job.route;
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
        scheduler.destination(waiting, denial, &terms, |at| policy.opening(at), now)
    }
}

/// Its deadline comes before it could be sent.
fn end(waiting: Waiting, denial: &Denial) {
    let job = waiting.job;
    let verdict = expired(&job.route, &job.history, denial.decided);
    job.settle(verdict);
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
