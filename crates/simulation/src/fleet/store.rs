//! The shared store: the rows of the paced limit, the states of all keys, one policy, one clock, and their
//! faults.
//!
//! The decisions are those of production (`core::schedule`, `core::limits`); only their surroundings are
//! simulated.

use std::time::Duration;

use sluiced_core::limits::admission::{Candidate, Charge, Decision};
use sluiced_core::limits::askers::Askers;
use sluiced_core::limits::cell::{Limit, LimitAccess, PolicyState};
use sluiced_core::limits::generation::{Generation, LostWait, Memory, enter};
use sluiced_core::limits::keyed_states::KeyedStates;
use sluiced_core::limits::store_watch::AnswerHead;
use sluiced_core::limits::{Rule, UnusedUnits};
use sluiced_core::message::Queued as _;
use sluiced_core::pacing::Row;
use sluiced_core::policy::{
    Declaration, FileCounts, LimitPolicy, PolicyUpdate, declare, lease_under, set,
};
use sluiced_core::schedule::{Ask, Freeze, LeaseAnswer, Pace, Schedule, freeze};
use sluiced_core::scheduler::AskedMessage;
use sluiced_core::time::{StoreTime, micros};
use sluiced_core::version::PolicyVersion;

use super::replica::{HeldMessage, StateKey, names};
use crate::setting::{FleetPolicy, Setting};
use crate::surroundings::StateLeft;

/// The data of the keyed limits in the store.
#[derive(Clone, Debug, Default)]
struct KeyedData {
    generation: Option<Generation>,
    askers: Askers,
    states: KeyedStates<StateKey>,
}

/// A replica that asks about keyed limits: what it remembers, and the policy that it knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker {
    pub(super) replica: u32,
    pub(super) memory: Memory,
    pub(super) version: PolicyVersion,
}

/// A replica that waited for units of a key, and how many the notice says are free.
#[derive(Clone, Copy, Debug)]
pub(super) struct Woken {
    pub(super) replica: u32,
    pub(super) name: StateKey,
    pub(super) units: u64,
}

/// The store.
#[derive(Debug)]
pub(super) struct SimulatedStore {
    /// All policies so far; the text of a policy is its number here.
    policies: Vec<FleetPolicy>,
    policy: Option<LimitPolicy>,
    rows: [Option<Schedule>; 2],
    keyed: KeyedData,
    /// Whether a replica of the store keeps a copy, an older state: only if faults may happen.
    copies: bool,
    copy: [Option<Schedule>; 2],
    keyed_copy: KeyedData,
    process: u64,
    run: String,
    /// Store time minus true time.
    offset: u64,
    down_until: u64,
}

impl SimulatedStore {
    pub(super) fn new(setting: &Setting<'_>) -> Self {
        let rules = setting.route.keyed.iter();
        let policy = FleetPolicy {
            rows: setting.route.rows.clone(),
            rules: rules.map(|keyed| keyed.rule.clone()).collect(),
        };
        Self {
            policies: vec![policy],
            policy: None,
            rows: [None, None],
            keyed: KeyedData::default(),
            copies: !setting.faults.is_empty(),
            copy: [None, None],
            keyed_copy: KeyedData::default(),
            process: 0,
            run: "run 0".to_owned(),
            offset: setting.start.as_micros() - micros(setting.lead),
            down_until: 0,
        }
    }

    /// The store's clock at a true time.
    pub(super) const fn clock(&self, t: u64) -> StoreTime {
        StoreTime::from_micros(self.offset + t)
    }

    pub(super) const fn is_down(&self, t: u64) -> bool {
        t < self.down_until
    }

    /// An operator sets another policy.
    pub(super) fn set(&mut self, policy: FleetPolicy, t: u64) {
        let replaces = self.version();
        let text = self.policies.len().to_string();
        self.policies.push(policy);
        let now = self.clock(t);
        let update = PolicyUpdate {
            replaces,
            text: &text,
            file: "0",
            by: "operator",
        };
        set(&mut self.policy, &update, now);
    }

    /// A replica with the first policy in its file declares the policy that it knows and gets the
    /// current one. Also returns whether that changed.
    pub(super) fn declare(&mut self, known: Option<LimitPolicy>, t: u64) -> (LimitPolicy, bool) {
        let declaration = Declaration {
            replica: "replica".to_owned(),
            file: "0".to_owned(),
            known,
        };
        let now = self.clock(t);
        let before = self.policy.as_ref().map(|policy| policy.version);
        let policy = declare(&mut self.policy, &declaration, FileCounts::ALONE, now);
        let changed = before != Some(policy.version);
        (policy, changed)
    }

    /// The policy's version.
    pub(super) fn version(&self) -> PolicyVersion {
        let policy = self.policy.as_ref();
        policy.map_or(PolicyVersion::NONE, |policy| policy.version)
    }

    /// What a policy of the store means for the limits.
    pub(super) fn limits_of(&self, policy: &LimitPolicy) -> Option<&FleetPolicy> {
        self.policies.get(policy.text.parse::<usize>().ok()?)
    }

    pub(super) fn lease(
        &mut self,
        row: Row,
        known: (&Pace, PolicyVersion),
        ask: &Ask,
        t: u64,
    ) -> LeaseAnswer {
        let now = self.clock(t);
        let state = &mut self.rows[row as usize];
        let copy = &mut self.copy[row as usize];
        if self.copies && (copy.is_none() || t.is_multiple_of(7)) {
            copy.clone_from(state);
        }
        lease_under(self.policy.as_ref(), state, known, &self.run, ask, now)
    }

    pub(super) fn freeze(&mut self, row: Row, length: Duration, t: u64) -> Freeze {
        let now = self.clock(t);
        freeze(&mut self.rows[row as usize], length, now)
    }

    /// Decides on messages that keyed limits count.
    pub(super) fn admit(
        &mut self,
        asker: Asker,
        asked: &[AskedMessage<HeldMessage<'_>>],
        wanted: u64,
        t: u64,
    ) -> (AnswerHead, bool, Vec<Decision>) {
        // The copy lags behind by a hundred milliseconds and more.
        if t.is_multiple_of(97) {
            self.replicate();
        }
        let mut generation = self.enter(asker, t);
        let decisions = self.with_limits(asker, t, &generation, |states, limits, now| {
            let candidates = asked.iter().map(|asked| Candidate {
                charges: charges(&asked.item, limits).collect(),
                was_denied: asked.item.was_denied,
                slots: asked.item.cost(),
                ticket: asked.item.ticket,
                died: StoreTime::default(),
                others_wait: asked.others_wait,
            });
            let batch: Vec<_> = candidates.collect();
            states.admit(asker.replica, &batch, wanted, now)
        });
        let granted = |decision: &&Decision| matches!(decision, Decision::Granted { .. });
        generation.writes += decisions.iter().filter(granted).count() as u64;
        let entered = AnswerHead {
            now: self.clock(t),
            number: generation.number,
            writes: generation.writes,
        };
        self.keyed.generation = Some(generation);
        let alone = asked.is_empty() && self.note(asker, t) == 0;
        (entered, alone, decisions)
    }

    /// A replica no longer asks.
    pub(super) fn leave(&mut self, replica: u32) {
        self.keyed.askers.leave(&replica.to_string());
    }

    /// A replica asks. Returns how many others do.
    fn note(&mut self, asker: Asker, t: u64) -> usize {
        let now = self.clock(t);
        let (name, remembers) = (asker.replica.to_string(), asker.memory.number > 0);
        self.keyed.askers.ask(&name, remembers, now)
    }

    /// Takes back what a message was granted and did not use, and ends its call. Returns the messages that
    /// waited for that.
    pub(super) fn refund(
        &mut self,
        asker: Asker,
        held: &HeldMessage<'_>,
        sent: u64,
        t: u64,
    ) -> Vec<Woken> {
        let woken = self.release(asker, held, t);
        let generation = self.enter(asker, t);
        let since = asker.version.since().max(generation.lost_at);
        self.with_limits(asker, t, &generation, |states, limits, now| {
            for charge in charges(held, limits) {
                if let Some(at) = held.granted {
                    let unused = UnusedUnits {
                        at,
                        cost: charge.cost,
                        age: Duration::from_micros(sent - held.asked),
                    };
                    states.refund(&charge.key, charge.limit, since, &unused, now);
                }
            }
        });
        woken
    }

    /// A call ended. Returns the messages that waited for that.
    pub(super) fn release(&mut self, asker: Asker, held: &HeldMessage<'_>, t: u64) -> Vec<Woken> {
        let generation = self.enter(asker, t);
        self.with_limits(asker, t, &generation, |states, limits, now| {
            let woken = charges(held, limits).flat_map(|charge| {
                let name = charge.key;
                let waiters = states.release(&name, charge.limit.rule, held.ticket, now);
                waiters.into_iter().map(move |(replica, units)| Woken {
                    replica,
                    name,
                    units,
                })
            });
            woken.collect()
        })
    }

    pub(super) fn renew(&mut self, asker: Asker, held: &HeldMessage<'_>, t: u64) {
        let generation = self.enter(asker, t);
        self.with_limits(asker, t, &generation, |states, limits, now| {
            for charge in charges(held, limits) {
                states.renew(&charge.key, charge.limit.rule, held.ticket, now);
            }
        });
    }

    fn enter(&mut self, asker: Asker, t: u64) -> Generation {
        let record = self.keyed.generation.take();
        let generation = enter(record, &self.run, asker.memory, self.clock(t));
        self.keyed.generation.insert(generation).clone()
    }

    /// Works on the states under the current limits.
    fn with_limits<T>(
        &mut self,
        asker: Asker,
        t: u64,
        generation: &Generation,
        work: impl FnOnce(&mut KeyedStates<StateKey>, &[Limit<'_>], StoreTime) -> T,
    ) -> T {
        let now = self.clock(t);
        let policy = self.policy.as_ref();
        let in_force = PolicyState {
            version: policy.map_or(PolicyVersion::NONE, |policy| policy.version),
            ..PolicyState::default()
        };
        // Under another version than the asker's nothing is decided, so the rules do not matter.
        let index = policy.and_then(|policy| policy.text.parse().ok());
        let in_policy = &self.policies[index.unwrap_or(0_usize)];
        let rules = in_policy.rules.iter().map(|rule| rule.around(now));
        let rules_now: Vec<Rule> = rules.collect();
        let accessible = rules_now.iter().map(|rule| {
            let wait = LostWait::Forever;
            let access = LimitAccess::of(in_force, rule, asker.version, wait, generation, now);
            Limit { rule, access }
        });
        let limits: Vec<Limit<'_>> = accessible.collect();
        work(&mut self.keyed.states, &limits, now)
    }

    /// The copy of the keyed limits has all that the store has.
    pub(super) fn replicate(&mut self) {
        if self.copies {
            self.keyed_copy.clone_from(&self.keyed);
        }
    }

    pub(super) fn flush(&mut self) {
        self.rows = [None, None];
        self.copy = [None, None];
        self.policy = None;
        self.keyed = KeyedData::default();
        self.keyed_copy = KeyedData::default();
    }

    /// Another process takes over.
    pub(super) fn restart(&mut self, kept: StateLeft) {
        self.process += 1;
        self.run = format!("run {}", self.process);
        let (copy, keyed_copy) = (
            std::mem::take(&mut self.copy),
            std::mem::take(&mut self.keyed_copy),
        );
        match kept {
            StateLeft::Nothing => (self.rows, self.keyed) = ([None, None], KeyedData::default()),
            StateLeft::Older => (self.rows, self.keyed) = (copy, keyed_copy),
            StateLeft::All => {}
        }
    }

    pub(super) fn down(&mut self, until: u64) {
        self.down_until = self.down_until.max(until);
    }

    pub(super) const fn up(&mut self) {
        self.down_until = 0;
    }

    pub(super) const fn step(&mut self, by: i64) {
        self.offset = self.offset.saturating_add_signed(by);
    }
}

/// What a message takes.
fn charges<'l>(
    held: &HeldMessage<'l>,
    limits: &'l [Limit<'l>],
) -> impl Iterator<Item = Charge<&'l Limit<'l>, StateKey>> {
    let charges = &held.message.charges;
    names(charges).zip(charges).map(|(key, charge)| Charge {
        limit: &limits[key.0],
        key,
        cost: charge.cost,
    })
}
