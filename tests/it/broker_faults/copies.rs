//! Copies that cannot be made: the verdict is kept, its copy is tried again, and nothing else waits.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use sluiced_ports::message::{Properties, header};
use sluiced_ports::queue::{Publication, Verdict};
use sluiced_settings::types::QueueType;

use crate::support::broker::Broker;
use crate::support::messages::{dead, number, options};
use crate::support::wait::eventually;

use super::bench::Bench;
use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_is_tried_until_its_queue_takes_it() {
    let server = shared();
    let mut bench = Bench::start(options(server), QueueType::Classic);
    let broker = Broker::connect(&server.url()).await;
    broker.declare(&bench.queue, "classic").await;
    // It lacks what a wait queue needs.
    let wait = format!("{}.wait.1s", bench.queue);
    broker.declare(&wait, "classic").await;
    broker.publish(&bench.queue, messages([1, 2])).await;
    for delivery in bench.take(2).await {
        let n = number(&delivery.message().body);
        // The dead-letter queue is not affected.
        assert!(delivery.settle(if n == 1 { later() } else { dead() }));
    }
    eventually(BOUND, "one is dead, the other is tried", || {
        bench.events.settled_as("dead") == 1 && bench.events.settled_as("unconfirmed") >= 3
    })
    .await;
    assert_eq!(bench.events.settled_as("later"), 0);
    broker.delete(&wait).await;
    let again = bench.next().await;
    assert_eq!(number(&again.message().body), 1);
    assert!(
        !again.message().redelivered,
        "it went through the wait queue"
    );
    assert!(again.settle(Verdict::Done));
    bench.subscription.close(BOUND).await;
}

/// A dead-letter queue that is full and refuses more, while sessions come and go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_verdict_outlives_its_session_until_its_copy_is_taken() {
    let server = shared();
    let broker = Broker::connect(&server.url()).await;
    let (user, options) = own_user(server);
    let mut bench = Bench::start(options, QueueType::Quorum);
    let dead_queue = format!("{}.dead", bench.queue);
    broker.declare(&bench.queue, "quorum").await;
    bench.up().await;
    let policy = r#"{"max-length":1,"overflow":"reject-publish"}"#;
    server.set_policy(&dead_queue, &dead_queue, policy);
    broker.fill(&dead_queue).await;
    broker.publish(&bench.queue, messages(1..=30)).await;
    let mut handed_out = Vec::new();
    for delivery in bench.take(30).await {
        let n = number(&delivery.message().body);
        handed_out.push(n);
        assert!(delivery.settle(if n <= 20 { dead() } else { Verdict::Done }));
    }
    let tried = || bench.events.settled_as("unconfirmed") >= 20;
    eventually(BOUND, "the copies are refused", tried).await;
    let done = || bench.events.settled_as("done") == 10;
    eventually(BOUND, "the others are done", done).await;
    for round in 1..=3 {
        let before = bench.events.settled_as("unconfirmed");
        server.close_connections_of(&user);
        let back = || bench.events.settled_as("reconnected") >= round;
        eventually(BOUND, "it is connected again", back).await;
        let tried = || bench.events.settled_as("unconfirmed") >= before + 20;
        eventually(BOUND, "the copies are tried again", tried).await;
    }
    server.clear_policy(&dead_queue);
    let dead = || bench.events.settled_as("dead") == 20;
    eventually(BOUND, "all copies are taken", dead).await;
    assert!(
        bench.deliveries.try_recv().is_err(),
        "none was handed out twice"
    );
    bench.subscription.close(BOUND).await;
    let dead: Vec<u64> = broker
        .drain(&dead_queue)
        .await
        .iter()
        .filter(|(body, _)| !body.is_empty())
        .map(|(body, _)| number(body))
        .collect();
    // A copy may be there twice, none is missing.
    assert_eq!(
        dead.iter().copied().collect::<BTreeSet<u64>>(),
        (1..=20).collect()
    );
    assert_eq!(broker.counts(&bench.queue).await, Some((0, 0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_that_fill_a_frame_are_shortened_in_a_copy() {
    let server = shared();
    let broker = Broker::connect(&server.url()).await;
    let mut bench = Bench::start(options(server), QueueType::Quorum);
    broker.declare(&bench.queue, "quorum").await;
    let filled = |size: usize| {
        let mut table = FieldTable::default();
        table.insert("tenant".into(), AMQPValue::LongString("t1".into()));
        table.insert(
            "large".into(),
            AMQPValue::LongString("x".repeat(size).as_str().into()),
        );
        BasicProperties::default().with_headers(table)
    };
    // The frame has room for the message, but not for what a copy adds.
    let large = (1..=5).map(|n| (body(n), filled(131_072 - 60 - n as usize)));
    broker.publish(&bench.queue, large).await;
    broker.publish(&bench.queue, [(body(6), filled(10))]).await;
    for delivery in bench.take(6).await {
        assert!(delivery.settle(dead()));
    }
    let all = || bench.events.settled_as("dead") == 6;
    eventually(BOUND, "all are dead", all).await;
    assert_eq!(bench.events.settled_as("shortened"), 5);
    assert_eq!(bench.events.settled_as("unconfirmed"), 0);
    assert_eq!(bench.events.settled_as("reconnected"), 0);
    bench.subscription.close(BOUND).await;
    let dead = broker.drain(&format!("{}.dead", bench.queue)).await;
    assert_eq!(dead.len(), 6);
    for (body, properties) in dead {
        let headers = properties.headers().clone().unwrap_or_default();
        let get = |name: &str| headers.inner().get(name).cloned();
        assert_eq!(get("tenant"), Some(AMQPValue::LongString("t1".into())));
        let shortened = (number(&body) < 6).then(|| AMQPValue::LongString("large".into()));
        assert_eq!(get(header::SHORTENED), shortened);
    }
}

/// The broker closes the channel over a copy that is larger than it takes, which it allowed when the message came. The
/// copies beside it are in their queues by then, and not confirmed: they are not published with it again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_closes_its_channel_multiplies_no_other() {
    const LARGE: u64 = 99;
    let (_turn, server) = turn().await;
    let broker = Broker::connect(&server.url()).await;
    let mut bench = Bench::start(options(server), QueueType::Quorum);
    broker.declare(&bench.queue, "quorum").await;
    bench.up().await;
    broker.publish(&bench.queue, messages(1..=20)).await;
    let large = format!("{{\"n\":{LARGE},\"text\":\"{}\"}}", "x".repeat(200_000));
    let large = [(large.into_bytes(), BasicProperties::default())];
    broker.publish(&bench.queue, large).await;
    let held = bench.take(21).await;
    server.limit_messages(100_000);
    for delivery in held {
        let is_large = number(&delivery.message().body) == LARGE;
        assert!(delivery.settle(if is_large { dead() } else { later() }));
    }
    let settled = || bench.events.settled_as("later") == 20;
    eventually(BOUND, "all others wait", settled).await;
    // One that waits comes back after a second, and its copy may exist twice.
    let mut came = BTreeMap::<u64, usize>::new();
    while came.len() < 20 {
        let delivery = bench.next().await;
        *came.entry(number(&delivery.message().body)).or_default() += 1;
        assert!(delivery.settle(Verdict::Done));
    }
    assert!(came.values().all(|times| *times <= 2), "{came:?}");
    assert_eq!(bench.events.settled_as("reconnected"), 0);
    server.limit_messages(128 << 20);
    let dead = || bench.events.settled_as("dead") == 1;
    eventually(BOUND, "the large one is a dead letter", dead).await;
    bench.subscription.close(BOUND).await;
}

/// Without the permission to write, copies wait; acknowledgements and other routes go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_permission_copies_wait_and_nothing_is_handed_out_again() {
    let server = shared();
    let broker = Broker::connect(&server.url()).await;
    let (user, options) = own_user(server);
    let mut bench = Bench::start(options, QueueType::Quorum);
    broker.declare(&bench.queue, "quorum").await;
    bench.up().await;
    broker.publish(&bench.queue, messages(1..=20)).await;
    let held = bench.take(20).await;
    server.set_permissions("/", &user, [".*", "^$", ".*"]);
    for delivery in held {
        let n = number(&delivery.message().body);
        assert!(delivery.settle(if n <= 10 { dead() } else { Verdict::Done }));
    }
    let tried = || bench.events.settled_as("unconfirmed") >= 20;
    eventually(BOUND, "the copies are refused", tried).await;
    let done = || bench.events.settled_as("done") == 10;
    eventually(BOUND, "the others are done", done).await;
    server.set_permissions("/", &user, [".*"; 3]);
    let dead = || bench.events.settled_as("dead") == 10;
    eventually(BOUND, "all copies are taken", dead).await;
    assert!(
        bench.deliveries.try_recv().is_err(),
        "none was handed out twice"
    );
    assert_eq!(
        bench.events.settled_as("reconnected"),
        0,
        "no connection ended"
    );
    bench.subscription.close(BOUND).await;
    let dead = numbers(&broker, &format!("{}.dead", bench.queue)).await;
    assert_eq!(dead, (1..=10).collect());
}

/// Another replica declares a queue that was deleted, while copies for it are on their way: those before it
/// come back, those behind it are in the queue. Each copy must be there once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_is_declared_between_two_copies_gets_none_twice() {
    const COUNT: u64 = 150;
    let server = shared();
    let broker = Broker::connect(&server.url()).await;
    let mut bench = Bench::start(options(server), QueueType::Classic);
    let dead_queue = format!("{}.dead", bench.queue);
    broker.declare(&bench.queue, "classic").await;
    bench.up().await;
    let mut settled = 0;
    let mut in_part = false;
    for round in 0..40 {
        let refused = bench.events.settled_as("unconfirmed");
        // Large ones: it takes a while to publish them.
        let large = (1..=COUNT).map(|n| {
            let mut body = body(n);
            body.resize(60_000, b' ');
            (body, BasicProperties::default())
        });
        broker.publish(&bench.queue, large).await;
        let taken = bench.take(COUNT as usize).await;
        broker.delete(&dead_queue).await;
        for delivery in taken {
            assert!(delivery.settle(dead()));
        }
        // This waits for nothing: each round declares it at another moment of the publishing.
        tokio::time::sleep(Duration::from_millis(4 * round)).await;
        broker.declare(&dead_queue, "classic").await;
        settled += COUNT;
        let all = || bench.events.settled_as("dead") == settled;
        eventually(BOUND, "all are dead", all).await;
        let there: Vec<u64> = broker
            .drain(&dead_queue)
            .await
            .iter()
            .map(|(body, _)| number(body))
            .collect();
        assert_eq!(there.len() as u64, COUNT, "round {round}");
        assert_eq!(
            BTreeSet::from_iter(there).len() as u64,
            COUNT,
            "round {round}"
        );
        let refused = bench.events.settled_as("unconfirmed") - refused;
        in_part = refused > 0 && refused < COUNT;
        if in_part {
            break;
        }
    }
    assert!(in_part, "it was never declared between two copies");
    bench.subscription.close(BOUND).await;
}

/// The result of the message, for a queue.
fn result_for(queue: &str) -> Option<Publication> {
    Some(Publication {
        routing_key: queue.to_owned(),
        body: Bytes::from_static(b"{}"),
        properties: Properties::default(),
        headers: Vec::new(),
        yields_to_call_result: false,
    })
}

/// The copy of a message that was set aside is published again if its confirm was lost, and may then exist twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_was_set_aside_twice_has_one_result_and_no_other_call() {
    let server = shared();
    let broker = Broker::connect(&server.url()).await;
    let (user, mut quick) = own_user(server);
    // It is set aside after a quarter of that.
    quick.settings.ack_timeout = Length(Duration::from_secs(20));
    let mut bench = Bench::start(quick, QueueType::Quorum);
    let results = format!("{}.out", bench.queue);
    // The longest that this route has.
    let wait = format!("{}.wait.32s", bench.queue);
    broker.declare(&bench.queue, "quorum").await;
    broker.publish(&bench.queue, messages([1])).await;
    let delivery = bench.next().await;
    assert!(delivery.settle_with_result(Verdict::Done, result_for(&results)));
    let aside = || bench.events.settled_as("later") == 1;
    eventually(BOUND, "it is set aside", aside).await;
    let copy = broker.drain(&wait).await;
    assert_eq!(copy.len(), 1);

    // The first copy has its verdict, and its session is lost before that is carried out.
    let tried = bench.events.settled_as("unconfirmed");
    broker.publish(&bench.queue, copy.clone()).await;
    let again = || bench.events.settled_as("unconfirmed") > tried;
    eventually(BOUND, "its result is tried", again).await;
    server.close_connections_of(&user);
    let redelivered = || bench.events.settled_as("redelivered") == 1;
    eventually(BOUND, "it came again", redelivered).await;
    broker.declare(&results, "quorum").await;
    // It may have been set aside once more.
    let done = || bench.events.settled_as("done") == 1;
    eventually(3 * BOUND, "it is done", done).await;

    broker.publish(&bench.queue, copy).await;
    eventually_async(BOUND, "the second copy is settled", || async {
        let left = broker.counts(&bench.queue).await;
        left == Some((0, 1)) && server.unacknowledged(&bench.queue) == 0
    })
    .await;
    assert!(bench.deliveries.try_recv().is_err(), "none is called again");
    bench.subscription.close(BOUND).await;
    for queue in [&bench.queue, &wait] {
        assert_eq!(broker.counts(queue).await, Some((0, 0)), "{queue}");
    }
    assert_eq!(broker.drain(&results).await.len(), 1);
}
