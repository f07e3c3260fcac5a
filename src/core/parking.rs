//! Which messages make room for those behind them, on a route that shares fairly by tenant.
//!
//! A queue is first in, first out, and a replica sees no more of it than its prefetch. A tenant
//! whose backlog fills that hides everybody behind it, and among one tenant there is nothing to
//! share. So what a tenant has in hand beyond its *allowance* is parked: it goes to a queue of its
//! own beside the work queue ([`Space`]), which every replica consumes as well, and what was hidden
//! comes forward.
//!
//! **Why queues without a time, that are consumed.** A parked message has no reserved time. A
//! wait queue would need one: too far, and the limit stands idle when the others fall silent; too
//! near, and the message stands in front again. Parked queues are consumed all the time, each within
//! a prefetch of its own, so a tenant's slot is taken when its turn comes, and its share is there at
//! once when the others have nothing more. A message makes that trip once at most ([`Origin`]).
//!
//! **Never idle.** A message is parked only while a replica keeps three quarters of its prefetch from
//! the work queue in hand. What is parked comes out of the last quarter, the look-ahead.
//!
//! **The allowance** is twice the tenant's share, by weight among the tenants seen lately, of what
//! is kept. Twice, because tenants that are mixed fairly already do not come in even numbers: parking
//! what stands a little out would be work for nothing.
//!
//! **The bounds.** Parking a million messages of the only tenant would be work for nothing as well,
//! and nobody can know that it is the only one without looking. So looking has a bound: at most
//! `most` messages stand parked, and a replica parks no more than a tenth of that a second. Behind
//! that it is first in, first out. Where that much was looked through and nobody else was
//! found, looking rests until three quarters of it are sent, or somebody else shows up: meanwhile
//! two of three messages come straight from the work queue, whose prefetch is twice a space's.
//!
//! A space is shared by the tenants whose hashes fall into it: among them the order is that of
//! parking, as far as the space's prefetch does not show enough of each.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::scheduler::Share;
use super::time::Mono;

/// How long a tenant that has nothing in hand still counts as one of those who share.
const LATELY: Duration = Duration::from_secs(10);
/// Tenants without messages that are remembered at most.
const REMEMBERED: usize = 1024;
/// Messages that any tenant may have in hand.
const FLOOR: u64 = 4;
/// One message in the budget of parking, which grows with microseconds.
const MESSAGE: u64 = 1_000_000;

/// One of the queues beside the work queue that parked messages stand in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Space(u8);

impl Space {
    /// How many there are. More: fewer tenants share one; each is one more queue to consume.
    pub const COUNT: u8 = 8;

    /// The space of a tenant, by a hash that is the same on every replica.
    #[must_use]
    pub const fn of(tenant: u64) -> Self {
        // Below COUNT.
        Self((tenant % Self::COUNT as u64) as u8)
    }

    /// All of them. Whoever declares them declares the first one first: without it there is none.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT).map(Self)
    }

    /// From 0 on.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// What its queue is called, after the work queue's name and `.parked.`: `0`.
    #[must_use]
    pub fn label(self) -> String {
        self.0.to_string()
    }

    /// The prefetch of each space, beside a work queue with that prefetch: half of it, so that one
    /// space alone keeps a limit busy. A small one is that of a slow limit, for which all spaces
    /// together hold no more than the work queue: the broker wants its acks.
    #[must_use]
    pub const fn prefetch(work: u16) -> u16 {
        match work {
            0..8 => 1,
            8..64 => work / 8,
            _ => work / 2,
        }
    }
}

/// Where a message comes from, and whether it may go aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// From the work queue, for the first time.
    Work,
    /// From the work queue; it must stay (it has a priority, a time or a place in a budget).
    Bound,
    /// It was parked before, whichever way it comes now.
    Parked,
}

/// What becomes of a message that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// It is in hand from now on, until [`Parking::left`].
    Keep,
    /// It goes to its tenant's space.
    Park,
}

#[derive(Debug)]
struct Tenant {
    held: u64,
    weight: u64,
    seen: Mono,
}

/// What one replica has in hand of a route.
#[derive(Debug)]
pub struct Parking {
    /// From the work queue, at least, whenever something is parked.
    kept: u64,
    /// Messages that stand parked at most.
    most: u64,
    /// In hand, from the work queue.
    held: u64,
    /// Those with messages in hand, and those seen lately.
    tenants: HashMap<u64, Tenant>,
    /// Of all tenants.
    weights: u64,
    /// Those without messages in hand, by when they were seen.
    idle: BTreeSet<(Mono, u64)>,
    /// Millionths of messages that may be parked now.
    budget: u64,
    filled: Mono,
    resting: bool,
}

impl Parking {
    /// Nothing in hand yet, on a route with that prefetch of which at most `most` messages may stand
    /// parked (0: none).
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
            budget: Self::a_second(most) * MESSAGE,
            filled: Mono::from_micros(0),
            resting: false,
        }
    }

    /// A message arrives. `parked`: how many stand parked on the route, all replicas'; `None`: it
    /// is not known, and nothing is parked.
    pub fn arrived(
        &mut self,
        share: Share,
        origin: Origin,
        parked: Option<u64>,
        now: Mono,
    ) -> Choice {
        self.forget(now);
        self.fill(now);
        self.see(share, now);
        if origin == Origin::Work && self.is_hiding(share) && self.has_space(parked) {
            self.budget -= MESSAGE;
            return Choice::Park;
        }
        self.held += u64::from(origin != Origin::Parked);
        if let Some(tenant) = self.tenants.get_mut(&share.tenant) {
            if tenant.held == 0 {
                self.idle.remove(&(tenant.seen, share.tenant));
            }
            tenant.held += 1;
        }
        Choice::Keep
    }

    /// A message that was kept is not in hand any more.
    pub fn left(&mut self, share: Share, origin: Origin) {
        let work = u64::from(origin != Origin::Parked);
        self.held = self.held.saturating_sub(work);
        if let Some(tenant) = self.tenants.get_mut(&share.tenant) {
            tenant.held = tenant.held.saturating_sub(1);
            if tenant.held == 0 {
                self.idle.insert((tenant.seen, share.tenant));
            }
        }
    }

    /// Messages in hand from the work queue.
    #[must_use]
    pub const fn held(&self) -> u64 {
        self.held
    }

    /// How many of a tenant's messages may be in hand before more of them are parked.
    #[must_use]
    pub fn allowance(&self, share: Share) -> u64 {
        let weight = u64::from(share.weight.get());
        let fair = 2 * self.kept * weight / self.weights.max(weight);
        fair.max(FLOOR).min(self.kept)
    }

    /// Whether one more of its messages would hide others: enough is in hand, and enough of it is
    /// its own.
    fn is_hiding(&self, share: Share) -> bool {
        let held = self.tenants.get(&share.tenant).map_or(0, |t| t.held);
        self.held >= self.kept && held >= self.allowance(share)
    }

    fn has_space(&mut self, parked: Option<u64>) -> bool {
        let Some(parked) = parked else {
            return false;
        };
        let alone = self.tenants.len() == 1;
        if !alone || parked <= self.most / 4 {
            self.resting = false;
        }
        if parked >= self.most {
            self.resting = alone;
            return false;
        }
        !self.resting && self.budget >= MESSAGE
    }

    /// Notes that a tenant is here.
    fn see(&mut self, share: Share, now: Mono) {
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

    /// Drops tenants that have nothing in hand and were not seen lately, or are too many.
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
        self.budget = (self.budget + elapsed * a_second).min(a_second * MESSAGE);
        self.filled = self.filled.max(now);
    }

    /// Messages that may be parked in a second.
    const fn a_second(most: u64) -> u64 {
        if most < 10 { 1 } else { most / 10 }
    }
}

#[cfg(test)]
mod tests;
