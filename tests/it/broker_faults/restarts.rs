//! A broker that restarts, crashes or stands still.

use std::collections::BTreeSet;

use sluiced_core::gate::Tap;
use sluiced_ports::queue::{Delivery, Verdict};
use sluiced_settings::types::QueueType;

use crate::support::broker::Broker;
use crate::support::messages::{dead, number, options};
use crate::support::rabbit::Rabbit;
use crate::support::wait::{eventually, eventually_async};

use super::bench::Bench;
use super::*;

async fn a_restart_loses_nothing(queue_type: QueueType, name: &str, restart_server: fn(&Rabbit)) {
    let (_turn, server) = turn().await;
    let mut bench = Bench::start(options(server), queue_type);
    let broker = Broker::connect(&server.url()).await;
    broker.declare(&bench.queue, name).await;
    broker.publish(&bench.queue, messages(1..=2000)).await;
    let mut seen = BTreeSet::new();
    let mut restart = None;
    while seen.len() < 2000 {
        let delivery = bench.next().await;
        let n = number(&delivery.message().body);
        if delivery.settle(dead_or_done(n)) {
            seen.insert(n);
        }
        if seen.len() >= 500 && restart.is_none() {
            restart = Some(tokio::task::spawn_blocking(move || {
                restart_server(server);
            }));
            // The server dies while deliveries and verdicts are on their way.
            for delivery in bench.take(20).await {
                let n = number(&delivery.message().body);
                if delivery.settle(dead_or_done(n)) {
                    seen.insert(n);
                }
            }
            eventually(BOUND, "it is connected again", || {
                bench.events.settled_as("reconnected") >= 1
            })
            .await;
        }
    }
    if let Some(restart) = restart {
        restart.await.unwrap();
    }
    // A settlement that was accepted may have died with its session: then it comes again.
    bench.up().await;
    let broker = Broker::connect(&server.url()).await;
    eventually_async(BOUND, "all is settled", || {
        while let Ok(again) = bench.deliveries.try_recv() {
            let n = number(&again.message().body);
            again.settle(dead_or_done(n));
        }
        let all = bench.events.settled_as("done") + bench.events.settled_as("dead");
        std::future::ready(all >= 2000)
    })
    .await;
    let left = bench.subscription.close(BOUND).await;
    assert_eq!(left.unsettled, 0);
    let rest: BTreeSet<u64> = numbers(&broker, &bench.queue).await;
    let dead = numbers(&broker, &format!("{}.dead", bench.queue)).await;
    let missing: Vec<u64> = (1..=200)
        .map(|n| n * 10)
        .filter(|n| !dead.contains(n) && !rest.contains(n))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(dead.iter().all(|n| n.is_multiple_of(10)));
}

fn crash(server: &Rabbit) {
    server.kill();
    server.boot();
}

fn restart(server: &Rabbit) {
    server.restart();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_loses_nothing_on_a_quorum_queue() {
    a_restart_loses_nothing(QueueType::Quorum, "quorum", restart).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_loses_nothing_on_a_classic_queue() {
    a_restart_loses_nothing(QueueType::Classic, "classic", crash).await;
}

/// A quorum queue takes a few dozen commands of a channel at a time. What goes beyond waits in the channel,
/// and is lost with it. A broker that stood still for a moment has this many at once.
async fn a_broker_that_stood_still_forgets_no_acknowledgement(queue_type: QueueType) {
    let (_turn, server) = turn().await;
    let broker = Broker::connect(&server.url()).await;
    for parks in [false, true] {
        let queue = format!("q-{}", uuid::Uuid::new_v4());
        broker.declare(&queue, name(queue_type)).await;
        broker.publish(&queue, messages(1..=300)).await;
        let mut bench = Bench::start_on(options(server), queue_type, queue.clone(), parks);
        let mut held = bench.take(usize::from(PREFETCH)).await;
        // As a replica does when it stops: it consumes no more, and finishes what it began.
        bench.subscription.set_tap(Tap::Closed);
        eventually(BOUND, "nothing is consumed", || server.consumers() == 0).await;
        let frozen = server.freeze();
        // Every second one, so that each has a frame of its own.
        let mut kept = Vec::new();
        let mut expected: BTreeSet<u64> = (1..=300).collect();
        for (place, delivery) in held.drain(..).enumerate() {
            if place % 2 == 0 {
                kept.push(delivery);
                continue;
            }
            expected.remove(&number(&delivery.message().body));
            assert!(delivery.settle(Verdict::Done));
        }
        let settled = || bench.events.settled_as("done") == u64::from(PREFETCH) / 2;
        eventually(BOUND, "the frames are written", settled).await;
        let closing = bench.subscription.close(BOUND);
        tokio::join!(closing, async { drop(frozen) });
        assert!(kept.iter().all(Delivery::is_stale));
        let left = broker.drain(&queue).await;
        let left: BTreeSet<u64> = left.iter().map(|(body, _)| number(body)).collect();
        assert_eq!(left, expected, "parks: {parks}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quorum_queue_that_stood_still_forgets_no_acknowledgement() {
    a_broker_that_stood_still_forgets_no_acknowledgement(QueueType::Quorum).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_classic_queue_that_stood_still_forgets_no_acknowledgement() {
    a_broker_that_stood_still_forgets_no_acknowledgement(QueueType::Classic).await;
}

/// The messages of a session that was lost come again, also if no other session follows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_after_a_lost_session_counts_what_comes_again() {
    let server = shared();
    let broker = Broker::connect(&server.url()).await;
    let (user, options) = own_user(server);
    let mut bench = Bench::start(options, QueueType::Quorum);
    broker.declare(&bench.queue, "quorum").await;
    bench.up().await;
    broker.publish(&bench.queue, messages(1..=3)).await;
    let mut held = bench.take(3).await;
    // No copy is confirmed.
    server.set_permissions("/", &user, [".*", "^$", ".*"]);
    assert!(held.remove(0).settle(dead()));
    let tried = || bench.events.settled_as("unconfirmed") > 0;
    eventually(BOUND, "its copy is refused", tried).await;
    server.change_password(&user, "another");
    server.close_connections_of(&user);
    bench.down("the user or the password is wrong").await;
    let left = bench.subscription.close(BOUND).await;
    assert_eq!((left.given_back, left.unsettled), (2, 1));
    assert!(held.iter().all(Delivery::is_stale));
}
