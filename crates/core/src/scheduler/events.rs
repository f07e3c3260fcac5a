//! What is reported about keyed limits besides the answers to questions: units that came free, keys that the downstream
//! refuses or accepts again, policies that changed.

use std::time::Duration;

use super::Scheduler;
use super::key_queues::{KeyAnswer, PROBE};
use crate::after_call::KeyChanges;
use crate::message::{KeyId, Queued};
use crate::refusals::Refusals;
use crate::time::Mono;

impl<T: Queued> Scheduler<T> {
    /// No other replica asks the store of keyed limits: there is none to wait for at the start.
    pub const fn skip_startup_listen(&mut self) {
        if let Some(questions) = &mut self.questions {
            questions.skip_startup_listen();
        }
    }

    /// The reason why the store did not decide may be over.
    pub fn retry_now(&mut self, now: Mono) {
        if let Some(questions) = &mut self.questions {
            questions.retry_now(now);
        }
    }

    /// Policies of keyed limits were replaced: a permit is valid for this long or longer.
    pub const fn set_permit_validity(&mut self, permit_validity: Duration) {
        if let Some(questions) = &mut self.questions {
            questions.set_permit_validity(permit_validity);
        }
    }

    /// Calls of a key ended: as many messages may ask as units came free.
    pub fn note_freed(&mut self, key: KeyId, units: u64, now: Mono) {
        self.key_queues.note_freed(key, units, now);
    }

    /// Units of a key were refunded: it may be asked for again at once.
    pub fn note_refund(&mut self, keys: impl Iterator<Item = KeyId>) {
        for key in keys {
            self.key_queues.note_refund(key);
        }
    }

    /// An answer shows this about the keys of its message.
    pub fn note_key_changes(&mut self, changes: &KeyChanges, now: Mono) {
        for key in &changes.pass {
            self.key_queues.note_pass(*key);
        }
        for (key, until) in &changes.behind {
            self.key_queues
                .note_answer(*key, KeyAnswer::At(*until), now);
        }
        for (key, until) in &changes.refused {
            self.note_refusal(*key, *until);
        }
    }

    /// The downstream refuses a key until then, for all that is known. Its messages wait, as for a full limit: it
    /// may end sooner, and messages without a place in memory are sent away. Then one is called at a time, until the
    /// key passes.
    pub(super) fn note_refusal(&mut self, key: KeyId, until: Mono) {
        self.key_queues.note_refusal(key, until);
    }

    /// A call of a message with these keys has begun. For a key that the downstream refuses, no other call is made
    /// before the answer, or for so long that there will be none.
    pub fn note_call(&mut self, keys: &[KeyId], refusals: &Refusals, now: Mono) {
        for key in refusals.refused_among(keys) {
            self.key_queues.note_refusal(key, now + PROBE);
        }
    }

    /// Permits ran out before they were used: fewer are wanted at a time.
    pub fn note_run_out(&mut self) {
        if let Some(questions) = &mut self.questions {
            questions.note_run_out();
        }
    }
}
