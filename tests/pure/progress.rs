//! Progress: while a message waits and its limits have room, a call leaves within a time that follows from the
//! configuration.
//!
//! Faults come and go at first; then some replicas stay broken, and the others recover. Each kind of limit,
//! alone and in pairs, with and without a paced one, up to 12 ms from its store. A seed that fails is
//! replayed with `sluiced sim --seed N`. `./test --soak` runs ten times as many.

use std::time::Duration;

use sluiced_simulation::limits::{KeyedLimit, LimitKind};
use sluiced_simulation::run;
use sluiced_simulation::scenario::{Fault, Scenario};
use sluiced_simulation::verdict::{least_share, longest_gap};

use super::soak::longer;

fn seeds(part: u64) {
    let all = 1..=longer(300_u64);
    let failed: Vec<String> = all
        .filter(|seed| seed % 4 == part)
        .filter_map(|seed| {
            let why = run(&Scenario::progress_from_seed(seed)).failure?;
            Some(format!("sluiced sim --seed {seed}: {why}"))
        })
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn seeds_go_on() {
    seeds(0);
}

#[test]
fn a_second_part_of_the_seeds_goes_on() {
    seeds(1);
}

#[test]
fn a_third_part_of_the_seeds_goes_on() {
    seeds(2);
}

#[test]
fn a_fourth_part_of_the_seeds_goes_on() {
    seeds(3);
}

/// Each of these stood still once.
#[test]
fn standstills_that_were_found_do_not_come_back() {
    for (seed, what) in [
        (
            774,
            "slots were kept for the first message of a question, and a dearer one was granted; then, slots that were \
               missed between two permits left a gap in each run of slots",
        ),
        (
            1862,
            "a question left for a slot that came before its answer could",
        ),
        (
            240,
            "the same, and after a stall each slot came a moment too soon",
        ),
        (1390, "the same, with one slot leased at a time"),
        (
            2182,
            "what had no room beside a full key went away for a minute, and what had room was called within a second",
        ),
        (
            1653,
            "slots that were kept counted as slots to come, and none was asked for",
        ),
    ] {
        let report = run(&Scenario::progress_from_seed(seed));
        assert_eq!(report.failure, None, "seed {seed}: {what}");
    }
}

/// A limit of three keys, for a fleet that is judged from the fifth second on.
fn healed(headroom: u64) -> Scenario {
    let limit = KeyedLimit {
        kind: LimitKind::SlidingLog,
        units: 10,
        window: Duration::from_secs(1),
        headroom: Duration::from_millis(headroom),
        keys: 3,
        cost: 1,
        for_all: false,
    };
    let mut scenario = Scenario::keyed("healed", 1, vec![limit], 20);
    scenario.around.distance = Duration::from_millis(6);
    scenario.heals = Some(Duration::from_secs(5));
    scenario
}

/// Permits that are valid for 7.5 ms expire before the answer of a store 6 ms away arrives.
#[test]
fn a_fleet_that_stands_still_is_seen() {
    let report = run(&healed(35));
    assert_eq!(report.failure, None);
    let why = run(&healed(10)).failure.unwrap_or_default();
    assert!(why.contains("no call for"), "{why}");
    assert!(why.contains("whose limits have room"), "{why}");
}

/// It is never idle for long at a time, but idle for most of the time in all.
#[test]
fn a_fleet_that_uses_too_little_is_seen() {
    let mut scenario = healed(35);
    scenario.keyed[0].units = 3;
    scenario.keyed[0].window = Duration::from_millis(500);
    let pause = Fault::PauseAll(Duration::from_millis(3_450));
    scenario.faults = (2..200).map(|times| (times * 3_500_000, pause)).collect();
    let why = run(&scenario).failure.unwrap_or_default();
    assert!(why.contains("of what the tightest limit allows"), "{why}");
}

/// The bounds follow from the configuration: none is so wide that it proves nothing.
#[test]
fn the_bounds_say_something() {
    let scenarios = (1..=300).map(Scenario::progress_from_seed);
    let (mut longest, mut judged) = (Duration::ZERO, 0);
    for scenario in scenarios {
        longest = longest.max(longest_gap(&scenario));
        judged += usize::from(least_share(&scenario) > 0.1);
    }
    assert!(longest < Duration::from_secs(20), "{longest:?}");
    assert!(judged > 120, "{judged} of 300");
}
