//! Routes without a paced limit: only keyed limits, calls in flight or a burst hold them back.

use std::time::Duration;

use sluiced_core::time::Mono;
use sluiced_provider::Behaviour;

use super::flow::script_calls;
use super::keyed::{Bounds, Counts, DECLARED, Keyed, ONE, RECIPIENTS, ROUTE, numbered, used};
use super::{Fleet, Plan};
use crate::support::judge::fullest;
use crate::support::soak::longer;

/// What replicas may log when a clock steps.
const STEPPED: &[&str] = &["clock", "the store lost", "paused, or not known"];

/// Judged by a rate that nothing reaches.
fn unjudged(latency: Duration) -> Option<Behaviour> {
    Some(Behaviour {
        latency,
        ..Behaviour::judging("1000000/1s".parse().unwrap())
    })
}

fn times(fleet: &Fleet) -> Vec<Mono> {
    let calls = fleet.provider.keyed();
    calls.iter().map(|(at, _)| *at).collect()
}

/// Messages that are granted are called before their permits expire, however many could be asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_keys_flow_through_one_replica() {
    const ALL: usize = 2_000;
    let limit = Keyed {
        kind: "sliding_log",
        units: 3,
        keys: 200,
        ..RECIPIENTS
    };
    let plan = Plan {
        judged: unjudged(Duration::ZERO),
        limits: &["recipient"],
        tables: limit.table("").leak(),
        keys: ROUTE,
        marked: "{{ body.to }}",
        ..Plan::of("unpaced")
    };
    let mut fleet = plan.prepare().await;
    let fields = (0..ALL).map(|n| format!("\"to\":\"r{}\"", n % limit.keys));
    fleet.publish_with(numbered(fields.collect())).await;
    fleet.add(1);
    fleet.arrived(ALL as u64).await;
    let counts = Counts::of(&mut fleet).await;
    let report = fleet.finish(DECLARED).await;
    assert_eq!(report.repeated, 0, "{report:?}");
    let calls = fleet.provider.keyed();
    limit.none_over(&calls, limit.units);
    used("unpaced", &calls, 600.0 / 1.1);
    counts.judge("unpaced", ALL, &ONE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_calls_in_flight_over_three_replicas() {
    ten_calls_in_flight("ten-at-once", 3).await;
}

/// A replica waits for its own calls only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_calls_in_flight_of_one_replica() {
    ten_calls_in_flight("ten-alone", 1).await;
}

/// That no unit stays unused, the simulation asserts (`crates/simulation/src/measured/keyed.rs`).
async fn ten_calls_in_flight(name: &'static str, replicas: usize) {
    let all = longer(200_u64);
    const MOST: usize = 10;
    const LATENCY: Duration = Duration::from_millis(100);
    let plan = Plan {
        judged: unjudged(LATENCY),
        limits: &["calls"],
        tables: "[limits.calls]\nkind = \"concurrency\"\nlimit = 10\nlease = \"30s\"\n",
        // All requests to Redis are counted.
        own_redis: true,
        ..Plan::of(name)
    };
    let mut fleet = plan.start(replicas, all).await;
    fleet.arrived(all).await;
    let counts = Counts::of(&mut fleet).await;
    let scripts = script_calls(fleet.servers.redis());
    let report = fleet.finish(DECLARED).await;
    eprintln!("{name}: {scripts} scripts for {all} messages");
    assert_eq!(report.repeated, 0, "{report:?}");
    let calls = times(&fleet);
    let at_once = fullest(&calls, LATENCY);
    used(
        name,
        &fleet.provider.keyed(),
        MOST as f64 / LATENCY.as_secs_f64(),
    );
    assert!(at_once <= MOST, "{at_once} at once");
    // Messages whose limit is full, with no time known at which it opens, wait in memory.
    let bounds = Bounds { trips: 0.0, ..ONE };
    counts.judge(name, all as usize, &bounds);
}

/// What fits now is granted now, whatever waits behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_passes_and_nothing_goes_through_a_wait_queue() {
    const ALL: u64 = 400;
    const BURST: usize = 100;
    const SECOND: Duration = Duration::from_secs(1);
    let plan = Plan {
        judged: unjudged(Duration::ZERO),
        limits: &["bucket"],
        tables: "[limits.bucket]\nkind = \"token_bucket\"\ncapacity = 100\nrefill = 50\n\
                 interval = \"1s\"\nheadroom = \"100ms\"\n",
        keys: ROUTE,
        ..Plan::of("burst")
    };
    let mut fleet = plan.start(3, ALL).await;
    fleet.arrived(ALL).await;
    let counts = Counts::of(&mut fleet).await;
    let report = fleet.finish(DECLARED).await;
    assert_eq!(report.repeated, 0, "{report:?}");
    let calls = times(&fleet);
    // In any second the burst and the units that come free in it, and never more.
    let worst = fullest(&calls, SECOND);
    assert!(worst <= BURST + 50, "{worst} in a second");
    // At 50 a second without the burst it would take two seconds more.
    let took = calls[calls.len() - 1].since(calls[0]);
    let half = calls[BURST - 1].since(calls[0]);
    eprintln!("burst: {half:?} for the burst, {took:?} for all");
    used(
        "burst",
        &fleet.provider.keyed(),
        ALL as f64 / ((ALL as f64 - BURST as f64) / 50.0 * 1.1),
    );
    let bounds = Bounds { trips: 0.0, ..ONE };
    counts.judge("burst", ALL as usize, &bounds);
}

/// The clock of Redis goes forward by twice the headroom, again and again, in full flow, and once back:
/// calls that were granted by the time before still count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_of_the_stores_clock_let_no_key_through_early() {
    const ALL: usize = 400;
    let limit = Keyed {
        kind: "sliding_log",
        units: 3,
        keys: 20,
        ..RECIPIENTS
    };
    let plan = Plan {
        judged: unjudged(Duration::ZERO),
        limits: &["recipient"],
        tables: limit.table("").leak(),
        keys: ROUTE,
        marked: "{{ body.to }}",
        clocked: true,
        ..Plan::of("stepped")
    };
    let mut fleet = plan.prepare().await;
    let fields = (0..ALL).map(|n| format!("\"to\":\"r{}\"", n % limit.keys));
    fleet.publish_with(numbered(fields.collect())).await;
    fleet.add(2);
    for (step, ahead) in [0.2, 0.4, 0.6, 0.3].into_iter().enumerate() {
        fleet.arrived((step as u64 + 1) * 75).await;
        fleet.servers.redis().step_to(ahead);
    }
    let report = fleet.finish(&[DECLARED, STEPPED].concat()).await;
    assert_eq!(report.repeated, 0, "{report:?}");
    limit.none_over(&fleet.provider.keyed(), limit.units);
}
