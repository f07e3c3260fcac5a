//! Parked messages when the broker or its queues go away.

use std::collections::BTreeSet;

use sluiced_core::gate::Tap;
use sluiced_core::parking::ParkedQueue;
use sluiced_ports::queue::{Delivery, Verdict};
use sluiced_settings::types::QueueType;

use crate::support::broker::Broker;
use crate::support::messages::{next, number, options};
use crate::support::wait::{eventually, eventually_async};

use super::bench::Bench;
use super::*;

/// Parks those that come, and returns when they are parked.
async fn park(bench: &mut Bench, count: usize, parked_queue: ParkedQueue) {
    for delivery in bench.take(count).await {
        let headers = Vec::new();
        assert!(delivery.settle(Verdict::Parked {
            parked_queue,
            headers
        }));
    }
    let parked = || bench.events.settled_as("parked") == count as u64;
    eventually(BOUND, "they are parked", parked).await;
}

fn name_of(queue: &str, parked_queue: ParkedQueue) -> String {
    format!("{queue}.parked.{}", parked_queue.label())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_stands_parked_survives_the_broker_and_the_end_of_parking() {
    let (_turn, server) = turn().await;
    let parked_queue = ParkedQueue::of(5);
    let broker = Broker::connect(&server.url()).await;
    let mut benches = Vec::new();
    let mut held = Vec::new();
    for queue_type in [QueueType::Classic, QueueType::Quorum] {
        let queue = format!("q-{}", uuid::Uuid::new_v4());
        broker.declare(&queue, name(queue_type)).await;
        broker.publish(&queue, messages(1..=40)).await;
        let mut bench = Bench::start_on(options(server), queue_type, queue, true);
        park(&mut bench, 40, parked_queue).await;
        // Some are out when the broker dies, and come again.
        held.extend(bench.take(5).await);
        benches.push((queue_type, bench));
    }
    let restart = tokio::task::spawn_blocking(|| {
        server.kill();
        server.boot();
    });
    restart.await.unwrap();
    eventually(BOUND, "the sessions are gone", || {
        held.iter().all(Delivery::is_stale)
    })
    .await;
    let broker = Broker::connect(&server.url()).await;
    for (queue_type, bench) in benches {
        bench.up().await;
        bench.subscription.close(BOUND).await;

        // Without parking, what was left behind is consumed all the same; and only that, also where the
        // first of these queues was deleted.
        let queue = bench.queue;
        broker.delete(&name_of(&queue, ParkedQueue::of(0))).await;
        let mut bench = Bench::start_on(options(server), queue_type, queue.clone(), false);
        // Acknowledgements that the broker had not written down are lost with it: some come twice.
        let mut seen = BTreeSet::new();
        done(&mut bench, &mut seen, 25).await;
        assert_eq!(bench.subscription.parked(), None, "nothing more is parked");
        // A quorum queue counts the one before until it has heard of its end.
        eventually_async(BOUND, "it has one consumer", || async {
            let left = broker.counts(&name_of(&queue, parked_queue)).await;
            left.is_some_and(|(_, consumers)| consumers == 1)
        })
        .await;
        done(&mut bench, &mut seen, 40).await;
        bench.subscription.close(BOUND).await;
    }
}

/// Takes and settles until this many different ones were seen.
async fn done(bench: &mut Bench, seen: &mut BTreeSet<u64>, count: usize) {
    while seen.len() < count {
        let delivery = bench.next().await;
        seen.insert(number(&delivery.message().body));
        assert!(delivery.settle(Verdict::Done));
    }
}

/// A replica with `fair_by` comes and goes, while another one without it is there all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_parked_later_is_found_by_a_replica_that_does_not_park() {
    let server = shared();
    let broker = Broker::connect(&server.url()).await;
    let queue = format!("q-{}", uuid::Uuid::new_v4());
    broker.declare(&queue, "classic").await;
    broker.publish(&queue, messages([0])).await;
    let mut bench = Bench::start_on(options(server), QueueType::Classic, queue.clone(), false);
    let held = bench.next().await;
    bench.subscription.set_tap(Tap::Closed);
    eventually_async(BOUND, "it consumes nothing", || async {
        broker
            .counts(&queue)
            .await
            .is_some_and(|(_, consumers)| consumers == 0)
    })
    .await;

    broker.publish(&queue, messages(1..=40)).await;
    let mut other = Bench::start_on(options(server), QueueType::Classic, queue.clone(), true);
    park(&mut other, 40, ParkedQueue::of(5)).await;
    other.subscription.close(BOUND).await;

    bench.subscription.set_tap(Tap::Open);
    let mut seen = BTreeSet::new();
    while seen.len() < 40 {
        // It looks again after ten seconds, and once a minute in the end.
        let delivery = next(&mut bench.deliveries, 3 * BOUND).await;
        assert!(seen.insert(number(&delivery.message().body)), "once each");
        assert!(delivery.settle(Verdict::Done));
    }
    assert!(!held.is_stale(), "all in one session");
    assert!(held.settle(Verdict::Done));
    bench.subscription.close(BOUND).await;
}

/// The calls in flight are not repeated: nothing but that consumer ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parked_queue_that_is_deleted_is_made_again() {
    let server = shared();
    let parked_queue = ParkedQueue::of(2);
    let broker = Broker::connect(&server.url()).await;
    let queue = format!("q-{}", uuid::Uuid::new_v4());
    broker.declare(&queue, "classic").await;
    broker.publish(&queue, messages([0])).await;
    let mut bench = Bench::start_on(options(server), QueueType::Classic, queue.clone(), true);
    let held = bench.next().await;
    eventually(BOUND, "all are consumed", || {
        bench.subscription.parked() == Some(0)
    })
    .await;
    let parked = name_of(&queue, parked_queue);
    broker.delete(&parked).await;
    eventually_async(BOUND, "it is there again, and consumed", || async {
        let counts = broker.counts(&parked).await;
        counts.is_some_and(|(_, consumers)| consumers == 1)
    })
    .await;
    broker.publish(&queue, messages(1..=3)).await;
    park(&mut bench, 3, parked_queue).await;
    done(&mut bench, &mut BTreeSet::new(), 3).await;
    assert!(!held.is_stale(), "all in one session");
    assert!(held.settle(Verdict::Done));
    bench.subscription.close(BOUND).await;
}

/// As the log advises where a route no longer parks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_parked_queue_can_be_deleted_at_any_time() {
    let server = shared();
    let parked_queue = ParkedQueue::of(3);
    let broker = Broker::connect(&server.url()).await;
    let queue = format!("q-{}", uuid::Uuid::new_v4());
    let parked = name_of(&queue, parked_queue);
    broker.declare(&queue, "classic").await;
    broker.declare(&parked, "classic").await;
    broker.publish(&queue, messages([0])).await;
    broker.publish(&parked, messages([1])).await;
    let mut bench = Bench::start_on(options(server), QueueType::Classic, queue.clone(), false);
    let held = bench.take(2).await;
    broker.delete(&parked).await;
    // It is found and consumed again, so its end was seen.
    broker.declare(&parked, "classic").await;
    broker.publish(&parked, messages([2])).await;
    let again = next(&mut bench.deliveries, 3 * BOUND).await;
    assert_eq!(number(&again.message().body), 2);
    assert!(!held.iter().any(Delivery::is_stale), "all in one session");
    for delivery in held.into_iter().chain([again]) {
        assert!(delivery.settle(Verdict::Done));
    }
    bench.subscription.close(BOUND).await;
}

/// While nothing is consumed, the broker does not tell that a queue is gone: the session would lose its channel over
/// it when it consumes again, and with that the calls under way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parked_queue_that_is_deleted_while_nothing_is_consumed_costs_no_session() {
    let server = shared();
    let parked = |queue: &str| name_of(queue, ParkedQueue::of(2));
    let broker = Broker::connect(&server.url()).await;
    let queue = format!("q-{}", uuid::Uuid::new_v4());
    broker.declare(&queue, "classic").await;
    broker.publish(&queue, messages([0])).await;
    let mut bench = Bench::start_on(options(server), QueueType::Classic, queue.clone(), true);
    let held = bench.next().await;
    let has = async |consumers| {
        eventually_async(BOUND, "the parked queue and its consumers", || async {
            broker.counts(&parked(&queue)).await == Some((0, consumers))
        })
        .await;
    };
    has(1).await;
    bench.subscription.set_tap(Tap::Closed);
    has(0).await;
    broker.delete(&parked(&queue)).await;
    // It is made again.
    let gone = || bench.events.settled_as("gone") == 1;
    eventually(BOUND, "it is missed", gone).await;
    has(0).await;
    bench.subscription.set_tap(Tap::Open);
    has(1).await;
    assert!(!held.is_stale(), "all in one session");
    assert!(held.settle(Verdict::Done));
    bench.subscription.close(BOUND).await;
    assert_eq!(numbers(&broker, &queue).await, BTreeSet::new());
}
