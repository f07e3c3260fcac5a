//! Send, judge, settle: one call from its slot to its verdict. Runs on the pacer's own runtime.
//!
//! `downstream::http` makes the call and has the answer judged (`core::judge`). `route_policy` decides what
//! follows for the message. Settling hands the verdict to the session that delivered it
//! (`amqp::rabbit::session`, `settle`).

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt as _;
use tracing::{info, warn};

use sluiced_core::backoff::Backoff;
use sluiced_core::judge::{DeadReason, Outcome};
use sluiced_core::leases::Slot;
use sluiced_core::rate::Span;
use sluiced_core::refusals::{Refusal, Ruling};
use sluiced_core::time::Mono;
use sluiced_ports::downstream::{Gate, Judgement, Undecodable};
use sluiced_ports::lock;
use sluiced_ports::queue::Verdict;
use sluiced_telemetry::LogLimit;

use super::actual::{self, Used};
use super::claims::Claims;
use super::handle::{Event, PacerHandle};
use super::job::{Job, Waiting};
use super::journal::Why;
use super::permit::Permit;
use super::quota;
use super::route::InFlight;
use super::route_policy::{Heard, Next};
use super::verdict::{dead, keep, later};

/// A message that was taken in part waits in memory for at least so long.
const REST: Duration = Duration::from_secs(60);
/// A request with a body beyond this is made on another thread.
const LARGE: usize = 64 * 1024;
/// So many calls of one message in a row may miss their slots before others go before it …
const TOO_LATE: u32 = 3;
/// … for so long.
const BEHIND: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
static LATE: LogLimit = LogLimit::new(Duration::from_secs(10));
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
            too_late(job, permit, &pacer).await;
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
async fn settle(mut job: Job, mut judgement: Judgement, claims: Claims, pacer: &PacerHandle) {
    let policy = &job.route.policy;
    // Where a message may be called only once, a call that may have arrived is not repeated.
    let repeatable = policy.settings.max_attempts > 1 || !judgement.maybe_delivered;
    let away = job.route.observe(&judgement, pacer);
    let away = away.filter(|_| repeatable);
    if judgement.outcome != Outcome::Accepted {
        job.history.last_status = judgement.status();
    }
    let refused_for = refused_for(&job, pacer);
    let ruling = heed(&job, judgement.outcome, refused_for, pacer);
    let heard = Heard {
        outcome: judgement.outcome,
        attempts: job.history.attempts,
        away: away.is_some(),
        maybe_taken: judgement.maybe_delivered && judgement.reply.is_err(),
        ruling: ruling.as_ref(),
        refused_for,
    };
    let next = if heard.maybe_taken && claims.keep_unknown() {
        Next::Dead(DeadReason::Unknown)
    } else {
        policy.next(&heard, || rand::rng().random_range(0.0..1.0))
    };
    job.rest = judgement.rest.take();
    // Where this call spends no attempt, the message spends one if its rest cannot be sent from here.
    let is_free = match next {
        Next::Away { spends } => !spends,
        Next::Freeze(_) | Next::Aside(_) => true,
        Next::Done | Next::Retry(_) | Next::Dead(_) => false,
    };
    job.history.in_parts = is_free && job.rest.is_some();
    match next {
        Next::Done => claims.accepted(pacer.clock).await,
        Next::Dead(DeadReason::Unknown) => claims.unknown(),
        // Only this message may go on: if it leaves this replica, whether all of it was taken is unknown.
        _ if job.rest.is_some() && claims.keep_unknown() => claims.unknown(),
        _ => drop(claims),
    }
    match next {
        Next::Done => job.settle_with(Verdict::Done, judgement.answer.as_ref()),
        Next::Away { spends } => {
            job.history.attempts += u32::from(spends);
            elsewhere(job, pacer, away.and_then(|away| away.behind_others)).await;
        }
        Next::Freeze(wait) => {
            job.route.meters.denials.increment(1);
            job.history.throttled = None;
            pacer.freeze(wait, &judgement.detail);
            behind(job, wait, pacer).await;
        }
        Next::Aside(wait) => {
            job.route.meters.denials.increment(1);
            let now = pacer.store_time(pacer.clock.now());
            let is_first = job.history.throttled.is_none();
            job.history.throttled.get_or_insert(now);
            aside(job, wait, is_first, pacer).await;
        }
        Next::Retry(wait) => {
            job.history.attempts += 1;
            after(job, wait, Why::CallFailed, pacer).await;
        }
        Next::Dead(reason) => {
            job.history.attempts += 1;
            dies(job, reason, judgement, pacer);
        }
    }
}

/// The message waits by itself. Where its queue has another route that sends, that one is tried first, once.
async fn aside(job: Job, wait: Duration, is_first: bool, pacer: &PacerHandle) {
    let is_long = wait > job.route.policy.settings.max_hold.get();
    match job.route.other_that_sends() {
        Some(to) if is_first && is_long => job.move_to(&to),
        _ => after(job, wait, Why::Throttled, pacer).await,
    }
}

/// How long ago the message was refused for the first time; zero if it was not.
fn refused_for(job: &Job, pacer: &PacerHandle) -> Duration {
    let since = job.history.throttled;
    since.map_or(Duration::ZERO, |since| {
        pacer.store_time(pacer.clock.now()).since(since)
    })
}

/// Judges what a refusal is about, by the other calls. What it is about waits.
fn heed(job: &Job, outcome: Outcome, refused_for: Duration, pacer: &PacerHandle) -> Option<Ruling> {
    let now = pacer.clock.now();
    let (wait, names_message) = match outcome {
        Outcome::Accepted => {
            let open = lock(&pacer.refusals).accepted(&job.own_keys(), now);
            if !open.is_empty() {
                pacer.send(Event::Passes(open));
            }
            return None;
        }
        Outcome::Throttled { wait } => (wait, false),
        Outcome::Held { wait } => (wait, true),
        Outcome::Transient { .. } | Outcome::Permanent => return None,
    };
    let keys = job.own_keys();
    let refusal = Refusal {
        message: job.number(),
        keys: &keys,
        refused_for,
        wait,
        names_message,
    };
    let ruling = lock(&pacer.refusals).refused(&refusal, now);
    if ruling.is_about_all && !keys.is_empty() {
        // After the freeze the next call is for another key.
        pacer.send(Event::Behind(keys, now + wait + pacer.interval()));
    }
    for (key, wait) in &ruling.keys {
        pacer.refused(*key, *wait);
    }
    Some(ruling)
}

/// To the dead letters, with what was answered.
fn dies(job: Job, reason: DeadReason, judgement: Judgement, pacer: &PacerHandle) {
    let now = pacer.store_time(pacer.clock.now());
    let mut detail = judgement.detail;
    if judgement.maybe_delivered && judgement.reply.is_err() {
        detail.push_str("; it may have been taken");
    }
    let mut verdict = dead(&job.route, &job.history, reason, detail, now);
    let kept = judgement.answer.as_ref();
    if let Some(answer) = kept.filter(|_| job.route.policy.settings.keep_answer()) {
        keep(&mut verdict, answer);
    }
    job.settle_with(verdict, judgement.answer.as_ref());
}

/// Behind the other messages once the freeze has ended, in memory: the whole route waits.
async fn behind(job: Job, wait: Duration, pacer: &PacerHandle) {
    let at = pacer.clock.now() + wait;
    again(job, pacer, Some(at)).await;
}

/// Another call after the wait, in the hours of its route: from memory, or through a wait queue.
async fn after(job: Job, wait: Duration, why: Why<'_>, pacer: &PacerHandle) {
    let now = pacer.clock.now();
    let store_now = pacer.store_time(now);
    let wait = job.route.opening(store_now + wait).since(store_now);
    let most = job.route.policy.settings.max_hold.get();
    // A message that was taken in part goes on only from here.
    let most = if job.rest.is_some() {
        most.max(REST)
    } else {
        most
    };
    if wait <= most {
        again(job, pacer, Some(now + wait)).await;
    } else {
        let verdict = later(&job.history, wait, store_now);
        job.settle_because(verdict, Some(why));
    }
}

/// The call was not written before its slot had passed. A message that this happens to again and again is the
/// reason itself, as far as is known: others go before it.
async fn too_late(mut job: Job, permit: Permit, pacer: &PacerHandle) {
    job.too_late += 1;
    let (count, route) = (job.too_late, Arc::clone(&job.route));
    let Some(mut waiting) = prepared(job).await else {
        return;
    };
    waiting.permit = permit;
    if count >= TOO_LATE {
        let now = pacer.clock.now();
        let wait = BEHIND.ceiling(count - TOO_LATE + 1);
        waiting.not_before = Some(now + wait);
        if let Some(more) = LATE.event(now) {
            let bytes = waiting.job.delivery.message().body.len();
            info!(route = %route.name, count, bytes, ?wait,
                "a call could not be written before its slot had passed, again and again: others go before its message{more}");
        }
    }
    pacer.unsent(vec![waiting]);
}

/// To another route of the queue that sends, or as `again`.
async fn elsewhere(job: Job, pacer: &PacerHandle, at: Option<Mono>) {
    match job.route.other_that_sends() {
        Some(to) => job.move_to(&to),
        None => again(job, pacer, at).await,
    }
}

/// Back to the pacer, with a fresh request; not before `at`, if that is given.
async fn again(job: Job, pacer: &PacerHandle, at: Option<Mono>) {
    if let Some(mut waiting) = prepared(job).await {
        waiting.not_before = at;
        pacer.send(Event::Again(Box::new(waiting)));
    }
}

/// With a fresh request. One could be prepared before; if not now, the message goes back to its queue.
async fn prepared(job: Job) -> Option<Waiting> {
    match prepare_aside(job).await? {
        Ok(waiting) => Some(waiting),
        Err(failed) => {
            let (job, why) = *failed;
            warn!(route = %job.route.name, %why, "cannot be prepared again; given back");
            job.settle(Verdict::GiveBack);
            None
        }
    }
}

/// The request of a large message takes longer to make than a slot is wide: not on the thread that sends.
/// `None`: that task ended, and its message went back to its queue.
async fn prepare_aside(job: Job) -> Option<Result<Waiting, Box<(Job, Undecodable)>>> {
    if job.delivery.message().body.len() <= LARGE {
        return Some(job.prepare_again());
    }
    tokio::task::spawn_blocking(move || job.prepare_again())
        .await
        .ok()
}
