//! What the scheduler must know of a message, and the sums over several messages.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::rate::Cost;
use crate::time::{Mono, StoreTime};

/// One key of one limit, as a number. Keys with the same number only share a queue in memory.
pub type KeyId = u64;

/// The tenant of a message, and its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantShare {
    /// A hash of the tenant's name. Two names with one hash share one share.
    pub tenant: u64,
    /// The weight of the tenant against others.
    pub weight: NonZeroU32,
}

impl Default for TenantShare {
    /// The share of all messages without a tenant.
    fn default() -> Self {
        Self {
            tenant: 0,
            weight: NonZeroU32::MIN,
        }
    }
}

/// What the scheduler must know of a message.
pub trait Queued {
    /// Units that it takes from the paced limit.
    fn cost(&self) -> Cost {
        Cost::ONE
    }
    /// Higher goes first.
    fn priority(&self) -> u16 {
        0
    }
    /// The message may take slots that are kept in reserve.
    fn is_urgent(&self) -> bool {
        false
    }
    /// The tenant of the message, and the weight of that.
    fn share(&self) -> TenantShare {
        TenantShare::default()
    }
    /// The keyed limits that count it, each with its key. None: it needs no permit.
    fn keys(&self) -> impl Iterator<Item = KeyId> {
        std::iter::empty()
    }
    /// Whether keyed limits must be asked before it may be sent.
    fn is_keyed(&self) -> bool {
        self.keys().next().is_some()
    }
    /// The number of the message in the order in which messages came. No two have the same.
    fn arrival(&self) -> u64;
    /// The number of its route.
    fn route(&self) -> usize {
        0
    }
    /// Whether the limit of this key counts all messages of the route together.
    fn is_for_all(&self, _key: KeyId) -> bool {
        false
    }
    /// Whether the limit of this key counts calls in flight.
    fn counts_calls(&self, _key: KeyId) -> bool {
        false
    }
    /// How many messages of its route are held at most.
    fn prefetch(&self) -> usize {
        usize::MAX
    }
    /// The message has no place to wait but memory. Where its deadline comes before its limit has room, it is denied
    /// with the time to come back, and does not expire.
    fn waits_only_here(&self) -> bool {
        false
    }
    /// The message may wait in memory for this key while fewer messages of its route than this wait for keys.
    fn memory_room(&self, key: KeyId) -> usize {
        // Where the limit counts all messages together, there are no others to make room for. A message that was sent
        // away until a time comes back when it fits, and has room too; a limit of calls in flight names no such time.
        let comes_back = self.was_denied() && !self.counts_calls(key);
        if self.waits_only_here() || self.is_for_all(key) || comes_back {
            usize::MAX
        } else {
            self.prefetch() / 2
        }
    }
    /// From this time on it must not be sent any more.
    fn deadline(&self) -> Option<Mono> {
        None
    }
    /// The session of the message is gone: the broker delivers the message again, so sending it would only make a
    /// repeat.
    fn is_stale(&self) -> bool {
        false
    }
    /// The message is not sent any more: its deadline has passed, or its session is gone.
    fn is_over(&self, now: Mono) -> bool {
        self.is_stale() || self.deadline().is_some_and(|end| end <= now)
    }
    /// For how long a permit of its keyed limits is valid, under the current policies.
    fn permit_validity(&self) -> Duration {
        Duration::ZERO
    }
    /// The keyed limits of the message granted it at this time of the store, this long `ago` at most.
    fn note_grant(&mut self, _at: StoreTime, _ago: Duration) {}
    /// Whether a limit has sent it away before.
    fn was_denied(&self) -> bool {
        false
    }
    /// A limit sends it away until a time that the answer named.
    fn mark_denied(&mut self) {}
    /// How its route lets it wait if a key denies it, at a time of the store.
    fn hold_rules(&self, _at: StoreTime) -> HoldRules {
        HoldRules::default()
    }
    /// When its route sends at the earliest, from a time of the store on.
    fn opening(&self, at: StoreTime) -> StoreTime {
        at
    }
}

/// How the route of a denied message lets it wait.
#[derive(Clone, Copy, Debug)]
pub struct HoldRules {
    /// While the route waits as a whole, another route may send its messages.
    pub may_move: bool,
    /// Such a message waits in memory, however long that is.
    pub holds: bool,
    /// The longest wait in memory.
    pub max_hold: Duration,
    /// For how long the message has existed.
    pub age: Duration,
}

impl Default for HoldRules {
    fn default() -> Self {
        Self {
            may_move: false,
            holds: true,
            max_hold: Duration::MAX,
            age: Duration::ZERO,
        }
    }
}

/// How many messages there are, and what they take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageTotals {
    /// How many there are.
    pub messages: usize,
    /// Units that they take from the paced limit.
    pub units: u64,
    /// Units of urgent messages, which are in `units`, too.
    pub urgent: u64,
    /// Messages that keyed limits must be asked for.
    pub keyed: usize,
}

impl MessageTotals {
    /// Both together.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self {
            messages: self.messages + other.messages,
            units: self.units + other.units,
            urgent: self.urgent + other.urgent,
            keyed: self.keyed + other.keyed,
        }
    }

    /// Counts one in.
    pub fn add<T: Queued>(&mut self, item: &T) {
        let units = item.cost().units();
        self.messages += 1;
        self.units += units;
        self.urgent += units * u64::from(item.is_urgent());
        self.keyed += usize::from(item.is_keyed());
    }

    /// Counts one out again.
    pub fn remove<T: Queued>(&mut self, item: &T) {
        let units = item.cost().units();
        self.messages -= 1;
        self.units -= units;
        self.urgent -= units * u64::from(item.is_urgent());
        self.keyed -= usize::from(item.is_keyed());
    }
}
