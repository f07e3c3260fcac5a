//! What a pacer is told: answers of the stores, messages from its routes, and what is in force.

use std::time::Duration;

use tokio::sync::oneshot;
use tracing::{debug, info, warn};

use super::{Pacer, Stopping};
use crate::core::clock::ClockMap;
use crate::core::pacing::Row;
use crate::core::schedule::Answer;
use crate::core::scheduler::{Denied, Queued as _};
use crate::core::time::{Mono, StoreTime};
use crate::pipeline::admit::{Answered, send_away};
use crate::pipeline::handle::{Event, Stopped};
use crate::pipeline::job::Waiting;
use crate::pipeline::verdict::back;
use crate::ports::limits::key_id;
use crate::ports::pace::StoreError;

impl Pacer {
    /// The keyed limits answered a question.
    pub(super) fn answered(&mut self, answered: Answered) {
        let (scheduler, handle) = (&mut self.scheduler, &self.handle);
        self.admission.answered(answered, scheduler, handle);
        // What was asked for is in the scheduler again.
        self.give_back_all();
    }

    /// A limit denied a message, and it cannot wait in memory.
    pub(super) fn away(&mut self, waiting: Waiting, denied: &Denied, now: Mono) {
        if self.stopping.is_some() {
            return self.give_back(waiting);
        }
        if denied.room.is_none() {
            self.admission.count_denial(&waiting, denied.by);
        }
        send_away(waiting, denied, now);
    }

    /// A keyed limit grants no more to a route: it waits as a whole.
    pub(super) fn close_route(&mut self, number: usize, until: Mono, now: Mono) {
        self.hours.spent(number, until, now);
    }

    pub(super) fn leased(&mut self, row: Row, sent: Mono, answer: Result<Answer, StoreError>) {
        let now = self.handle.clock.now();
        let meters = &self.handle.meters;
        meters.ask_seconds.record(now.since(sent).as_secs_f64());
        match answer {
            Ok(answer) => {
                if answer.guarded {
                    self.tell_guarded();
                }
                let denied = self.scheduler.tally().denied;
                self.scheduler.leased(row, &answer, now);
                let denied = self.scheduler.tally().denied > denied;
                meters.asks(if denied { "denied" } else { "granted" });
                self.handle.learned(&self.scheduler, now);
                if self.scheduler.is_outdated() {
                    self.outdated.notify_one();
                }
            }
            Err(error) => {
                meters.asks("failed");
                debug!(limit = %self.handle.name, %error, "no lease");
                self.scheduler.lease_failed(row, now);
            }
        }
    }

    /// At the start a schedule that is not there yet is nothing to worry about.
    fn tell_guarded(&self) {
        let limit = &self.handle.name;
        if self.scheduler.clock().is_some_and(ClockMap::is_known) {
            warn!(%limit, "the schedule was lost, or its clock stepped: starting it again behind its guard");
        } else {
            info!(%limit, "no schedule yet: starting one behind its guard");
        }
    }

    pub(super) fn take_in(&mut self, event: Event) {
        match event {
            Event::Decoded(messages) => {
                for waiting in messages {
                    self.hold(waiting, false);
                }
            }
            Event::Unsent(messages, went_back) => {
                for waiting in messages.iter().filter(|_| went_back) {
                    // Their keys have room again.
                    self.scheduler.refunded(waiting.keys());
                }
                for waiting in messages.into_iter().rev() {
                    self.hold(waiting, true);
                }
            }
            Event::Freed(calls) => {
                let now = self.handle.clock.now();
                for call in &calls {
                    let charge = call.charge();
                    let key = key_id(&charge.limit.name, charge.key);
                    self.scheduler.freed(key, charge.cost.units(), now);
                }
            }
            Event::Again(waiting) => self.hold(*waiting, true),
            Event::Throttled(length) => {
                let now = self.handle.clock.now();
                if let Some(adapting) = &mut self.adapting {
                    adapting.throttled(now);
                }
                self.scheduler.frozen_for(length, now);
            }
            Event::Frozen(row, freeze) => {
                self.scheduler.frozen(row, &freeze, self.handle.clock.now());
            }
            Event::Policy(policy, paces) => {
                self.handle.adopt(&policy, &paces);
                let now = self.handle.clock.now();
                if let Some(adapting) = &mut self.adapting {
                    adapting.adopt(&policy, now);
                }
                self.scheduler.retime(&paces, policy.stored.version, now);
            }
            Event::Updated(limit, paused) => self.updated(&limit, paused),
            Event::Called(route) => self.called(route),
            Event::NotCalled(route) => self.not_called(route),
            Event::BreakerStatus(route, answer) => self.breaker_status(route, answer),
            Event::Warmed => self.warming = false,
            Event::Stop { deadline, done } => self.stop(deadline, done),
        }
    }

    /// Sends nothing any more; what is held goes back.
    fn stop(&mut self, deadline: Mono, done: oneshot::Sender<Stopped>) {
        self.taps.close_all();
        for (row, tail) in self.scheduler.surrender() {
            self.handle.give_back(row, tail);
        }
        self.stopping = Some(Stopping {
            deadline,
            done,
            given_back: 0,
        });
        self.give_back_all();
    }

    /// While it stops, what the scheduler has goes back to its queues.
    fn give_back_all(&mut self) {
        if self.stopping.is_some() {
            for waiting in self.scheduler.extract_all() {
                self.give_back(waiting);
            }
        }
    }

    /// A message goes back to its queue because the pacer stops.
    pub(super) fn give_back(&mut self, waiting: Waiting) {
        if let Some(stopping) = &mut self.stopping {
            stopping.given_back += 1;
        }
        let now = self.handle.clock.now();
        let wait = waiting
            .not_before
            .map_or(Duration::ZERO, |at| at.since(now));
        let verdict = back(&waiting.job.history, wait, self.handle.store_time(now));
        waiting.job.settle(verdict);
    }

    /// Another policy of a keyed limit is in force, or a pause begins, changes or ends. Routes that it
    /// pauses wait as a whole; what waited for it asks anew.
    pub(super) fn updated(&mut self, limit: &str, paused: Option<StoreTime>) {
        let now = self.handle.clock.now();
        let left = |until: StoreTime| until.since(self.handle.store_time(now));
        let pause = paused.map(left).filter(|left| !left.is_zero());
        for route in self.routes.iter().filter(|route| route.counts(limit)) {
            self.hours.reopen(route, now);
            if let Some(left) = pause {
                self.hours.close(route, now + left, now);
            }
        }
        self.hours.review(&mut self.scheduler, &self.handle, now);
        let limits = self.routes.iter().flat_map(|route| route.counting.keyed());
        if let Some(usable) = limits.map(|limit| limit.usable()).min() {
            self.scheduler.set_usable(usable);
        }
        let of_limit = |waiting: &Waiting| waiting.job.route.counts(limit);
        self.scheduler.reopen(of_limit, now);
        self.hold_anew(of_limit);
        self.scheduler.retry_now(now);
    }
}
