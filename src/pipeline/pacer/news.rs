//! What a pacer hears: answers of the stores, messages from its routes, and what others tell.

use std::sync::Arc;

use tokio::sync::oneshot;
use tracing::{debug, info, warn};

use super::{Pacer, Stopped, Stopping};
use crate::core::clock::ClockMap;
use crate::core::pacing::Row;
use crate::core::schedule::Answer;
use crate::core::time::{Mono, StoreTime};
use crate::pipeline::admission::Heard;
use crate::pipeline::desk::Inbox;
use crate::pipeline::job::Job;
use crate::pipeline::permit::Call;
use crate::ports::pace::StoreError;

impl Pacer {
    /// Each call that ended makes room for a message that was denied by the same limit.
    pub(super) fn freed(&mut self, calls: &[Call]) {
        for (limit, key, _) in calls {
            let waits = |job: &Job| {
                let waits_for = job.waits_for.as_ref();
                waits_for.is_some_and(|(full, of)| full.name == limit.name && of == key)
            };
            self.lane.wake(waits);
        }
    }

    pub(super) fn ruled(&mut self, heard: Heard) {
        let stopping = self.stopping.is_some();
        let ruled = self
            .admission
            .ruled(heard, &mut self.lane, &self.desk, stopping);
        let now = self.desk.clock.now();
        for (route, until) in &ruled.blind {
            self.doors.blind(route, *until, now);
        }
        if let Some(stopping) = &mut self.stopping {
            stopping.given_back += ruled.given_back;
            // What could not be asked for is back in the lane.
            stopping.given_back += self.lane.extract(|_| true).len() as u64;
        }
    }

    pub(super) fn answered(&mut self, row: Row, sent: Mono, answer: Result<Answer, StoreError>) {
        let now = self.desk.clock.now();
        let meters = &self.desk.meters;
        meters.ask_seconds.record(now.since(sent).as_secs_f64());
        match answer {
            Ok(answer) => {
                if answer.guarded {
                    self.tell_guarded();
                }
                let denied = self.lane.tally().denied;
                self.lane.answered(row, &answer, now);
                let denied = self.lane.tally().denied > denied;
                meters.asks(if denied { "denied" } else { "granted" });
                self.desk.learned(&self.lane, now);
                if self.lane.is_outdated() {
                    self.outdated.notify_one();
                }
            }
            Err(error) => {
                meters.asks("failed");
                debug!(limit = %self.desk.name, %error, "no lease");
                self.lane.failed(row, now);
            }
        }
    }

    /// At the start a schedule that is not there yet is nothing to worry about.
    fn tell_guarded(&self) {
        let limit = &self.desk.name;
        if self.lane.clock().is_some_and(ClockMap::is_known) {
            warn!(%limit, "the schedule was lost, or its clock stepped: starting it again behind its guard");
        } else {
            info!(%limit, "no schedule yet: starting one behind its guard");
        }
    }

    pub(super) fn take_in(&mut self, entry: Inbox) {
        match entry {
            Inbox::Jobs(jobs) => {
                for (job, at) in jobs {
                    self.hold(job, at);
                }
            }
            Inbox::Again(job) => self.again(job),
            Inbox::Parked(job, at) => self.hold(job, Some(at)),
            Inbox::Throttled(length) => self.lane.frozen_for(length, self.desk.clock.now()),
            Inbox::Frozen(row, freeze) => {
                self.lane.frozen(row, &freeze, self.desk.clock.now());
            }
            Inbox::InForce(terms) => {
                self.desk.adopt(&terms);
                let now = self.desk.clock.now();
                self.lane.retime(&terms.policy, terms.version, now);
            }
            Inbox::PolicyUpdated(limit, paused) => self.updated(&limit, paused),
            Inbox::Warmed => self.warming = false,
            Inbox::Stop { deadline, done } => self.stop(deadline, done),
        }
    }

    /// Sends nothing any more; what is held goes back.
    fn stop(&mut self, deadline: Mono, done: oneshot::Sender<Stopped>) {
        self.taps.close_all();
        let held = self.lane.extract(|_| true);
        let given_back = held.len() as u64;
        // Dropped without a verdict, they go back to their queue.
        drop(held);
        for (row, tail) in self.lane.surrender() {
            self.desk.give_back(row, tail);
        }
        self.stopping = Some(Stopping {
            deadline,
            done,
            given_back,
        });
    }

    /// Other terms of a budget are in force, or a pause begins, changes or ends. Routes that it pauses
    /// wait as a whole; what waited for it asks anew, for places under other terms are none.
    fn updated(&mut self, limit: &str, paused: Option<StoreTime>) {
        let now = self.desk.clock.now();
        let left = |until: StoreTime| until.since(self.desk.store_time(now));
        let pause = paused.map(left).filter(|left| !left.is_zero());
        let mut again = Vec::new();
        // Some of what was granted before the change is for moments that are seconds away.
        self.lane.revoke(|job| job.route.counts(limit));
        self.admission.update();
        for route in self.routes.iter().filter(|route| route.counts(limit)) {
            let was_blind = self.doors.sighted(route, now);
            if let Some(left) = pause {
                self.doors.blind(route, now + left, now);
            }
            again.extend(self.lane.take_parked(|job| {
                let waits = was_blind || job.held_up_by.as_deref() == Some(limit);
                waits && Arc::ptr_eq(&job.route, route)
            }));
        }
        self.doors.turn(&mut self.lane, &self.desk, now);
        for job in again {
            let at = job.not_before.filter(|at| *at > now);
            self.hold(job, at);
        }
        self.lane.petition_soon(now);
    }
}
