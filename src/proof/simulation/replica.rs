//! One replica: the scheduler of production, a clock of its own, and what it holds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sluiced_core::leases::{LeaseHolder, Phase};
use sluiced_core::limits::generation::HEARS_FIRST;
use sluiced_core::limits::known::Known;
use sluiced_core::pacing::Pacing;
use sluiced_core::policy::{LimitPolicy, PolicyVersion};
use sluiced_core::schedule::Turn;
use sluiced_core::scheduler::{KeyId, Queued, Requests, Scheduler};
use sluiced_core::time::{Mono, StoreTime};

use super::cells::{KeyCost, key_id, names};
use super::dice::{Dice, mix};
use super::scenario::Scenario;

/// The most keyed limits of a message.
const CHARGES: usize = 3;

/// A message in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parcel {
    pub(super) id: u32,
    keys: [Option<KeyId>; CHARGES],
    /// Names its call to the keyed limits.
    pub(super) ticket: u64,
    /// When they granted it.
    pub(super) granted: Option<StoreTime>,
}

impl Parcel {
    pub(super) fn new(id: u32, charges: &[KeyCost]) -> Self {
        let mut keys = [None; CHARGES];
        for (place, name) in keys.iter_mut().zip(names(charges)) {
            *place = Some(key_id(name));
        }
        Self {
            id,
            keys,
            ticket: 0,
            granted: None,
        }
    }
}

impl Queued for Parcel {
    fn priority(&self) -> u16 {
        // Some are more urgent than others.
        u16::from(self.id.is_multiple_of(16))
    }
    fn keys(&self) -> impl Iterator<Item = KeyId> {
        self.keys.iter().copied().flatten()
    }
    fn arrival(&self) -> u64 {
        u64::from(self.id)
    }
}

/// How far a replica is from its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Running,
    /// Waits for its calls under way.
    Stopping,
}

/// A running replica.
#[derive(Debug)]
pub(super) struct Replica {
    pub(super) id: u32,
    pub(super) scheduler: Scheduler<Parcel>,
    pub(super) stage: Stage,
    /// Delivered and not settled.
    pub(super) unsettled: BTreeSet<u32>,
    /// Calls that were started or are about to be, and not settled.
    pub(super) calls: u32,
    /// It consumes once it has heard from the store.
    pub(super) consuming: bool,
    pub(super) paused_until: u64,
    /// Only the last wake that was set is heeded.
    pub(super) wake: u64,
    /// The ask that is under way.
    pub(super) asking: Option<u64>,
    /// The turn that the last answer gave, for the check that it does not ask before it.
    pub(super) turn: Option<Turn>,
    pub(super) last_ask: u64,
    /// What it knows of the store of keyed limits.
    pub(super) store: Known,
    /// What it asks the keyed limits for, and by which question.
    pub(super) admitting: Option<(u64, Vec<Parcel>)>,
    /// What was granted and has not ended, by message.
    pub(super) running: BTreeMap<u32, Parcel>,
    /// For how long a permission is good.
    pub(super) usable: Duration,
    /// What it knows of the limits' policy.
    pub(super) known: Option<LimitPolicy>,
    /// It has asked what is in force.
    pub(super) declaring: bool,
    /// What its ways to the store and back take beyond the usual.
    pub(super) detour: (u64, u64),
    /// When its clock was started, where it stood, and how many millionths it is fast.
    born: u64,
    zero: u64,
    drift: i64,
}

impl Replica {
    pub(super) fn new(id: u32, t: u64, scenario: &Scenario, dice: &mut Dice) -> Self {
        let drift = scenario.around.drift;
        let drift_range = drift.unsigned_abs();
        let drift = i64::try_from(dice.below(drift_range * 2 + 1)).unwrap_or_default() - drift;
        let phase = Phase::new(mix(u64::from(id) + 1));
        let pacing = if scenario.paced {
            Pacing::paced(LeaseHolder::new(scenario.pace(), phase))
        } else {
            Pacing::free()
        };
        let usable = scenario.keyed.iter().map(|limit| limit.headroom * 3 / 4);
        let usable = usable.min();
        let requests = usable.map(|usable| {
            let requests = Requests::new(usable, phase, scenario.paced);
            requests.hearing_first(HEARS_FIRST)
        });
        Self {
            id,
            scheduler: Scheduler::new(pacing, requests),
            stage: Stage::Running,
            unsettled: BTreeSet::new(),
            calls: 0,
            consuming: false,
            paused_until: 0,
            wake: 0,
            asking: None,
            turn: None,
            last_ask: 0,
            store: Known::default(),
            admitting: None,
            running: BTreeMap::new(),
            usable: usable.unwrap_or_default(),
            known: None,
            declaring: false,
            detour: (0, 0),
            born: t,
            zero: 3_600_000_000 + dice.below(1_000_000_000_000),
            drift,
        }
    }

    /// The version of the policy that it knows.
    pub(super) fn version(&self) -> PolicyVersion {
        let known = self.known.as_ref();
        known.map_or(PolicyVersion::NONE, |known| known.version)
    }

    /// Takes what it asked the keyed limits for by this question.
    pub(super) fn asked_for(&mut self, id: u64) -> Option<Vec<Parcel>> {
        let (_, parcels) = self.admitting.take_if(|(asked, _)| *asked == id)?;
        Some(parcels)
    }

    /// Its clock at a true time.
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
