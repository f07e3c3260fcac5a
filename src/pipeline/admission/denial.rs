//! Where a denied message waits: in memory if its time is near, in the wait ladder otherwise, or not at
//! all if its route says so.

use std::sync::Arc;

use tracing::info;

use super::{Admission, DENIED};
use crate::core::budget::Usage;
use crate::core::lane::Lane;
use crate::core::outcome::DeadReason;
use crate::core::ready::Candidate as _;
use crate::core::time::{Mono, StoreTime, micros};
use crate::pipeline::booking;
use crate::pipeline::intake::{expire, later, later_booked};
use crate::pipeline::job::{Job, dead, time_header};
use crate::ports::budget::{BudgetLimit, Ticket};
use crate::ports::message::{HeaderValue, header};
use crate::ports::queue::{HeaderPatch, Verdict};
use crate::settings::types::OnDenied;

/// How a message was denied.
pub(super) struct Denial {
    /// The store's time when it ruled.
    pub(super) now: StoreTime,
    pub(super) until: StoreTime,
    pub(super) limit: Arc<BudgetLimit>,
    pub(super) usage: Usage,
}

impl Admission {
    pub(super) fn denied(
        &self,
        mut job: Job,
        ticket: Ticket,
        denial: &Denial,
        lane: &mut Lane<Job>,
        now: Mono,
    ) {
        let route = Arc::clone(&job.route);
        route.meters.denials.increment(1);
        if let Some(meters) = self.counters.meters.get(&denial.limit.name) {
            meters.denials.increment(1);
        }
        // Our clock cannot be behind: the store ruled before now.
        let at = now + denial.until.since(denial.now);
        if job.deadline().is_some_and(|end| end <= at) {
            self.counters.clerk.unbook(job.claims(), ticket);
            let verdict = expire(&route, &job.history, denial.now);
            return job.settle(verdict);
        }
        let opening = route.policy.opening(denial.until);
        if opening > denial.until {
            // Nothing is sent then: it will ask when it may be sent.
            self.counters.clerk.unbook(job.claims(), ticket);
            job.forget_places();
        }
        job.waits_for = job
            .claims()
            .iter()
            .find(|claim| claim.limit.name == denial.limit.name)
            .filter(|claim| claim.limit.is_concurrency())
            .map(|claim| (Arc::clone(&claim.limit), claim.key));
        let wait = opening.since(denial.now);
        if wait > route.policy.max_hold && route.policy.on_denied == OnDenied::DeadLetter {
            let detail = format!(
                "the limit `{}` would let it pass in {wait:?}",
                denial.limit.name
            );
            let mut verdict = dead(&route, &job.history, DeadReason::Denied, detail, denial.now);
            explain(&mut verdict, &job, denial);
            return job.settle(verdict);
        }
        let near = if job.is_booked() {
            route.policy.max_hold.max(booking::NEAR)
        } else {
            route.policy.max_hold
        };
        if wait <= near && has_room(lane, &job) {
            job.held_up_by = Some(Arc::clone(&denial.limit.name));
            return lane.park(job, now + wait);
        }
        if let Some(more) = DENIED.event(now) {
            info!(route = %route.name, limit = %denial.limit.name,
                wait_ms = micros(wait) / 1000,
                "denied: the message waits in the ladder, and others pass{more}");
        }
        let mut verdict = if job.is_booked() {
            let places = booking::written(job.claims());
            later_booked(&job.history, wait, denial.now, places)
        } else {
            later(&job.history, wait, denial.now)
        };
        explain(&mut verdict, &job, denial);
        job.settle(verdict);
    }
}

/// Whether another message of its route may wait in memory: half of the prefetch is for others.
fn has_room(lane: &Lane<Job>, job: &Job) -> bool {
    let room = usize::from(job.route.policy.prefetch / 2).max(1);
    let same = |other: &&Job| Arc::ptr_eq(&other.route, &job.route);
    lane.waiting().filter(same).take(room).count() < room
}

/// Says how the limit stood, where the route wants it.
fn explain(verdict: &mut Verdict, job: &Job, denial: &Denial) {
    if !job.route.policy.denied_headers {
        return;
    }
    if let Verdict::Later { headers, .. } | Verdict::Dead { headers, .. } = verdict {
        headers.extend(usage_headers(denial));
    }
}

fn usage_headers(denial: &Denial) -> HeaderPatch {
    let length = |length| time_header(StoreTime::from_micros(micros(length)));
    let remaining = i64::try_from(denial.usage.remaining).unwrap_or(i64::MAX);
    vec![
        (
            header::LIMIT,
            HeaderValue::Text(denial.limit.name.to_string()),
        ),
        (header::REMAINING, HeaderValue::Int(remaining)),
        (header::RETRY_AFTER, length(denial.usage.retry_after)),
        (header::RESET_AFTER, length(denial.usage.reset_after)),
    ]
}
