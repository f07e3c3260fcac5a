//! The contract of `ports::queue::Subscription`, on every backend.
mod bench;
mod embedded_alone;
mod parked;

use std::collections::BTreeSet;
use std::time::Duration;

use sluiced_core::gate::Tap;
use sluiced_ports::message::{HeaderValue, header};
use sluiced_ports::queue::{Delivery, Verdict};
use sluiced_settings::types::QueueType;
use tokio::time::Instant;

use crate::support::messages::{dead, number};
use crate::support::rabbit::Rabbit;
use crate::support::wait::{eventually, within};
use bench::{Backend, Bench};
use parked::{the_parked_are_counted_bounded_and_kept, the_parked_make_room_and_come_back_whole};

/// Plenty, also on a busy machine.
const BOUND: Duration = Duration::from_secs(30);
/// Long enough for a message that must not come to arrive, if it were on its way.
const QUIET: Duration = Duration::from_millis(300);

fn numbers(deliveries: &[Delivery]) -> BTreeSet<u64> {
    deliveries
        .iter()
        .map(|delivery| number(&delivery.message().body))
        .collect()
}

fn later(delay: Duration) -> Verdict {
    Verdict::Later {
        delay,
        headers: vec![
            (header::ATTEMPTS, HeaderValue::Int(2)),
            (header::NOT_BEFORE, HeaderValue::Int(77)),
        ],
    }
}

async fn done_removes(backend: Backend) {
    let mut bench = Bench::start(backend, 200, 50).await;
    let mut seen = BTreeSet::new();
    for _ in 0..200 {
        let delivery = bench.next().await;
        assert!(seen.insert(number(&delivery.message().body)));
        assert!(delivery.settle(Verdict::Done));
    }
    assert_eq!(bench.close().await, 0);
    assert_eq!(bench.remaining().await, BTreeSet::new());
    assert_eq!(bench.settled("done"), 200);
}

async fn what_is_given_back_comes_again(backend: Backend) {
    let mut bench = Bench::start(backend, 1, 10).await;
    let delivery = bench.next().await;
    assert!(!delivery.message().redelivered);
    assert!(delivery.settle(Verdict::GiveBack));
    let again = bench.next().await;
    assert!(again.message().redelivered);
    assert_eq!(number(&again.message().body), 1);
    assert!(again.settle(Verdict::Done));
    bench.close().await;
    assert_eq!(bench.remaining().await, BTreeSet::new());
}

async fn later_comes_back_whole_and_not_early(backend: Backend) {
    let mut bench = Bench::start(backend, 1, 10).await;
    let delivery = bench.next().await;
    let before = delivery.message().clone();
    let settled = Instant::now();
    let mut refused = later(Duration::from_secs(1));
    if let Verdict::Later { headers, .. } = &mut refused {
        headers.extend(header::CLEARED_WITH_HISTORY.map(|name| (name, HeaderValue::Int(5))));
    }
    assert!(delivery.settle(refused));
    let again = bench.next().await;
    assert!(settled.elapsed() >= Duration::from_secs(1));
    let after = again.message();
    assert_eq!(after.body, before.body);
    assert_eq!(after.properties, before.properties);
    assert_eq!(after.routing_key, before.routing_key);
    assert_eq!(after.exchange, before.exchange);
    assert!(!after.redelivered);
    assert_eq!(after.headers[header::ATTEMPTS].as_int(), Some(2));
    assert_eq!(after.headers[header::NOT_BEFORE].as_int(), Some(77));
    for name in header::CLEARED_WITH_HISTORY {
        assert_eq!(after.headers[name].as_int(), Some(5), "{name}");
    }
    for (name, value) in &before.headers {
        assert_eq!(&after.headers[name], value);
    }
    // A second round, as for a delay that is longer than its step.
    assert!(again.settle(later(Duration::from_secs(1))));
    let third = bench.next().await;
    assert!(settled.elapsed() >= Duration::from_secs(2));
    assert_eq!(third.message().body, before.body);
    assert_eq!(third.message().routing_key, before.routing_key);
    for name in header::CLEARED_WITH_HISTORY {
        assert!(!third.message().headers.contains_key(name), "{name}");
    }
    assert!(third.settle(Verdict::Done));
    bench.close().await;
    assert_eq!(bench.remaining().await, BTreeSet::new());
    assert_eq!(bench.settled("later"), 2);
}

async fn the_dead_are_stored_with_the_reason(backend: Backend) {
    let mut bench = Bench::start(backend, 2, 10).await;
    for delivery in bench.take(2).await {
        assert!(delivery.settle(dead()));
    }
    bench.close().await;
    assert_eq!(bench.remaining().await, BTreeSet::new());
    let mut dead = bench.dead().await;
    dead.sort();
    assert_eq!(
        dead,
        [(1, "rejected".to_owned(), 3), (2, "rejected".to_owned(), 3)]
    );
    assert_eq!(bench.settled("dead"), 2);
}

async fn the_prefetch_bounds_what_is_out(backend: Backend) {
    let mut bench = Bench::start(backend, 10, 4).await;
    let mut held = bench.take(4).await;
    bench.assert_quiet("four are out").await;
    assert!(held.remove(0).settle(Verdict::Done));
    held.push(bench.next().await);
    bench.assert_quiet("four are out again").await;
    assert_eq!(numbers(&held), BTreeSet::from([2, 3, 4, 5]));
    drop(held);
    bench.close().await;
    assert_eq!(bench.remaining().await, (2..=10).collect());
}

async fn a_slow_head_does_not_use_up_the_prefetch(backend: Backend) {
    let mut bench = Bench::start(backend, 30, 4).await;
    let head = bench.next().await;
    let mut seen = BTreeSet::from([number(&head.message().body)]);
    for _ in 0..29 {
        let delivery = bench.next().await;
        seen.insert(number(&delivery.message().body));
        assert!(delivery.settle(Verdict::Done));
    }
    assert_eq!(seen.len(), 30);
    assert!(head.settle(Verdict::Done));
    assert_eq!(bench.close().await, 0);
    assert_eq!(bench.remaining().await, BTreeSet::new());
}

async fn a_dropped_delivery_goes_back(backend: Backend) {
    let mut bench = Bench::start(backend, 1, 10).await;
    drop(bench.next().await);
    let again = bench.next().await;
    assert!(again.message().redelivered);
    assert!(again.settle(Verdict::Done));
    bench.close().await;
    assert_eq!(bench.remaining().await, BTreeSet::new());
}

async fn a_closed_tap_stops_new_ones_and_keeps_the_held(backend: Backend) {
    let mut bench = Bench::start(backend, 12, 4).await;
    let held = bench.take(4).await;
    bench.subscription.set_tap(Tap::Closed);
    if bench.broker.is_some() {
        // A quorum queue counts a cancelled consumer as long as it holds messages, but does not
        // list it.
        eventually(BOUND, "the consumer is cancelled", || {
            !Rabbit::shared().is_consumed(&bench.queue)
        })
        .await;
    }
    let mut seen = numbers(&held);
    for delivery in held {
        assert!(delivery.settle(Verdict::Done));
    }
    bench.assert_quiet("the tap is closed").await;
    assert!(bench.subscription.link().borrow().is_up());
    bench.subscription.set_tap(Tap::Open);
    for _ in 0..8 {
        let delivery = bench.next().await;
        assert!(!delivery.message().redelivered);
        assert!(seen.insert(number(&delivery.message().body)));
        assert!(delivery.settle(Verdict::Done));
    }
    bench.close().await;
    assert_eq!(bench.remaining().await, BTreeSet::new());
    assert_eq!(bench.settled("done"), 12);
}

async fn close_flushes_verdicts_and_gives_back_the_rest(backend: Backend) {
    let mut bench = Bench::start(backend, 10, 8).await;
    let mut held = bench.take(8).await;
    held.sort_by_key(|delivery| number(&delivery.message().body));
    let rest = held.split_off(4);
    for (delivery, verdict) in held.into_iter().zip([
        Verdict::Done,
        Verdict::Dropped,
        dead(),
        later(Duration::from_secs(3600)),
    ]) {
        assert!(delivery.settle(verdict));
    }
    let given_back = bench.close().await;
    let mut expected: BTreeSet<u64> = (5..=10).collect();
    if let Some(broker) = &bench.broker {
        // Settled ones may have made room for more before the consumer was cancelled.
        assert!((4..=6).contains(&given_back), "{given_back}");
        let wait = format!("{}.wait.2048s", bench.queue);
        assert_eq!(broker.counts(&wait).await, Some((1, 0)));
    } else {
        // No server keeps a waiting message when the process ends, so it is left over too.
        expected.insert(4);
        assert_eq!(given_back, 7);
    }
    for delivery in rest {
        assert!(delivery.is_stale());
        assert!(!delivery.settle(Verdict::Done), "the session is over");
    }
    assert_eq!(bench.remaining().await, expected);
    assert_eq!(bench.dead().await.len(), 1);
    assert_eq!(bench.settled("done"), 1);
    // A delivery that came too late to be cancelled is stale, and then the stream ends.
    while let Some(delivery) = within(BOUND, "the end", bench.deliveries.recv()).await {
        assert!(delivery.is_stale());
    }
}

macro_rules! contract {
    ($backend:ident, $value:expr, $($case:ident),+ $(,)?) => {
        mod $backend {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    super::$case($value).await;
                }
            )+
        }
    };
}

macro_rules! contract_of {
    ($backend:ident, $value:expr) => {
        contract!(
            $backend,
            $value,
            done_removes,
            what_is_given_back_comes_again,
            later_comes_back_whole_and_not_early,
            the_parked_make_room_and_come_back_whole,
            the_parked_are_counted_bounded_and_kept,
            the_dead_are_stored_with_the_reason,
            the_prefetch_bounds_what_is_out,
            a_slow_head_does_not_use_up_the_prefetch,
            a_dropped_delivery_goes_back,
            a_closed_tap_stops_new_ones_and_keeps_the_held,
            close_flushes_verdicts_and_gives_back_the_rest,
        );
    };
}

contract_of!(embedded, Backend::Embedded);
contract_of!(rabbit_classic, Backend::Rabbit(QueueType::Classic));
contract_of!(rabbit_quorum, Backend::Rabbit(QueueType::Quorum));
