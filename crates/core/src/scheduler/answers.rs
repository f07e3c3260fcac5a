//! What the answer of the keyed limits means for the messages of a question.
//!
//! [`super::Action::Admit`] hands out a [`Question`]; the pacer asks the store and brings the question back with
//! the answer. Each message then is permitted, waits for its key, waits for a time, or comes out of
//! [`Scheduler::poll`] again to leave this replica. Only this file decides which, and for a denied message
//! `denials`.

use std::time::Duration;

use super::batch::{AskedMessage, Question};
use super::denials::{AnswerTimes, Denial, FULL_ASK_AGAIN};
use super::key_queues::KeyAnswer;
use super::questions::{AnswerCounts, Questions, SentQuestion};
use super::{ASKED_AGAIN, Action, Scheduler};
use crate::limits::Fit;
use crate::limits::admission::{AfterGrant, Decision};
use crate::message::{KeyId, Queued};
use crate::time::{Mono, StoreTime};

/// After this a message is asked for again if its limit has a policy that this replica does not know.
const LEARN: Duration = Duration::from_millis(100);

fn counts_of<T: Queued>(asked: &[AskedMessage<T>], decisions: &[Decision]) -> AnswerCounts {
    let mut counts = AnswerCounts::default();
    for (asked, decision) in asked.iter().zip(decisions) {
        counts.looked_at += u64::from(*decision != Decision::NotAsked);
        if matches!(decision, Decision::Granted { .. }) {
            counts.granted += 1;
            counts.slots += asked.item.cost().units();
        }
    }
    counts
}

impl<T: Queued> Scheduler<T> {
    /// The store answered a question at its time `decided`: one decision for each message, in their order.
    /// With another number of decisions nothing is known, as if it had not answered.
    pub fn note_decisions(
        &mut self,
        question: Question<T>,
        decided: StoreTime,
        decisions: Vec<Decision>,
        now: Mono,
    ) {
        let fits = decisions.len() == question.asked.len();
        let Some(questions) = self.questions.as_mut().filter(|_| fits) else {
            return self.note_no_answer(question, now);
        };
        let Question {
            asked,
            wanted,
            sent,
        } = question;
        let times = AnswerTimes {
            sent,
            now,
            decided,
            since: questions.note_answer(
                SentQuestion { at: sent, wanted },
                decided,
                counts_of(&asked, &decisions),
                now,
            ),
        };
        self.asked.note_end(sent);
        let mut untouched = Vec::new();
        for (asked, decision) in asked.into_iter().zip(decisions) {
            self.end_asking(&asked.item);
            untouched.extend(self.decided(asked, decision, &times));
        }
        self.put_back(untouched, now);
        if self.permitted.is_empty()
            && self.asked.totals().keyed == 0
            && self.next_to_ask().is_none()
        {
            // Slots collected for a message that was denied are too old once its key opens.
            self.pacing.drop_collected();
        }
    }

    /// Handles the decision about a message. Returns the message if there was none.
    fn decided(
        &mut self,
        asked: AskedMessage<T>,
        decision: Decision,
        times: &AnswerTimes,
    ) -> Option<T> {
        let now = times.now;
        match decision {
            Decision::NotAsked => return Some(asked.item),
            Decision::Granted { after } => self.granted(asked, &after, times),
            Decision::Denied {
                by,
                fits,
                until,
                room,
                ..
            } => {
                let denial = Denial {
                    by,
                    fits,
                    until,
                    room: Some(room),
                };
                self.denied(asked.item, &denial, times);
            }
            Decision::TooCostly { by, most } => {
                self.restore_start_tag(&asked.item);
                let item = asked.item;
                self.next_actions
                    .push_back(Action::TooCostly { item, by, most });
            }
            Decision::NotCalled { by, how } => {
                self.restore_start_tag(&asked.item);
                let item = asked.item;
                self.next_actions
                    .push_back(Action::NotCalled { item, by, how });
            }
            Decision::Outdated { .. } => self.put_off(asked.item, now + LEARN),
            Decision::Closed { until, .. } => {
                let until = self.local_time(until, now);
                self.report_used_up(asked.item.route(), until);
                self.put_off(asked.item, until.min(now + ASKED_AGAIN));
            }
        }
        None
    }

    /// The store did not answer a question. It may have decided.
    pub fn note_no_answer(&mut self, question: Question<T>, now: Mono) {
        if let Some(questions) = &mut self.questions {
            questions.note_failure(question.wanted, now);
        }
        self.asked.note_end(question.sent);
        let items: Vec<T> = question.asked.into_iter().map(|asked| asked.item).collect();
        for item in &items {
            self.end_asking(item);
        }
        self.put_back(items, now);
    }

    /// The time of the store of keyed limits on our clock, and never earlier than that.
    pub(super) fn local_time(&self, at: StoreTime, now: Mono) -> Mono {
        let clock = self.questions.as_ref().map(Questions::clock);
        let mapped = clock.and_then(|clock| Some(clock.to_mono(at)? + clock.error(now)?));
        mapped.unwrap_or(now)
    }

    /// The message waits for its slot with its permit. Its keys are open for as many more as the store returned.
    fn granted(&mut self, asked: AskedMessage<T>, after: &[AfterGrant], times: &AnswerTimes) {
        let mut item = asked.item;
        let until = times.since + asked.permit_validity.min(item.permit_validity());
        let keys: Vec<KeyId> = item.keys().collect();
        for (key, pass) in keys.into_iter().zip(after) {
            let answer = self.key_answer(pass.next, pass.room.remaining, times);
            self.key_queues
                .note_answer_if_queued(key, answer, times.sent);
        }
        item.note_grant(times.decided, times.now.since(times.since));
        self.permitted.add(item, until);
    }

    /// Puts back messages without a decision, in their order.
    fn put_back(&mut self, items: Vec<T>, now: Mono) {
        for item in items.into_iter().rev() {
            self.put_back_first(item, now);
        }
    }

    /// The message may not be asked for before `at`.
    fn put_off(&mut self, item: T, at: Mono) {
        self.restore_start_tag(&item);
        self.delay(item, at);
    }

    /// No message of this route passes before `until`.
    pub(super) fn report_used_up(&mut self, route: usize, until: Mono) {
        let is_reported = |step: &Action<T>| matches!(step, Action::UsedUp { route: reported_route, until: at } if *reported_route == route && *at >= until);
        if !self.next_actions.iter().any(is_reported) {
            self.next_actions.push_back(Action::UsedUp { route, until });
        }
    }

    fn end_asking(&mut self, item: &T) {
        self.asked.remove(item);
        self.key_queues.end_asking(item);
    }

    /// The store's answer about a key, on our clock. The wait that the store named counts from when that question
    /// left: a question that leaves this much later also arrives this much later, however far away the store is.
    pub(super) fn key_answer(&self, fits: Fit, remaining: u64, times: &AnswerTimes) -> KeyAnswer {
        match fits {
            Fit::Now => KeyAnswer::Now(remaining),
            Fit::At(at) => {
                let wait = at.since(times.decided);
                let arrival_jitter = self.questions.as_ref().map(Questions::arrival_jitter);
                KeyAnswer::At(times.sent + wait + arrival_jitter.unwrap_or_default())
            }
            Fit::Full => KeyAnswer::Full(times.now + FULL_ASK_AGAIN),
        }
    }
}
