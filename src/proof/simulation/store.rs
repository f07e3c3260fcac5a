//! The shared store: one schedule, one policy, one clock, and what can go wrong with them.
//!
//! The decision is the one of production (`core::schedule`); only its surroundings are made up.

use sluiced_core::policy::{
    Declaration, LimitPolicy, PolicyUpdate, PolicyVersion, declare, lease_under, set,
};
use sluiced_core::schedule::{Answer, Ask, Freeze, Grant, Pace, Schedule, freeze, give_back};
use sluiced_core::time::StoreTime;
use std::time::Duration;

/// Where the store's clock stands when the simulation starts.
const EPOCH: u64 = 1_700_000_000_000_000;

/// The store.
#[derive(Debug)]
pub(super) struct Store {
    /// Those that were ever in force; the text of a policy is its number here.
    paces: Vec<Pace>,
    policy: Option<LimitPolicy>,
    state: Option<Schedule>,
    /// What a replica of the store has copied: an older state.
    copy: Option<Schedule>,
    process: u64,
    run: String,
    /// Store time minus true time.
    offset: u64,
    down_until: u64,
}

impl Store {
    pub(super) fn new(pace: Pace) -> Self {
        Self {
            paces: vec![pace],
            policy: None,
            state: None,
            copy: None,
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

    /// An operator sets another pace.
    pub(super) fn set(&mut self, pace: Pace, t: u64) {
        let over = self
            .policy
            .as_ref()
            .map_or(PolicyVersion::NONE, |s| s.version);
        let text = self.paces.len().to_string();
        self.paces.push(pace);
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
        self.paces.get(policy.text.parse::<usize>().ok()?).copied()
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

    pub(super) fn flush(&mut self) {
        self.state = None;
        self.copy = None;
        self.policy = None;
    }

    /// Another process takes over.
    pub(super) fn restart(&mut self, older_copy: bool) {
        self.process += 1;
        self.run = format!("run {}", self.process);
        self.state = self.copy.take().filter(|_| older_copy);
    }

    pub(super) fn down(&mut self, until: u64) {
        self.down_until = self.down_until.max(until);
    }

    pub(super) const fn step(&mut self, by: i64) {
        self.offset = self.offset.saturating_add_signed(by);
    }
}
