//! What the pipeline needs of the store of keyed limits (all limits except the paced ones), and what limits
//! need to know of a message.
//!
//! A message has a *charge* on each of its limits. They are determined once ([`Label`]), before any limit is
//! asked. All charges of a message are granted together or none is, and many messages are asked for in one
//! round trip. A denial says when to come back; it takes nothing and reserves nothing.

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use futures::FutureExt as _;
use sha2::{Digest as _, Sha256};
use tokio::sync::{Notify, broadcast};

use super::clock::Moment;
use super::lock;
use super::store::{Notice, StoreFuture};
use crate::downstream::Undecodable;
use sluiced_core::limits::{Rule, State, Unused, admission};
use sluiced_core::policy::PolicyVersion;
use sluiced_core::rate::Cost;
use sluiced_core::scheduler::KeyId;
use sluiced_core::time::StoreTime;
use sluiced_core::zone::Zone;

pub use super::store::LimitKey;
pub use sluiced_core::limits::admission::{Decision, Pass};
pub use sluiced_core::limits::generation::{Closing, LostWait};
pub use sluiced_core::limits::once::{Ended, OnUnknown};
pub use sluiced_core::limits::{Fit, Room, Ticket};
pub use sluiced_core::scheduler::BATCH_MAX;

/// A limit that is decided message by message. All users of it have the same policy, which is
/// replaced when it changes.
#[derive(Debug)]
pub struct KeyedLimit {
    /// As in the configuration: letters, digits, `_`, `-` and `.`.
    pub name: Arc<str>,
    /// How long it waits after the store lost its state.
    pub lost_wait: LostWait,
    /// Notified when the current policy is another one than this replica knows.
    pub outdated: Arc<Notify>,
    policy: RwLock<Arc<Policy>>,
    /// Units under way in this process, by key. `None`: nothing needs them.
    under_way: Option<Mutex<HashMap<LimitKey, u64>>>,
}

/// The current policy of a limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    pub rule: Rule,
    /// Names it in the store; [`PolicyVersion::NONE`] until the store has answered.
    pub version: PolicyVersion,
}

impl KeyedLimit {
    /// A limit under the policy of this replica's file.
    #[must_use]
    pub fn new(name: &str, rule: Rule, lost_wait: LostWait) -> Self {
        Self::under(name, rule, lost_wait, PolicyVersion::NONE)
    }

    /// A limit under the policy of `version`.
    #[must_use]
    pub fn under(name: &str, rule: Rule, lost_wait: LostWait, version: PolicyVersion) -> Self {
        Self {
            name: Arc::from(name),
            lost_wait,
            outdated: Arc::default(),
            policy: RwLock::new(Arc::new(Policy { rule, version })),
            under_way: None,
        }
    }

    /// This limit, which also counts units under way.
    #[must_use]
    pub fn counting_under_way(self) -> Self {
        Self {
            under_way: Some(Mutex::default()),
            ..self
        }
    }

    /// Units of a key that were granted here and whose calls have not ended.
    #[must_use]
    pub fn under_way(&self, key: LimitKey) -> u64 {
        let counted = self.under_way.as_ref();
        counted.map_or(0, |units| lock(units).get(&key).copied().unwrap_or(0))
    }

    /// The current policy, as far as this replica knows.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        // It is replaced as a whole: after a panic it is either old or new.
        Arc::clone(&self.policy.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The policy was replaced.
    pub fn adopt(&self, policy: Policy) {
        *self.policy.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(policy);
    }

    /// How late a call may leave after it was granted.
    #[must_use]
    pub fn usable(&self) -> Duration {
        self.policy().rule.usable()
    }

    /// Whether what it grants counts until the call ends: of the kinds `concurrency` and `once`.
    #[must_use]
    pub fn counts_calls(&self) -> bool {
        self.policy().rule.lease().is_some()
    }
}

/// What one message takes from one limit.
pub type Charge = admission::Charge<Arc<KeyedLimit>, LimitKey>;

/// One message of an admission request.
pub type Candidate = admission::Candidate<Arc<KeyedLimit>, LimitKey>;

/// Counts a charge as under way until it is dropped.
#[derive(Debug)]
pub struct UnderWay(Charge);

impl UnderWay {
    /// `None`: its limit does not count units under way.
    #[must_use]
    pub fn begin(charge: &Charge) -> Option<Self> {
        let counted = charge.limit.under_way.as_ref()?;
        *lock(counted).entry(charge.key).or_default() += charge.cost.units();
        Some(Self(charge.clone()))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let Self(charge) = self;
        let Some(counted) = &charge.limit.under_way else {
            return;
        };
        let mut counted = lock(counted);
        if let Some(units) = counted.get_mut(&charge.key) {
            *units -= charge.cost.units().min(*units);
            if *units == 0 {
                counted.remove(&charge.key);
            }
        }
    }
}

/// The key of a limit that `parts` of a text stand for, in their order. No parts: the one key of a limit that has none.
///
/// Keys come out of messages. A digest keeps them from naming anything else in the store, makes all
/// of them equally short, and hides them: a dump shows no phone number. The parts of a
/// composed key are hashed with their lengths, so that ("ab", "c") is not ("a", "bc").
#[must_use]
pub fn limit_key(parts: &[&str]) -> LimitKey {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        digest.update(part.as_bytes());
    }
    let whole = digest.finalize();
    let mut first = [0; 16];
    first.copy_from_slice(&whole[..16]);
    LimitKey::from_digest(first)
}

/// The key of a message: `text` is what the limit's template made of it, `queue` its queue where each queue has keys
/// of its own.
#[must_use]
pub fn message_key(queue: Option<&str>, text: Option<&str>) -> LimitKey {
    match (queue, text) {
        (Some(queue), Some(text)) => limit_key(&[queue, text]),
        (Some(one), None) | (None, Some(one)) => limit_key(&[one]),
        (None, None) => limit_key(&[]),
    }
}

/// A number for a (limit, key), the same in this process for all messages.
#[must_use]
pub fn key_id(limit: &str, key: LimitKey) -> KeyId {
    let mut hasher = DefaultHasher::new();
    (limit, key).hash(&mut hasher);
    hasher.finish()
}

/// The store's answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decisions {
    /// The store's time when it decided.
    pub now: StoreTime,
    /// No other replica asks. Only known where no candidates were named.
    pub alone: bool,
    /// In the order of the candidates.
    pub decisions: Vec<Decision>,
}

/// What one key of a limit has left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// The store's time.
    pub now: StoreTime,
    /// The largest cost that can ever fit.
    pub limit: u64,
    pub room: Room,
    /// When one unit fits.
    pub fits: Fit,
    /// Nothing passes before this, whatever is left.
    pub closed: Option<(StoreTime, Closing)>,
    /// What is known of it. `None`: nothing that counts was taken.
    pub state: Option<State>,
}

/// A charge that was granted, with its name in the store. The kind of the limit at that moment counts: a
/// policy may change it later.
#[derive(Clone, Debug)]
pub enum Granted {
    /// Units. They stay spent once the message may have been sent.
    Units { charge: Charge, at: GrantedAt },
    /// A call that counts in a `concurrency` limit until it ends.
    Call { charge: Charge, ticket: Ticket },
    /// The claim of a key in a `once` limit, until it is known what became of the call.
    Claim { charge: Charge, ticket: Ticket },
}

/// When units were granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantedAt {
    /// On the store's clock.
    pub at: StoreTime,
    /// When they were asked for, on ours: that of the store may go back meanwhile.
    pub asked: Moment,
}

impl GrantedAt {
    /// These units, which were not used.
    #[must_use]
    pub fn unused(&self, cost: Cost) -> Unused {
        Unused {
            at: self.at,
            cost,
            age: self.asked.age(),
        }
    }
}

impl Granted {
    /// A charge of a message with this ticket that was granted then.
    #[must_use]
    pub fn new(charge: &Charge, at: GrantedAt, ticket: Ticket) -> Self {
        if charge.limit.counts_calls() {
            return Self::call(charge, ticket);
        }
        let charge = charge.clone();
        Self::Units { charge, at }
    }

    /// A call or a claim of a message with this ticket, granted or not: ending one that does not count
    /// changes nothing.
    #[must_use]
    pub fn call(charge: &Charge, ticket: Ticket) -> Self {
        let charge = charge.clone();
        match charge.limit.policy().rule {
            Rule::Once(_) => Self::Claim { charge, ticket },
            _ => Self::Call { charge, ticket },
        }
    }

    /// The limit that granted it, its key and the cost.
    #[must_use]
    pub const fn charge(&self) -> &Charge {
        match self {
            Self::Units { charge, .. } | Self::Call { charge, .. } | Self::Claim { charge, .. } => {
                charge
            }
        }
    }

    /// The name by which it is renewed and ended; `None`: it is units.
    #[must_use]
    pub const fn ticket(&self) -> Option<Ticket> {
        match self {
            Self::Units { .. } => None,
            Self::Call { ticket, .. } | Self::Claim { ticket, .. } => Some(*ticket),
        }
    }

    /// Whether it is a call or a claim.
    #[must_use]
    pub const fn is_call(&self) -> bool {
        self.ticket().is_some()
    }

    /// Whether it is the claim of a key.
    #[must_use]
    pub const fn is_claim(&self) -> bool {
        matches!(self, Self::Claim { .. })
    }
}

/// What an answer reported about a key.
#[derive(Clone, Debug)]
pub struct Correction {
    pub limit: Arc<KeyedLimit>,
    pub key: LimitKey,
    pub what: Corrected,
}

/// The correction to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Corrected {
    /// The downstream says that so many units are left, for so long (`core::limits::cell::tighten`).
    Left { units: u64, length: Duration },
    /// A call used so many units less than were granted then (`core::limits::cell::refund`).
    Less { units: Cost, at: GrantedAt },
    /// A call used so many units more than were granted (`core::limits::charge`).
    More { units: u64 },
    /// An operator forgives what the key owes, and what the downstream said is left (`core::limits::forgive`).
    Forgiven,
}

/// The store of keyed limits. Every call ends within the store's own timeout.
pub trait LimitStore: Send + Sync + fmt::Debug {
    /// Notices of all replicas, this one included, and those for this replica. A receiver that lags may
    /// lose some: the next answer of the store says the same, and what waits for a call to end asks again
    /// after a while.
    fn notices(&self) -> broadcast::Receiver<Notice>;

    /// Decides on candidates, in their order: an earlier one takes what a later one then lacks. Stops
    /// once it has granted `wanted`. At most [`BATCH_MAX`] at a time; none: only the time is asked for.
    fn admit<'a>(&'a self, candidates: &'a [Candidate], wanted: u64) -> StoreFuture<'a, Decisions>;

    /// Takes back units that certainly were not used, where the kind can do so exactly, and ends calls and claims, with a
    /// `Notice::Freed` to replicas that wait for them. Returns how many of the refunds it took. Units may
    /// be released once, and not again after an error: the first try may have counted.
    fn release<'a>(&'a self, granted: &'a [Granted]) -> StoreFuture<'a, usize>;

    /// The messages of these claims were accepted: their keys are done. Doing it twice is harmless.
    fn done<'a>(&'a self, claims: &'a [Granted]) -> StoreFuture<'a, ()>;

    /// Keeps calls that are still under way, and claims, in their limits for another lease. Returns those that are not
    /// in them any more.
    fn renew<'a>(&'a self, calls: &'a [Granted]) -> StoreFuture<'a, Vec<Ticket>>;

    /// Writes what answers reported about keys. Returns those that were not done, by their place, because
    /// this replica does not know the current policy of their limit. After an error units must not be
    /// returned ([`Corrected::Less`]) a second time; a repetition of the others can only tighten.
    fn correct<'a>(&'a self, corrections: &'a [Correction]) -> StoreFuture<'a, Vec<usize>>;

    /// How many replicas ask, this one included, as far as it knows.
    fn askers(&self) -> u64 {
        1
    }

    /// What one key of a limit has left, without changing anything.
    fn look<'a>(&'a self, limit: &'a Arc<KeyedLimit>, key: LimitKey) -> StoreFuture<'a, Look>;

    /// This replica no longer asks: one that starts need not wait for its reports.
    fn leave(&self) -> StoreFuture<'_, ()> {
        futures::future::ready(Ok(())).boxed()
    }

    /// For how long a replica that starts and is not alone only asks the store for its time, before it takes
    /// messages that limits with a `lost_wait` count: within this time the others report what it cannot know.
    fn hears_first(&self) -> Duration {
        Duration::ZERO
    }
}

/// The text of the key that is counted; `None`: the limit counts all messages together.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyText(pub Option<Box<str>>);

/// What the limits of a route need to know of a message.
#[derive(Clone, PartialEq, Eq)]
pub struct Label {
    /// One for each limit of the route, in its order, with a cost that the limit can grant; `None`: the limit does
    /// not count the message.
    pub charges: Box<[Option<admission::Charge<(), KeyText>>]>,
    /// The tenant that the message belongs to, on a route that shares fairly.
    pub tenant: Option<Box<str>>,
    /// The priority that the message has for itself, on a route with a template for it; the error says why there is none.
    pub priority: Option<Result<u8, Undecodable>>,
    /// The zone by whose clock the message may be sent, on a route with a template for it.
    pub zone: Option<Zone>,
}

impl fmt::Debug for KeyText {
    /// Does not show the key, which is often a phone number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "KeyText(..)"
        } else {
            "KeyText(None)"
        })
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Label")
            .field("charges", &self.charges)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cannot_be_mistaken_for_one_another() {
        let keys = [
            limit_key(&[]),
            limit_key(&[""]),
            limit_key(&["", ""]),
            limit_key(&["abc"]),
            limit_key(&["ab", "c"]),
            limit_key(&["a", "bc"]),
            limit_key(&["c", "ab"]),
        ];
        for (i, key) in keys.iter().enumerate() {
            assert!(keys[..i].iter().all(|other| other != key));
        }
        assert_eq!(limit_key(&["ab", "c"]), limit_key(&["ab", "c"]));
    }
}
