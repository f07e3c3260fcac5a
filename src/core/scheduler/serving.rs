//! Which message a slot goes to: the best one that could be sent, whether it was admitted or needs no
//! permission.

use super::ready::Queued;
use super::{Admitted, AdmittedKey, NEVER, Scheduler, Step};
use crate::leases::Slot;
use crate::pacing::Row;
use crate::time::Mono;

/// No more late slots are remembered until they are asked for.
const LATE_KEPT: usize = 1_024;

/// Where a message is that could be sent.
#[derive(Clone, Copy, Debug)]
enum Head {
    Admitted(AdmittedKey),
    /// The first of its priority.
    Ready(u16),
}

impl<T: Queued> Scheduler<T> {
    /// Gives a slot of the row that is due to the best message.
    pub(super) fn serve(&mut self, row: Row, now: Mono) -> Option<Step<T>> {
        if row == Row::Reserve && self.pacing.holder(row).is_none() {
            return None;
        }
        loop {
            let could_go = self.head(row == Row::Reserve).is_some();
            let slot = self.pacing.due(row, now);
            // A slot that no message could have taken was not late.
            let late = self.pacing.take_late();
            if could_go && self.late.len() < LATE_KEPT {
                self.late.extend(late);
            }
            let Some(head) = self.head(row == Row::Reserve) else {
                self.collect(row, slot?, now)?;
                continue;
            };
            let item = self.item(head)?;
            if item.is_stale() || item.deadline().is_some_and(|end| end <= now) {
                let (item, _) = self.take(head)?;
                return Some(dismiss(item));
            }
            let cost = item.cost();
            let slot = slot?;
            if self.pacing.take(row, slot, cost) {
                let (item, until) = self.take(head)?;
                let leave_by = slot.leave_by.min(until);
                return Some(Step::Send(item, Slot { leave_by, ..slot }));
            }
        }
    }

    /// A message of several slots fires at the last of them, and is asked for just before that. The
    /// earlier ones are kept for it. Returns whether this one was.
    fn collect(&mut self, row: Row, slot: Slot, now: Mono) -> Option<()> {
        if row == Row::Reserve || !self.collects(now) {
            return None;
        }
        self.pacing.keep(row, slot);
        Some(())
    }

    /// Whether the next message that needs a permission also needs more slots before its last one.
    pub(super) fn collects(&self, now: Mono) -> bool {
        self.pacing.is_paced() && self.pacing.collected() + 1 < self.next_cost(now)
    }

    /// The slots of the next message that needs a permission: one that is asked for, one that can be, or one
    /// whose key opens before the slots that come are over.
    fn next_cost(&self, now: Mono) -> usize {
        if self.asked.keyed > 0 {
            return self.asked_cost.get() as usize;
        }
        let next = self.next_keyed().filter(|item| item.is_keyed());
        let next = next.or_else(|| self.coming(now).next());
        next.map_or(1, |item| item.cost().get() as usize)
    }

    /// Where the best message is that could be sent.
    fn head(&self, urgent: bool) -> Option<Head> {
        let admitted = self
            .admitted
            .iter()
            .find(|(_, admitted)| !urgent || admitted.item.is_urgent())
            .map(|(place, _)| *place);
        let ready = if urgent {
            self.ready.peek_urgent()
        } else {
            self.ready.peek()
        };
        let ready = ready.filter(|item| !item.is_keyed()).map(Queued::priority);
        match (admitted, ready) {
            (Some(place), Some(priority)) if priority > place.0.0 => Some(Head::Ready(priority)),
            (Some(place), _) => Some(Head::Admitted(place)),
            (None, priority) => priority.map(Head::Ready),
        }
    }

    fn item(&self, head: Head) -> Option<&T> {
        match head {
            Head::Admitted(place) => self.admitted.get(&place).map(|admitted| &admitted.item),
            Head::Ready(priority) => self.ready.peek_at(priority),
        }
    }

    fn take(&mut self, head: Head) -> Option<(T, Mono)> {
        match head {
            Head::Admitted(place) => self
                .leave(place)
                .map(|Admitted { item, until }| (item, until)),
            Head::Ready(priority) => self.ready.pop_from(priority).map(|item| (item, NEVER)),
        }
    }
}

pub(super) fn dismiss<T: Queued>(item: T) -> Step<T> {
    if item.is_stale() {
        Step::Stale(item)
    } else {
        Step::Expired(item)
    }
}
