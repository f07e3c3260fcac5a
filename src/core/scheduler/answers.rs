//! What the answer of the keyed limits means for the messages that were asked for.
//!
//! [`super::Step::Admit`] hands out a [`Question`]; the shell asks the store and brings the question back with
//! the answer. Each message then is admitted, waits for its key, waits for a time, or comes out of
//! [`Scheduler::poll`] again to leave this replica. This is the only place that says which.

use std::time::Duration;

use super::key_queues::KeyAnswer;
use super::placing::{Denial, FULL};
use super::ready::{KeyId, Queued};
use super::request::{Outcome, Requests};
use super::{Scheduler, Step};
use crate::limits::Fit;
use crate::limits::admission::{Decision, Pass};
use crate::rate::Cost;
use crate::time::{Mono, StoreTime};

/// A message whose limit has another policy than this replica knows is asked for again after this.
const LEARN: Duration = Duration::from_millis(100);

/// A question to the keyed limits. It goes back to the scheduler with its answer, or without one.
#[derive(Debug)]
#[must_use = "its messages must go back to the scheduler"]
pub struct Question<T> {
    /// In order of preference. None: only what time the store has is asked.
    pub asked: Vec<Asked<T>>,
    /// How many grants are wanted, in slots.
    pub wanted: u64,
    /// When it was made.
    pub sent: Mono,
}

/// A message of a question, and what the store must know of it beside its charges.
#[derive(Clone, Debug)]
pub struct Asked<T> {
    pub item: T,
    /// It was denied before: the answer says when it fits, and it moves no line.
    pub waited: bool,
    /// The slots that it takes: it counts for as many of the wanted grants.
    pub slots: Cost,
    /// Other messages of this replica wait for one of its keys.
    pub others_wait: bool,
    /// For how long a permission is good under the policies that it is asked under.
    usable: Duration,
}

impl<T: Queued> Asked<T> {
    pub(super) fn new(item: T, others_wait: bool) -> Self {
        Self {
            waited: item.waited(),
            slots: item.cost(),
            usable: item.usable(),
            others_wait,
            item,
        }
    }
}

fn outcome<T>(asked: &[Asked<T>], decisions: &[Decision]) -> Outcome {
    let mut outcome = Outcome::default();
    for (asked, decision) in asked.iter().zip(decisions) {
        outcome.looked_at += u64::from(*decision != Decision::NotAsked);
        if matches!(decision, Decision::Granted { .. }) {
            outcome.granted += 1;
            outcome.slots += asked.slots.units();
        }
    }
    outcome
}

/// Times of an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// When the question left, and when its answer came.
    pub(super) sent: Mono,
    pub(super) now: Mono,
    /// When the store decided.
    pub(super) decided: StoreTime,
    /// The same on our clock, at the earliest.
    since: Mono,
}

impl<T: Queued> Scheduler<T> {
    /// No other replica asks the store of keyed limits: there is none to be waited for at the start.
    pub const fn alone(&mut self) {
        if let Some(requests) = &mut self.requests {
            requests.alone();
        }
    }

    /// The store answered a question at its time `decided`: one decision for each message, in their order.
    /// With another number of decisions nothing is known, as if it had not answered.
    pub fn answered(
        &mut self,
        question: Question<T>,
        decided: StoreTime,
        decisions: Vec<Decision>,
        now: Mono,
    ) {
        if decisions.len() != question.asked.len() {
            return self.unanswered(question, now);
        }
        let Some(requests) = &mut self.requests else {
            return;
        };
        let Question {
            asked,
            wanted,
            sent,
        } = question;
        let times = Times {
            sent,
            now,
            decided,
            since: requests.answered((sent, wanted), decided, outcome(&asked, &decisions), now),
        };
        let mut untouched = Vec::new();
        for (asked, decision) in asked.into_iter().zip(decisions) {
            self.end_asking(&asked.item);
            untouched.extend(self.decided(asked, decision, &times));
        }
        self.put_back(untouched, now);
        if self.admitted.is_empty() && self.asked.keyed == 0 && self.next_keyed().is_none() {
            // What was collected for a message that was denied is too old once its key opens.
            self.pacing.let_go();
        }
    }

    /// The store decided about a message. Returns it if it did not.
    fn decided(&mut self, asked: Asked<T>, decision: Decision, times: &Times) -> Option<T> {
        let now = times.now;
        match decision {
            Decision::NotAsked => return Some(asked.item),
            Decision::Granted { passes } => self.granted(asked, &passes, times),
            Decision::Denied {
                by,
                fits,
                until,
                room,
            } => {
                let denial = Denial {
                    by,
                    fits,
                    until,
                    room: Some(room),
                };
                self.denied(asked.item, &denial, times);
            }
            Decision::Never { by, most } => {
                self.ready.forgive(&asked.item);
                let item = asked.item;
                self.found.push_back(Step::Never { item, by, most });
            }
            Decision::Outdated { .. } => self.put_off(asked.item, now + LEARN),
            Decision::Closed { until, .. } => {
                let until = self.local_time(until, now);
                self.close(asked.item.route(), until);
                self.put_off(asked.item, until);
            }
        }
        None
    }

    /// The store did not answer a question. It may have decided.
    pub fn unanswered(&mut self, question: Question<T>, now: Mono) {
        if let Some(requests) = &mut self.requests {
            requests.failed(question.wanted, now);
        }
        let items: Vec<T> = question.asked.into_iter().map(|asked| asked.item).collect();
        for item in &items {
            self.end_asking(item);
        }
        self.put_back(items, now);
    }

    /// The time of the store of keyed limits on our clock, and never earlier than that.
    #[must_use]
    pub fn local_time(&self, at: StoreTime, now: Mono) -> Mono {
        let clock = self.requests.as_ref().map(Requests::clock);
        let mapped = clock.and_then(|clock| Some(clock.to_mono(at)? + clock.error(now)?));
        mapped.unwrap_or(now)
    }

    /// What kept the store from deciding may be over.
    pub fn retry_now(&mut self, now: Mono) {
        if let Some(requests) = &mut self.requests {
            requests.retry_now(now);
        }
    }

    /// Policies of keyed limits were replaced: a permission is good for so long or longer.
    pub const fn set_usable(&mut self, usable: Duration) {
        if let Some(requests) = &mut self.requests {
            requests.set_usable(usable);
        }
    }

    /// Calls of a key ended: as many messages as they freed units may ask.
    pub fn freed(&mut self, key: KeyId, units: u64, now: Mono) {
        self.key_queues.freed(key, units, now);
    }

    /// Units of a key were refunded: it may be asked for again at once.
    pub fn refunded(&mut self, keys: impl Iterator<Item = KeyId>) {
        for key in keys {
            self.key_queues.refunded(key);
        }
    }

    /// Permissions ran out before they were used: fewer are wanted at a time.
    pub fn ran_out(&mut self) {
        if let Some(requests) = &mut self.requests {
            requests.ran_out();
        }
    }

    /// It waits for its slot with its permission. Its keys are open for as many more as the store said.
    fn granted(&mut self, asked: Asked<T>, passes: &[Pass], times: &Times) {
        let mut item = asked.item;
        let until = times.since + asked.usable.min(item.usable());
        let keys: Vec<KeyId> = item.keys().collect();
        for (key, pass) in keys.into_iter().zip(passes) {
            let answer = self.key_answer(pass.next, pass.room.remaining, times);
            self.key_queues.answered(key, answer, times.sent, false);
        }
        item.granted(times.decided);
        self.enter(item, until);
    }

    /// Messages that nothing was decided about, in their order: as before.
    fn put_back(&mut self, items: Vec<T>, now: Mono) {
        for item in items.into_iter().rev() {
            self.push_back(item, now);
        }
    }

    /// It may not be asked for before `at`.
    fn put_off(&mut self, item: T, at: Mono) {
        self.ready.forgive(&item);
        self.delay(item, at);
    }

    /// No message of this route passes before `until`.
    pub(super) fn close(&mut self, route: usize, until: Mono) {
        let said = |step: &Step<T>| matches!(step, Step::Close { route: known, until: at } if *known == route && *at >= until);
        if !self.found.iter().any(said) {
            self.found.push_back(Step::Close { route, until });
        }
    }

    fn end_asking(&mut self, item: &T) {
        self.asked.remove(item);
        if let Some(count) = self.asked_routes.get_mut(&item.route()) {
            *count -= 1;
        }
        self.key_queues.asked(item, false);
    }

    /// What the store said of a key, on our clock. A key opens for questions: one that leaves as long after
    /// the last as the store said arrives as long after it, however far away the store is.
    pub(super) fn key_answer(&self, fits: Fit, remaining: u64, times: &Times) -> KeyAnswer {
        match fits {
            Fit::Now => KeyAnswer::Now(remaining),
            Fit::At(at) => {
                let wait = StoreTime::from_micros(at).since(times.decided);
                let unsteady = self.requests.as_ref().map(Requests::unsteady);
                KeyAnswer::At(times.sent + wait + unsteady.unwrap_or_default())
            }
            Fit::Full => KeyAnswer::Full(times.now + FULL),
        }
    }
}
