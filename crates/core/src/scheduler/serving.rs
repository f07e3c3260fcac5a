//! How messages leave the scheduler, and what a route waits for.
//!
//! A slot goes to the best message that could be sent, whether it was permitted or needs no permit. Without a
//! slot messages leave it when their permits run out, the replica stops, their route closes, or another
//! policy comes. The tap of a route and the watch on its progress (`core::stall`) need to know what the route
//! waits for.

use std::cmp::Reverse;
use std::time::Duration;

use super::queued::Queued;
use super::request::Requests;
use super::{Action, NEVER, PermittedKey, Scheduler};
use crate::leases::{Availability, LeaseHolder, Slot, Wait};
use crate::pacing::Row;
use crate::stall::{RouteWaits, bound};
use crate::time::{ClockMap, Mono};

/// What a message needs before it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// No keyed limit counts it.
    Slot,
    SlotAndPermit,
}

/// No more late slots are remembered until they are asked for.
const LATE_KEPT: usize = 1_024;

/// The place of a message that could be sent.
#[derive(Clone, Copy, Debug)]
enum Head {
    Permitted(PermittedKey),
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
            let could_go = self.head(row == Row::Reserve).is_some();
            let slot = self.pacing.due(row, now);
            // A slot that no message could have taken was not late.
            let late = self.pacing.take_late();
            if could_go && self.late.len() < LATE_KEPT {
                self.late.extend(late);
            }
            let Some(head) = self.head(row == Row::Reserve) else {
                if self.collect(row, slot?, now) {
                    continue;
                }
                return None;
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
            self.pacing.keep(row, slot);
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
        if self.asked.keyed > 0 {
            let costs = self.asked_costs.values().flatten();
            return costs.max().map_or(1, |cost| cost.get() as usize);
        }
        let askable = self.next_keyed().filter(|item| item.is_keyed());
        let next = askable.or_else(|| self.coming(now).next());
        next.map_or(1, |item| item.cost().get() as usize)
    }

    /// The place of the best message that could be sent.
    fn head(&self, urgent: bool) -> Option<Head> {
        let permitted = self
            .permitted
            .iter()
            .find(|(_, item)| !urgent || item.is_urgent())
            .map(|(place, _)| *place);
        let ready = if urgent {
            self.ready.peek_urgent()
        } else {
            self.ready.peek()
        };
        let needs_no_permit = ready.filter(|item| !item.is_keyed());
        match (permitted, needs_no_permit.map(Queued::priority)) {
            (Some(place), Some(priority)) if priority > place.0.0 => Some(Head::Ready(priority)),
            (Some(place), _) => Some(Head::Permitted(place)),
            (None, priority) => priority.map(Head::Ready),
        }
    }

    fn item(&self, head: Head) -> Option<&T> {
        match head {
            Head::Permitted(place) => self.permitted.get(&place),
            Head::Ready(priority) => self.ready.peek_at(priority),
        }
    }

    fn take(&mut self, head: Head) -> Option<(T, Mono)> {
        match head {
            Head::Permitted(place) => self.leave(place).map(|item| (item, place.1)),
            Head::Ready(priority) => self.ready.pop_from(priority).map(|item| (item, NEVER)),
        }
    }

    pub(super) fn enter(&mut self, item: T, until: Mono) {
        self.permitted_count += 1;
        let place = (Reverse(item.priority()), until, self.permitted_count);
        self.permitted_sum.add(&item);
        self.ends.insert((until, place));
        self.permitted.insert(place, item);
    }

    fn leave(&mut self, place: PermittedKey) -> Option<T> {
        let item = self.permitted.remove(&place)?;
        self.permitted_sum.remove(&item);
        self.ends.remove(&(place.1, place));
        Some(item)
    }

    /// Messages with permits that ran out.
    pub(super) fn take_run_out(&mut self, now: Mono) -> Option<Action<T>> {
        let mut out = Vec::new();
        while let Some((_, place)) = self.ends.first().copied().filter(|(end, _)| *end <= now) {
            out.extend(self.leave(place));
        }
        if out.is_empty() {
            return None;
        }
        self.ran_out();
        Some(Action::RanOut(out))
    }

    /// Takes out all messages for which `unwanted` returns true, wherever they wait. Permitted messages keep their
    /// permits.
    pub fn extract(&mut self, mut unwanted: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut out = self.take_permitted(&mut unwanted);
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

    /// Takes out all messages because the replica stops, including the messages that would leave it with the
    /// next steps.
    pub fn extract_all(&mut self) -> Vec<T> {
        let mut out = self.extract(|_| true);
        for step in std::mem::take(&mut self.found) {
            match step {
                Action::Depart(item, _) | Action::Expired(item) | Action::Stale(item) => {
                    out.push(item)
                }
                Action::Never { item, .. } | Action::Ended { item, .. } => out.push(item),
                Action::RanOut(items) => out.extend(items),
                _ => {}
            }
        }
        out
    }

    /// Takes out the delayed messages for which `whose` returns true, in the order of their times.
    pub fn take_delayed(&mut self, mut whose: impl FnMut(&T) -> bool) -> Vec<T> {
        let found = self.delayed.iter().filter(|(_, item)| whose(item));
        let keys: Vec<_> = found.map(|(key, _)| *key).collect();
        keys.iter()
            .filter_map(|key| self.delayed.remove(key))
            .collect()
    }

    /// Makes messages wait until `until` at least. Permitted messages come out of [`Scheduler::poll`], like messages
    /// whose permits ran out.
    pub fn defer(&mut self, until: Mono, mut whose: impl FnMut(&T) -> bool) {
        let permitted = self.take_permitted(&mut whose);
        if !permitted.is_empty() {
            self.found.push_back(Action::RanOut(permitted));
        }
        self.hold_back(until, whose);
    }

    /// Makes messages wait until `until` at least, except permitted messages, which are sent: a limit that grants no
    /// more before `until` granted them just before, and would grant and deny the same messages again.
    pub fn hold_back(&mut self, until: Mono, mut whose: impl FnMut(&T) -> bool) {
        let mut deferred = self.ready.extract(&mut whose);
        deferred.extend(self.key_queues.extract(&mut whose));
        let early: Vec<_> = self
            .delayed
            .range(..(until, 0))
            .filter(|(_, item)| whose(item))
            .map(|(key, _)| *key)
            .collect();
        deferred.extend(early.iter().filter_map(|key| self.delayed.remove(key)));
        for item in deferred {
            self.delay(item, until);
        }
    }

    /// Lets the messages that wait for keys ask again: earlier answers of their limits no longer count.
    pub fn reopen(&mut self, whose: impl FnMut(&T) -> bool, now: Mono) {
        let again = self.key_queues.extract(whose);
        self.key_queues.forget();
        for item in again {
            self.push(item, now);
        }
    }

    fn take_permitted(&mut self, whose: &mut impl FnMut(&T) -> bool) -> Vec<T> {
        let found = self.permitted.iter().filter(|(_, item)| whose(item));
        let places: Vec<PermittedKey> = found.map(|(place, _)| *place).collect();
        let taken = places.into_iter();
        taken.filter_map(|place| self.leave(place)).collect()
    }
}

pub(super) fn dismiss<T: Queued>(item: T) -> Action<T> {
    if item.is_stale() {
        Action::Stale(item)
    } else {
        Action::Expired(item)
    }
}

impl<T: Queued> Scheduler<T> {
    /// When the limits have what ready messages need.
    #[must_use]
    pub fn availability(&self, needs: Needs, now: Mono) -> Availability {
        if !self.clock().is_some_and(ClockMap::is_known) {
            return Availability::OutOfReach(None);
        }
        let asks = needs == Needs::SlotAndPermit;
        let requests = self.requests.as_ref().filter(|_| asks);
        if requests.is_some_and(|requests| !requests.may_begin(now)) {
            return Availability::OutOfReach(None);
        }
        let pacing = self.pacing.availability(now);
        match requests.and_then(Requests::failing_since) {
            // A known freeze lasts, whether requests are answered or not.
            Some(since) if pacing.shut().is_none() => Availability::OutOfReach(Some(since)),
            _ => pacing,
        }
    }

    /// The time before which a message that comes now has no turn, though this replica had every slot: those before it
    /// of its tenant take that long. `None`: nothing paces it, or it may take slots of the reserve too.
    #[must_use]
    pub fn no_turn_before(&self, item: &T, now: Mono) -> Option<Mono> {
        let pace = self.pacing.holder(Row::Main)?.pace();
        if item.is_urgent() && self.pacing.holder(Row::Reserve).is_some() {
            return None;
        }
        let before = u32::try_from(self.ready.before(item)).unwrap_or(u32::MAX);
        // Slots that have come up already may be used as late as the headroom allows.
        let taken = pace.interval().saturating_mul(before);
        Some(now + taken.saturating_sub(pace.headroom()))
    }

    /// What the messages of a route wait for, as far as is known here.
    #[must_use]
    pub fn route_waits(&self, route: usize, needs: Needs, now: Mono) -> RouteWaits {
        match self.availability(needs, now) {
            Availability::OutOfReach(_) | Availability::Until(_, Wait::Frozen | Wait::Paused) => {
                RouteWaits::HeldUp
            }
            _ if !self.could_send(route, now) => RouteWaits::Idle,
            Availability::Until(_, Wait::Turn) => RouteWaits::ForItsTurn,
            Availability::Open => RouteWaits::ForNothingElse,
        }
    }

    /// Whether a message of the route waits for nothing but slots and answers: it is ready, asked for, permitted, or
    /// in the queue of a key that is open.
    fn could_send(&self, route: usize, now: Mono) -> bool {
        let is_of = |item: &T| item.route() == route;
        self.asked_routes
            .get(&route)
            .is_some_and(|count| *count > 0)
            || self.ready.any(is_of)
            || self.permitted.values().any(is_of)
            || self.key_queues.any_open(now, is_of)
    }

    /// For how long a route may have messages that could go, and make no call.
    #[must_use]
    pub fn may_stand_for(&self) -> Duration {
        bound(
            self.pacing.holder(Row::Main).map(LeaseHolder::pace),
            self.slow_trip(),
        )
    }

    /// A slow round trip to the store of keyed limits; zero if it is not known.
    #[must_use]
    pub fn slow_trip(&self) -> Duration {
        let requests = self.requests.as_ref();
        requests.map_or(Duration::ZERO, Requests::slow_trip)
    }
}

#[cfg(test)]
mod tests;
