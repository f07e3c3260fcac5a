//! What the pure decision of each kind of budget takes: one question, granted or denied.

#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]

#[path = "../tests/it/support/mod.rs"]
mod support;

mod common;

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use sluiced::core::budget::admit::{Cell, Mode, Want, admit};
use sluiced::core::budget::epoch::Era;
use sluiced::core::budget::limit::Limit;
use sluiced::core::time::StoreTime;
use sluiced::ports::budget::{Lost, Ticket};

/// A limit that a state of each kind is half full of.
const UNITS: u32 = 10;

fn decisions(criterion: &mut Criterion) {
    let now = StoreTime::from_micros(1_795_228_193_000_012);
    let era = Era::whole(now);
    for (kind, rule) in common::kinds::kinds(UNITS) {
        let limit = Limit::new(&rule, Lost::Closed, now);
        let want = Want {
            limit: &limit,
            cell: 0,
            cost: 1,
            held: None,
        };
        let after = |taken: u32| {
            let mut cells = [Cell::default()];
            for i in 0..taken {
                admit(&[want], &mut cells, Mode::Take, Ticket(i.into()), &era, now);
            }
            cells
        };
        let mut group = criterion.benchmark_group(kind);
        for (name, cells) in [("granted", after(UNITS / 2)), ("denied", after(UNITS))] {
            group.bench_function(name, |bench| {
                bench.iter_batched_ref(
                    || cells.clone(),
                    |cells| admit(black_box(&[want]), cells, Mode::Take, Ticket(99), &era, now),
                    criterion::BatchSize::SmallInput,
                );
            });
        }
        group.finish();
    }
}

criterion_group!(all, decisions);
criterion_main!(all);
