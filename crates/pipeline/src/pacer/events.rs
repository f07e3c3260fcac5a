//! What a pacer receives: answers of the stores, messages of its routes, and the current policies.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tracing::{debug, info, warn};

use super::messages::Join;
use super::{Pacer, Stopping};
use crate::admit::AnsweredQuestion;
use crate::handle::{PacerEvent, PacerLeftover};
use crate::job::WaitingMessage;
use crate::limit::CurrentPolicy;
use crate::uncalled::no_turn::{comes_too_late, others_take_all, send_away_without_turn};
use sluiced_core::after_call::figures::ROUNDED;
use sluiced_core::pacing::{Row, RowPaces};
use sluiced_core::schedule::LeaseAnswer;
use sluiced_core::scheduler::Needs;
use sluiced_core::time::Mono;
use sluiced_ports::clock;
use sluiced_ports::limits::key_id;
use sluiced_ports::store::{Notice, StoreError};
use sluiced_telemetry::waits::WaitsFor;

/// How long a notice of a freeze holds where the store does not answer.
const UNCONFIRMED: Duration = Duration::from_secs(30);

impl Pacer {
    /// The keyed limits answered a question.
    pub(super) fn on_admission_answer(&mut self, answered: AnsweredQuestion) {
        self.admission.take_answer(answered, &mut self.scheduler);
        // The messages of the question are in the scheduler again.
        self.give_back_if_stopping();
        self.hold_shut();
    }

    pub(super) fn on_lease_answer(
        &mut self,
        row: Row,
        sent: Mono,
        answer: Result<LeaseAnswer, StoreError>,
    ) {
        let now = clock::now();
        let meters = &self.handle.meters;
        meters.ask_seconds.record(now.since(sent).as_secs_f64());
        match answer {
            Ok(answer) => {
                if answer.guarded {
                    self.tell_guarded(row);
                }
                let denied_before = self.scheduler.pacing().tally().denied;
                self.scheduler.pacing_mut().note_answer(row, &answer, now);
                let is_denied = self.scheduler.pacing().tally().denied > denied_before;
                meters.asks(if is_denied { "denied" } else { "granted" });
                self.handle.update_clock(&self.scheduler, now);
                if self.scheduler.pacing().is_outdated() {
                    self.outdated.notify_one();
                }
            }
            Err(error) => {
                meters.asks("failed");
                debug!(limit = %self.handle.name, %error, "no lease");
                self.scheduler.pacing_mut().note_failure(row, now);
            }
        }
    }

    /// At the start a missing schedule is normal: that is logged as information. Each row has its own
    /// schedule.
    fn tell_guarded(&self, row: Row) {
        let limit = &self.handle.name;
        let holder = self.scheduler.pacing().holder(row);
        if holder.is_some_and(|holder| holder.clock().is_known()) {
            warn!(%limit, "the schedule was lost, or its clock stepped: starting it again behind its guard");
        } else {
            info!(%limit, "no schedule yet: starting one behind its guard");
        }
    }

    /// One event changes the scheduler, a route or what the pacer does. The next steps of the loop do what follows from
    /// it.
    pub(super) fn on_event(&mut self, event: PacerEvent) {
        let now = clock::now();
        match event {
            PacerEvent::Decoded(messages) => self.on_decoded(messages, now),
            PacerEvent::WaitAgain(waiting) => self.put_back(vec![*waiting]),
            PacerEvent::CallsEnded(calls) => {
                for call in &calls {
                    let charge = call.charge();
                    let key = key_id(&charge.limit.name, charge.key);
                    self.scheduler.note_freed(key, charge.cost.units(), now);
                }
            }
            PacerEvent::FreezeByAnswer { length, is_first } => {
                if let Some(adapting) = &mut self.adapting {
                    adapting.throttled(is_first, now);
                }
                self.scheduler.pacing_mut().freeze_by_answer(length, now);
            }
            PacerEvent::KeysChanged(changes) => self.scheduler.note_key_changes(&changes, now),
            PacerEvent::QuotaLow { left, length } => self.on_quota_low(left, length, now),
            PacerEvent::FreezeOfRow(row, freeze) => {
                self.scheduler.pacing_mut().note_freeze(row, &freeze, now)
            }
            PacerEvent::PacedPolicy(policy, paces) => self.adopt_policy(&policy, &paces, now),
            PacerEvent::KeyedPolicy {
                limit,
                paused_until,
            } => self.on_policy_update(&limit, paused_until),
            // The gates are reviewed before each step.
            PacerEvent::GateChanged => {}
            PacerEvent::Warmed => self.is_warming = false,
            PacerEvent::Stop { deadline, done } => self.stop(deadline, done),
        }
    }

    /// Messages come in, unless it is known that their turn comes too late for them.
    fn on_decoded(&mut self, messages: Vec<WaitingMessage>, now: Mono) {
        let availability = self.scheduler.availability(Needs::Slot, now);
        for waiting in messages {
            let late = comes_too_late(&waiting, availability, now);
            match late.or_else(|| others_take_all(&waiting, &self.scheduler, availability, now)) {
                Some(late) => send_away_without_turn(waiting, late, &self.handle, now),
                None => self.enqueue(waiting, Join::Back, now),
            }
        }
    }

    /// The paced limit has this policy from now on.
    fn adopt_policy(&mut self, policy: &Arc<CurrentPolicy>, paces: &RowPaces, now: Mono) {
        self.handle.adopt_policy(policy, paces);
        if let Some(adapting) = &mut self.adapting {
            adapting.adopt_policy(policy, now);
        }
        let version = policy.stored.version;
        self.scheduler.pacing_mut().retime(paces, version, now);
    }

    /// A replica or an operator has changed something in the store.
    pub(super) fn on_notice(&mut self, notice: Notice) {
        let now = clock::now();
        match notice {
            Notice::Frozen { limit, freeze } => {
                match self.handle.row(&limit) {
                    Some(row) if self.handle.is_paced() => {
                        self.scheduler.pacing_mut().note_freeze(row, &freeze, now);
                    }
                    // Another database of the same Redis has the same channel, and no generation of a schedule shows
                    // whose freeze it is. So it holds until the store is asked, soon or with the route's pause.
                    Some(_) => {
                        let length = freeze.until.since(freeze.now).min(UNCONFIRMED);
                        self.scheduler.pacing_mut().freeze_for(length, now);
                        self.handle.look_at_freeze();
                    }
                    None => {}
                }
            }
            Notice::Freed { limit, key, units } => {
                self.scheduler.note_freed(key_id(&limit, key), units, now);
            }
            Notice::Opened { limit } => {
                self.waits.end(&limit, WaitsFor::Debt);
                self.waits.end(&limit, WaitsFor::Quota);
                self.waits.end(&limit, WaitsFor::Lost);
                self.ask_again(&limit);
            }
            Notice::Breaker { route } => self.breaker_changed(&route),
            // The task of the limit (`policies`) receives changes and sends the current policy.
            Notice::Changed { .. } => {}
        }
    }

    /// The downstream says that only `left` units are left. The answers to all calls that were in flight say
    /// the same: the store is asked again only if the known freeze ends earlier, by more than the rounding of
    /// a reset.
    fn on_quota_low(&mut self, left: u64, length: Duration, now: Mono) {
        let shut = self
            .scheduler
            .availability(Needs::Slot, now)
            .frozen_or_paused();
        let known_end = shut.map(|(end, _)| end);
        if known_end.is_none_or(|end| now + length > end + ROUNDED) {
            self.scheduler.pacing_mut().freeze_by_answer(length, now);
            self.handle.freeze_for_quota(length, left);
        } else {
            self.scheduler.pacing_mut().freeze_for(length, now);
        }
    }

    /// Sends nothing any more, and returns the held messages.
    fn stop(&mut self, deadline: Mono, done: oneshot::Sender<PacerLeftover>) {
        for route in self.routes.iter() {
            route.tap.close();
        }
        self.scheduler.pacing_mut().drop_leases();
        self.stopping = Some(Stopping {
            deadline,
            grace_is_over: false,
            done,
            given_back: 0,
        });
        self.give_back_if_stopping();
    }
}
