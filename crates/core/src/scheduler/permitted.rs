//! Messages with a permit, which may be sent as soon as a slot comes.
//!
//! Problem: a slot goes to the best of them, and each permit runs out at its own time, whatever the priority of its
//! message. So they are kept in two orders, which change together here.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::message::{MessageTotals, Queued};
use crate::time::Mono;

/// The place of a permitted message: by priority, then by the end of the permit, then as permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PermittedPlace {
    priority: Reverse<u16>,
    until: Mono,
    number: u64,
}

impl PermittedPlace {
    /// The priority of its message.
    pub(super) const fn priority(self) -> u16 {
        self.priority.0
    }

    /// When the permit of its message runs out.
    pub(super) const fn until(self) -> Mono {
        self.until
    }
}

/// Messages that were permitted.
#[derive(Debug)]
pub(super) struct PermittedMessages<T> {
    by_place: BTreeMap<PermittedPlace, T>,
    /// When permits run out.
    ends: BTreeSet<(Mono, PermittedPlace)>,
    totals: MessageTotals,
    /// How many were added so far.
    number: u64,
}

impl<T> Default for PermittedMessages<T> {
    fn default() -> Self {
        Self {
            by_place: BTreeMap::new(),
            ends: BTreeSet::new(),
            totals: MessageTotals::default(),
            number: 0,
        }
    }
}

impl<T: Queued> PermittedMessages<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.by_place.is_empty()
    }

    /// In the order in which they get slots.
    pub(super) fn items(&self) -> impl Iterator<Item = &T> {
        self.by_place.values()
    }

    /// Those with at least this priority.
    pub(super) fn not_below(&self, priority: u16) -> impl Iterator<Item = &T> {
        let last = PermittedPlace {
            priority: Reverse(priority),
            until: Mono::NEVER,
            number: u64::MAX,
        };
        self.by_place.range(..=last).map(|(_, item)| item)
    }

    /// How many there are, and what they take.
    pub(super) const fn totals(&self) -> MessageTotals {
        self.totals
    }

    /// The place of the first message that could take a slot.
    pub(super) fn first(&self, could: impl Fn(&T) -> bool) -> Option<PermittedPlace> {
        let mut all = self.by_place.iter();
        all.find(|(_, item)| could(item)).map(|(place, _)| *place)
    }

    /// The message at this place.
    pub(super) fn get(&self, place: PermittedPlace) -> Option<&T> {
        self.by_place.get(&place)
    }

    /// When the first permit runs out.
    pub(super) fn next_end(&self) -> Option<Mono> {
        self.ends.first().map(|(end, _)| *end)
    }

    /// Adds a message with a permit until then.
    pub(super) fn add(&mut self, item: T, until: Mono) {
        self.number += 1;
        let place = PermittedPlace {
            priority: Reverse(item.priority()),
            until,
            number: self.number,
        };
        self.totals.add(&item);
        self.ends.insert((until, place));
        self.by_place.insert(place, item);
    }

    /// Takes out the message at this place.
    pub(super) fn take(&mut self, place: PermittedPlace) -> Option<T> {
        let item = self.by_place.remove(&place)?;
        self.totals.remove(&item);
        self.ends.remove(&(place.until, place));
        Some(item)
    }

    /// Takes out messages whose permits have run out.
    pub(super) fn take_run_out(&mut self, now: Mono) -> Vec<T> {
        let mut out = Vec::new();
        while let Some((_, place)) = self.ends.first().copied().filter(|(end, _)| *end <= now) {
            out.extend(self.take(place));
        }
        out
    }

    /// Takes out the messages for which `whose` returns true.
    pub(super) fn extract(&mut self, whose: &mut impl FnMut(&T) -> bool) -> Vec<T> {
        let found = self.by_place.iter().filter(|(_, item)| whose(item));
        let places: Vec<PermittedPlace> = found.map(|(place, _)| *place).collect();
        let taken = places.into_iter();
        taken.filter_map(|place| self.take(place)).collect()
    }
}
