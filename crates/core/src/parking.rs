//! Tenants of a route that shares fairly: which messages are parked, and which tenant makes most of the calls.
//!
//! Problem: a queue is first in, first out, and a replica sees no more of it than its prefetch. A
//! tenant whose backlog fills the prefetch keeps all other tenants out, and then nothing can be
//! shared. So messages of a tenant beyond its *allowance* are parked: they go to a queue beside the
//! work queue ([`ParkedQueue`]), which every replica consumes as well, and the messages behind them
//! arrive.
//!
//! **Why parked queues and not wait queues.** A message in a wait queue needs a time. If the time
//! is too late, the limit is idle when the other tenants have no messages left; if it is too early,
//! the message is in front again. Parked queues are consumed all the time, each within a prefetch
//! of its own, so a message of the tenant is there when the tenant is due. A message is parked once
//! at most ([`CameFrom`]).
//!
//! **Never idle.** A message is parked only while the replica holds at least three quarters of its
//! prefetch from the work queue. Only the last quarter, the look-ahead, is parked.
//!
//! **The allowance** is twice the tenant's share of what is held, by weight among the tenants seen
//! lately. It is twice the share because tenants that are mixed fairly do not arrive in even
//! numbers, and parking small surpluses would be useless work.
//!
//! **The bounds.** Parking a million messages of the only tenant would be useless too, and only
//! looking further shows whether it is the only one. So at most `most` messages are parked, and a
//! replica parks at most a tenth of that in a second. Beyond that, messages are sent first in,
//! first out. If this many messages were looked through and no other tenant was found, looking stops
//! until three quarters of them are sent or another tenant arrives. Meanwhile messages also come from the work queue,
//! whose prefetch is larger than that of a parked queue (twice, from 64 messages on).
//!
//! Tenants whose hashes fall into the same parked queue share it. Among them messages are taken in the
//! order in which they were parked, within the prefetch of the parked queue.
//!
//! The tenant with most calls is in [`BusiestTenants`].

mod busiest;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::message::TenantShare;
use super::time::Mono;

pub use busiest::BusiestTenants;

/// A tenant without held messages still counts as one of those that share for this long.
const LATELY: Duration = Duration::from_secs(10);
/// Tenants without messages that are remembered at most.
const REMEMBERED: usize = 1024;
/// Messages of any tenant that may be held.
const FLOOR: u64 = 4;
/// One message, in the millionths in which `may_park` is counted: it grows with each microsecond.
const MESSAGE: u64 = 1_000_000;

/// A parked queue beside the work queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParkedQueue(u8);

impl ParkedQueue {
    /// How many there are. More: fewer tenants share one; each is one more queue to consume.
    const COUNT: u8 = 8;

    /// The parked queue of a tenant, by a hash that is the same on every replica.
    #[must_use]
    pub const fn of(tenant: u64) -> Self {
        // Below COUNT.
        Self((tenant % Self::COUNT as u64) as u8)
    }

    /// All parked queues.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT).map(Self)
    }

    /// From 0 on.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The last part of its queue's name, after the work queue's name and `.parked.`: `0`.
    #[must_use]
    pub fn label(self) -> String {
        self.0.to_string()
    }

    /// The prefetch of each parked queue, beside a work queue with that prefetch: half of it, so that one
    /// parked queue alone keeps a limit busy. A small one is that of a slow limit, for which all parked queues
    /// together hold no more than the work queue, so that acks come before the broker's timeout.
    #[must_use]
    pub const fn prefetch(work: u16) -> u16 {
        match work {
            0..8 => 1,
            8..64 => work / 8,
            _ => work / 2,
        }
    }
}

/// Where a message comes from, and whether it may be parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CameFrom {
    /// From the work queue, for the first time.
    Work,
    /// From the work queue or from another route, and must not be parked: it has an AMQP priority or a time of its own,
    /// a limit has sent it away, or the route that received it already decided to hold it.
    NotParkable,
    /// The message was parked before, on whichever way it comes now: it is not parked again.
    Parked,
}

/// What becomes of a message that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The message is held from now on, until [`Parking::note_departure`].
    Keep,
    /// The message goes to its tenant's parked queue.
    Park,
}

#[derive(Debug)]
struct Tenant {
    held: u64,
    weight: u64,
    seen: Mono,
}

/// The messages of a route that one replica holds, by tenant.
#[derive(Debug)]
pub struct Parking {
    /// Messages from the work queue that are held at least while something is parked.
    kept: u64,
    /// Messages that are parked at most.
    most: u64,
    /// Held, of those that were never parked.
    held: u64,
    /// Tenants with held messages, and tenants seen lately.
    tenants: HashMap<u64, Tenant>,
    /// The sum of the weights of all tenants.
    weights: u64,
    /// Tenants without held messages, by when they were seen.
    idle: BTreeSet<(Mono, u64)>,
    /// Millionths of messages that may be parked now.
    may_park: u64,
    filled: Mono,
    search_paused: bool,
}

impl Parking {
    /// Nothing is held yet. At most `most` messages of the route may be parked (0: none).
    #[must_use]
    pub fn new(prefetch: u16, most: u32) -> Self {
        let most = u64::from(most);
        Self {
            kept: (u64::from(prefetch) * 3).div_ceil(4).max(1),
            most,
            held: 0,
            tenants: HashMap::new(),
            weights: 0,
            idle: BTreeSet::new(),
            may_park: Self::a_second(most) * MESSAGE,
            filled: Mono::from_micros(0),
            search_paused: false,
        }
    }

    /// A message arrives. `parked` is how many messages of the route are parked by all replicas;
    /// while that is unknown (`None`), nothing is parked.
    pub fn note_arrival(
        &mut self,
        share: TenantShare,
        origin: CameFrom,
        parked: Option<u64>,
        now: Mono,
    ) -> Choice {
        self.forget(now);
        self.fill(now);
        self.observe(share, now);
        if origin == CameFrom::Work && self.keeps_others_out(share) && self.has_space(parked) {
            self.may_park -= MESSAGE;
            return Choice::Park;
        }
        self.held += u64::from(origin != CameFrom::Parked);
        if let Some(tenant) = self.tenants.get_mut(&share.tenant) {
            if tenant.held == 0 {
                self.idle.remove(&(tenant.seen, share.tenant));
            }
            tenant.held += 1;
        }
        Choice::Keep
    }

    /// A message that was kept is no longer held.
    pub fn note_departure(&mut self, share: TenantShare, origin: CameFrom) {
        let work = u64::from(origin != CameFrom::Parked);
        self.held = self.held.saturating_sub(work);
        if let Some(tenant) = self.tenants.get_mut(&share.tenant) {
            tenant.held = tenant.held.saturating_sub(1);
            if tenant.held == 0 {
                self.idle.insert((tenant.seen, share.tenant));
            }
        }
    }

    /// How many of a tenant's messages may be held before more of them are parked.
    fn allowance(&self, share: TenantShare) -> u64 {
        let weight = u64::from(share.weight.get());
        let fair = 2 * self.kept * weight / self.weights.max(weight);
        fair.max(FLOOR).min(self.kept)
    }

    /// Whether one more of its messages would keep others out: enough are held, and enough of
    /// these are its own.
    fn keeps_others_out(&self, share: TenantShare) -> bool {
        let held = self.tenants.get(&share.tenant).map_or(0, |t| t.held);
        self.held >= self.kept && held >= self.allowance(share)
    }

    fn has_space(&mut self, parked: Option<u64>) -> bool {
        let Some(parked) = parked else {
            return false;
        };
        let alone = self.tenants.len() == 1;
        if !alone || parked <= self.most / 4 {
            self.search_paused = false;
        }
        if parked >= self.most {
            self.search_paused = alone;
            return false;
        }
        !self.search_paused && self.may_park >= MESSAGE
    }

    /// Records that a tenant was seen.
    fn observe(&mut self, share: TenantShare, now: Mono) {
        let weight = u64::from(share.weight.get());
        if let Some(tenant) = self.tenants.get_mut(&share.tenant) {
            self.weights = self.weights - tenant.weight + weight;
            tenant.weight = weight;
            let before = std::mem::replace(&mut tenant.seen, now);
            if tenant.held == 0 {
                self.idle.remove(&(before, share.tenant));
                self.idle.insert((now, share.tenant));
            }
            return;
        }
        let tenant = Tenant {
            held: 0,
            weight,
            seen: now,
        };
        self.tenants.insert(share.tenant, tenant);
        self.idle.insert((now, share.tenant));
        self.weights += weight;
    }

    /// Drops tenants that hold nothing and were not seen lately, or are too many.
    fn forget(&mut self, now: Mono) {
        while let Some(&(seen, name)) = self.idle.first()
            && (now.since(seen) > LATELY || self.idle.len() > REMEMBERED)
        {
            self.idle.pop_first();
            if let Some(tenant) = self.tenants.remove(&name) {
                self.weights -= tenant.weight;
            }
        }
    }

    fn fill(&mut self, now: Mono) {
        let a_second = Self::a_second(self.most);
        let elapsed = super::time::micros(now.since(self.filled).min(Duration::from_secs(1)));
        self.may_park = (self.may_park + elapsed * a_second).min(a_second * MESSAGE);
        self.filled = self.filled.max(now);
    }

    /// Messages that may be parked in a second.
    const fn a_second(most: u64) -> u64 {
        if most < 10 { 1 } else { most / 10 }
    }
}

#[cfg(test)]
mod tests;
