//! The shared store: one schedule, one policy, one clock, and what can go wrong with them.
//!
//! The decision is the one of production (`core::schedule`); only its surroundings are made up.

use sluiced_core::limits::admission::{Decision, Limit, LimitGate, PolicyState};
use sluiced_core::limits::generation::{Generation, LostWait, Memory, enter};
use sluiced_core::limits::known::Entered;
use sluiced_core::limits::{Rule, Ticket};
use sluiced_core::policy::{
    Declaration, LimitPolicy, PolicyUpdate, PolicyVersion, declare, lease_under, set,
};
use sluiced_core::schedule::{Answer, Ask, Freeze, Grant, Pace, Schedule, freeze, give_back};
use sluiced_core::time::StoreTime;
use std::time::Duration;

use super::cells::{Asked, Cells, KeyCost, Name};

/// Where the store's clock stands when the simulation starts.
const EPOCH: u64 = 1_700_000_000_000_000;

/// What a new process of the store has of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    Nothing,
    /// A copy that lags behind.
    Older,
    All,
}

/// What an operator set: the pace of the paced limit and the rules of the others. One policy for all of
/// them: they change together.
#[derive(Clone, Debug)]
pub(super) struct SetPolicy {
    pub(super) pace: Pace,
    pub(super) rules: Vec<Rule>,
}

/// What the keyed limits have in the store.
#[derive(Clone, Debug, Default)]
struct KeyedData {
    generation: Option<Generation>,
    cells: Cells,
}

/// A replica that asks about keyed limits: what it remembers, and the policy that it knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker {
    pub(super) memory: Memory,
    pub(super) version: PolicyVersion,
}

/// The store.
#[derive(Debug)]
pub(super) struct Store {
    /// Those that were ever in force; the text of a policy is its number here.
    terms: Vec<SetPolicy>,
    policy: Option<LimitPolicy>,
    state: Option<Schedule>,
    keyed: KeyedData,
    /// What a replica of the store has copied: an older state.
    copy: Option<Schedule>,
    keyed_copy: KeyedData,
    process: u64,
    run: String,
    /// Store time minus true time.
    offset: u64,
    down_until: u64,
}

impl Store {
    pub(super) fn new(terms: SetPolicy) -> Self {
        Self {
            terms: vec![terms],
            policy: None,
            state: None,
            keyed: KeyedData::default(),
            copy: None,
            keyed_copy: KeyedData::default(),
            process: 0,
            run: "run 0".to_owned(),
            offset: EPOCH,
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

    /// An operator sets other terms.
    pub(super) fn set(&mut self, terms: SetPolicy, t: u64) {
        let over = self
            .policy
            .as_ref()
            .map_or(PolicyVersion::NONE, |s| s.version);
        let text = self.terms.len().to_string();
        self.terms.push(terms);
        let now = self.clock(t);
        let update = PolicyUpdate {
            over,
            text: &text,
            file: "0",
            by: "operator",
        };
        set(&mut self.policy, &update, now);
    }

    /// A replica with the first pace in its file declares what it knows and receives what is in force.
    /// Says too whether that changed.
    pub(super) fn declare(&mut self, known: Option<LimitPolicy>, t: u64) -> (LimitPolicy, bool) {
        let declaration = Declaration {
            replica: "replica".to_owned(),
            file: "0".to_owned(),
            was_read: false,
            known,
        };
        let now = self.clock(t);
        let before = self.policy.as_ref().map(|s| s.version);
        let policy = declare(&mut self.policy, &declaration, now);
        let changed = before != Some(policy.version);
        (policy, changed)
    }

    /// The pace that a policy names.
    pub(super) fn pace(&self, policy: &LimitPolicy) -> Option<Pace> {
        let terms = self.terms.get(policy.text.parse::<usize>().ok()?);
        terms.map(|terms| terms.pace)
    }

    pub(super) fn lease(&mut self, limit: (&Pace, PolicyVersion), ask: &Ask, t: u64) -> Answer {
        let now = self.clock(t);
        if self.copy.is_none() || t.is_multiple_of(7) {
            self.copy.clone_from(&self.state);
        }
        let policy = self.policy.as_ref();
        lease_under(policy, &mut self.state, limit, &self.run, ask, now)
    }

    pub(super) fn freeze(&mut self, length: Duration, t: u64) -> Freeze {
        let now = self.clock(t);
        freeze(&mut self.state, length, now)
    }

    pub(super) fn give_back(&mut self, pace: &Pace, tail: &Grant) -> bool {
        give_back(&mut self.state, pace, &self.run, tail)
    }

    /// Decides on messages that keyed limits count.
    pub(super) fn admit(
        &mut self,
        asker: Asker,
        batch: &[Asked<'_>],
        wanted: u64,
        t: u64,
    ) -> (Entered, Vec<Decision>) {
        // The copy lags behind by a hundred milliseconds and more.
        if t.is_multiple_of(97) {
            self.replicate();
        }
        let mut generation = self.enter(asker, t);
        let decisions = self.with_limits(asker, t, &generation, |cells, limits, now| {
            cells.decide(limits, batch, wanted, now)
        });
        let granted = |decision: &&Decision| matches!(decision, Decision::Granted { .. });
        generation.writes += decisions.iter().filter(granted).count() as u64;
        let entered = Entered {
            now: self.clock(t),
            number: generation.number,
            writes: generation.writes,
        };
        self.keyed.generation = Some(generation);
        (entered, decisions)
    }

    /// Takes back what was granted at `at` and not used, and ends the call.
    pub(super) fn refund(
        &mut self,
        asker: Asker,
        (charges, ticket): (&[KeyCost], Ticket),
        at: StoreTime,
        t: u64,
    ) -> Vec<(Name, u64)> {
        let generation = self.enter(asker, t);
        let since = asker.version.since().max(generation.lost_at);
        self.with_limits(asker, t, &generation, |cells, limits, now| {
            let freed = cells.release(limits, charges, ticket, now);
            cells.refund(limits, charges, (at, since), now);
            freed
        })
    }

    /// A call ended. Answers the keys whose calls messages wait for, with the units that came free.
    pub(super) fn release(
        &mut self,
        asker: Asker,
        (charges, ticket): (&[KeyCost], Ticket),
        t: u64,
    ) -> Vec<(Name, u64)> {
        let generation = self.enter(asker, t);
        self.with_limits(asker, t, &generation, |cells, limits, now| {
            cells.release(limits, charges, ticket, now)
        })
    }

    pub(super) fn renew(&mut self, asker: Asker, call: (&[KeyCost], Ticket), t: u64) {
        let generation = self.enter(asker, t);
        self.with_limits(asker, t, &generation, |cells, limits, now| {
            cells.renew(limits, call.0, call.1, now);
        });
    }

    fn enter(&mut self, asker: Asker, t: u64) -> Generation {
        let record = self.keyed.generation.take();
        let generation = enter(record, &self.run, asker.memory, self.clock(t));
        self.keyed.generation.insert(generation).clone()
    }

    /// Works on the states under the limits as they are in force.
    fn with_limits<T>(
        &mut self,
        asker: Asker,
        t: u64,
        generation: &Generation,
        work: impl FnOnce(&mut Cells, &[Limit<'_>], StoreTime) -> T,
    ) -> T {
        let now = self.clock(t);
        let policy = self.policy.as_ref();
        let in_force = PolicyState {
            version: policy.map_or(PolicyVersion::NONE, |policy| policy.version),
            ..PolicyState::default()
        };
        // Under another version than the asker's nothing is decided, whatever the rules are.
        let index = policy.and_then(|policy| policy.text.parse().ok());
        let rules = &self.terms[index.unwrap_or(0_usize)].rules;
        let rules: Vec<Rule> = rules.iter().map(|rule| rule.around(now)).collect();
        let limits = rules.iter().map(|rule| {
            let known = (rule, asker.version, LostWait::Forever);
            let gate = LimitGate::of(in_force, known, generation, now);
            Limit { rule, gate }
        });
        let limits: Vec<Limit<'_>> = limits.collect();
        work(&mut self.keyed.cells, &limits, now)
    }

    /// The copy of the keyed limits has all that the store has.
    pub(super) fn replicate(&mut self) {
        self.keyed_copy.clone_from(&self.keyed);
    }

    pub(super) fn flush(&mut self) {
        self.state = None;
        self.copy = None;
        self.policy = None;
        self.keyed = KeyedData::default();
        self.keyed_copy = KeyedData::default();
    }

    /// Another process takes over.
    pub(super) fn restart(&mut self, kept: Kept) {
        self.process += 1;
        self.run = format!("run {}", self.process);
        let (copy, keyed_copy) = (self.copy.take(), std::mem::take(&mut self.keyed_copy));
        match kept {
            Kept::Nothing => (self.state, self.keyed) = (None, KeyedData::default()),
            Kept::Older => (self.state, self.keyed) = (copy, keyed_copy),
            Kept::All => {}
        }
    }

    pub(super) fn down(&mut self, until: u64) {
        self.down_until = self.down_until.max(until);
    }

    pub(super) const fn step(&mut self, by: i64) {
        self.offset = self.offset.saturating_add_signed(by);
    }
}
