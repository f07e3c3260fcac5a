//! What the pipeline needs of the store that keeps budgets: every limit but the paced ones.
//!
//! A message names a *claim* on each of its limits. All claims of a message are granted together
//! or none is, and many messages are asked for in one round trip. A denial books the message's own
//! place in the limit that holds it up longest, so that a message is denied once and not again:
//! the place (a [`Booking`]) travels with it, in memory or in the headers of a message that waits.

use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use super::pace::StoreFuture;
use crate::core::budget::admit::Mode;
pub use crate::core::budget::admit::{Booking, Epoch, IfLate, Lost, Pass, Ruling};
pub use crate::core::budget::concurrency::Ticket;
pub use crate::core::budget::limit::Taken;
use crate::core::budget::{Rule, State, Usage};
use crate::core::policy::PolicyVersion;
use crate::core::rate::Cost;
use crate::core::time::StoreTime;

/// A limit that is counted in budgets. All that refer to it see the same terms, which change when
/// others come into force.
#[derive(Debug)]
pub struct BudgetLimit {
    /// As in the configuration: letters, digits, `_`, `-` and `.`.
    pub name: Arc<str>,
    pub lost: Lost,
    terms: RwLock<Arc<Terms>>,
}

/// What counts for a limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Terms {
    pub rule: Rule,
    /// Names them in the store; [`PolicyVersion::NONE`] until the store has told.
    pub version: PolicyVersion,
}

impl BudgetLimit {
    /// A limit under the terms of this replica's file.
    #[must_use]
    pub fn new(name: &str, rule: Rule, lost: Lost) -> Self {
        Self::under(name, rule, lost, PolicyVersion::NONE)
    }

    /// A limit under the terms of `version`.
    #[must_use]
    pub fn under(name: &str, rule: Rule, lost: Lost, version: PolicyVersion) -> Self {
        Self {
            name: Arc::from(name),
            lost,
            terms: RwLock::new(Arc::new(Terms { rule, version })),
        }
    }

    /// What counts now, as far as this replica knows.
    #[must_use]
    pub fn terms(&self) -> Arc<Terms> {
        // They are replaced as a whole: after a panic they are either old or new.
        let terms = self.terms.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&terms)
    }

    /// Other terms are in force.
    pub fn adopt(&self, terms: Terms) {
        *self.terms.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(terms);
    }

    /// How late a call may leave after it was granted.
    #[must_use]
    pub fn usable(&self) -> Duration {
        self.terms().rule.usable()
    }

    /// How late a call may arrive after it was granted.
    #[must_use]
    pub fn headroom(&self) -> Duration {
        self.terms().rule.headroom()
    }

    /// Whether it counts calls under way.
    #[must_use]
    pub fn is_concurrency(&self) -> bool {
        matches!(self.terms().rule, Rule::Concurrency(_))
    }
}

/// Which budget of a limit: a digest of the key's text, so that no message can name the state of
/// another limit, a key has the same length whatever it says, and nobody reads it in the store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BudgetKey([u8; 16]);

impl BudgetKey {
    /// From the first 16 bytes of a digest of the key's text (`limiter::key` makes it).
    #[must_use]
    pub const fn from_digest(digest: [u8; 16]) -> Self {
        Self(digest)
    }

    /// The digest.
    #[must_use]
    pub const fn digest(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for BudgetKey {
    /// Not even the digest of a phone number belongs into a log: there are few phone numbers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BudgetKey(..)")
    }
}

/// What a message wants of one limit.
#[derive(Clone, Debug)]
pub struct Claim {
    pub limit: Arc<BudgetLimit>,
    pub key: BudgetKey,
    pub cost: Cost,
    /// A place that an earlier denial booked for this very message.
    pub held: Option<Booking>,
}

impl Claim {
    /// A number for this budget, the same in this process whichever message names it.
    #[must_use]
    pub fn budget(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.limit.name, self.key).hash(&mut hasher);
        hasher.finish()
    }
}

/// All that one message wants.
#[derive(Clone, Debug)]
pub struct Petition {
    /// At least one; each limit at most once.
    pub claims: Vec<Claim>,
    /// Book a place if denied; without it a denial changes nothing. And what if it comes late for a place?
    pub reserve: Option<IfLate>,
    /// Names the message's call in a `concurrency` limit: unique in the fleet.
    pub ticket: Ticket,
}

impl Petition {
    /// How it is decided.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.reserve.map_or(Mode::Take, Mode::Reserve)
    }
}

/// The store may not know all that was spent before this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blind {
    pub since: StoreTime,
    /// There was state that is gone; else nobody knows of any.
    pub lost: bool,
}

/// The store's answer to a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rulings {
    /// The store's time when it decided.
    pub now: StoreTime,
    /// That of the store.
    pub epoch: Epoch,
    /// Limits whose terms have changed in this epoch: their places are of a later one.
    pub changed: Vec<(Arc<str>, Epoch)>,
    /// Why limits with [`Lost::Closed`] may have to wait (each ruling says it for its own message).
    pub blind: Option<Blind>,
    /// In the order of the petitions.
    pub rulings: Vec<Ruling>,
}

impl Rulings {
    /// The epoch of what was taken or booked in a limit.
    #[must_use]
    pub fn epoch_of(&self, limit: &str) -> Epoch {
        let changed = self.changed.iter().find(|(name, _)| **name == *limit);
        changed.map_or(self.epoch, |(_, epoch)| *epoch)
    }
}

/// How one budget stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// The store's time.
    pub now: StoreTime,
    pub usage: Usage,
    /// What is known of it. `None`: nobody took anything that still counts.
    pub state: Option<State>,
}

/// Units to take back because their message was certainly not sent.
#[derive(Clone, Debug)]
pub struct Refund {
    pub limit: Arc<BudgetLimit>,
    pub key: BudgetKey,
    pub cost: Cost,
    /// As of when they were taken.
    pub booked: Booking,
    pub taken: Taken,
    pub ticket: Ticket,
}

/// A call that certainly reached the downstream, of a grant that was in doubt.
#[derive(Clone, Debug)]
pub struct Made {
    pub limit: Arc<BudgetLimit>,
    pub key: BudgetKey,
    /// As of when it was granted.
    pub granted: Booking,
}

/// A call that counts in a `concurrency` limit.
pub type CallUnderWay = (Arc<BudgetLimit>, BudgetKey, Ticket);

/// The store of budgets. Every call ends within the store's own timeout.
pub trait BudgetStore: Send + Sync + fmt::Debug {
    /// Rules on petitions, in their order: an earlier one takes what a later one then lacks. At
    /// most [`MAX_BATCH`] at a time.
    fn admit<'a>(
        &'a self,
        petitions: &'a [Petition],
        predicted: Option<StoreTime>,
    ) -> StoreFuture<'a, Rulings>;

    /// Takes back what certainly was not used, where that still makes a difference and cannot
    /// let anybody exceed the limit. Answers how many of them it took. Each may be offered once,
    /// and not again after an error: the first try may have counted.
    fn refund<'a>(&'a self, refunds: &'a [Refund]) -> StoreFuture<'a, usize>;

    /// Notes that calls were made ([`crate::core::budget::admit::Pass`]). Answers for how many of them
    /// that told anything. It may be repeated, and need not be told.
    fn confirm<'a>(&'a self, made: &'a [Made]) -> StoreFuture<'a, usize>;

    /// Keeps calls that are still under way in their `concurrency` limit for another lease.
    /// Answers those that are not in it any more.
    fn renew<'a>(&'a self, calls: &'a [CallUnderWay]) -> StoreFuture<'a, Vec<Ticket>>;

    /// Ends calls in their `concurrency` limit.
    fn release<'a>(&'a self, calls: &'a [CallUnderWay]) -> StoreFuture<'a, ()>;

    /// How a budget stands for one unit, without changing anything.
    fn look<'a>(&'a self, limit: &'a Arc<BudgetLimit>, key: BudgetKey) -> StoreFuture<'a, Look>;
}

/// The most petitions in one call: a script must not hold the store for long.
pub const MAX_BATCH: usize = 256;

/// How often a store that keeps budgets is asked at least, so that every replica remembers the
/// epoch and a loss is noticed while somebody still knows what was there.
pub const HEARTBEAT: Duration = Duration::from_secs(1);
