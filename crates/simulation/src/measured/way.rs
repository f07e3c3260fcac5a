//! How many calls a provider would refuse that counts without any tolerance, by a GCRA or a bucket of its
//! own.
//!
//! sluiced keeps every window. Such a provider counts something else: how soon a call comes after the ones
//! before. So calls on ways of different length may come too soon for it although no window is over.

use std::time::Duration;

use sluiced_core::rate::Rate;
use sluiced_core::time::micros;

use crate::limits::{KeyedLimit, LimitKind};
use crate::proof::scenario::{Scenario, Way};
use crate::proof::verdict::FleetJudge;
use crate::watch::{FleetEvent, FleetWatch};

/// Units that the provider lets pass at once beyond the first.
const BURSTS: [u32; 3] = [0, 1, 5];
const SEEDS: u64 = 3;
const SECONDS: u64 = 60;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// How many of these calls a GCRA refuses that has no tolerance but its burst. A bucket of `burst + 1` units
/// that is refilled continuously refuses the same. A refused call takes nothing.
fn refused(times: &[u64], rate: Rate, burst: u32) -> usize {
    // In parts of a microsecond: a window may be no multiple of the units.
    let (part, distance) = (u64::from(rate.units().get()), micros(rate.window()));
    let tolerance = distance * u64::from(burst);
    // When the next one would come if all came evenly spaced.
    let mut even = 0;
    let mut refused = 0;
    for at in times.iter().map(|at| at * part) {
        if at + tolerance < even {
            refused += 1;
        } else {
            even = even.max(at) + distance;
        }
    }
    refused
}

/// When calls arrived.
struct Arrivals {
    judge: FleetJudge,
    times: Vec<u64>,
}

impl FleetWatch for Arrivals {
    fn see(&mut self, at: u64, replica: u32, what: &FleetEvent) {
        if matches!(what, FleetEvent::Arrived { .. }) {
            self.times.push(at);
        }
        self.judge.see(at, replica, what);
    }

    fn is_over(&mut self, at: u64) -> bool {
        self.judge.is_over(at)
    }
}

/// When the calls of a scenario arrive. All windows are kept.
fn arrivals(scenario: &Scenario) -> Vec<u64> {
    let judge = FleetJudge::new(scenario);
    let times = Vec::new();
    let (seen, end) = scenario.run(Arrivals { judge, times });
    assert_eq!(seen.judge.report(end).failure, None, "{scenario}");
    seen.times
}

/// A fleet of two at that rate, with a `paced` limit.
fn paced(rate: &str, seed: u64, headroom: Duration, way: Way) -> Scenario {
    let rate = rate.parse().expect("a rate");
    let mut scenario = Scenario::calm("paced", seed, rate, 2, SECONDS);
    scenario.headroom = headroom;
    scenario.horizon = scenario.horizon.max(headroom * 4);
    scenario.around.way = way;
    scenario
}

/// A `gcra` limit of 10 a second without a burst, and no `paced` one.
fn gcra(seed: u64, headroom: Duration, way: Way) -> Scenario {
    let limit = KeyedLimit {
        kind: LimitKind::Gcra { burst: 0 },
        units: 10,
        window: Duration::from_secs(1),
        headroom,
        keys: 1,
        cost: 1,
        for_all: true,
    };
    let mut scenario = Scenario::keyed("gcra", seed, vec![limit], SECONDS);
    scenario.around.way = way;
    scenario
}

/// The share that a provider with this `rate` refuses, by burst, in percent, over all seeds.
fn shares(rate: &str, scenario: impl Fn(u64) -> Scenario) -> [f64; 3] {
    let rate = rate.parse().expect("a rate");
    let runs: Vec<_> = (0..SEEDS).map(|seed| arrivals(&scenario(seed))).collect();
    let calls: usize = runs.iter().map(Vec::len).sum();
    BURSTS.map(|burst| {
        let all: usize = runs.iter().map(|times| refused(times, rate, burst)).sum();
        all as f64 * 100.0 / calls as f64
    })
}

#[test]
fn a_provider_without_tolerance_refuses_what_its_burst_does_not_cover() {
    println!("| headroom | way | paced 100/1s, burst 0 | 1 | 5 | gcra 10/1s, burst 0 | 1 | 5 |");
    println!("|---|---|---|---|---|---|---|---|");
    for headroom in [2, 5, 20, 40, 80].map(ms) {
        for (name, way) in [
            ("near", Way::calm()),
            ("a quarter", Way::from(ms(20), headroom / 4)),
        ] {
            let slots = shares("100/1s", |seed| paced("100/1s", seed, headroom, way));
            let grants = shares("10/1s", |seed| gcra(seed, headroom, way));
            println!(
                "| {headroom:?} | {name} | {} | {} |",
                cells(slots),
                cells(grants)
            );
            // All variation is less than the distance of two calls, except for 80 ms in 100/1s.
            assert!(slots[1] == 0.0 || way.spread > ms(10), "{slots:?}");
            assert!(slots[2] == 0.0 && grants[1..] == [0.0; 2], "{grants:?}");
        }
    }
}

/// The distance of two calls is that of the provider plus the headroom.
#[test]
fn a_rate_that_is_lower_by_the_headroom_in_each_distance_is_never_refused() {
    println!("| headroom 5 ms, way | 95/1s | 90/1s | 80/1s | 66/1s |");
    println!("|---|---|---|---|---|");
    for (name, way) in [
        ("near", Way::calm()),
        ("a quarter", Way::from(ms(20), ms(5) / 4)),
    ] {
        let lower = ["95/1s", "90/1s", "80/1s", "66/1s"];
        let none = lower.map(|rate| shares("100/1s", |seed| paced(rate, seed, ms(5), way))[0]);
        println!("| {name} | {} |", cells(none));
        let as_late_as_can_be = |seed| {
            let mut scenario = paced("66/1s", seed, ms(5), way);
            scenario.around.late_wakes = 300_000;
            scenario.around.late_most = ms(5);
            scenario
        };
        assert_eq!(
            (none[3], shares("100/1s", as_late_as_can_be)[0]),
            (0.0, 0.0)
        );
    }
}

fn cells<const COUNT: usize>(shares: [f64; COUNT]) -> String {
    shares.map(|share| format!("{share:.1} %")).join(" | ")
}

/// The judge itself.
mod judge {
    use super::*;

    fn of(times: &[u64], burst: u32) -> usize {
        refused(times, "10/1s".parse().expect("a rate"), burst)
    }

    #[test]
    fn even_distances_pass_and_a_microsecond_less_does_not() {
        assert_eq!(of(&[0, 100_000, 200_000], 0), 0);
        assert_eq!(of(&[0, 99_999, 200_000], 0), 1);
    }

    #[test]
    fn a_refused_call_takes_nothing() {
        // The third one is judged by the first.
        assert_eq!(of(&[0, 50_000, 100_000], 0), 1);
    }

    #[test]
    fn a_burst_passes_at_once_and_comes_back_bit_by_bit() {
        assert_eq!(of(&[0, 0, 0], 1), 1);
        assert_eq!(of(&[0, 0, 99_999, 100_000, 199_999], 1), 2);
        assert_eq!(of(&[0; 7], 5), 1);
    }

    #[test]
    fn a_window_that_is_no_multiple_of_the_units_is_not_rounded() {
        let rate = "3/1s".parse().expect("a rate");
        assert_eq!(refused(&[0, 333_334, 666_668, 1_000_002], rate, 0), 0);
        assert_eq!(refused(&[0, 333_334, 666_667, 1_000_001], rate, 0), 1);
    }
}
