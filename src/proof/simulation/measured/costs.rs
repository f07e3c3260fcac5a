//! How much of a paced limit is used where messages take several slots: a lease is for whole messages, whatever
//! they take, and of however many replicas.

use std::time::Duration;

use sluiced_core::rate::Rate;

use crate::scenario::Scenario;
use crate::trace::{Watch, What};

const SECOND: u64 = 1_000_000;

/// When calls left until then, and which messages they were for.
struct Calls {
    made: Vec<(u64, u32)>,
    until: u64,
}

impl Watch for Calls {
    fn see(&mut self, at: u64, _replica: u32, what: &What) {
        if let What::Called { message } = what {
            self.made.push((at, *message));
        }
    }

    fn is_over(&mut self, at: u64) -> bool {
        at > self.until
    }
}

/// The share of the slots that were used. There is a backlog all the time.
fn used((rate, seconds): (&str, u64), cost: u32, replicas: u32) -> f64 {
    let rate: Rate = rate.parse().expect("a rate");
    let mut scenario = Scenario::calm("costs", 1, rate, replicas, 2 * seconds);
    scenario.cost = cost;
    scenario.prefetch = scenario.ample_prefetch().max(cost * 2);
    scenario.max_hold = Duration::from_secs(60);
    let until = seconds * SECOND;
    let made = Vec::new();
    let (calls, _) = scenario.run(Calls { made, until });
    // Once all replicas have joined, until the end.
    let from = until / 4;
    let units = calls.made.iter().filter(|(at, _)| *at >= from);
    let units: u64 = units
        .map(|(_, message)| scenario.slots(*message).units())
        .sum();
    let pace = scenario.pace();
    let slots = (until - from) * pace.units() / pace.period();
    units as f64 / slots as f64
}

#[test]
fn messages_of_several_slots_leave_few_unused() {
    println!("| rate | up to | 1 replica | 2 | 4 |\n|---|---|---|---|---|");
    for rate in [
        ("60/1m", 1_800),
        ("10/1s", 300),
        ("100/1s", 60),
        ("400/1s", 30),
    ] {
        for cost in [2, 5, 10] {
            let shares = [1, 2, 4].map(|replicas| used(rate, cost, replicas));
            let [one, two, four] = shares.map(|share| format!("{share:.2}"));
            println!("| {} | {cost} slots | {one} | {two} | {four} |", rate.0);
            assert!(shares[0] >= 0.97, "{rate:?}, up to {cost}: {shares:?}");
            assert!(
                shares.iter().all(|share| *share >= 0.9),
                "{rate:?}, up to {cost}: {shares:?}"
            );
        }
    }
}
