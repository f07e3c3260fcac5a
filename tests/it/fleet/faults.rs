//! Replicas and servers die, hang and forget, in full flow.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::sleep;

use super::Fleet;
use crate::support::daemon::NEW_SCHEDULE;
use crate::support::rabbit::Rabbit;
use crate::support::redis::RedisServer;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_killed_every_second() {
    let mut fleet = Fleet::start("killed", 4, 1_200).await;
    fleet.arrived(50).await;
    for round in 0..6 {
        // Not a wait for anything: the deaths are to be a second apart.
        sleep(Duration::from_secs(1)).await;
        let place = round % 4;
        let next = fleet.replica(place);
        let old = std::mem::replace(&mut fleet.replicas[place], next);
        old.kill(&[NEW_SCHEDULE]).await;
    }
    // What was under way with the dead may come twice; nothing may be missing.
    let report = fleet.finish(&[NEW_SCHEDULE]).await;
    assert!(report.repeated <= 6 * 100, "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_is_killed_and_comes_back_empty() {
    let fleet = Fleet::start("redis-dies", 3, 1_000).await;
    for arrived in [200, 500] {
        fleet.arrived(arrived).await;
        RedisServer::shared().kill();
        RedisServer::shared().boot();
    }
    let report = fleet
        .finish(&[
            NEW_SCHEDULE,
            "lost Redis",
            "cannot connect to Redis",
            "the limit's store is out of reach",
        ])
        .await;
    assert_eq!(report.repeated, 0, "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_forgets_everything_again_and_again() {
    let fleet = Fleet::start("redis-forgets", 3, 1_000).await;
    for arrived in [150, 300, 301, 302, 500, 700] {
        fleet.arrived(arrived).await;
        redis::cmd("FLUSHALL")
            .query::<()>(&mut RedisServer::shared().connection())
            .unwrap();
    }
    let report = fleet.finish(&[NEW_SCHEDULE]).await;
    assert_eq!(report.repeated, 0, "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rabbitmq_is_killed_and_comes_back() {
    let fleet = Fleet::start("rabbit-dies", 3, 1_000).await;
    fleet.arrived(300).await;
    let restart = tokio::task::spawn_blocking(|| {
        Rabbit::shared().kill();
        Rabbit::shared().boot();
    });
    restart.await.unwrap();
    let fleet = fleet.reconnected().await;
    // Calls whose acknowledgement was lost come again.
    let report = fleet
        .finish(&[
            NEW_SCHEDULE,
            "no connection to RabbitMQ",
            "the queue cannot be consumed",
        ])
        .await;
    assert!(report.repeated <= 150, "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_stands_still_for_longer_than_its_leases() {
    let fleet = Fleet::start("stopped", 3, 1_200).await;
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
