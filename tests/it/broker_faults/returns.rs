//! Queues that count how often a message was returned: none of our messages reaches that limit.

use std::collections::BTreeSet;

use lapin::types::{AMQPValue, FieldTable};
use sluiced_core::gate::Tap;
use sluiced_ports::queue::Verdict;
use sluiced_settings::types::QueueType;

use crate::support::broker::Broker;
use crate::support::messages::{number, options};
use crate::support::wait::eventually;

use super::bench::Bench;
use super::*;

/// With a limit of returns, which is 20 by default in RabbitMQ 4, and a queue for what is dropped.
async fn limited(broker: &Broker, queue: &str, returns: i64) -> String {
    let dropped = format!("{queue}-dropped");
    broker.declare(&dropped, "classic").await;
    let mut arguments = FieldTable::default();
    arguments.insert("x-delivery-limit".into(), AMQPValue::LongLongInt(returns));
    let text = |text: &str| AMQPValue::LongString(text.into());
    arguments.insert("x-dead-letter-exchange".into(), text(""));
    arguments.insert("x-dead-letter-routing-key".into(), text(&dropped));
    broker.declare_with(queue, "quorum", arguments).await;
    dropped
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_returns_lose_nothing() {
    let server = shared();
    let broker = Broker::connect(&server.url()).await;
    let queue = format!("q-{}", uuid::Uuid::new_v4());
    let dropped = limited(&broker, &queue, 20).await;
    broker.publish(&queue, messages(1..=20)).await;
    let mut bench = Bench::start_on(options(server), QueueType::Quorum, queue.clone(), false);
    let mut returned = std::collections::BTreeMap::<u64, u32>::new();
    // Each of them, as denials and freezes do.
    while returned.len() < 20 || returned.values().any(|&count| count < 45) {
        let delivery = bench.next().await;
        *returned
            .entry(number(&delivery.message().body))
            .or_default() += 1;
        assert!(delivery.settle(Verdict::GiveBack));
    }
    assert!(returned.values().sum::<u32>() >= 900);
    // At the end of a session, as after a crash: also those that were just delivered.
    for _ in 0..25 {
        let mut taken = bench.take(20).await;
        // A crash loop of a process that lives long enough to do something: messages that it
        // copied are done. A copy whose original was not acknowledged in time is a twenty-first.
        let done = || {
            while let Ok(delivery) = bench.deliveries.try_recv() {
                taken.push(delivery);
            }
            let redelivered = taken
                .iter()
                .filter(|delivery| delivery.message().redelivered);
            let seen = redelivered.count() as u64 + bench.events.settled_as("given_back");
            seen >= bench.events.settled_as("redelivered")
        };
        eventually(BOUND, "the copies are made", done).await;
        drop(taken);
        drop(bench);
        bench = Bench::start_on(options(server), QueueType::Quorum, queue.clone(), false);
    }
    let mut seen = BTreeSet::new();
    while seen.len() < 20 {
        let delivery = bench.next().await;
        let n = number(&delivery.message().body);
        if delivery.settle(Verdict::Done) {
            seen.insert(n);
        }
    }
    assert_eq!(seen, (1..=20).collect());
    bench.subscription.close(BOUND).await;
    assert_eq!(
        broker.counts(&dropped).await,
        Some((0, 0)),
        "the broker dropped some"
    );
}

/// A queue that sluiced declares drops nothing, and one that an earlier sluiced declared is
/// accepted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_are_declared_whatever_the_broker_says_of_limits() {
    let server = shared();
    let broker = Broker::connect(&server.url()).await;
    for existing in [false, true] {
        let queue = format!("q-{}", uuid::Uuid::new_v4());
        if existing {
            broker.declare(&queue, "quorum").await;
        }
        let mut bench = Bench::start_declared(options(server), QueueType::Quorum, queue.clone());
        bench.up().await;
        broker.publish(&queue, messages(1..=5)).await;
        for _ in 0..3 {
            for delivery in bench.take(5).await {
                assert!(delivery.settle(Verdict::GiveBack));
            }
        }
        for delivery in bench.take(5).await {
            assert!(delivery.settle(Verdict::Done));
        }
        assert_eq!(bench.events.settled_as("reconnected"), 0);
        bench.subscription.close(BOUND).await;
    }
}

/// A message that was returned as often as its queue allows, and for which there is no room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_messages_that_find_no_room_are_not_lost() {
    /// Few, so that a channel may not hold all of them: 64 MiB.
    const FEW: u16 = 100;
    const COUNT: u64 = 20;
    const LARGE: usize = 4 << 20;
    /// One return more, and the broker drops it.
    const LIMIT: i64 = 10;
    let server = shared();
    let broker = Broker::connect(&server.url()).await;
    let queue = format!("q-{}", uuid::Uuid::new_v4());
    let dropped = limited(&broker, &queue, LIMIT).await;
    let large = (1..=COUNT).map(|n| {
        let mut body = body(n);
        body.resize(LARGE, b' ');
        (body, BasicProperties::default())
    });
    broker.publish(&queue, large).await;
    for _ in 0..LIMIT {
        assert_eq!(broker.give_back(&queue).await, COUNT);
    }
    // No copy is taken yet, so none makes room for another.
    let (user, options) = own_user(server);
    let mut bench = Bench::start_few(options, QueueType::Quorum, queue.clone(), FEW);
    bench.subscription.set_tap(Tap::Closed);
    bench.up().await;
    server.set_permissions("/", &user, [".*", "^$", ".*"]);
    bench.subscription.set_tap(Tap::Open);
    eventually(BOUND, "all of them came", || {
        server.unacknowledged(&queue) == COUNT || bench.events.settled_as("given_back") > 0
    })
    .await;
    server.set_permissions("/", &user, [".*"; 3]);
    let mut seen = BTreeSet::new();
    while (seen.len() as u64) < COUNT {
        let delivery = tokio::time::timeout(BOUND, bench.deliveries.recv()).await;
        let Ok(Some(delivery)) = delivery else {
            break;
        };
        seen.insert(number(&delivery.message().body));
        assert!(delivery.settle(Verdict::Done));
    }
    let lost = broker.counts(&dropped).await;
    assert_eq!((seen.len() as u64, lost), (COUNT, Some((0, 0))));
    bench.subscription.close(BOUND).await;
}

/// A parked queue that was declared before the broker knew queues without a limit. Parked messages are kept from
/// expiring by returns, here ten times a second; one that was returned often is copied, so that its count starts again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parked_messages_are_not_returned_until_they_are_dropped() {
    const LIMIT: i64 = 100;
    /// This test looks by returns, too, so it looks seldom.
    const SELDOM: Duration = Duration::from_millis(600);
    let server = shared();
    let broker = Broker::connect(&server.url()).await;
    let queue = format!("q-{}", uuid::Uuid::new_v4());
    broker.declare(&queue, "quorum").await;
    let parked = format!("{queue}.parked.0");
    let dropped = limited(&broker, &parked, LIMIT).await;
    broker.publish(&parked, messages([1])).await;
    for _ in 0..10 {
        assert_eq!(broker.give_back(&parked).await, 1);
    }
    let mut renewing = options(server);
    renewing.renew = Duration::from_millis(100);
    let bench = Bench::start_on(renewing, QueueType::Quorum, queue, true);
    bench.subscription.set_tap(Tap::Closed);
    bench.up().await;
    eventually_async(BOUND, "its count starts again", || async {
        tokio::time::sleep(SELDOM).await;
        let returns = broker.returns(&parked).await;
        returns.is_some_and(|returns| returns < 10)
    })
    .await;
    assert_eq!(broker.counts(&dropped).await, Some((0, 0)));
    bench.subscription.close(BOUND).await;
    // It may have been taken as the connection ended, which returns it a moment later.
    eventually_async(BOUND, "it is back in its queue", || async {
        let counts = broker.counts(&parked).await;
        counts.is_some_and(|(ready, _)| ready > 0)
    })
    .await;
    assert_eq!(numbers(&broker, &parked).await, [1].into());
}
