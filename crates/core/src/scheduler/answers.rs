//! What the answer of the keyed limits means for the messages of a question, and where a denied one waits.
//!
//! [`super::Action::Admit`] hands out a [`Question`]; the shell asks the store and brings the question back with
//! the answer. Each message then is permitted, waits for its key, waits for a time, or comes out of
//! [`Scheduler::poll`] again to leave this replica. This is the only place that decides which.
//!
//! A denied message waits in memory for its key, if the wait is short and enough places are left for others.
//! Otherwise it is sent away from this replica (through a wait queue, or as `on_denied` says), so that
//! messages of other keys pass. Where the limit counts all messages of the route together, there are no
//! others: then the whole route waits.
//!
//! A full `concurrency` limit names no time at which a message fits. Its messages wait in memory for calls
//! that end, as far as memory has places. A message without a place is sent away for as long as those before
//! it need, by how far apart units came free lately; where that is not known, for a part of its age.
//! If all of them were sent away for a fixed minute, the messages in memory would be called within a second, and no
//! others in the rest of that minute. While the limit is known to be full, such a message is sent away without a
//! question.

use std::time::Duration;

use super::batch::{Asked, Question};
use super::key_queues::{KeyAnswer, PROBE};
use super::questions::{QuestionResult, Questions, SentQuestion};
use super::queued::{KeyId, Queued};
use super::{Action, Scheduler};
use crate::gate::ASKED_AGAIN;
use crate::limits::admission::{Decision, Pass};
use crate::limits::{Fit, Room};
use crate::time::{Mono, Now, StoreTime};

/// After this a message is asked for again if its limit has a policy that this replica does not know.
const LEARN: Duration = Duration::from_millis(100);

fn question_result<T>(asked: &[Asked<T>], decisions: &[Decision]) -> QuestionResult {
    let mut result = QuestionResult::default();
    for (asked, decision) in asked.iter().zip(decisions) {
        result.looked_at += u64::from(*decision != Decision::NotAsked);
        if matches!(decision, Decision::Granted { .. }) {
            result.granted += 1;
            result.slots += asked.slots.units();
        }
    }
    result
}

/// Times of an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerTimes {
    /// When the question left, and when its answer came.
    pub(super) sent: Mono,
    pub(super) now: Mono,
    /// When the store decided.
    pub(super) decided: StoreTime,
    /// When it decided on our clock, at the earliest.
    since: Mono,
}

impl AnswerTimes {
    /// When the answer came, and the time of the store in it.
    const fn both(&self) -> Now {
        Now {
            local: self.now,
            store: self.decided,
        }
    }
}

impl<T: Queued> Scheduler<T> {
    /// No other replica asks the store of keyed limits: there is none to wait for at the start.
    pub const fn set_alone(&mut self) {
        if let Some(questions) = &mut self.questions {
            questions.set_alone();
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
        let Some(questions) = &mut self.questions else {
            return;
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
            since: questions.answered(
                SentQuestion { at: sent, wanted },
                decided,
                question_result(&asked, &decisions),
                now,
            ),
        };
        self.asked_costs.remove(&sent);
        let mut untouched = Vec::new();
        for (asked, decision) in asked.into_iter().zip(decisions) {
            self.end_asking(&asked.item);
            untouched.extend(self.decided(asked, decision, &times));
        }
        self.put_back(untouched, now);
        if self.permitted.is_empty() && self.asked.keyed == 0 && self.next_keyed().is_none() {
            // Slots collected for a message that was denied are too old once its key opens.
            self.pacing.let_go();
        }
    }

    /// Handles the decision about a message. Returns the message if there was none.
    fn decided(&mut self, asked: Asked<T>, decision: Decision, times: &AnswerTimes) -> Option<T> {
        let now = times.now;
        match decision {
            Decision::NotAsked => return Some(asked.item),
            Decision::Granted { passes } => self.granted(asked, &passes, times),
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
            Decision::Never { by, most } => {
                self.forgive(&asked.item);
                let item = asked.item;
                self.next_actions
                    .push_back(Action::Never { item, by, most });
            }
            Decision::Ended { by, how } => {
                self.forgive(&asked.item);
                let item = asked.item;
                self.next_actions.push_back(Action::Ended { item, by, how });
            }
            Decision::Outdated { .. } => self.put_off(asked.item, now + LEARN),
            Decision::Closed { until, .. } => {
                let until = self.local_time(until, now);
                self.close(asked.item.route(), until);
                self.put_off(asked.item, until.min(now + ASKED_AGAIN));
            }
        }
        None
    }

    /// The store did not answer a question. It may have decided.
    pub fn unanswered(&mut self, question: Question<T>, now: Mono) {
        if let Some(questions) = &mut self.questions {
            questions.failed(question.wanted, now);
        }
        self.asked_costs.remove(&question.sent);
        let items: Vec<T> = question.asked.into_iter().map(|asked| asked.item).collect();
        for item in &items {
            self.end_asking(item);
        }
        self.put_back(items, now);
    }

    /// The time of the store of keyed limits on our clock, and never earlier than that.
    fn local_time(&self, at: StoreTime, now: Mono) -> Mono {
        let clock = self.questions.as_ref().map(Questions::clock);
        let mapped = clock.and_then(|clock| Some(clock.to_mono(at)? + clock.error(now)?));
        mapped.unwrap_or(now)
    }

    /// The reason why the store did not decide may be over.
    pub fn retry_now(&mut self, now: Mono) {
        if let Some(questions) = &mut self.questions {
            questions.retry_now(now);
        }
    }

    /// Policies of keyed limits were replaced: a permit is valid for so long or longer.
    pub const fn set_usable(&mut self, usable: Duration) {
        if let Some(questions) = &mut self.questions {
            questions.set_usable(usable);
        }
    }

    /// Calls of a key ended: as many messages may ask as units came free.
    pub fn freed(&mut self, key: KeyId, units: u64, now: Mono) {
        self.key_queues.freed(key, units, now);
    }

    /// Units of a key were refunded: it may be asked for again at once.
    pub fn refunded(&mut self, keys: impl Iterator<Item = KeyId>) {
        for key in keys {
            self.key_queues.refunded(key);
        }
    }

    /// The downstream refuses a key until then, for all that is known. Its messages wait, as for a full limit: it
    /// may end sooner, and messages without a place in memory are sent away. Then one is called at a time, until the
    /// key [passes](Self::passes).
    pub fn refused(&mut self, key: KeyId, until: Mono) {
        self.key_queues.refused(key, until);
    }

    /// A call was made for a key that the downstream refuses: no other one is made before its answer, or for so long
    /// that there will be none.
    pub fn probed(&mut self, key: KeyId, now: Mono) {
        self.key_queues.refused(key, now + PROBE);
    }

    /// The downstream accepts a key again.
    pub fn passes(&mut self, key: KeyId) {
        self.key_queues.passes(key);
    }

    /// Other keys go before this one until then.
    pub fn goes_behind(&mut self, key: KeyId, until: Mono, now: Mono) {
        let answer = KeyAnswer::At(until);
        self.key_queues.answered(key, answer, now);
    }

    /// Permits ran out before they were used: fewer are wanted at a time.
    pub fn ran_out(&mut self) {
        if let Some(questions) = &mut self.questions {
            questions.ran_out();
        }
    }

    /// It waits for its slot with its permit. Its keys are open for as many more as the store returned.
    fn granted(&mut self, asked: Asked<T>, passes: &[Pass], times: &AnswerTimes) {
        let mut item = asked.item;
        let until = times.since + asked.usable.min(item.usable());
        let keys: Vec<KeyId> = item.keys().collect();
        for (key, pass) in keys.into_iter().zip(passes) {
            let answer = self.key_answer(pass.next, pass.room.remaining, times);
            self.key_queues.answered_in_passing(key, answer, times.sent);
        }
        item.granted(times.decided, times.now.since(times.since));
        self.enter(item, until);
    }

    /// Puts back messages without a decision, in their order.
    fn put_back(&mut self, items: Vec<T>, now: Mono) {
        for item in items.into_iter().rev() {
            self.put_back_first(item, now);
        }
    }

    /// It may not be asked for before `at`.
    fn put_off(&mut self, item: T, at: Mono) {
        self.forgive(&item);
        self.delay(item, at);
    }

    /// No message of this route passes before `until`.
    pub(super) fn close(&mut self, route: usize, until: Mono) {
        let said = |step: &Action<T>| matches!(step, Action::Close { route: known, until: at } if *known == route && *at >= until);
        if !self.next_actions.iter().any(said) {
            self.next_actions.push_back(Action::Close { route, until });
        }
    }

    fn end_asking(&mut self, item: &T) {
        self.asked.remove(item);
        if let Some(count) = self.asked_routes.get_mut(&item.route()) {
            *count -= 1;
        }
        self.key_queues.end_asking(item);
    }

    /// The store's answer about a key, on our clock. The wait that the store named counts from when that question
    /// left: a question that leaves so much later also arrives so much later, however far away the store is.
    pub(super) fn key_answer(&self, fits: Fit, remaining: u64, times: &AnswerTimes) -> KeyAnswer {
        match fits {
            Fit::Now => KeyAnswer::Now(remaining),
            Fit::At(at) => {
                let wait = StoreTime::from_micros(at).since(times.decided);
                let unsteady = self.questions.as_ref().map(Questions::unsteady);
                KeyAnswer::At(times.sent + wait + unsteady.unwrap_or_default())
            }
            Fit::Full => KeyAnswer::Full(times.now + FULL),
        }
    }
}

/// A full `concurrency` limit is asked again after this, in case the notice that a call ended is lost.
pub(super) const FULL: Duration = Duration::from_secs(1);
/// A message of a full limit without a place in memory is sent away for at most [`FULL_MOST`]; for this part
/// of its age where it is not known how fast units come free.
const FULL_PART: u32 = 8;
const FULL_MOST: Duration = Duration::from_secs(64);

/// The store's answer when it denied a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Denial {
    /// The charge that holds it up longest.
    pub(super) by: usize,
    pub(super) fits: Fit,
    /// When to come back, for a message that is sent away.
    pub(super) until: StoreTime,
    pub(super) room: Option<Room>,
}

/// Why a message is sent away, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Departure {
    /// The charge that holds it up longest (an index).
    pub by: usize,
    /// The time that the limit named to come back; `decided` if it named none.
    pub until: StoreTime,
    /// What the limit has left. `None`: it is known to be full, and was not asked.
    pub room: Option<Room>,
    /// When the store decided.
    pub decided: StoreTime,
    /// For how long it is sent away.
    pub wait: Duration,
    /// Its time is known, and further away than such messages wait in memory. Otherwise it only found no
    /// place there.
    pub is_late: bool,
}

/// Where a denied message waits.
enum Place {
    /// In memory, until its key opens.
    Here,
    /// In memory, and the whole route waits until then.
    Route(Mono),
    /// In a wait queue, for so long. `is_late`: its time is known, and too far away to wait in memory. Otherwise
    /// memory has no place for it.
    WaitQueue { wait: Duration, is_late: bool },
    /// Its deadline comes first.
    Nowhere,
}

impl<T: Queued> Scheduler<T> {
    /// Puts a message that an answer denied where it waits.
    pub(super) fn denied(&mut self, mut item: T, denial: &Denial, times: &AnswerTimes) {
        let Some(key) = item.keys().nth(denial.by) else {
            return self.put_back_first(item, times.now);
        };
        let mut answer = self.key_answer(denial.fits, 0, times);
        let place = self.place(&item, key, denial, times.both());
        if !matches!(place, Place::Here | Place::Route(_)) {
            self.key_queues.answered_in_passing(key, answer, times.sent);
            self.forgive(&item);
            return self.leaves(item, place, denial, times.both());
        }
        if let Place::Route(until) = place {
            self.close(item.route(), until);
            answer = KeyAnswer::At(until.min(times.now + ASKED_AGAIN));
        } else if denial.fits != Fit::Full {
            item.mark_denied();
        }
        self.key_queues.answered(key, answer, times.sent);
        self.join(key, item);
    }

    /// A key of a message is known to be full: it is sent away without a question, unless memory has a place
    /// by now.
    pub(super) fn turn_away_full(&mut self, item: T, key: KeyId, now: Mono) {
        let by = item.keys().position(|own| own == key).unwrap_or(0);
        let clock = self.questions.as_ref().map(Questions::clock);
        let store_now = clock.and_then(|clock| clock.to_store(now));
        let decided = store_now.unwrap_or_default();
        let denial = Denial {
            by,
            fits: Fit::Full,
            until: decided,
            room: None,
        };
        let both = Now {
            local: now,
            store: decided,
        };
        match self.place(&item, key, &denial, both) {
            Place::Here | Place::Route(_) => self.key_queues.join(key, item),
            place => self.leaves(item, place, &denial, both),
        }
    }

    fn leaves(&mut self, mut item: T, place: Place, denial: &Denial, now: Now) {
        let Place::WaitQueue { wait, is_late } = place else {
            return self.next_actions.push_back(Action::Expired(item));
        };
        if denial.fits == Fit::Full
            && let Some(key) = item.keys().nth(denial.by)
        {
            self.key_queues.went_away(key, now.local + wait);
        }
        item.mark_denied();
        let departure = Departure {
            by: denial.by,
            until: denial.until.max(now.store),
            room: denial.room,
            decided: now.store,
            wait,
            is_late,
        };
        self.next_actions.push_back(Action::Depart(item, departure));
    }

    /// For how long a message of a full key is sent away if memory has no place.
    fn full_for(&self, key: KeyId, age: Duration, now: Mono) -> Duration {
        let back = self.key_queues.comes_back(key, now);
        let wait = back.map_or(age / FULL_PART, |at| at.since(now));
        wait.clamp(FULL, FULL_MOST)
    }

    fn place(&self, item: &T, key: KeyId, denial: &Denial, now: Now) -> Place {
        let (decided, now) = (now.store, now.local);
        let (rules, is_for_all) = (item.hold_rules(decided), item.is_for_all(key));
        let is_full = denial.fits == Fit::Full;
        let has_room = self.key_queues.has_room(item, key);
        if is_full && (is_for_all || has_room) {
            return Place::Here;
        }
        let fits = match denial.fits {
            Fit::At(at) => StoreTime::from_micros(at),
            Fit::Now => decided + FULL,
            Fit::Full => decided + self.full_for(key, rules.age, now),
        };
        let here = self.local_time(fits, now);
        let near = item.opening(fits).since(decided) <= rules.max_hold;
        // Not the end of the message, and no wait for it alone: another route may have room for it.
        if is_for_all && rules.may_move && !near {
            return Place::Route(here);
        }
        if item.deadline().is_some_and(|end| end <= here) {
            let wait = item.opening(denial.until.max(fits)).since(decided);
            return match rules.refuses {
                true => Place::WaitQueue {
                    wait,
                    is_late: !is_full,
                },
                false => Place::Nowhere,
            };
        }
        if near && has_room {
            Place::Here
        } else if is_for_all && rules.holds {
            Place::Route(here)
        } else {
            let wait = item.opening(denial.until.max(fits)).since(decided);
            Place::WaitQueue {
                wait,
                is_late: !is_full && wait > rules.max_hold,
            }
        }
    }
}
