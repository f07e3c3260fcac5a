//! Send, judge, settle: one call from its slot to its verdict. Runs on the pacer's own runtime.
//!
//! `downstream::http` makes the call and has the answer judged (`core::judge`). `route_policy` decides what
//! follows for the message. Settling hands the verdict to the session that delivered it
//! (`queue::rabbit::session`, `settle`).

use std::time::Duration;

use rand::RngExt as _;
use tracing::warn;

use crate::core::judge::{DeadReason, Outcome};
use crate::core::leases::Slot;
use crate::core::rate::Span;
use crate::core::time::Mono;
use crate::ports::downstream::{Gate, Judgement};
use crate::ports::queue::Verdict;
use crate::telemetry::LogLimit;

use super::actual::{self, Used};
use super::claims::Claims;
use super::handle::{Event, PacerHandle};
use super::job::{Job, Waiting};
use super::journal::Why;
use super::quota;
use super::route::InFlight;
use super::route_policy::Next;
use super::verdict::{dead, keep, later};

static CUT: LogLimit = LogLimit::new(Duration::from_secs(60));

/// Sends a message whose slot is due and sees it through.
///
/// `under_way` is dropped after the verdict is given: a pacer that stops waits for that.
pub(super) async fn perform(waiting: Waiting, slot: Slot, under_way: InFlight, pacer: PacerHandle) {
    let started = pacer.clock.now();
    // Between the pacer's decision and this task's turn the machine may have stood still. A slot that is
    // too late now is lost, never used late. The clock is read once more when the request is written.
    if started > slot.leave_by {
        missed(under_way, slot, &pacer);
        return pacer.unsent(vec![waiting]);
    }
    let (job, call, mut permit) = waiting.send();
    let gate = Gate::new(pacer.clock, slot.leave_by);
    let sent = permit.during(call.send(gate)).await;
    match sent {
        Ok(judgement) => {
            let taken = if judgement.maybe_delivered {
                permit.consume()
            } else {
                Vec::new()
            };
            let claims = permit.end_call();
            let used = actual::read(&job, &judgement, &taken, &pacer);
            measure(&job, &judgement, (slot, started), &used, &pacer);
            actual::correct(&used, &taken, &pacer);
            quota::heed(&job, &judgement, pacer.clock.now().since(started), &pacer);
            settle(job, judgement, claims, &pacer).await;
            drop(under_way);
        }
        Err(_too_late) => {
            missed(under_way, slot, &pacer);
            if let Some(mut waiting) = prepared(job) {
                waiting.permit = permit;
                pacer.unsent(vec![waiting]);
            }
        }
    }
}

/// The slot had passed before the call left.
fn missed(under_way: InFlight, slot: Slot, pacer: &PacerHandle) {
    if under_way.unsent() {
        pacer.send(Event::GateChanged);
    }
    pacer.meters.slots_missed.increment(1);
    if pacer.is_paced() {
        let now = pacer.clock.now();
        pacer.measures.left(now.since(slot.at), now);
    }
}

fn measure(
    job: &Job,
    judgement: &Judgement,
    (slot, started): (Slot, Mono),
    used: &[Used<'_>],
    pacer: &PacerHandle,
) {
    pacer.meters.permits.increment(job.slots().units());
    let late = started.since(slot.at);
    pacer
        .meters
        .slot_lateness_seconds
        .record(late.as_secs_f64());
    pacer.measures.left(late, started);
    let age = started.since(job.delivery.received());
    job.route.called(job.tenant(), started);
    let meters = &job.route.meters;
    meters.age_seconds.record(age.as_secs_f64());
    let sent = pacer.store_time(started);
    if judgement.outcome == Outcome::Accepted {
        let born = job.history.born(job.delivery.message());
        let delay = sent.since(born);
        meters.queue_delay_seconds.record(delay.as_secs_f64());
    }
    let length = pacer.clock.now().since(started);
    job.journal_call(judgement, used, length, sent);
    meters.call_seconds.record(length.as_secs_f64());
    meters.call(judgement.outcome.label(), judgement.reply_label());
    if judgement.maybe_delivered && judgement.reply.is_err() {
        meters.maybe_delivered.increment(1);
    }
    if let Some(asked) = judgement.cut_from {
        cut(job, asked, pacer);
    }
}

/// The answer asked to wait for longer than is believed.
fn cut(job: &Job, asked: Duration, pacer: &PacerHandle) {
    job.route.meters.waits_cut.increment(1);
    if let Some(more) = CUT.event(pacer.clock.now()) {
        let most = Span(job.route.policy.settings.max_throttle_wait());
        warn!(route = %job.route.name, asked = %Span(asked),
            "the downstream asks to wait for longer than max_throttle_wait; calls go on after {most}{more}");
    }
}

/// The verdict on a call that was made.
async fn settle(mut job: Job, judgement: Judgement, claims: Claims, pacer: &PacerHandle) {
    let policy = &job.route.policy;
    // Where a message may be called only once, a call that may have arrived is not repeated.
    let repeatable = policy.settings.max_attempts > 1 || !judgement.maybe_delivered;
    let away = job.route.observe(&judgement, pacer);
    let away = away.filter(|_| repeatable);
    if judgement.outcome != Outcome::Accepted {
        job.history.last_status = judgement.status();
    }
    let fraction = || rand::rng().random_range(0.0..1.0);
    let attempts = job.history.attempts;
    let is_away = away.is_some();
    let may_be_twice = judgement.maybe_delivered && judgement.reply.is_err();
    let next = if may_be_twice && claims.keep_unknown() {
        Next::Dead(DeadReason::Unknown)
    } else {
        policy.next(judgement.outcome, attempts, is_away, fraction)
    };
    match next {
        Next::Done => claims.accepted(pacer.clock).await,
        Next::Dead(DeadReason::Unknown) => claims.unknown(),
        _ => drop(claims),
    }
    match next {
        Next::Done => job.settle_with(Verdict::Done, judgement.answer.as_ref()),
        Next::Away => elsewhere(job, pacer, away.and_then(|away| away.behind_others)),
        Next::Thaw(wait) => {
            job.route.meters.denials.increment(1);
            pacer.freeze(wait, &judgement.detail);
            again(job, pacer, None);
        }
        Next::Hold(wait) => {
            job.route.meters.denials.increment(1);
            after(job, wait, Why::HeldBack, pacer);
        }
        Next::Retry(wait) => {
            job.history.attempts += 1;
            after(job, wait, Why::CallFailed, pacer);
        }
        Next::Dead(reason) => {
            job.history.attempts += 1;
            let now = pacer.store_time(pacer.clock.now());
            let mut verdict = dead(&job.route, &job.history, reason, judgement.detail, now);
            let kept = judgement.answer.as_ref();
            if let Some(answer) = kept.filter(|_| policy.settings.keep_answer()) {
                keep(&mut verdict, answer);
            }
            job.settle_with(verdict, judgement.answer.as_ref());
        }
    }
}

/// Another call after the wait, in the hours of its route: from memory, or through a wait queue.
fn after(job: Job, wait: Duration, why: Why<'_>, pacer: &PacerHandle) {
    let now = pacer.clock.now();
    let store_now = pacer.store_time(now);
    let wait = job.route.opening(store_now + wait).since(store_now);
    if wait <= job.route.policy.settings.max_hold.get() {
        again(job, pacer, Some(now + wait));
    } else {
        let verdict = later(&job.history, wait, store_now);
        job.settle_because(verdict, Some(why));
    }
}

/// To another route of the queue that sends, or as `again`.
fn elsewhere(job: Job, pacer: &PacerHandle, at: Option<Mono>) {
    match job.route.other_that_sends() {
        Some(to) => job.move_to(&to),
        None => again(job, pacer, at),
    }
}

/// Back to the pacer, with a fresh request; not before `at`, if that is given.
fn again(job: Job, pacer: &PacerHandle, at: Option<Mono>) {
    if let Some(mut waiting) = prepared(job) {
        waiting.not_before = at;
        pacer.send(Event::Again(Box::new(waiting)));
    }
}

/// With a fresh request. One could be prepared before; if not now, the message goes back to its queue.
fn prepared(job: Job) -> Option<Waiting> {
    match job.prepare_again() {
        Ok(waiting) => Some(waiting),
        Err(failed) => {
            let (job, why) = *failed;
            warn!(route = %job.route.name, %why, "cannot be prepared again; given back");
            job.settle(Verdict::GiveBack);
            None
        }
    }
}
