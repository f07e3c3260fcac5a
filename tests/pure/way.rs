//! The way to the downstream, in the simulated fleet: calls are counted when they arrive, and what the headroom
//! keeps for the way is enough, wherever the downstream is.

use std::time::Duration;

use sluiced_core::headroom::{Bounds, Headroom};
use sluiced_simulation::limits::{KeyedLimit, LimitKind};
use sluiced_simulation::run;
use sluiced_simulation::scenario::{Fault, Scenario, Way};

const SECOND: u64 = 1_000_000;

/// As `headroom = "auto"` has them at 100/1s.
const BOUNDS: Bounds = Bounds {
    least: Headroom {
        late: Duration::from_micros(1_500),
        way: Duration::from_micros(500),
    },
    most: ms(250),
    forgotten_after: ms(4_000),
};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A backlog of two replicas at 100 a second, whose calls travel.
fn far(seed: u64, headroom: Duration, way: Way) -> Scenario {
    let rate = "100/1s".parse().expect("a rate");
    let mut scenario = Scenario::calm("far", seed, rate, 2, 15);
    scenario.headroom = headroom;
    scenario.horizon = scenario.horizon.max(headroom * 4);
    scenario.around.way = way;
    scenario
}

fn failure(scenario: &Scenario) -> String {
    run(scenario).failure.unwrap_or_default()
}

#[test]
fn a_way_that_varies_by_a_quarter_of_the_headroom_keeps_the_limit_however_long_it_is() {
    for (seed, headroom) in (0..).zip([2, 5, 20, 40, 80, 200].map(ms)) {
        for least in [0, 1, 20, 200].map(ms) {
            let way = Way::from(least, headroom / 4);
            let mut scenario = far(seed, headroom, way);
            // Every call may leave as late as it can.
            scenario.around.late_wakes = 300_000;
            scenario.around.late_most = headroom;
            assert_eq!(failure(&scenario), "", "{scenario}");
        }
    }
}

#[test]
fn a_way_that_varies_by_more_is_seen() {
    let way = Way::from(ms(10), ms(20));
    assert!(failure(&far(1, ms(5), way)).contains("units in a window"));
    assert_eq!(failure(&far(1, ms(80), way)), "");
}

#[test]
fn a_way_that_becomes_longer_in_flight_keeps_the_limit_and_one_that_becomes_shorter_is_seen() {
    let near = Way::from(ms(5), ms(1));
    let changes = |first, then: Way| {
        let mut scenario = far(3, ms(5), first);
        scenario.faults = vec![(5 * SECOND, Fault::Way(then))];
        failure(&scenario)
    };
    let long = Way::from(ms(30), ms(1));
    assert_eq!(changes(near, long), "");
    assert!(changes(long, near).contains("units in a window"));
}

/// By kind, without a burst: calls that are granted evenly spaced are over only because of the way.
#[test]
fn keyed_limits_keep_a_quarter_of_their_headroom_and_more_is_seen() {
    for kind in [LimitKind::Gcra { burst: 0 }, LimitKind::SlidingLog] {
        let limit = KeyedLimit {
            kind,
            units: 10,
            window: Duration::from_secs(1),
            headroom: ms(40),
            keys: 1,
            cost: 1,
            for_all: true,
        };
        let over = |spread| {
            let failed = (0..20).filter(|seed| {
                let mut scenario = Scenario::keyed("far", *seed, vec![limit], 20);
                scenario.around.way = Way::from(ms(20), spread);
                scenario.around.late_wakes = 300_000;
                scenario.around.late_most = ms(40);
                failure(&scenario).contains("units in a window")
            });
            failed.count()
        };
        assert_eq!(over(ms(10)), 0, "{kind:?}");
        assert!(over(ms(80)) > 0, "{kind:?}");
    }
}

/// The first calls, of every replica: a headroom begins at what the first handshakes need. With a short window even
/// calls of the first second can be too early.
#[test]
fn a_headroom_that_follows_is_enough_from_the_first_call_on() {
    for seed in 0..300 {
        let (least, varies) = (ms(seed % 7 * 10), ms(1 + seed % 10 * 2));
        let rate = "40/100ms".parse().expect("a rate");
        let mut scenario = Scenario::calm("first", seed, rate, 3, 4);
        scenario.auto_bounds = Some(Bounds {
            most: ms(25),
            forgotten_after: ms(3_100),
            ..BOUNDS
        });
        scenario.around.way = Way::from(least, varies);
        scenario.around.late_wakes = 0;
        let failed = failure(&scenario);
        assert_eq!(
            failed, "",
            "seed {seed}: {least:?} and up to {varies:?} more"
        );
    }
}

/// Runs a fleet whose headroom follows the way, for this long. Returns what failed, and the part of the limit
/// that was used from then on.
fn follows(seed: u64, seconds: u64, from: usize, way: Way, then: &[(u64, Way)]) -> (String, f64) {
    let rate = "100/1s".parse().expect("a rate");
    let mut scenario = Scenario::calm("auto", seed, rate, 3, seconds);
    scenario.auto_bounds = Some(BOUNDS);
    scenario.around.way = way;
    // No timer is late by milliseconds: other tests measure what that costs.
    scenario.around.late_wakes = 0;
    let changes = then.iter().map(|(at, way)| (at * SECOND, Fault::Way(*way)));
    scenario.faults = changes.collect();
    let report = run(&scenario);
    let seconds = &report.calls_by_second[from..seconds as usize - 1];
    let calls: u64 = seconds.iter().sum();
    let used = calls as f64 / (100 * seconds.len()) as f64;
    (report.failure.unwrap_or_default(), used)
}

#[test]
fn a_headroom_that_follows_the_way_keeps_the_limit_wherever_the_downstream_is() {
    let mut worst: [f64; 2] = [1.0; 2];
    for seed in 0..20 {
        let (failed, near) = follows(seed, 120, 90, Way::from(ms(0), ms(0)), &[]);
        assert_eq!(failed, "", "near, seed {seed}");
        // It begins at twice what the first handshakes show.
        let (failed, far) = follows(seed, 120, 70, Way::from(ms(10), ms(20)), &[]);
        assert_eq!(failed, "", "far, seed {seed}");
        worst = [worst[0].min(near), worst[1].min(far)];
    }
    println!("used near {:.4}, far {:.4}", worst[0], worst[1]);
    // 2 ms of 1 s, but for one call at an edge; and the way varies by up to 40 ms there and back, of which 46 ms are
    // made: 95.6 %.
    assert!(worst[0] >= 0.9975 && worst[1] >= 0.949, "{worst:?}");
}

/// A keyed limit by default: its headroom comes down from 35 ms, and calls that were granted before a change may still
/// be on their way. Redis is near, or so far away that it rises first.
#[test]
fn keyed_limits_whose_headroom_follows_are_kept_while_it_changes() {
    for kind in [
        LimitKind::Gcra { burst: 0 },
        LimitKind::SlidingLog,
        LimitKind::TokenBucket {
            capacity: 5,
            borrow: 0,
        },
    ] {
        let limit = KeyedLimit {
            kind,
            units: 20,
            window: Duration::from_secs(1),
            headroom: ms(35),
            keys: 1,
            cost: 1,
            for_all: true,
        };
        for seed in 0..20 {
            let mut scenario = Scenario::keyed("follows", seed, vec![limit], 120);
            scenario.auto_bounds = Some(Bounds {
                least: Headroom {
                    late: Duration::from_micros(7_500),
                    way: Duration::from_micros(500),
                },
                ..BOUNDS
            });
            scenario.around.way = Way::from(ms(seed % 3 * 10), ms(seed % 5 * 4));
            scenario.around.distance = ms(seed % 4 * 5);
            // Calls leave as late as they may.
            scenario.around.late_wakes = 300_000;
            scenario.around.late_most = ms(40);
            let report = run(&scenario);
            let failed = report.failure.unwrap_or_default();
            assert_eq!(failed, "", "{kind:?}, seed {seed}");
            let calls: u64 = report.calls_by_second.iter().sum();
            assert!(calls > 1_000, "{kind:?}, seed {seed}: {calls} calls");
        }
    }
}

#[test]
fn a_headroom_follows_a_way_that_changes_in_flight() {
    for seed in 0..20 {
        let (near, far) = (Way::from(ms(4), ms(2)), Way::from(ms(20), ms(20)));
        let (failed, used) = follows(seed, 120, 5, near, &[(20, far), (60, near)]);
        assert_eq!(failed, "", "seed {seed}");
        // For a minute after each change handshakes of both ways are remembered, which lie further apart.
        assert!(used >= 0.92, "seed {seed}: {used}");
    }
}

#[test]
fn without_following_the_same_way_is_seen() {
    let way = Way::from(ms(10), ms(20));
    assert!(failure(&far(1, ms(5), way)).contains("units in a window"));
}
