//! One paced limit inside one replica: the messages that wait for it and the slots it has leased.
//!
//! All routes that name the limit share the lane, so one lease serves them all and the best
//! message takes each slot whichever route it came by. The shell around it (a thread with a timer
//! and a connection to the store) asks [`Lane::poll`] what to do, does it, and reports back.

use std::collections::BTreeMap;
use std::time::Duration;

use super::keeper::{Keeper, Outlook, Slot};
use super::ready::{Candidate, Ready};
use super::schedule::{Answer, Ask, Freeze, Grant, Pace};
use super::standing::Revision;
use super::time::Mono;

/// What to do next.
#[derive(Debug)]
pub enum Step<T> {
    /// Send this message now: its slot is due.
    Send(T, Slot),
    /// Its deadline has passed. No slot was spent on it.
    Expired(T),
    /// It is not ours any more. No slot was spent on it.
    Stale(T),
    /// Ask the store, and report with [`Lane::answered`] or [`Lane::failed`].
    Ask(Ask),
    /// Nothing to do before this time (`None`: before something is reported).
    Wait(Option<Mono>),
}

/// The lane of one limit.
#[derive(Debug)]
pub struct Lane<T> {
    keeper: Keeper,
    ready: Ready<T>,
    /// Messages that may not be sent before a time, by that time and by arrival.
    parked: BTreeMap<(Mono, u64), T>,
    parked_count: u64,
    /// Slots already taken for the message at the front, if it costs more than one.
    charge: u32,
}

impl<T: Candidate> Lane<T> {
    /// An empty lane.
    #[must_use]
    pub fn new(keeper: Keeper) -> Self {
        Self {
            keeper,
            ready: Ready::default(),
            parked: BTreeMap::new(),
            parked_count: 0,
            charge: 0,
        }
    }

    /// The leases.
    #[must_use]
    pub const fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// Messages held: ready and parked.
    #[must_use]
    pub fn held(&self) -> usize {
        self.ready.len() + self.parked.len()
    }

    /// Adds a message that may be sent at once.
    pub fn push(&mut self, item: T) {
        self.ready.push(item);
    }

    /// Puts a message back that was sent for and did not leave: before those of its priority, so
    /// that a missed slot does not cost it its place.
    pub fn push_front(&mut self, item: T) {
        self.ready.push_front(item);
    }

    /// Adds a message that may not be sent before `at`.
    pub fn park(&mut self, item: T, at: Mono) {
        self.parked_count += 1;
        self.parked.insert((at, self.parked_count), item);
    }

    /// Says what to do at `now`. Call it again after doing it.
    pub fn poll(&mut self, now: Mono) -> Step<T> {
        self.unpark(now);
        while let Some(head) = self.ready.peek() {
            let (expired, stale) = (
                head.deadline().is_some_and(|end| end <= now),
                head.is_stale(),
            );
            let cost = head.cost().get();
            if (expired || stale)
                && let Some(item) = self.ready.pop()
            {
                return if stale {
                    Step::Stale(item)
                } else {
                    Step::Expired(item)
                };
            }
            let Some(slot) = self.keeper.due(now) else {
                break;
            };
            self.keeper.spend();
            self.charge += 1;
            if self.charge >= cost {
                self.charge = 0;
                if let Some(item) = self.ready.pop() {
                    return Step::Send(item, slot);
                }
            }
        }
        let demand = self.demand();
        if let Some(ask) = self.keeper.ask(now, demand) {
            return Step::Ask(ask);
        }
        let slot = self.keeper.next_slot().filter(|_| !self.ready.is_empty());
        let parked = self.parked.first_key_value().map(|((at, _), _)| *at);
        let ask = self.keeper.next_ask(demand);
        Step::Wait([slot, parked, ask].into_iter().flatten().min())
    }

    /// The store answered.
    pub fn answered(&mut self, answer: &Answer, now: Mono) {
        self.keeper.answered(answer, now);
    }

    /// Other terms are in force ([`Keeper::retime`]).
    pub fn retime(&mut self, pace: Pace, known: Revision, now: Mono) {
        self.keeper.retime(pace, known, now);
    }

    /// The store did not answer.
    pub fn failed(&mut self, now: Mono) {
        self.keeper.failed(now);
    }

    /// The limit is frozen: heard from the store.
    pub fn frozen(&mut self, freeze: &Freeze, now: Mono) {
        self.keeper.frozen(freeze, now);
    }

    /// The limit is frozen for `length` from now: our own call was told so.
    pub fn frozen_for(&mut self, length: Duration, now: Mono) {
        self.keeper.frozen_for(length, now);
    }

    /// What the limit holds for messages that are ready.
    #[must_use]
    pub fn outlook(&self, now: Mono) -> Outlook {
        self.keeper.outlook(now)
    }

    /// Takes out all messages, ready or parked, that `unwanted` says yes to.
    pub fn extract(&mut self, mut unwanted: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut out = self.ready.extract(&mut unwanted);
        let keys: Vec<_> = self
            .parked
            .iter()
            .filter(|(_, item)| unwanted(item))
            .map(|(key, _)| *key)
            .collect();
        out.extend(keys.iter().filter_map(|key| self.parked.remove(key)));
        out
    }

    /// Makes the messages of `whose`, ready or parked, wait until `until` at least.
    pub fn defer(&mut self, until: Mono, mut whose: impl FnMut(&T) -> bool) {
        let keys: Vec<_> = self
            .parked
            .range(..(until, 0))
            .filter(|(_, item)| whose(item))
            .map(|(key, _)| *key)
            .collect();
        let mut deferred = self.ready.extract(&mut whose);
        deferred.extend(keys.iter().filter_map(|key| self.parked.remove(key)));
        for item in deferred {
            self.park(item, until);
        }
    }

    /// Drops the leases; answers what the store may take back.
    pub fn surrender(&mut self) -> Option<Grant> {
        self.charge = 0;
        self.keeper.surrender()
    }

    /// How late the slot may be used.
    #[must_use]
    pub fn late_limit(&self, now: Mono) -> Duration {
        self.keeper.late_limit(now)
    }

    fn demand(&self) -> u64 {
        self.ready.units().saturating_sub(u64::from(self.charge))
    }

    fn unpark(&mut self, now: Mono) {
        while let Some(entry) = self
            .parked
            .first_entry()
            .filter(|entry| entry.key().0 <= now)
        {
            let item = entry.remove();
            self.ready.push(item);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::keeper::Phase;
    use super::*;

    struct Item(u32);

    impl Candidate for Item {}

    #[test]
    fn deferring_moves_what_would_come_earlier_and_only_that() {
        let rate = "100/1s".parse().unwrap();
        let pace = Pace::new(rate, Duration::from_millis(5), Duration::from_millis(250));
        let mut lane = Lane::new(Keeper::new(pace, Phase::new(0)));
        let at = Mono::from_micros;
        lane.park(Item(4), at(100));
        lane.park(Item(5), at(200));
        lane.park(Item(3), at(50));
        lane.park(Item(6), at(50));
        for n in [1, 6, 2] {
            lane.push(Item(n));
        }
        lane.defer(at(100), |item| item.0 != 6);
        let parked = lane.parked.iter().map(|(key, item)| (key.0, item.0));
        assert_eq!(
            parked.collect::<Vec<_>>(),
            [
                (at(50), 6),
                (at(100), 4),
                (at(100), 1),
                (at(100), 2),
                (at(100), 3),
                (at(200), 5)
            ]
        );
        assert_eq!(lane.ready.pop().map(|item| item.0), Some(6));
        assert_eq!(lane.held(), 6);
    }
}
