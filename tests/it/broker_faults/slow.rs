//! A way to the broker on which large copies take longer than a confirm may take: each is made, and once. Beside it,
//! a broker that stands still, and copies that are known by their numbers.

use std::collections::BTreeMap;

use lapin::types::{AMQPValue, FieldTable};
use sluiced_amqp::rabbit::letters::{Letters, Replay};
use sluiced_ports::message::header;
use sluiced_settings::text::Length;

use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, NEW_SCHEDULE, Route, get};
use crate::support::messages::{dead, number, options};
use crate::support::proxy::{Mode, Proxy};
use crate::support::recorder::{Recorder, Reply};
use crate::support::wait::eventually;

use super::bench::Bench;
use super::*;

/// Bytes of a body, and how many there are: all of them together take many times longer than a confirm may.
const LARGE: usize = 1 << 20;
const COUNT: u64 = 24;
/// Bytes a second to the broker.
const UPLINK: u32 = 4 << 20;
const CONFIRM: Duration = Duration::from_millis(500);

fn large() -> impl Iterator<Item = (Vec<u8>, BasicProperties)> {
    (1..=COUNT).map(|n| {
        let mut body = body(n);
        body.resize(LARGE, b' ');
        (body, BasicProperties::default())
    })
}

/// The broker behind a slow uplink.
async fn slow(server: &Rabbit) -> (Proxy, RabbitOptions) {
    let proxy = Proxy::to(server.port()).await;
    proxy.set(Mode::Uplink(UPLINK));
    let mut options = options(server);
    options.settings.urls = vec![proxy.amqp().into()];
    options.settings.confirm_timeout = Length(CONFIRM);
    (proxy, options)
}

/// How often each message is in a queue.
async fn found(broker: &Broker, queue: &str) -> BTreeMap<u64, u64> {
    let mut found = BTreeMap::new();
    for (body, _) in broker.drain(queue).await {
        *found.entry(number(&body)).or_default() += 1;
    }
    found
}

fn once() -> BTreeMap<u64, u64> {
    (1..=COUNT).map(|n| (n, 1)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_copies_on_a_slow_uplink_are_made_once() {
    let server = shared();
    let (_proxy, slow) = slow(server).await;
    let broker = Broker::connect(&server.url()).await;
    let mut bench = Bench::start(slow, QueueType::Quorum);
    broker.declare(&bench.queue, "quorum").await;
    broker.publish(&bench.queue, large()).await;
    for delivery in bench.take(COUNT as usize).await {
        assert!(delivery.settle(dead()));
    }
    let all = || bench.events.settled_as("dead") == COUNT;
    eventually(BOUND, "all are dead", all).await;
    assert_eq!(bench.events.settled_as("unconfirmed"), 0, "none twice");
    assert_eq!(
        bench.events.settled_as("reconnected"),
        0,
        "no connection ended"
    );
    bench.subscription.close(BOUND).await;
    assert_eq!(broker.counts(&bench.queue).await, Some((0, 0)));
    let dead = found(&broker, &format!("{}.dead", bench.queue)).await;
    assert_eq!(dead, once());
}

/// The copies of all routes share a connection: a small one waits behind large ones of others, for longer
/// than a confirm may take, and that is not an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_copy_behind_large_ones_of_other_routes_ends_no_connection() {
    const OTHERS: usize = 6;
    let server = shared();
    let (_proxy, slow) = slow(server).await;
    let broker = Broker::connect(&server.url()).await;
    let mut bench = Bench::start(slow, QueueType::Classic);
    broker.declare(&bench.queue, "classic").await;
    broker.publish(&bench.queue, messages([1])).await;
    let mut others = Vec::new();
    for other in 0..OTHERS {
        let queue = format!("{}-{other}", bench.queue);
        broker.declare(&queue, "classic").await;
        broker.publish(&queue, large().take(4)).await;
        others.push(bench.beside(queue));
    }
    let small = bench.next().await;
    for other in &mut others {
        for delivery in other.take(4).await {
            assert!(delivery.settle(dead()));
        }
    }
    assert!(small.settle(dead()));
    let all = || bench.events.settled_as("dead") == 1 + 4 * OTHERS as u64;
    eventually(BOUND, "all are dead", all).await;
    assert_eq!(bench.events.settled_as("unconfirmed"), 0, "none twice");
    assert_eq!(bench.events.settled_as("reconnected"), 0);
    for (bench, count) in others.iter().map(|other| (other, 4)).chain([(&bench, 1)]) {
        bench.subscription.close(BOUND).await;
        let dead = broker.counts(&format!("{}.dead", bench.queue)).await;
        assert_eq!(dead.map(|(ready, _)| ready), Some(count), "each once");
    }
}

/// A whole replica on such a way: messages that are answered 500 once wait in a queue, and are called twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_are_tried_again_on_a_slow_uplink_are_called_twice() {
    const TRIED: u64 = 300;
    const BYTES: usize = 150_000;
    let server = shared();
    let proxy = Proxy::to(server.port()).await;
    proxy.set(Mode::Uplink(4 * UPLINK));
    let broker = Broker::connect(&server.url()).await;
    let name = "slow-tried-again";
    broker.declare(name, "quorum").await;
    let downstream =
        Recorder::start(|call| Reply::status(if call.repeat == 0 { 500 } else { 202 }));
    let downstream = downstream.await;
    let mut route = Route::new(name, downstream.address);
    // Each waits in a queue until it is tried again.
    route.keys = "max_hold = \"0s\"\nprefetch = 500\n".to_owned();
    // Each fails because of itself, not of the downstream.
    route.downstream = "breaker = { failures = 0 }\n".to_owned();
    let config = Config {
        rabbit: Some(proxy.amqp()),
        ..Config::shared(name, "1000/1s", vec![route])
    };
    let timeout = "SLUICED__RABBITMQ__CONFIRM_TIMEOUT";
    let mut daemon = Daemon::start_with(&config.text(), |command| {
        command.env(timeout, format!("{}ms", CONFIRM.as_millis()));
    });
    daemon.ready().await;
    let large = (1..=TRIED).map(|n| {
        let mut body = body(n);
        body.resize(BYTES, b' ');
        (body, BasicProperties::default())
    });
    broker.publish(name, large).await;
    let admin = daemon.admin().await;
    let done = format!("sluiced_settled_total{{route=\"{name}\",verdict=\"done\"}} {TRIED}\n");
    let all = || get(admin, "/metrics").1.contains(&done);
    eventually(BOUND, "all are done", all).await;
    let mut calls = BTreeMap::new();
    for call in downstream.calls() {
        *calls.entry(call.number).or_insert(0) += 1;
    }
    assert_eq!(
        calls,
        (1..=TRIED).map(|n| (n, 2)).collect::<BTreeMap<_, _>>()
    );
    let unconfirmed = format!("sluiced_unconfirmed_total{{route=\"{name}\"}}");
    assert_eq!(daemon.metric(&unconfirmed).await, 0.0, "none twice");
    let later = format!("sluiced_settled_total{{route=\"{name}\",verdict=\"later\"}}");
    assert_eq!(daemon.metric(&later).await, TRIED as f64, "each by a copy");
    daemon.stop(&[NEW_SCHEDULE]).await;
    assert_eq!(broker.counts(name).await, Some((0, 0)));
}

/// Copies of a session that ends are on their way: the connection, which all routes share, is not closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_ends_while_it_writes_takes_no_connection_with_it() {
    let server = shared();
    let (_proxy, slow) = slow(server).await;
    let broker = Broker::connect(&server.url()).await;
    let mut bench = Bench::start(slow, QueueType::Quorum);
    broker.declare(&bench.queue, "quorum").await;
    broker.publish(&bench.queue, large()).await;
    for delivery in bench.take(COUNT as usize).await {
        assert!(delivery.settle(dead()));
    }
    let some = || bench.events.settled_as("dead") >= 2;
    eventually(BOUND, "some are dead", some).await;
    broker.delete(&bench.queue).await;
    bench.down("does not exist").await;
    broker.declare(&bench.queue, "quorum").await;
    bench.up().await;
    broker.publish(&bench.queue, messages([0])).await;
    let before = bench.events.settled_as("dead");
    assert!(bench.next().await.settle(dead()));
    let copied = || bench.events.settled_as("dead") > before;
    eventually(BOUND, "a copy is made", copied).await;
    assert_eq!(
        bench.events.settled_as("reconnected"),
        0,
        "no connection ended"
    );
    bench.subscription.close(BOUND).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_letters_on_a_slow_uplink_are_replayed_once() {
    let server = shared();
    let (_proxy, slow) = slow(server).await;
    let broker = Broker::connect(&server.url()).await;
    let queue = format!("q-{}", uuid::Uuid::new_v4());
    let dead = format!("{queue}.dead");
    broker.declare(&queue, "quorum").await;
    broker.declare(&dead, "quorum").await;
    broker.publish(&dead, large()).await;
    let mut letters = Letters::open(&slow, &dead).await.unwrap().unwrap();
    let mut batch = Vec::new();
    while let Some(letter) = letters.next().await.unwrap() {
        batch.push(Replay {
            letter,
            queue: queue.clone(),
            keeps_timestamp: true,
        });
    }
    let moved = letters.replay(batch).await;
    assert_eq!(moved.taken as u64, COUNT, "{:?}", moved.fault);
    assert_eq!(letters.close().await.unwrap(), 0);
    assert_eq!(found(&broker, &queue).await, once());
}

/// The broker reads nothing for longer than confirms may take, and then takes everything at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_stood_still_keeps_its_connections() {
    let (_turn, server) = turn().await;
    let broker = Broker::connect(&server.url()).await;
    let mut quick = options(server);
    quick.settings.confirm_timeout = Length(CONFIRM);
    let mut bench = Bench::start(quick, QueueType::Quorum);
    broker.declare(&bench.queue, "quorum").await;
    bench.up().await;
    // The first copy has opened the channel that the others need.
    broker.publish(&bench.queue, messages(0..=COUNT)).await;
    assert!(bench.next().await.settle(dead()));
    let first = || bench.events.settled_as("dead") == 1;
    eventually(BOUND, "the first is dead", first).await;
    let held = bench.take(COUNT as usize).await;
    let frozen = server.freeze();
    for delivery in held {
        assert!(delivery.settle(dead()));
    }
    let late = || bench.events.settled_as("unconfirmed") >= COUNT;
    eventually(BOUND, "their copies are late", late).await;
    drop(frozen);
    let all = || bench.events.settled_as("dead") == COUNT + 1;
    eventually(BOUND, "all are dead", all).await;
    assert_eq!(
        bench.events.settled_as("reconnected"),
        0,
        "no connection ended"
    );
    bench.subscription.close(BOUND).await;
    let dead = numbers(&broker, &format!("{}.dead", bench.queue)).await;
    assert_eq!(dead, (0..=COUNT).collect());
}

/// A message may carry a number already, because it was copied before: it is not taken for another message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_number_that_a_message_came_with_means_nothing() {
    let server = shared();
    let broker = Broker::connect(&server.url()).await;
    let mut bench = Bench::start(options(server), QueueType::Classic);
    broker.declare(&bench.queue, "classic").await;
    bench.up().await;
    let numbered = (1..=COUNT).map(|n| {
        let mut table = FieldTable::default();
        table.insert(header::COPY.into(), AMQPValue::LongLongInt(1));
        (body(n), BasicProperties::default().with_headers(table))
    });
    broker.publish(&bench.queue, numbered).await;
    let taken = bench.take(COUNT as usize).await;
    let dead_queue = format!("{}.dead", bench.queue);
    broker.delete(&dead_queue).await;
    for delivery in taken {
        assert!(delivery.settle(dead()));
    }
    let all = || bench.events.settled_as("dead") == COUNT;
    eventually(BOUND, "all are dead", all).await;
    bench.subscription.close(BOUND).await;
    assert_eq!(found(&broker, &dead_queue).await, once());
}
