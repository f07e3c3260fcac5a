//! What the pipeline needs of the store of keyed limits (all limits except the paced ones), and what limits
//! need to know of a message.
//!
//! A message has a *charge* on each of its limits. They are determined once ([`LimitInputs`]), before any limit is
//! asked. All charges of a message are granted together or none is, and many messages are asked for in one
//! round trip. A denial says when to come back; it takes nothing and reserves nothing.

mod granted;
mod inputs;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use futures::FutureExt as _;
use tokio::sync::{Notify, broadcast};

use super::answer::{Notice, StoreFuture};
use super::lock;
use sluiced_core::limits::admission::{self, Decision};
use sluiced_core::limits::generation::{ClosedReason, LostWait};
use sluiced_core::limits::{Fit, LimitState, Room, Rule};
use sluiced_core::time::StoreTime;
use sluiced_core::version::PolicyVersion;

pub use self::granted::{Corrected, Correction, GrantedAt, GrantedCharge};
pub use self::inputs::{KeyText, LimitInputs};
pub use super::key::{LimitKey, key_id, limit_key, message_key};

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
    policy: RwLock<Arc<RuleInForce>>,
    /// Units in flight in this process, by key. `None`: nothing needs them.
    in_flight: Option<Mutex<HashMap<LimitKey, u64>>>,
}

/// The current policy of a limit.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleInForce {
    /// The kind of the limit with its numbers.
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
            policy: RwLock::new(Arc::new(RuleInForce { rule, version })),
            in_flight: None,
        }
    }

    /// This limit, which also counts units in flight.
    #[must_use]
    pub fn counting_in_flight(self) -> Self {
        Self {
            in_flight: Some(Mutex::default()),
            ..self
        }
    }

    /// Units of a key that were granted here and whose calls have not ended. 0 if this limit does not count them.
    #[must_use]
    pub fn in_flight(&self, key: LimitKey) -> u64 {
        let counted = self.in_flight.as_ref();
        counted.map_or(0, |units| lock(units).get(&key).copied().unwrap_or(0))
    }

    /// The current policy, as far as this replica knows.
    #[must_use]
    pub fn policy(&self) -> Arc<RuleInForce> {
        // It is replaced as a whole: after a panic it is either old or new.
        Arc::clone(&self.policy.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The policy was replaced.
    pub fn adopt(&self, policy: RuleInForce) {
        *self.policy.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(policy);
    }

    /// How late a call may leave after it was granted.
    #[must_use]
    pub fn permit_validity(&self) -> Duration {
        self.policy().rule.permit_validity()
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

/// Counts a charge as in flight until it is dropped.
#[derive(Debug)]
pub struct ChargeInFlight(Charge);

impl ChargeInFlight {
    /// `None`: its limit does not count units in flight.
    #[must_use]
    pub fn begin(charge: &Charge) -> Option<Self> {
        let counted = charge.limit.in_flight.as_ref()?;
        *lock(counted).entry(charge.key).or_default() += charge.cost.units();
        Some(Self(charge.clone()))
    }
}

impl Drop for ChargeInFlight {
    fn drop(&mut self) {
        let Self(charge) = self;
        let Some(counted) = &charge.limit.in_flight else {
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
    /// The largest cost that can ever fit, in units of the limit.
    pub limit: u64,
    /// How many units are left, and when all of them are back.
    pub room: Room,
    /// When one unit fits.
    pub fits: Fit,
    /// Nothing passes before this, whatever is left.
    pub closed: Option<(StoreTime, ClosedReason)>,
    /// What is known of it. `None`: nothing that counts was taken.
    pub state: Option<LimitState>,
}

/// The store of keyed limits. Each question to the store ends within its own timeout; a call with many candidates,
/// grants or corrections may need several questions. [`StoreError`](super::store::StoreError) says after which error a
/// call may have run. Of several questions some may then have run and others not.
pub trait LimitStore: Send + Sync + fmt::Debug {
    /// Notices of all replicas, this one included, and those for this replica. A receiver that lags may
    /// lose some: the next answer of the store says the same, and what waits for a call to end asks again
    /// after a while.
    fn notices(&self) -> broadcast::Receiver<Notice>;

    /// Decides on candidates, in their order: an earlier one takes what a later one then lacks. `wanted` counts slots:
    /// each grant takes as many as its candidate has [`slots`](admission::Candidate::slots). The first candidate that
    /// takes more slots than are still wanted ends the batch: it and all behind it are [`Decision::NotAsked`]. At most
    /// [`BATCH_MAX`](sluiced_core::scheduler::BATCH_MAX) candidates at a time; none: only the time is asked for.
    ///
    /// # Errors
    /// When the store does not answer or refuses, or when its answer shows that its clock stepped. After an error no
    /// candidate is granted. The store takes back what an answer that comes late granted, if its connection still
    /// lives; otherwise those units stay spent.
    fn admit<'a>(&'a self, candidates: &'a [Candidate], wanted: u64) -> StoreFuture<'a, Decisions>;

    /// Takes back units that certainly were not used, where the kind can do so exactly, and ends calls and claims, with
    /// a `Notice::Freed` to replicas that wait for them. Returns how many of the refunds it took. Units may be released
    /// once, and not again after an error: the first try may have counted.
    fn release<'a>(&'a self, granted: &'a [GrantedCharge]) -> StoreFuture<'a, usize>;

    /// The messages of these claims were accepted: their keys are done. Doing it twice is harmless.
    fn mark_done<'a>(&'a self, claims: &'a [GrantedCharge]) -> StoreFuture<'a, ()>;

    /// Keeps calls that are still in flight, and claims, in their limits for another lease. Returns those that are not
    /// in them any more.
    fn renew<'a>(&'a self, calls: &'a [GrantedCharge]) -> StoreFuture<'a, Vec<GrantedCharge>>;

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
    fn startup_listen(&self) -> Duration {
        Duration::ZERO
    }
}
