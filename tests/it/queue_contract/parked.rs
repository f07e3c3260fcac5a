//! Messages that are parked beside their queue.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use sluiced_core::gate::Tap;
use sluiced_core::parking::ParkedQueue;
use sluiced_ports::message::{HeaderValue, header};
use sluiced_ports::queue::Verdict;
use tokio::time::timeout;

use crate::support::messages::number;
use crate::support::wait::eventually;

use super::bench::{Backend, Bench};
use super::{BOUND, QUIET, later, numbers};

fn parked(parked_queue: ParkedQueue) -> Verdict {
    let headers = vec![(header::PARKED, HeaderValue::Int(5))];
    Verdict::Parked {
        parked_queue,
        headers,
    }
}

pub(crate) async fn the_parked_make_room_and_come_back_whole(backend: Backend) {
    let parked_queue = ParkedQueue::of(3);
    let mut bench = Bench::start(backend, 6, 4).await;
    let mut held = bench.take(4).await;
    assert_eq!(numbers(&held), (1..=4).collect());
    let before = held[0].message().clone();
    assert!(held.remove(0).settle(parked(parked_queue)));
    // The one behind it, and itself.
    let mut two = bench.take(2).await;
    two.sort_by_key(|delivery| number(&delivery.message().body));
    assert_eq!(numbers(&two), BTreeSet::from([1, 5]));
    let after = two.remove(0);
    assert_eq!(after.message().properties, before.properties);
    assert_eq!(after.message().routing_key, before.routing_key);
    assert!(!after.message().redelivered);
    let mark = &after.message().headers[header::PARKED];
    assert_eq!(mark.as_int(), Some(5));
    for (name, value) in &before.headers {
        assert_eq!(&after.message().headers[name], value);
    }
    // Back to where it was, besides the work queue's prefetch.
    assert!(after.settle(Verdict::GiveBack));
    let again = bench.next().await;
    assert_eq!(number(&again.message().body), 1);
    assert!(again.message().redelivered);
    bench
        .assert_quiet("four are out, and one beside them")
        .await;
    // A retry passes through the work queue, and the mark stays.
    assert!(again.settle(later(Duration::from_secs(1))));
    assert!(two.remove(0).settle(Verdict::Done));
    assert_eq!(number(&bench.next().await.message().body), 6);
    for delivery in held {
        assert!(delivery.settle(Verdict::Done));
    }
    loop {
        let delivery = bench.next().await;
        let n = number(&delivery.message().body);
        if n == 1 {
            let mark = &delivery.message().headers[header::PARKED];
            assert_eq!(mark.as_int(), Some(5));
            assert!(delivery.settle(Verdict::Done));
            break;
        }
        assert_eq!(n, 6, "it was dropped");
        assert!(delivery.settle(Verdict::Done));
    }
    bench.close().await;
    assert_eq!(bench.remaining().await, BTreeSet::new());
    assert_eq!(bench.settled("parked"), 1);
}

pub(crate) async fn the_parked_are_counted_bounded_and_kept(backend: Backend) {
    let parked_queue = ParkedQueue::of(7);
    let mut bench = Bench::start(backend, 12, 4).await;
    let subscription = Arc::clone(&bench.subscription);
    eventually(BOUND, "parking is possible", || {
        subscription.parked() == Some(0)
    })
    .await;
    for delivery in bench.take(4).await {
        assert!(delivery.settle(parked(parked_queue)));
    }
    // Four more of the work queue, and one of the parked queue.
    let mut held = bench.take(5).await;
    bench.assert_quiet("both prefetches are full").await;
    let from_space = held.iter().position(|delivery| {
        let headers = &delivery.message().headers;
        headers.contains_key(header::PARKED)
    });
    eventually(BOUND, "three stand parked", || {
        subscription.parked() == Some(3)
    })
    .await;
    // While the tap is closed they stay where they are.
    bench.subscription.set_tap(Tap::Closed);
    assert!(held.remove(from_space.unwrap()).settle(Verdict::Done));
    // One that was delivered before the tap was closed may still come.
    let late = timeout(QUIET, bench.deliveries.recv()).await;
    bench.assert_quiet("the tap is closed").await;
    bench.subscription.set_tap(Tap::Open);
    for delivery in held {
        assert!(delivery.settle(Verdict::Done));
    }
    drop(late);
    let mut seen = BTreeSet::new();
    while seen.len() < 7 {
        let delivery = bench.next().await;
        seen.insert(number(&delivery.message().body));
        assert!(delivery.settle(Verdict::Done));
    }
    bench.close().await;
    assert_eq!(bench.remaining().await, BTreeSet::new());
    assert_eq!(bench.settled("parked"), 4);
}
