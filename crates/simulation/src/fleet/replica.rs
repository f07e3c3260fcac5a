//! One replica: the scheduler of production, a clock of its own, and the messages in its memory.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sluiced_core::gate::{Gate, OnDenied};
use sluiced_core::headroom::{AutoHeadroom, LatencySamples, Lateness};
use sluiced_core::jitter::Jitter;
use sluiced_core::leases::LeaseHolder;
use sluiced_core::limits::Ticket;
use sluiced_core::limits::generation::STARTUP_LISTEN;
use sluiced_core::limits::store_watch::StoreWatch;
use sluiced_core::message::{HoldRules, KeyId, Queued, TenantShare};
use sluiced_core::pacing::Pacing;
use sluiced_core::policy::LimitPolicy;
use sluiced_core::rate::Cost;
use sluiced_core::refusals::Refusals;
use sluiced_core::schedule::Turn;
use sluiced_core::scheduler::{Question, Questions, Scheduler};
use sluiced_core::time::{Mono, StoreTime, micros};
use sluiced_core::version::PolicyVersion;

use crate::dice::{Dice, mix};
use crate::setting::{KeyCost, KeyedRule, Message, Setting, SimulatedRoute};

/// A running replica.
#[derive(Debug)]
pub(super) struct SimulatedReplica<'a> {
    pub(super) id: u32,
    pub(super) scheduler: Scheduler<HeldMessage<'a>>,
    /// The replica sends nothing any more, and waits for its calls in flight.
    pub(super) stopping: bool,
    /// Delivered and not settled.
    pub(super) unsettled: BTreeSet<u32>,
    /// Messages that came so far, and when the last of them comes or came.
    pub(super) arrivals: u64,
    pub(super) last_delivery: u64,
    /// Whether the route sends and consumes.
    pub(super) gate: Gate,
    /// What it knows of the refusals of the downstream.
    pub(super) refusals: Refusals,
    pub(super) paused_until: u64,
    /// The replica does not reach the store.
    pub(super) is_cut_off: bool,
    /// Only the last wake that was set counts.
    pub(super) wake: u64,
    /// The asks that are in flight, for each row.
    pub(super) asking: [Option<u64>; 2],
    /// The turn that the last answer gave, for the check that it does not ask before it.
    pub(super) turn: Option<Turn>,
    pub(super) last_ask: u64,
    /// The replica's watch on the store of keyed limits.
    pub(super) store: StoreWatch,
    /// The replica's questions to the keyed limits, by their numbers.
    pub(super) admitting: BTreeMap<u64, Question<HeldMessage<'a>>>,
    /// Calls that were granted and have not ended, by message.
    pub(super) running: BTreeMap<u32, HeldMessage<'a>>,
    /// What it knows of the limits' policy.
    pub(super) known: Option<LimitPolicy>,
    /// The replica has asked for the current policy.
    pub(super) declaring: bool,
    /// The replica's measurements, if a headroom follows them.
    pub(super) follow: Option<AutoHeadroom>,
    pub(super) shakes: LatencySamples,
    pub(super) shakes_made: u32,
    /// A policy that it received, and does not use yet.
    pub(super) received: Option<LimitPolicy>,
    pub(super) late: Lateness,
    /// The additional time of its ways to the store and back.
    pub(super) detour: (u64, u64),
    /// When its clock was started, what it showed then, and how many millionths it is fast.
    born: u64,
    zero: u64,
    drift: i64,
}

impl SimulatedReplica<'_> {
    pub(super) fn new(id: u32, t: u64, setting: &Setting<'_>, dice: &mut Dice) -> Self {
        let most = setting.around.drift;
        let drift = i64::try_from(dice.below(most.unsigned_abs() * 2 + 1)).unwrap_or_default();
        let lopsided = micros(setting.around.lopsided);
        let apart = dice.below(micros(setting.around.apart) + 1);
        // One of the two ways is longer, or none, or both.
        let mut draw = || apart + dice.pick(&[0, lopsided]);
        let detour = (draw(), draw());
        let jitter = Jitter::new(mix(u64::from(id) + 1));
        let rows = setting.route.rows.iter();
        let mut holders = rows.map(|pace| LeaseHolder::new(*pace, jitter));
        let pacing = match holders.next() {
            Some(main) => Pacing::of_rows(main, holders.next()),
            None => Pacing::unpaced(),
        };
        let questions = setting.route.permit_validity().map(|permit_validity| {
            Questions::of(&pacing, permit_validity, jitter).with_startup_listen(STARTUP_LISTEN)
        });
        Self {
            id,
            scheduler: Scheduler::new(pacing, questions),
            stopping: false,
            unsettled: BTreeSet::new(),
            arrivals: 0,
            last_delivery: 0,
            gate: Gate::new(setting.route.hours.clone(), None),
            refusals: Refusals::default(),
            paused_until: 0,
            is_cut_off: false,
            wake: 0,
            asking: [None; 2],
            turn: None,
            last_ask: 0,
            store: StoreWatch::default(),
            admitting: BTreeMap::new(),
            running: BTreeMap::new(),
            known: None,
            declaring: false,
            follow: None,
            shakes: LatencySamples::default(),
            shakes_made: 0,
            received: None,
            late: Lateness::default(),
            detour,
            born: t,
            zero: 3_600_000_000 + dice.below(1_000_000_000_000),
            drift: drift - most,
        }
    }

    /// The version of the policy that it knows.
    pub(super) fn version(&self) -> PolicyVersion {
        let known_policy = self.known.as_ref();
        known_policy.map_or(PolicyVersion::NONE, |policy| policy.version)
    }

    /// The replica's clock at a true time.
    pub(super) fn mono(&self, t: u64) -> Mono {
        let age = t - self.born;
        let shift = i64::try_from(age).unwrap_or(i64::MAX) * self.drift / 1_000_000;
        Mono::from_micros((self.zero + age).saturating_add_signed(shift))
    }

    /// The first true time at which its clock shows `at` or later; not before `t`.
    pub(super) fn true_time(&self, at: Mono, t: u64) -> u64 {
        let age = at.as_micros().saturating_sub(self.zero);
        let shift = i64::try_from(age).unwrap_or(i64::MAX) / 1_000_000 * self.drift;
        let mut guess = self
            .born
            .saturating_add(age)
            .saturating_add_signed(-shift)
            .saturating_sub(200)
            .max(t);
        while self.mono(guess) < at {
            let missing = at.since(self.mono(guess));
            guess += u64::try_from(missing.as_micros()).unwrap_or(1).max(1);
        }
        guess
    }
}

/// A limit and one of its keys.
pub(super) type StateKey = (usize, u32);

/// The keys of charges.
pub(super) fn names(charges: &[KeyCost]) -> impl Iterator<Item = StateKey> {
    let numbered = charges.iter().enumerate();
    numbered.map(|(index, charge)| (index, charge.key))
}

/// A key, for the scheduler.
pub(super) fn key_id((limit, key): StateKey) -> KeyId {
    (limit as u64) << 32 | u64::from(key)
}

/// A message in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldMessage<'a> {
    pub(super) id: u32,
    pub(super) message: &'a Message,
    pub(super) route: &'a SimulatedRoute,
    /// For how long a permit is valid at its replica.
    pub(super) permit_validity: &'a Cell<Duration>,
    pub(super) arrival: u64,
    /// When it was published.
    pub(super) born: StoreTime,
    pub(super) deadline: Option<Mono>,
    /// The message was sent away before.
    pub(super) was_denied: bool,
    /// Names its call to the keyed limits, which were asked at this true time, and granted it then.
    pub(super) ticket: Ticket,
    pub(super) asked: u64,
    pub(super) granted: Option<StoreTime>,
}

impl HeldMessage<'_> {
    /// The message's keys that are not for all messages.
    pub(super) fn own_keys(&self) -> Vec<KeyId> {
        self.keys().filter(|key| !self.is_for_all(*key)).collect()
    }

    fn limit(&self, key: KeyId) -> Option<&KeyedRule> {
        self.route.keyed.get((key >> 32) as usize)
    }
}

impl Queued for HeldMessage<'_> {
    fn cost(&self) -> Cost {
        self.message.slots
    }
    fn priority(&self) -> u16 {
        self.message.priority
    }
    fn is_urgent(&self) -> bool {
        self.message.urgent
    }
    fn share(&self) -> TenantShare {
        self.message.share
    }
    fn keys(&self) -> impl Iterator<Item = KeyId> {
        names(&self.message.charges).map(key_id)
    }
    fn arrival(&self) -> u64 {
        self.arrival
    }
    fn is_for_all(&self, key: KeyId) -> bool {
        self.limit(key).is_some_and(|limit| limit.for_all)
    }
    fn counts_calls(&self, key: KeyId) -> bool {
        let limit = self.limit(key);
        limit.is_some_and(|limit| limit.rule.lease().is_some())
    }
    fn prefetch(&self) -> usize {
        self.route.prefetch.into()
    }
    fn deadline(&self) -> Option<Mono> {
        self.deadline
    }
    fn permit_validity(&self) -> Duration {
        self.permit_validity.get()
    }
    fn note_grant(&mut self, at: StoreTime, _: Duration) {
        self.granted = Some(at);
    }
    fn was_denied(&self) -> bool {
        self.was_denied
    }
    fn mark_denied(&mut self) {
        self.was_denied = true;
    }
    fn hold_rules(&self, at: StoreTime) -> HoldRules {
        HoldRules {
            may_move: false,
            holds: self.route.on_denied == OnDenied::Hold,
            max_hold: self.route.max_hold,
            age: at.since(self.born),
        }
    }
    fn opening(&self, at: StoreTime) -> StoreTime {
        self.route.opening(at)
    }
}
