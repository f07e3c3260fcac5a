//! A message in the memory of a replica, and its keys.

use std::time::Duration;

use sluiced_core::limits::{Rule, Ticket};
use sluiced_core::rate::Cost;
use sluiced_core::scheduler::{KeyId, Queued, Share, Terms};
use sluiced_core::time::{Mono, StoreTime};

use crate::setting::{Far, KeyCost, Keyed, Message, Route};

/// A limit and one of its keys.
pub(super) type Name = (usize, u32);

/// The keys of charges.
pub(super) fn names(charges: &[KeyCost]) -> impl Iterator<Item = Name> {
    let each = charges.iter().enumerate();
    each.map(|(index, charge)| (index, charge.key))
}

/// A key, for the scheduler.
pub(super) fn key_id((limit, key): Name) -> KeyId {
    (limit as u64) << 32 | u64::from(key)
}

/// A message in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parcel<'a> {
    pub(super) id: u32,
    pub(super) message: &'a Message,
    pub(super) route: &'a Route,
    /// For how long a permission is good.
    pub(super) usable: Duration,
    pub(super) arrival: u64,
    /// When it was published.
    pub(super) born: StoreTime,
    pub(super) deadline: Option<Mono>,
    /// It was sent away before.
    pub(super) waited: bool,
    /// Names its call to the keyed limits, which granted it then.
    pub(super) ticket: Ticket,
    pub(super) granted: Option<StoreTime>,
}

impl Parcel<'_> {
    fn limit(&self, key: KeyId) -> Option<&Keyed> {
        self.route.keyed.get((key >> 32) as usize)
    }
}

impl Queued for Parcel<'_> {
    fn cost(&self) -> Cost {
        self.message.slots
    }
    fn priority(&self) -> u16 {
        self.message.priority
    }
    fn is_urgent(&self) -> bool {
        self.message.urgent
    }
    fn share(&self) -> Share {
        self.message.share
    }
    fn keys(&self) -> impl Iterator<Item = KeyId> {
        names(&self.message.charges).map(key_id)
    }
    fn arrival(&self) -> u64 {
        self.arrival
    }
    fn memory_room(&self, key: KeyId) -> usize {
        let limit = self.limit(key);
        let is_for_all = limit.is_some_and(|limit| limit.for_all);
        let counts_calls = limit.is_some_and(|limit| matches!(limit.rule, Rule::Concurrency(_)));
        if is_for_all || self.waited && !counts_calls {
            usize::MAX
        } else {
            usize::from(self.route.prefetch) / 2
        }
    }
    fn deadline(&self) -> Option<Mono> {
        self.deadline
    }
    fn usable(&self) -> Duration {
        self.usable
    }
    fn granted(&mut self, at: StoreTime) {
        self.granted = Some(at);
    }
    fn waited(&self) -> bool {
        self.waited
    }
    fn sent_away(&mut self) {
        self.waited = true;
    }
    fn terms(&self, key: KeyId, at: StoreTime) -> Terms {
        Terms {
            is_for_all: self.limit(key).is_some_and(|limit| limit.for_all),
            holds: self.route.far == Far::Hold,
            max_hold: self.route.max_hold,
            age: at.since(self.born),
        }
    }
    fn opening(&self, at: StoreTime) -> StoreTime {
        let hours = self.route.hours.as_ref();
        hours.map_or(at, |hours| hours.opens(at))
    }
}
