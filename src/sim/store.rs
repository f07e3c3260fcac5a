//! The shared store: one schedule, one clock, and what can go wrong with both.
//!
//! The decision is the one of production (`core::schedule`); only its surroundings are made up.

use crate::core::schedule::{Answer, Ask, Freeze, Grant, Pace, Schedule, freeze, give_back, lease};
use crate::core::time::StoreTime;
use std::time::Duration;

/// Where the store's clock stands when the simulation starts.
const EPOCH: u64 = 1_700_000_000_000_000;

/// The store.
#[derive(Debug)]
pub(super) struct Store {
    pace: Pace,
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
            pace,
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

    pub(super) fn lease(&mut self, ask: &Ask, t: u64) -> Answer {
        let now = self.clock(t);
        if self.copy.is_none() || t.is_multiple_of(7) {
            self.copy.clone_from(&self.state);
        }
        lease(&mut self.state, &self.pace, &self.run, ask, now)
    }

    pub(super) fn freeze(&mut self, length: Duration, t: u64) -> Freeze {
        let now = self.clock(t);
        freeze(&mut self.state, length, now)
    }

    pub(super) fn give_back(&mut self, tail: &Grant) -> bool {
        give_back(&mut self.state, &self.pace, &self.run, tail)
    }

    pub(super) fn flush(&mut self) {
        self.state = None;
        self.copy = None;
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
