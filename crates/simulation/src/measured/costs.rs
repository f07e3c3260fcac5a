//! How much of a paced limit is used where messages take several slots: a lease is for whole messages, whatever
//! they take, of however many replicas, and beside keyed limits.

use std::time::Duration;

use sluiced_core::rate::Rate;

use crate::limits::{KeyedLimit, LimitKind};
use crate::proof::scenario::Scenario;
use crate::watch::{FleetEvent, FleetWatch};

const SECOND: u64 = 1_000_000;

/// When calls left until then, and which messages they were for.
struct Calls {
    made: Vec<(u64, u32)>,
    until: u64,
}

impl FleetWatch for Calls {
    fn see(&mut self, at: u64, _replica: u32, what: &FleetEvent) {
        if let FleetEvent::Called { message } = what {
            self.made.push((at, *message));
        }
    }

    fn is_over(&mut self, at: u64) -> bool {
        at > self.until
    }
}

/// A keyed limit beside the paced one: of this many keys, which together let pass this many times as much.
type Keys = Option<(u32, f64)>;

/// The share of the slots that were used. There is a backlog all the time.
fn used((rate, seconds): (&str, u64), cost: u32, replicas: u32, keys: Keys) -> f64 {
    let rate: Rate = rate.parse().expect("a rate");
    let mut scenario = Scenario::calm("costs", 1, rate, replicas, 2 * seconds);
    scenario.cost = cost;
    scenario.prefetch = scenario.ample_prefetch().max(cost * 2);
    scenario.max_hold = Duration::from_secs(60);
    scenario.keyed = keys
        .map(|keys| messages_of(keys, rate))
        .into_iter()
        .collect();
    let until = seconds * SECOND;
    let made = Vec::new();
    let (calls, _) = scenario.run(Calls { made, until });
    // Once all replicas have joined, until the end.
    let from = until / 4;
    let later = calls.made.iter().filter(|(at, _)| *at >= from);
    let units: u64 = later
        .map(|(_, message)| scenario.slots(*message).units())
        .sum();
    let pace = scenario.pace();
    let slots = (until - from) * pace.units() / pace.period();
    units as f64 / slots as f64
}

/// Counts messages, whatever they take of the paced limit.
fn messages_of((keys, times): (u32, f64), rate: Rate) -> KeyedLimit {
    const WINDOW: u32 = 10;
    let units = rate.per_second() * f64::from(WINDOW) * times / f64::from(keys);
    KeyedLimit {
        kind: LimitKind::SlidingLog,
        units: (units as u32).max(1),
        window: Duration::from_secs(u64::from(WINDOW)),
        headroom: Duration::from_millis(20),
        keys,
        cost: 1,
        for_all: false,
    }
}

/// The shares at each rate and with each greatest cost, for one replica, two and four.
fn table(keys: Keys) -> Vec<(String, [f64; 3])> {
    println!("| rate | up to | 1 replica | 2 | 4 |\n|---|---|---|---|---|");
    let mut rows = Vec::new();
    for rate in [
        ("60/1m", 1_800),
        ("10/1s", 300),
        ("100/1s", 60),
        ("400/1s", 30),
    ] {
        for cost in [2, 5, 10] {
            let shares = [1, 2, 4].map(|replicas| used(rate, cost, replicas, keys));
            let [one, two, four] = shares.map(|share| format!("{share:.2}"));
            let row = format!("| {} | {cost} slots | {one} | {two} | {four} |", rate.0);
            println!("{row}");
            rows.push((row, shares));
        }
    }
    rows
}

#[test]
fn messages_of_several_slots_leave_few_unused() {
    for (row, [one, two, four]) in table(None) {
        assert!(one >= 0.97 && two >= 0.9 && four >= 0.9, "{row}");
    }
}

#[test]
fn beside_a_keyed_limit_they_leave_few_unused() {
    for (row, [one, two, four]) in table(Some((100, 100.0))) {
        assert!(one >= 0.97 && two >= 0.9 && four >= 0.9, "{row}");
    }
}

/// Twenty keys with half as much again as the paced limit lets pass: some messages are always denied.
#[test]
fn where_keys_are_often_full_they_leave_few_unused() {
    for (row, [one, two, four]) in table(Some((20, 1.5))) {
        assert!(one >= 0.97 && two >= 0.8 && four >= 0.85, "{row}");
    }
}

/// No lease could hold the slots of such a message before, and the replicas took the slots of each other's messages.
#[test]
fn messages_of_a_slow_limit_are_complete() {
    for (rate, seconds) in [("1000/1h", 7_200), ("20/1m", 3_600)] {
        for replicas in [1, 2, 3] {
            let share = used((rate, seconds), 10, replicas, None);
            assert!(share > 0.8, "{rate}, {replicas} replicas: {share}");
        }
    }
}
