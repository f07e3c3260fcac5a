//! One replica: its scheduler, what it holds, and whether it consumes.

use std::time::Duration;

use sluiced_core::clock::ClockMap;
use sluiced_core::leases::{LeaseHolder, Outlook, Phase};
use sluiced_core::limits::Rule;
use sluiced_core::pacing::Pacing;
use sluiced_core::rate::Cost;
use sluiced_core::scheduler::{KeyId, Queued, Requests, Scheduler, Share};
use sluiced_core::time::{Mono, StoreTime};

use super::{Far, Message, Route};
use crate::cells::{key_id, names};
use crate::dice::mix;

/// A message in the memory of a replica.
#[derive(Clone, Debug)]
pub(super) struct Parcel {
    pub(super) id: u32,
    pub(super) slots: Cost,
    priority: u16,
    urgent: bool,
    share: Share,
    keys: Box<[KeyId]>,
    /// Bit by bit: the limits that count all messages together, and those that count calls under way.
    for_all: u32,
    of_calls: u32,
    arrival: u64,
    pub(super) deadline: Option<Mono>,
    /// So many may wait in memory for keys.
    room: usize,
    /// It was sent away before.
    pub(super) waited: bool,
    /// When its keyed limits granted it.
    pub(super) granted: Option<StoreTime>,
}

impl Parcel {
    pub(super) fn new(id: u32, message: &Message, route: &Route, arrival: u64) -> Self {
        let keys = names(&message.charges).map(key_id);
        let (mut for_all, mut of_calls) = (0, 0);
        for (bit, keyed) in route.keyed.iter().enumerate() {
            for_all |= u32::from(keyed.for_all) << bit;
            of_calls |= u32::from(matches!(keyed.rule, Rule::Concurrency(_))) << bit;
        }
        Self {
            id,
            slots: message.slots,
            priority: message.priority,
            urgent: message.urgent,
            share: message.share,
            keys: keys.collect(),
            for_all,
            of_calls,
            arrival,
            deadline: None,
            room: usize::from(route.prefetch) / 2,
            waited: false,
            granted: None,
        }
    }

    /// Whether the key is one for all messages.
    pub(super) const fn is_for_all(&self, key: KeyId) -> bool {
        self.for_all >> (key >> 32) & 1 == 1
    }
}

impl Queued for Parcel {
    fn cost(&self) -> Cost {
        self.slots
    }
    fn priority(&self) -> u16 {
        self.priority
    }
    fn is_urgent(&self) -> bool {
        self.urgent
    }
    fn share(&self) -> Share {
        self.share
    }
    fn keys(&self) -> impl Iterator<Item = KeyId> {
        self.keys.iter().copied()
    }
    fn arrival(&self) -> u64 {
        self.arrival
    }
    fn memory_room(&self, key: KeyId) -> usize {
        let counts_calls = self.of_calls >> (key >> 32) & 1 == 1;
        if self.is_for_all(key) || self.waited && !counts_calls {
            usize::MAX
        } else {
            self.room
        }
    }
    fn deadline(&self) -> Option<Mono> {
        self.deadline
    }
}

/// A replica.
#[derive(Debug)]
pub(super) struct Replica {
    pub(super) scheduler: Scheduler<Parcel>,
    /// Delivered and not settled.
    pub(super) held: u32,
    /// Messages that came so far, and when the last of them comes or came.
    pub(super) arrivals: u64,
    pub(super) last_delivery: u64,
    /// A limit that is for all messages lets nothing pass before.
    pub(super) closed_until: Option<Mono>,
    /// It consumes.
    pub(super) tap_open: bool,
}

impl Replica {
    pub(super) fn new(id: u32, route: &Route) -> Self {
        let phase = Phase::new(mix(u64::from(id) + 1));
        let mut rows = route.rows.iter().map(|pace| LeaseHolder::new(*pace, phase));
        let pacing = match rows.next() {
            Some(main) => Pacing::with_reserve(main, rows.next()),
            None => Pacing::free(),
        };
        let usable = route.keyed.iter().map(|keyed| keyed.rule.usable()).min();
        let paced = pacing.is_paced();
        let requests = usable.map(|usable| Requests::new(usable, phase, paced));
        Self {
            scheduler: Scheduler::new(pacing, requests),
            held: 0,
            arrivals: 0,
            last_delivery: 0,
            closed_until: None,
            tap_open: false,
        }
    }

    /// Whether the stores have told what time it is.
    pub(super) fn knows_time(&self, keyed: bool) -> bool {
        let known = self.scheduler.clock().is_some_and(ClockMap::is_known);
        known && (!keyed || self.scheduler.has_asked())
    }

    /// How long no slot comes, if that is known.
    pub(super) fn blocked_for(&self, keyed: bool, now: Mono) -> Option<Duration> {
        match self.scheduler.outlook(now, keyed) {
            Outlook::Until(at, _) => Some(at.since(now)),
            Outlook::Open | Outlook::OutOfReach(_) => None,
        }
    }
}

/// Whether messages of the route wait for far-away slots in their queue.
pub(super) const fn waits_in_queue(far: Far) -> bool {
    matches!(far, Far::Hold)
}
