//! Admit: asks the keyed limits for the messages that the next slots would take.
//!
//! The scheduler decides when and for which messages (`Action::Admit`), what the answer means for them, and where a
//! denied message waits (`core::scheduler::answers`). The decision is made in the store (`core::limits::admission` in
//! Rust, `lua/admit.lua` in Redis). This file has the questions in flight, the metrics and the log lines. All limits of
//! a message are asked in one call, for many messages at once. Messages that leave memory because of it are settled in
//! `uncalled::sent_away`.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tracing::{debug, info, warn};

use super::handle::PacerHandle;
use super::job::WaitingMessage;
use super::meters::{AdmissionMeters, KeyedMeters};
use super::permit::tickets::Tickets;
use sluiced_core::limits::admission::Decision;
use sluiced_core::limits::generation::ClosedReason;
use sluiced_core::limits::once::NotCalled;
use sluiced_core::limits::{Fit, Lacks, Ticket};
use sluiced_core::message::Queued as _;
use sluiced_core::scheduler::{AskedMessage, Question, Scheduler};
use sluiced_core::time::{Mono, StoreTime};
use sluiced_ports::clock;
use sluiced_ports::limits::{Candidate, Decisions, GrantedCharge, KeyedLimit};
use sluiced_ports::store::StoreError;
use sluiced_telemetry::LogLimits;
use sluiced_telemetry::waits::{Waits, WaitsFor};

static UNANSWERED: LogLimits = LogLimits::new(Duration::from_secs(10));

/// The questions of one pacer to its keyed limits.
pub(super) struct Admission {
    /// Has the store and the refunder.
    pacer: Arc<PacerHandle>,
    tickets: Arc<Tickets>,
    meters: AdmissionMeters,
    limit_meters: Arc<BTreeMap<Arc<str>, KeyedMeters>>,
    /// As many as the scheduler has under way.
    in_flight: FuturesUnordered<BoxFuture<'static, AnsweredQuestion>>,
    waits: Waits,
    /// The limits that grant nothing, and until when, as it was logged.
    logged: BTreeMap<Arc<str>, StoreTime>,
}

/// A question with the store's answer.
pub(super) struct AnsweredQuestion {
    question: Question<WaitingMessage>,
    answer: Result<Decisions, StoreError>,
}

impl Admission {
    pub(super) fn new(
        pacer: Arc<PacerHandle>,
        tickets: Arc<Tickets>,
        limit_meters: Arc<BTreeMap<Arc<str>, KeyedMeters>>,
        waits: Waits,
    ) -> Self {
        Self {
            meters: AdmissionMeters::new(&pacer.name),
            pacer,
            tickets,
            limit_meters,
            waits,
            in_flight: FuturesUnordered::new(),
            logged: BTreeMap::new(),
        }
    }

    /// Whether no question is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Sends a question.
    pub(super) fn ask(&self, mut question: Question<WaitingMessage>) {
        let asked = question.asked.iter_mut();
        let candidates: Vec<Candidate> = asked.map(|asked| self.candidate(asked)).collect();
        let store = Arc::clone(&self.pacer.store);
        self.in_flight.push(Box::pin(async move {
            let answer = store.admit(&candidates, question.wanted).await;
            AnsweredQuestion { question, answer }
        }));
    }

    fn candidate(&self, asked: &mut AskedMessage<WaitingMessage>) -> Candidate {
        let last = asked.item.job.ticket.map(Ticket::next);
        let ticket = last.unwrap_or_else(|| self.tickets.next());
        asked.item.job.ticket = Some(ticket);
        asked.item.asked = Some(self.pacer.refunder.clone());
        Candidate {
            charges: asked.item.job.charges().to_vec(),
            was_denied: asked.item.was_denied(),
            slots: asked.item.cost(),
            ticket,
            died: asked.item.job.history().died,
            others_wait: asked.others_wait,
        }
    }

    /// The next answer to one of the questions in flight. Cancel-safe.
    pub(super) async fn next(&mut self) -> AnsweredQuestion {
        match self.in_flight.next().await {
            Some(answered) => answered,
            None => pending().await,
        }
    }

    /// Hands an answer to the scheduler, and records the decisions in metrics and log.
    pub(super) fn take_answer(
        &mut self,
        AnsweredQuestion { question, answer }: AnsweredQuestion,
        scheduler: &mut Scheduler<WaitingMessage>,
    ) {
        let now = clock::now();
        let trip = now.since(question.sent);
        self.meters.request_seconds.record(trip.as_secs_f64());
        let answer = match answer {
            Ok(answer) if answer.decisions.len() == question.asked.len() => answer,
            answer => {
                self.count_unanswered(answer.err(), &question, now);
                return scheduler.note_no_answer(question, now);
            }
        };
        for (asked, decision) in question.asked.iter().zip(&answer.decisions) {
            self.note(&asked.item, decision, answer.now);
        }
        if answer.alone {
            scheduler.skip_startup_listen();
        }
        scheduler.note_decisions(question, answer.now, answer.decisions, now);
        self.pacer.update_clock(scheduler, now);
    }

    /// Counts a decision, and logs it where an operator should know.
    fn note(&mut self, item: &WaitingMessage, decision: &Decision, decided: StoreTime) {
        self.meters.decided(label(decision), 1);
        let limit = |by: usize| &item.job.charges()[by].limit;
        match *decision {
            Decision::Denied {
                by, fits, lacks, ..
            } => {
                self.count_denial(item, by);
                if let Fit::At(at) = fits {
                    let left = at.since(decided);
                    self.show_wait(limit(by), lacks, left);
                }
            }
            Decision::Outdated { by } => limit(by).outdated.notify_one(),
            Decision::Closed { by, until, why } => {
                let opens = clock::now() + until.since(decided);
                let name = &limit(by).name;
                match why {
                    ClosedReason::Lost => self.waits.note(name, WaitsFor::Lost, opens),
                    ClosedReason::Paused => self.waits.note(name, WaitsFor::Pause, opens),
                    ClosedReason::Guard => {}
                }
                self.log_closed(limit(by), until, why);
            }
            Decision::Granted { .. }
            | Decision::TooCostly { .. }
            | Decision::NotCalled { .. }
            | Decision::NotAsked => {}
        }
    }

    /// Shows that a message waits for something else than the rate of a limit, for this long.
    fn show_wait(&self, limit: &KeyedLimit, lacks: Lacks, left: Duration) {
        let what = match lacks {
            Lacks::Room => return,
            Lacks::Debt => WaitsFor::Debt,
            Lacks::Quota => WaitsFor::Quota,
        };
        let until = clock::now() + left;
        self.waits.note(&limit.name, what, until);
    }

    /// Counts that limit number `by` of a message denied it, or is known to be full.
    pub(super) fn count_denial(&self, item: &WaitingMessage, by: usize) {
        item.job.route.calls.note_passed_over();
        item.job.route.meters.denials.increment(1);
        let limit = item.job.charges().get(by).map(|charge| &charge.limit.name);
        if let Some(meters) = limit.and_then(|name| self.limit_meters.get(name)) {
            meters.denials.increment(1);
        }
    }

    fn count_unanswered(
        &self,
        error: Option<StoreError>,
        question: &Question<WaitingMessage>,
        now: Mono,
    ) {
        let pacer = &self.pacer;
        if let Some(more) = UNANSWERED.event(&pacer.name, now) {
            let error = error.map_or_else(
                || "the store answered for another number of messages".to_owned(),
                |error| error.to_string(),
            );
            debug!(pacer = %pacer.name, error, "the keyed limits did not answer{more}");
        }
        let count = question.asked.len() as u64;
        self.meters.decided("failed", count);
        for asked in &question.asked {
            // It may have been granted: a call that never began must not count until its lease ends.
            if let Some(ticket) = asked.item.job.ticket {
                let charges = asked.item.job.charges().iter();
                let of_calls = charges.filter(|charge| charge.limit.counts_calls());
                let calls = of_calls.map(|charge| GrantedCharge::call(charge, ticket));
                self.pacer.refunder.unanswered(calls.collect());
            }
        }
    }

    /// Logs once that a limit grants nothing, and why.
    fn log_closed(&mut self, limit: &KeyedLimit, until: StoreTime, why: ClosedReason) {
        if self.logged.insert(Arc::clone(&limit.name), until) == Some(until) {
            return;
        }
        let (pacer, limit) = (&self.pacer.name, &limit.name);
        match why {
            ClosedReason::Lost => warn!(%pacer, %limit, until = format_args!("{until:.0}"),
                "the store lost its state, or the kind of the limit was changed: the limit grants nothing until the units that were spent before no longer count, or for its lost_wait (`sluiced limits open` ends it)"),
            ClosedReason::Guard => info!(%pacer, %limit, until = format_args!("{until:.0}"),
                "the store is new or was restarted: nothing is granted while replicas report what they remember"),
            ClosedReason::Paused => {
                debug!(%pacer, %limit, until = format_args!("{until:.0}"), "the limit is paused")
            }
        }
    }
}

/// The value of the metric label `decision`.
const fn label(decision: &Decision) -> &'static str {
    match decision {
        Decision::Granted { .. } => "granted",
        Decision::Denied { .. } => "denied",
        Decision::TooCostly { .. } => "never",
        Decision::NotCalled { how, .. } => match how {
            NotCalled::Done => "repeat",
            NotCalled::Unknown => "unknown",
        },
        Decision::Outdated { .. } => "outdated",
        Decision::Closed { .. } => "closed",
        Decision::NotAsked => "not_asked",
    }
}
