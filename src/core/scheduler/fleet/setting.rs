//! How a run is made up: the limits, the replicas, and the messages with their keys.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::limits::Rule;
use crate::rate::Cost;
use crate::schedule::Pace;
use crate::scheduler::{KeyId, Queued};
use crate::time::StoreTime;

/// What a limit counts by.
#[derive(Clone, Copy, Debug)]
pub(crate) enum By {
    /// So many keys have one in common.
    Keys(u32),
    /// One of so many, whatever the key.
    Any(u32),
}

impl By {
    pub(super) fn key(self, id: u32, key: u32) -> u32 {
        match self {
            Self::Keys(shared) => key / shared,
            Self::Any(all) => scramble(id) % all,
        }
    }
}

/// A number that has nothing to do with its neighbours' (the finalizer of MurmurHash3).
fn scramble(number: u32) -> u32 {
    let mut hash = number.wrapping_add(1);
    hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}

/// How a run is made up.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    /// `None`: nothing paces the messages.
    pub(crate) pace: Option<Pace>,
    /// The limits that count a message, all at once.
    pub(crate) rules: Vec<(Rule, By)>,
    /// What a message takes of every limit, in units.
    pub(crate) cost: u32,
    pub(crate) replicas: usize,
    pub(crate) prefetch: usize,
    /// A denied message waits in memory if its time is no further away.
    pub(crate) max_hold: Duration,
    /// One way to a store takes so many microseconds, and up to as many more.
    pub(crate) way: u64,
    pub(crate) seed: u64,
    /// How often all of it stands still, and for how long.
    pub(crate) stalls: Option<[Duration; 2]>,
    /// The keys of the messages, as they stand in the queue.
    pub(crate) keys: Vec<u32>,
}

/// A message for a key.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(super) id: u32,
    pub(super) cost: u32,
    pub(super) arrival: u64,
    pub(super) granted: Option<StoreTime>,
    /// The key of each limit.
    pub(super) keys: Vec<u32>,
    pub(super) memory_room: usize,
    /// It came back from a wait queue.
    pub(super) waited: bool,
}

impl Queued for Message {
    fn cost(&self) -> Cost {
        Cost::new(NonZeroU32::new(self.cost).unwrap())
    }
    fn keys(&self) -> impl Iterator<Item = KeyId> {
        let each = (0_u64..).zip(&self.keys);
        each.map(|(limit, key)| limit << 32 | u64::from(*key))
    }
    fn arrival(&self) -> u64 {
        self.arrival
    }
    fn memory_room(&self, _: KeyId) -> usize {
        if self.waited {
            usize::MAX
        } else {
            self.memory_room
        }
    }
}
