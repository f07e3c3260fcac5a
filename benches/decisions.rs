//! The time of the pure decision of each kind of limit, granted and denied, compared with the least
//! that any limiter in memory does: look up the counter of a key and add to it.
//!
//! Every ratio is to that counter in the same run; rounds take turns, and the median counts.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "results are its output"
)]

#[path = "../tests/it/support/mod.rs"]
mod support;

mod common;

use std::collections::HashMap;
use std::hint::black_box;

use common::table::{Table, headline, median};
use sluiced_core::limits::Ticket;
use sluiced_core::limits::admission::{Candidate, Charge, Decision, decide};
use sluiced_core::limits::cell::{Cell, Limit, LimitAccess};
use sluiced_core::rate::Cost;
use sluiced_core::time::StoreTime;
use sluiced_ports::clock;

/// A state of each kind is half full of this many, or full.
const UNITS: u32 = 10;
/// Keys of the bare counter.
const KEYS: u64 = 10_000;
const ROUNDS: usize = 31;
const EACH: u64 = 20_000;

fn main() {
    headline(&format!(
        "median of {ROUNDS} rounds of {EACH} decisions, one limit and one candidate each"
    ));
    let mut table = Table::new(&["", "a decision", "a bare counter", "ratio"]);
    for (kind, rule) in common::kinds(UNITS) {
        let access = LimitAccess::Open;
        let limit = Limit {
            rule: &rule,
            access,
        };
        for (name, taken) in [("granted", UNITS / 2), ("denied", UNITS)] {
            let cells = after(&limit, taken);
            let granted = matches!(one(&limit, &mut cells.clone()), Decision::Granted { .. });
            assert_eq!(granted, name == "granted", "{kind}");
            let (decision, counter) = compare(|| {
                black_box(one(black_box(&limit), &mut cells.clone()));
            });
            table.row(&[
                format!("{kind}, {name}"),
                format!("{decision:.0} ns"),
                format!("{counter:.0} ns"),
                format!("{:.1}", decision / counter),
            ]);
        }
    }
    table.print();
}

const NOW: StoreTime = StoreTime::from_micros(1_795_228_193_000_012);

/// Decides on one candidate.
fn one(limit: &Limit<'_>, cells: &mut [Cell; 1]) -> Decision {
    ask(limit, cells, Ticket(99))
}

fn ask(limit: &Limit<'_>, cells: &mut [Cell; 1], ticket: Ticket) -> Decision {
    let candidate = Candidate {
        charges: vec![Charge {
            limit,
            key: 0,
            cost: Cost::ONE,
        }],
        was_denied: true,
        slots: Cost::ONE,
        ticket,
        died: StoreTime::default(),
        others_wait: false,
    };
    decide(&[candidate], cells, 1, NOW).pop().unwrap()
}

/// The state once this many units were taken.
fn after(limit: &Limit<'_>, taken: u32) -> [Cell; 1] {
    let mut cells = [Cell::default()];
    for number in 0..taken {
        ask(limit, &mut cells, Ticket(number.into()));
    }
    // Read again, as a store does for each request.
    let state = cells[0].state.take();
    [Cell::of(limit.rule, state, NOW)]
}

/// Nanoseconds of `decide` and of a bare counter, in turns.
fn compare(mut decide: impl FnMut()) -> (f64, f64) {
    let mut counters: HashMap<u64, u64> = (0..KEYS).map(|key| (key, 0)).collect();
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        let start = clock::now();
        (0..EACH).for_each(|_| decide());
        let between = clock::now();
        for key in 0..EACH {
            *counters.entry(black_box(key % KEYS)).or_default() += 1;
        }
        let nanos = |length: std::time::Duration| length.as_secs_f64() * 1e9 / EACH as f64;
        times[0].push(nanos(between.since(start)));
        times[1].push(nanos(clock::now().since(between)));
    }
    black_box(counters);
    let [decision, counter] = times.map(|times| median(&times));
    (decision, counter)
}
