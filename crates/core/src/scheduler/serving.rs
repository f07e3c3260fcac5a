//! How messages leave the scheduler.
//!
//! A slot goes to the best message that could be sent, whether it was permitted or needs no permit. Messages
//! also leave the scheduler without a slot: when their permits run out, the replica stops, their route closes, or
//! another policy comes.

use std::time::Duration;

use super::permitted::PermittedPlace;
use super::{Action, Scheduler};
use crate::leases::Slot;
use crate::message::Queued;
use crate::pacing::Row;
use crate::time::Mono;

/// About this many missed slots are remembered at most, until [`Scheduler::take_missed_by`] takes them.
const MISSED_KEPT: usize = 1_024;

/// The place of a message that could be sent.
#[derive(Clone, Copy, Debug)]
enum Best {
    Permitted(PermittedPlace),
    /// The first of its priority.
    Ready(u16),
}

impl<T: Queued> Scheduler<T> {
    /// Gives a slot of the row that is due to the best message.
    pub(super) fn serve(&mut self, row: Row, now: Mono) -> Option<Action<T>> {
        if row == Row::Reserve && self.pacing.holder(row).is_none() {
            return None;
        }
        loop {
            let could_go = self.best(row).is_some();
            let due_slot = self.pacing.due(row, now);
            // A slot that no message could have taken was not missed.
            let missed_by = self.pacing.take_missed_by();
            if could_go && self.missed_by.len() < MISSED_KEPT {
                self.missed_by.extend(missed_by);
            }
            let Some(best) = self.best(row) else {
                if self.collect(row, due_slot?, now) {
                    continue;
                }
                return None;
            };
            let item = self.item(best)?;
            if item.is_over(now) {
                let (item, _) = self.take(best)?;
                self.restore_start_tag(&item);
                return Some(dismiss(item));
            }
            let (cost, urgent) = (item.cost(), item.is_urgent());
            let slot = due_slot?;
            if self.pacing.use_slot_for(row, slot, cost, urgent) {
                let (item, until) = self.take(best)?;
                let leave_by = slot.leave_by.min(until);
                self.last_call = Some(now);
                return Some(Action::Send(item, Slot { leave_by, ..slot }));
            }
        }
    }

    /// A message of several slots is sent at the last of them, and is asked for just before that.
    /// The earlier ones are kept for it. Returns whether this one was.
    fn collect(&mut self, row: Row, slot: Slot, now: Mono) -> bool {
        let collects = row != Row::Reserve && self.collects(now);
        if collects {
            self.pacing.collect_slot(row, slot);
        }
        collects
    }

    /// Whether the next message that needs a permit also needs more slots before its last one.
    pub(super) fn collects(&self, now: Mono) -> bool {
        self.pacing.is_paced() && self.pacing.collected() + 1 < self.next_cost(now)
    }

    /// The slots of the next message that needs a permit: one that is asked for, one that can be, or one
    /// whose key opens before the coming slots have passed.
    fn next_cost(&self, now: Mono) -> usize {
        if self.asked.totals().keyed > 0 {
            let costs = self.asked.costs();
            return costs.max().map_or(1, |cost| cost.get() as usize);
        }
        let askable = self.next_to_ask().filter(|item| item.is_keyed());
        let next = askable.or_else(|| self.coming(now).next());
        next.map_or(1, |item| item.cost().get() as usize)
    }

    /// The place of the best message that a slot of this row could be for.
    fn best(&self, row: Row) -> Option<Best> {
        let could = |item: &T| row == Row::Main || item.is_urgent();
        let permitted = self.permitted.first(could);
        let ready = match row {
            Row::Main => self.ready.peek(),
            Row::Reserve => self.ready.peek_urgent(),
        };
        let needs_no_permit = ready.filter(|item| !item.is_keyed());
        match (permitted, needs_no_permit.map(Queued::priority)) {
            (Some(place), Some(priority)) if priority > place.priority() => {
                Some(Best::Ready(priority))
            }
            (Some(place), _) => Some(Best::Permitted(place)),
            (None, priority) => priority.map(Best::Ready),
        }
    }

    fn item(&self, best: Best) -> Option<&T> {
        match best {
            Best::Permitted(place) => self.permitted.get(place),
            Best::Ready(priority) => self.ready.peek_at(priority),
        }
    }

    fn take(&mut self, best: Best) -> Option<(T, Mono)> {
        match best {
            Best::Permitted(place) => {
                let item = self.permitted.take(place)?;
                Some((item, place.until()))
            }
            Best::Ready(priority) => self
                .ready
                .pop_from(priority)
                .map(|item| (item, Mono::NEVER)),
        }
    }

    /// Messages with permits that ran out.
    pub(super) fn take_run_out(&mut self, now: Mono) -> Option<Action<T>> {
        let out = self.permitted.take_run_out(now);
        if out.is_empty() {
            return None;
        }
        self.note_run_out();
        Some(Action::RanOut(out))
    }

    /// Takes out all messages for which `unwanted` returns true, wherever they wait. Permitted messages keep their
    /// permits.
    pub fn extract(&mut self, mut unwanted: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut out = self.permitted.extract(&mut unwanted);
        out.extend(self.extract_unpermitted(unwanted));
        out
    }

    /// Takes out all messages for which `unwanted` returns true, except permitted messages.
    pub fn extract_unpermitted(&mut self, mut unwanted: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut out = self.ready.extract(&mut unwanted);
        out.extend(self.key_queues.extract(&mut unwanted));
        out.extend(self.take_delayed(&mut unwanted));
        out
    }

    /// Takes out messages whose limit has no slot for `wait`, each with the time until its own slot, so that they do
    /// not come back all at once. `interval` is the time between two slots.
    pub fn extract_denied(
        &mut self,
        is_denied: impl FnMut(&T) -> bool,
        wait: Duration,
        interval: Duration,
    ) -> Vec<(T, Duration)> {
        let mut slots_before = 0_u32;
        let denied = self.extract(is_denied).into_iter();
        denied
            .map(|item| {
                let own_wait = wait + interval * slots_before;
                slots_before = slots_before.saturating_add(item.cost().get());
                (item, own_wait)
            })
            .collect()
    }

    /// Takes out all messages because the replica stops, including the messages that would leave it with the
    /// next steps.
    pub fn extract_all(&mut self) -> Vec<T> {
        let mut out = self.extract(|_| true);
        for step in std::mem::take(&mut self.next_actions) {
            match step {
                Action::SendAway(item, _) | Action::Expired(item) | Action::Stale(item) => {
                    out.push(item)
                }
                Action::TooCostly { item, .. } | Action::NotCalled { item, .. } => out.push(item),
                Action::Send(item, _) => out.push(item),
                Action::RanOut(items) | Action::Deferred(items) => out.extend(items),
                Action::Admit(question) => {
                    out.extend(question.asked.into_iter().map(|asked| asked.item))
                }
                Action::UsedUp { .. } | Action::Lease(..) | Action::Wait(_) => {}
            }
        }
        out
    }

    /// Takes out the delayed messages for which `whose` returns true, in the order of their times.
    pub fn take_delayed(&mut self, whose: impl FnMut(&T) -> bool) -> Vec<T> {
        self.delayed.extract(whose)
    }

    /// Makes messages wait until `until` at least. Permitted messages come out of [`Scheduler::poll`] as
    /// [`Action::Deferred`].
    pub fn defer(&mut self, until: Mono, mut whose: impl FnMut(&T) -> bool) {
        let permitted = self.permitted.extract(&mut whose);
        if !permitted.is_empty() {
            self.next_actions.push_back(Action::Deferred(permitted));
        }
        self.hold_back(until, whose);
    }

    /// Makes messages wait until `until` at least, except permitted messages, which are sent: a limit that grants no
    /// more before `until` granted them just before, and would grant and deny the same messages again.
    pub fn hold_back(&mut self, until: Mono, mut whose: impl FnMut(&T) -> bool) {
        let mut deferred = self.ready.extract(&mut whose);
        deferred.extend(self.key_queues.extract(&mut whose));
        deferred.extend(self.delayed.extract_before(until, whose));
        for item in deferred {
            self.delay(item, until);
        }
    }

    /// Lets the messages that wait for keys ask again: earlier answers of their limits no longer count.
    pub fn reopen(&mut self, whose: impl FnMut(&T) -> bool, now: Mono) {
        let again = self.key_queues.extract(whose);
        self.key_queues.forget(now);
        for item in again {
            self.push(item, now);
        }
    }
}

pub(super) fn dismiss<T: Queued>(item: T) -> Action<T> {
    if item.is_stale() {
        Action::Stale(item)
    } else {
        Action::Expired(item)
    }
}
