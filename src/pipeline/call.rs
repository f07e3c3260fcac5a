//! Send, judge, settle: one call from its slot to its verdict. Runs on the pacer's own runtime.

use std::time::Duration;

use rand::RngExt as _;
use tracing::warn;

use crate::core::leases::Slot;
use crate::core::outcome::Outcome;
use crate::core::time::Mono;
use crate::ports::downstream::Gate;
use crate::ports::queue::Verdict;

use crate::telemetry::Notice;

use super::desk::{Desk, Inbox};
use super::intake::later;
use super::job::{Job, dead};
use super::route_policy::Next;

static DEAD: Notice = Notice::new(Duration::from_secs(10));

/// Sends a job whose slot is due and sees it through.
pub(super) async fn perform(mut job: Job, slot: Slot, desk: Desk) {
    let started = desk.clock.now();
    // The last look: between the pacer's decision and this task's turn the machine may have stood
    // still. A slot that is too late now is lost, never used late. The gate looks once more when
    // the request is written.
    let leave_by = job.route.door().leave_by(slot.leave_by);
    let Some(leave_by) = leave_by.filter(|leave_by| started <= *leave_by) else {
        desk.meters.slots_missed.increment(1);
        desk.again(job);
        return;
    };
    let Some(call) = job.take_call() else {
        job.settle(Verdict::GiveBack);
        return;
    };
    let mut permit = job.permit.take();
    job.good_until = None;
    if let Some(permit) = &mut permit {
        permit.sent(true);
    }
    // Until its verdict is given: a pacer that stops waits for that on another thread.
    let _under_way = job.route.begin_call();
    let sent = call.send(Gate::new(desk.clock, leave_by)).await;
    if let Some(mut permit) = permit {
        // A call in flight is none any more.
        match &sent {
            // A status of 500 and more may be that of a proxy before it.
            Ok(judgement) if judgement.status.is_some_and(|status| status < 500) => permit.made(),
            Ok(judgement) if judgement.maybe_delivered => drop(permit),
            // What was certainly not sent is offered back.
            _ => {
                permit.sent(false);
                permit.give_back().await;
            }
        }
    }
    let Ok(judgement) = sent else {
        desk.meters.slots_missed.increment(1);
        again(job, &desk, None);
        return;
    };
    // A place is good for one call.
    job.forget_places();

    desk.meters.permits.increment(1);
    desk.meters
        .slot_lateness_seconds
        .record(started.since(slot.at).as_secs_f64());
    let age = started.since(job.delivery.received());
    job.route.meters.age_seconds.record(age.as_secs_f64());
    let meters = &job.route.meters;
    meters
        .call_seconds
        .record(desk.clock.now().since(started).as_secs_f64());
    meters.call(judgement.outcome.label());
    if judgement.maybe_delivered && judgement.status.is_none() {
        meters.maybe_delivered.increment(1);
    }
    if judgement.outcome != Outcome::Accepted {
        job.history.last_status = judgement.status;
    }
    let fraction = || rand::rng().random_range(0.0..1.0);
    let attempts = job.history.attempts;
    match job.route.policy.next(judgement.outcome, attempts, fraction) {
        Next::Done => job.settle(Verdict::Done),
        Next::Thaw(wait) => {
            job.route.meters.denials.increment(1);
            desk.freeze(wait, &judgement.detail);
            again(job, &desk, None);
        }
        Next::Retry(wait) => {
            job.history.attempts += 1;
            let now = desk.clock.now();
            let store_now = desk.store_time(now);
            let wait = job.route.policy.opening(store_now + wait).since(store_now);
            if wait <= job.route.policy.max_hold {
                again(job, &desk, Some(now + wait));
            } else {
                let verdict = later(&job.history, wait, store_now);
                job.settle(verdict);
            }
        }
        Next::Dead(reason) => {
            job.history.attempts += 1;
            if let Some(more) = DEAD.event(desk.clock.now()) {
                warn!(route = %job.route.name, reason = reason.label(), answer = judgement.detail,
                    attempts = job.history.attempts, "dead letter{more}");
            }
            let now = desk.store_time(desk.clock.now());
            let verdict = dead(&job.route, &job.history, reason, judgement.detail, now);
            job.settle(verdict);
        }
    }
}

/// Back to the pacer, with a fresh request; not before `at`, if that is given.
fn again(mut job: Job, desk: &Desk, at: Option<Mono>) {
    match job.prepare_again() {
        Ok(()) => desk.tell(match at {
            Some(at) => Inbox::Parked(job, at),
            None => Inbox::Again(job),
        }),
        // It could be prepared before; if not now, the queue keeps it safe.
        Err(why) => {
            warn!(route = %job.route.name, %why, "cannot be prepared again; given back");
            job.settle(Verdict::GiveBack);
        }
    }
}
