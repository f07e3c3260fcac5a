//! What the kinds promise: over random sequences, at their boundaries, and with several limits at once.

mod exact;
mod never_over;
mod numbers;
mod places;
mod several;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::admit::{Booking, Cell, IfLate, Lost, Mode, Ruling, SOON, WAIT, Want, admit};
use super::concurrency::{Concurrency, Ticket};
use super::epoch::Era;
use super::fixed_window::FixedWindow;
use super::gcra::Gcra;
use super::limit::{Limit, Taken};
use super::sliding_log::SlidingLog;
use super::token_bucket::{Bucket, Refill, Start, TokenBucket};
use super::*;
use crate::core::calendar::{Calendar, CalendarUnit};
use crate::core::rate::Rate;
use crate::core::time::{StoreTime, micros};
use crate::core::zone::Zone;

const START: u64 = 1_795_228_193_000_012;
const MS: Duration = Duration::from_millis(1);

fn units(units: u32) -> NonZeroU32 {
    NonZeroU32::new(units).unwrap()
}

fn rate(text: &str) -> Rate {
    text.parse().unwrap()
}

fn log(text: &str, headroom: Duration) -> Rule {
    Rule::SlidingLog(SlidingLog::new(rate(text), headroom).unwrap())
}

fn gcra(text: &str, burst: u32, headroom: Duration) -> Rule {
    Rule::Gcra(Gcra::new(rate(text), burst, headroom).unwrap())
}

fn bucket(capacity: u32, amount: u32, interval: Duration, refill: Refill, borrow: u32) -> Bucket {
    Bucket {
        capacity: units(capacity),
        amount: units(amount),
        interval,
        refill,
        start: Start::Full,
        borrow,
        headroom: Duration::ZERO,
    }
}

const RESERVE: Mode = Mode::Reserve(IfLate::Grant);

/// One budget and a clock that the test moves.
struct One {
    rule: Rule,
    cell: Cell,
    now: u64,
    asked: u128,
}

impl One {
    pub(super) fn new(rule: Rule) -> Self {
        Self {
            rule,
            cell: Cell::default(),
            now: START,
            asked: 0,
        }
    }

    pub(super) fn ask(&mut self, cost: u64, mode: Mode, held: Option<Booking>) -> Ruling {
        let limit = Limit::new(&self.rule, Lost::Closed, StoreTime::from_micros(self.now));
        let want = Want {
            limit: &limit,
            cell: 0,
            cost,
            held,
        };
        let cells = std::slice::from_mut(&mut self.cell);
        let era = Era::whole(StoreTime::from_micros(START));
        let now = StoreTime::from_micros(self.now);
        self.asked += 1;
        let ruling = admit(&[want], cells, mode, Ticket(self.asked), &era, now);
        // As a store does: a state that says nothing is gone.
        let dead = |state: &State| limit.dies_at(state).as_micros() <= self.now;
        if self.cell.state.as_ref().is_some_and(dead) {
            self.cell.state = None;
        }
        ruling
    }

    pub(super) fn takes(&mut self, cost: u64) -> bool {
        matches!(self.ask(cost, Mode::Take, None), Ruling::Granted { .. })
    }

    /// How long until `cost` fits, from a denial.
    pub(super) fn wait(&mut self, cost: u64) -> u64 {
        match self.ask(cost, Mode::Take, None) {
            Ruling::Denied { until, usage, .. } => {
                let wait = until.as_micros() - self.now;
                assert_eq!(micros(usage.retry_after), wait);
                wait
            }
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn refund(&mut self, taken: Taken, at: u64, cost: u64) -> bool {
        let now = StoreTime::from_micros(self.now);
        let limit = Limit::new(&self.rule, Lost::Closed, now);
        let at = StoreTime::from_micros(at);
        let state = self.cell.state.as_ref();
        let undone = state.and_then(|state| limit.undo(state, taken, at, cost, Ticket(7), now));
        let done = undone.is_some();
        self.cell.state = undone.or(self.cell.state.take());
        done
    }
}
