//! After a call: reads its answer, lets `core::after_call` decide what follows, and carries that out.
//!
//! Everything that follows from the answer is in [`AfterCall`]. This file decides only whether another route can take
//! the message at this moment. It tells the breaker, the keys and the limits, measures, and hands the message on: to
//! its verdict, or back to the pacer for another call.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt as _;
use tracing::warn;

use sluiced_core::after_call::{
    AfterCall, CallEnd, Cause, ClaimsEnd, KeyChanges, NextStep, NextWait, OnceRule, decide,
};
use sluiced_core::judge::{DeadReason, Outcome};
use sluiced_core::leases::Slot;
use sluiced_core::rate::Span;
use sluiced_core::time::{Mono, Now};
use sluiced_ports::clock;
use sluiced_ports::downstream::{Judgement, Status};
use sluiced_ports::limits::GrantedCharge;
use sluiced_ports::lock;
use sluiced_ports::queue::Verdict;
use sluiced_telemetry::LogLimits;

use super::again::send_back_to_pacer;
use super::ends::journal::{CallLine, UnitsUsed, Why};
use super::figures::Figures;
use super::handle::{PacerEvent, PacerHandle};
use super::job::Job;
use super::permit::Permit;
use super::permit::claims::Claims;
use super::verdict::{add_answer, dead};

static KEY_REFUSED: LogLimits = LogLimits::new(Duration::from_secs(10));
static CUT: LogLimits = LogLimits::new(Duration::from_secs(60));

/// A call that has come back.
pub(super) struct AnsweredCall {
    pub(super) job: Box<Job>,
    pub(super) judgement: Judgement,
    /// The units that the call took of keyed limits.
    pub(super) taken: Vec<GrantedCharge>,
    pub(super) claims: Claims,
    /// What the call did not spend.
    pub(super) unspent: Permit,
    pub(super) slot: Slot,
    /// When the call began.
    pub(super) started: Mono,
    /// Whether it is the probe of the breaker.
    pub(super) is_probe: bool,
}

impl AnsweredCall {
    /// Decides what follows, and does it. Returns once the verdict is given, or the message waits for another call.
    ///
    /// The order matters. The limits are corrected before units are returned, which would change what is corrected. The
    /// gate and the keys are told before the claims, which may wait for the store. The claims come before the verdict:
    /// a message must not be settled before the store knows that it was accepted.
    pub(super) async fn finish(self, pacer: &Arc<PacerHandle>) {
        let now = pacer.now();
        let figures = Figures::read(&self.job, &self.judgement, &self.taken, now, pacer);
        let follows = self.decide(&figures, now, pacer);
        self.measure(&figures.believed(&follows.used), now, pacer);
        figures.carry_out(&follows);
        let Self {
            mut job,
            mut judgement,
            claims,
            taken,
            mut unspent,
            ..
        } = self;
        if follows.refunds_units {
            unspent.refund_key_units(taken, &job.own_keys());
        }
        let detail = &judgement.detail;
        tell_gate(&job, &follows, detail, pacer);
        tell_keys(follows.keys, pacer);
        if follows.is_refused {
            job.route.meters.denials.increment(1);
        }
        if follows.came_early {
            pacer.measures.note_refusal(clock::now());
        }
        if let Some(wait) = follows.freeze_for {
            pacer.freeze(wait, detail);
        }
        job.unsettled.history.tries = follows.tries;
        job.rest = judgement.rest.take();
        match follows.claims {
            ClaimsEnd::Accepted => claims.accepted(&pacer.grace_is_over).await,
            ClaimsEnd::Unknown => claims.unknown(),
            ClaimsEnd::Released => drop(claims),
        }
        match follows.next {
            NextStep::Done => job.settle_answered(Verdict::Done, judgement.answer.as_ref()),
            NextStep::Dead(reason) => settle_dead(job, reason, judgement, pacer),
            NextStep::Again {
                waits,
                other_route_first,
            } => {
                // This future is rare and large. Boxed, it does not enlarge the future of every call.
                Box::pin(call_again(job, unspent, waits, other_route_first, pacer)).await;
            }
        }
    }

    fn decide(&self, figures: &Figures<'_>, now: Now, pacer: &PacerHandle) -> AfterCall {
        let (job, judgement) = (&self.job, &self.judgement);
        let call = CallEnd {
            now,
            began: self.started,
            is_probe: self.is_probe,
            outcome: judgement.outcome,
            throttles: figures.throttles(),
            reply: judgement.reply.map(Status::as_answer),
            maybe_delivered: judgement.maybe_delivered,
            has_rest: judgement.rest.is_some(),
            renewed: judgement.renewed,
            message: job.id_hash(),
            keys: &job.own_keys(),
            tries: job.history().tries,
            once: match self.claims.keep_unknown() {
                true => OnceRule::NeverRepeats,
                false => OnceRule::MayRepeat,
            },
            rules: job.route.rules.calls,
            interval: pacer.interval(),
            fraction: rand::rng().random_range(0.0..1.0),
            used: &figures.used(),
            quotas: &figures.quotas(now.local.since(self.started)),
        };
        let opening = |at| job.opening(at);
        let mut refusals = lock(&pacer.refusals);
        let gate = &job.route.gate;
        gate.with(|gate| decide(&call, gate, &mut refusals, opening))
    }

    fn measure(&self, used: &[UnitsUsed<'_>], now: Now, pacer: &PacerHandle) {
        let (job, judgement, started) = (&self.job, &self.judgement, self.started);
        pacer.meters.used_units.increment(job.slots().units());
        let late = started.since(self.slot.at);
        let lateness = &pacer.meters.slot_lateness_seconds;
        lateness.record(late.as_secs_f64());
        pacer.measures.note_lateness(late, started);
        let age = started.since(job.delivery().received());
        job.route.holding.note_call(job.tenant(), started);
        let meters = &job.route.meters;
        meters.age_seconds.record(age.as_secs_f64());
        let sent = pacer.store_time(started);
        if judgement.outcome == Outcome::Accepted {
            let born = job.history().born(job.message());
            let delay = sent.since(born);
            meters.queue_delay_seconds.record(delay.as_secs_f64());
        }
        let length = now.local.since(started);
        if let Some(journal) = job.route.ends.journal() {
            let line = CallLine {
                judgement,
                used,
                length,
                sent,
            };
            journal.call(job.called(), line);
        }
        meters.call_seconds.record(length.as_secs_f64());
        if judgement.reply.is_ok() {
            job.route.way.answered(length, now.local);
        }
        meters.call(judgement.outcome.label(), judgement.reply_label());
        if judgement.maybe_delivered && judgement.reply.is_err() {
            meters.maybe_delivered.increment(1);
        }
        if let Some(asked) = judgement.cut_from {
            warn_of_cut_wait(job, asked);
        }
    }
}

/// The answer asked to wait for longer than is believed.
fn warn_of_cut_wait(job: &Job, asked: Duration) {
    job.route.meters.waits_cut.increment(1);
    if let Some(more) = CUT.event(&job.route.name, clock::now()) {
        let most = Span(job.route.rules.answers.max_wait);
        warn!(route = %job.route.name, asked = %Span(asked),
            "the downstream asks to wait for longer than max_throttle_wait; calls go on after {most}{more}");
    }
}

/// Tells the gate of the route, its breaker and its pacer what the call shows about the downstream.
fn tell_gate(job: &Job, follows: &AfterCall, detail: &str, pacer: &Arc<PacerHandle>) {
    let gate = &job.route.gate;
    gate.show_call(follows, detail);
    if let Some(report) = follows.report {
        pacer.report_breaker(gate, report);
    }
    if follows.gate_may_change {
        pacer.send(PacerEvent::GateChanged);
    }
}

/// Tells the pacer what the answer shows about the keys of the message.
fn tell_keys(keys: KeyChanges, pacer: &PacerHandle) {
    let now = clock::now();
    if let Some((_, until)) = keys.refused.first()
        && let Some(more) = KEY_REFUSED.event(&pacer.name, now)
    {
        let wait = until.since(now);
        warn!(pacer = %pacer.name, ?wait,
            "the downstream throttles all messages of a key; these wait, others pass{more}");
    }
    if !keys.is_empty() {
        pacer.send(PacerEvent::KeysChanged(keys));
    }
}

/// To the dead letters, with what was answered.
fn settle_dead(job: Box<Job>, reason: DeadReason, judgement: Judgement, pacer: &PacerHandle) {
    let now = pacer.store_time(clock::now());
    let mut detail = judgement.detail;
    if judgement.maybe_delivered && judgement.reply.is_err() {
        detail.push_str("; it may have been taken");
    }
    let mut verdict = dead(job.history(), reason, detail, now);
    let kept = judgement.answer.as_ref();
    if let Some(answer) = kept.filter(|_| job.route.rules.answers.is_kept) {
        add_answer(&mut verdict, answer);
    }
    job.settle_answered(verdict, judgement.answer.as_ref());
}

/// The message is called again: by another route of its queue that sends, if it may go `other_route_first`, or by this
/// one.
async fn call_again(
    job: Box<Job>,
    unspent: Permit,
    waits: NextWait,
    other_route_first: bool,
    pacer: &PacerHandle,
) {
    if other_route_first
        && job.may_move()
        && let Some(to) = job.route.sharing.other_that_sends()
    {
        unspent.refund().await;
        let now = pacer.store_time(clock::now());
        return job.move_to(&to, now);
    }
    match waits {
        NextWait::Here(at) => send_back_to_pacer(job, unspent, pacer, at).await,
        NextWait::InQueue(wait, cause) => {
            let now = pacer.store_time(clock::now());
            let why = match cause {
                Cause::Failed => Why::CallFailed,
                Cause::Refused => Why::Throttled,
            };
            let verdict = job.history().later(wait, now);
            job.settle_because(verdict, Some(why), now);
        }
    }
}
