//! Replicas and servers die, hang and forget, in full flow.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use rustix::process::Signal;
use sluiced::core::time::Mono;
use tokio::time::sleep;

use super::{Fleet, Plan};
use crate::support::daemon::NEW_SCHEDULE;
use crate::support::judge::{Made, repeated_without_reason};
use crate::support::soak::longer;

/// The prefetch of a replica: so many calls may be unknown to the broker.
const HELD: usize = 100;

/// Tells of each call which message and which replica it was.
fn plan(name: &'static str) -> Plan {
    Plan {
        marked: "{{ body.id }} REPLICA",
        ..Plan::of(name)
    }
}

/// What came more than once, and the death of the replica that called before is not the reason.
fn without_reason(fleet: &Fleet, deaths: &BTreeMap<String, Range<Mono>>) -> Vec<String> {
    let calls = fleet.provider.keyed();
    let calls = calls.iter().map(|(at, mark)| {
        let (message, by) = mark.split_once(' ').unwrap();
        let at = *at;
        Made { at, message, by }
    });
    repeated_without_reason(calls, deaths, HELD)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_killed_every_second() {
    let mut fleet = plan("killed").start(4, longer(1_200_u64)).await;
    fleet.arrived(50).await;
    let mut deaths = BTreeMap::new();
    let clock = fleet.provider.clock();
    for round in 0..longer(6_usize) {
        // Not a wait for anything: the deaths are to be a second apart.
        sleep(Duration::from_secs(1)).await;
        // The first four have the names 0 to 3, and then each the next one.
        let died = format!("replica {round}");
        let old = fleet.replace(round % 4);
        let before = clock.now();
        old.kill(&[NEW_SCHEDULE]).await;
        deaths.insert(died, before..clock.now());
    }
    fleet.finish(&[NEW_SCHEDULE]).await;
    // What was under way with the dead, or not acknowledged yet, comes again. Nothing else does.
    let wrong = without_reason(&fleet, &deaths);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_is_killed_and_comes_back_empty() {
    let plan = Plan {
        own_redis: true,
        ..plan("redis-dies")
    };
    let mut fleet = plan.start(3, 1_000).await;
    for arrived in [200, 500] {
        fleet.arrived(arrived).await;
        fleet.servers.redis().kill();
        fleet.servers.redis().boot();
    }
    let declared = [
        NEW_SCHEDULE,
        "lost Redis",
        "cannot connect to Redis",
        "the limit's store is out of reach",
    ];
    let report = fleet.finish(&declared).await;
    assert_eq!(report.repeated, 0, "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_forgets_everything_again_and_again() {
    let plan = Plan {
        own_redis: true,
        ..plan("redis-forgets")
    };
    let mut fleet = plan.start(3, 1_000).await;
    for arrived in [150, 300, 301, 302, 500, 700] {
        fleet.arrived(arrived).await;
        redis::cmd("FLUSHALL")
            .query::<()>(&mut fleet.servers.redis().connection())
            .unwrap();
    }
    let report = fleet.finish(&[NEW_SCHEDULE]).await;
    assert_eq!(report.repeated, 0, "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rabbitmq_is_killed_and_comes_back() {
    let plan = Plan {
        own_rabbit: true,
        ..plan("rabbit-dies")
    };
    let fleet = plan.start(3, 1_000).await;
    fleet.arrived(300).await;
    let clock = fleet.provider.clock();
    let before = clock.now();
    fleet.servers.rabbit().kill();
    // What a replica had called and not acknowledged went with its connection, and so with the broker.
    let died = before..clock.now();
    let deaths = (0..3).map(|n| (format!("replica {n}"), died.clone()));
    let deaths = deaths.collect();
    fleet.servers.rabbit().boot();
    let mut fleet = fleet.reconnected().await;
    let declared = [
        NEW_SCHEDULE,
        "no connection to RabbitMQ",
        "the queue cannot be consumed",
    ];
    fleet.finish(&declared).await;
    let wrong = without_reason(&fleet, &deaths);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_stands_still_for_longer_than_its_leases() {
    let mut fleet = plan("stopped").start(3, 1_200).await;
    fleet.arrived(100).await;
    for round in 0..5 {
        let replica = &fleet.replicas[round % 3];
        replica.signal(Signal::STOP);
        // The length of the standstill is the fault itself: leases reach 200 ms ahead.
        sleep(Duration::from_millis(600)).await;
        replica.signal(Signal::CONT);
        fleet.arrived(fleet.provider.live().unique + 30).await;
    }
    let report = fleet.finish(&[NEW_SCHEDULE]).await;
    assert_eq!(report.repeated, 0, "{report:?}");
}
