//! Which messages the keyed limits are asked for, and when: those that the next slots would take. They leave in a
//! [`Question`].

use std::cmp::Reverse;
use std::time::Duration;

use super::Scheduler;
use super::questions::{BATCH_MAX, Questions};
use super::serving::dismiss;
use crate::leases::Availability;
use crate::message::Queued;
use crate::time::Mono;

/// A question to the keyed limits. It goes back to the scheduler with its answer, or without one.
#[derive(Debug)]
#[must_use = "its messages must go back to the scheduler"]
pub struct Question<T> {
    /// In order of preference. None: the question only asks for the store's time.
    pub asked: Vec<AskedMessage<T>>,
    /// How many grants are wanted, in slots.
    pub wanted: u64,
    /// When it was made.
    pub sent: Mono,
}

/// What is wanted now, or when to look again (`None`: not before something is reported).
pub(super) enum Wanted<T> {
    Now(T),
    LookAgain(Option<Mono>),
}

/// A message of a question, and what was known of its limits and keys then.
#[derive(Clone, Debug)]
pub struct AskedMessage<T> {
    /// The message, which comes back with the answer.
    pub item: T,
    /// Other messages of this replica wait for one of its keys.
    pub others_wait: bool,
    /// For how long a permit is valid under the policies of the question.
    pub(super) permit_validity: Duration,
}

impl<T: Queued> AskedMessage<T> {
    pub(super) fn new(item: T, others_wait: bool) -> Self {
        Self {
            permit_validity: item.permit_validity(),
            others_wait,
            item,
        }
    }
}

impl<T: Queued> Scheduler<T> {
    /// The next question.
    pub(super) fn next_question(&mut self, now: Mono) -> Wanted<Question<T>> {
        let Some(questions) = &self.questions else {
            return Wanted::LookAgain(None);
        };
        let Some(open) = questions.open_from() else {
            return Wanted::LookAgain(None);
        };
        let heartbeat = questions.next_heartbeat();
        let beats = heartbeat.is_some_and(|at| at <= now);
        let wanted = match self.wanted(questions, now) {
            Wanted::Now(wanted) if open <= now => wanted,
            Wanted::Now(_) => return Wanted::LookAgain(Some(open)),
            Wanted::LookAgain(_) if beats => 0,
            Wanted::LookAgain(next) => {
                return Wanted::LookAgain([next, heartbeat].into_iter().flatten().min());
            }
        };
        let (asked, wanted) = self.batch(wanted, now);
        if asked.is_empty() && !beats {
            // Only messages that need no permit came first, or messages that wait for their keys.
            let has_found = !self.next_actions.is_empty();
            return Wanted::LookAgain(if has_found { Some(now) } else { heartbeat });
        }
        if let Some(questions) = &mut self.questions {
            questions.note_sent(wanted, now);
        }
        let costs = asked.iter().map(|asked| asked.item.cost());
        self.asked.note_sent(now, costs);
        Wanted::Now(Question {
            asked,
            wanted,
            sent: now,
        })
    }

    /// The next message of those that a question is made of: of a key that is open, or one that is ready. Where any
    /// ready message needs a permit, this may be one that needs none: it goes before them.
    pub(super) fn next_to_ask(&self) -> Option<&T> {
        let queued = self.key_queues.peek();
        let ready = self.ready.peek().filter(|_| self.ready.sum().keyed > 0);
        match (queued, ready) {
            (Some(queued), Some(ready)) if self.goes_before(ready, queued) => Some(ready),
            (Some(queued), _) => Some(queued),
            (None, ready) => ready,
        }
    }

    /// Within a priority the tenant that is due first goes first. A message whose key is open does not wait
    /// for others of its tenant.
    fn goes_before(&self, ready: &T, queued: &T) -> bool {
        let tag = |item| Reverse(self.ready.start_tag(item));
        (ready.priority(), tag(ready)) > (queued.priority(), tag(queued))
    }

    /// How many of the slots that are near enough have no message that may be sent.
    fn wanted(&self, questions: &Questions, now: Mono) -> Wanted<u64> {
        let Some(best) = self.next_to_ask() else {
            return Wanted::LookAgain(None);
        };
        if !self.pacing.is_paced() {
            return match self.pacing.availability(now) {
                Availability::Until(at, _) => Wanted::LookAgain(Some(at)),
                Availability::Open | Availability::NotKnownYet | Availability::OutOfReach(_) => {
                    match questions.may_want() {
                        0 => Wanted::LookAgain(None),
                        wanted => Wanted::Now(wanted),
                    }
                }
            };
        }
        // Messages that would go before it have their slots, and so have messages that are asked for. The message
        // is sent at the last of its own slots.
        let going_before = self.permitted.not_below(best.priority());
        let permitted: usize = going_before.map(|item| item.cost().get() as usize).sum();
        let asked = usize::try_from(questions.wanted_in_flight()).unwrap_or(BATCH_MAX);
        let before = permitted + asked;
        let cost = best.cost().get() as usize;
        let useful_from = now + questions.earliest_useful();
        let Some(sent_at) = self
            .pacing
            .sent_at(best.is_urgent(), before, cost, useful_from)
        else {
            return Wanted::LookAgain(None);
        };
        let from = sent_at - questions.lead();
        if from > now {
            return Wanted::LookAgain(Some(from));
        }
        let end = now + questions.reach();
        let slots = self.pacing.slots(best.is_urgent(), before + BATCH_MAX);
        let near = slots.iter().take_while(|slot| **slot <= end).count();
        let free = (near + self.pacing.collected()).saturating_sub(before);
        let most = questions.may_want();
        if most == 0 {
            return Wanted::LookAgain(None);
        }
        Wanted::Now((free as u64).min(most).max(cost as u64))
    }

    /// Takes out the messages that are asked for, so that this many slots are filled. Messages that need no
    /// permit are permitted at once, and take wanted slots. Messages whose key is closed wait for it, as many
    /// as may wait in memory. Others of a closed key are asked for, because the answer says when to come
    /// back. An answer about a full key would name no time, so other messages of a full key are sent away without
    /// a question.
    fn batch(&mut self, wanted: u64, now: Mono) -> (Vec<AskedMessage<T>>, u64) {
        let Some(questions) = &self.questions else {
            return (Vec::new(), 0);
        };
        let cost_of_next = self.next_to_ask().map_or(1, |item| item.cost().get());
        let most = questions.candidates(wanted.div_ceil(u64::from(cost_of_next)));
        let (mut wanted, mut batch) = (wanted, Vec::new());
        while wanted > 0 && batch.len() < most {
            let Some(item) = self.pop_to_ask() else {
                break;
            };
            if item.is_over(now) {
                self.restore_start_tag(&item);
                self.next_actions.push_back(dismiss(item));
            } else if !item.is_keyed() {
                wanted = wanted.saturating_sub(item.cost().units());
                self.permitted.add(item, Mono::NEVER);
            } else if let Some(key) = self.waits_for(&item, now) {
                self.join(key, item);
            } else if let Some(key) = self.key_queues.full(&item, now) {
                self.restore_start_tag(&item);
                self.send_away_full(item, key, now);
            } else {
                let others_wait = item.keys().any(|key| self.key_queues.has_waiting(key));
                self.asked.add(&item);
                self.key_queues.begin_asking(&item);
                batch.push(AskedMessage::new(item, others_wait));
            }
        }
        // Grants without a candidate are left to the next question.
        let named = batch.iter().map(|asked| asked.item.cost().units()).sum();
        let first = batch.first().map_or(0, |asked| asked.item.cost().units());
        (batch, wanted.max(first).min(named))
    }

    /// Takes [`Scheduler::next_to_ask`].
    fn pop_to_ask(&mut self) -> Option<T> {
        let next = self.next_to_ask()?;
        let (arrival, priority) = (next.arrival(), next.priority());
        let queued = self.key_queues.peek();
        if queued.is_some_and(|q| q.arrival() == arrival && q.priority() == priority) {
            let open = self.key_queues.open_keys();
            let item = self.key_queues.pop()?;
            self.ready.advance_start_tag(&item, open);
            return Some(item);
        }
        self.ready.pop()
    }
}
