//! Queues of ours on brokers that others set up: limits, rights, policies, operators that delete and purge.

use std::time::Duration;

use lapin::types::{AMQPValue, FieldTable};
use sluiced_amqp::rabbit::letters::Letters;
use sluiced_core::parking::ParkedQueue;
use sluiced_ports::link::Link;

use super::*;

/// A virtual host of the test's own, and the options of a replica there.
fn own_vhost(server: &Rabbit) -> (String, String, RabbitOptions) {
    let name = format!("v-{}", uuid::Uuid::new_v4());
    let url = server.add_vhost_for(&name, "secret");
    (name, url.clone(), RabbitOptions::single(url.into()))
}

/// The arguments of a wait queue for one second, as the documentation names them.
fn of_a_wait_queue(work: &str) -> FieldTable {
    let text = |text: &str| AMQPValue::LongString(text.into());
    let mut table = FieldTable::default();
    for (name, value) in [
        ("x-message-ttl", AMQPValue::LongLongInt(1000)),
        ("x-dead-letter-exchange", text("")),
        ("x-dead-letter-routing-key", text(work)),
        ("x-dead-letter-strategy", text("at-least-once")),
        ("x-overflow", text("reject-publish")),
    ] {
        table.insert(name.into(), value);
    }
    table
}

fn waits(seconds: u64) -> Verdict {
    Verdict::Later {
        delay: Duration::from_secs(seconds),
        headers: Vec::new(),
    }
}

/// Before any queue of ours exists. Messages that need none go; the others go once there is room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_of_queues_stops_only_what_needs_one() {
    let server = shared();
    let (vhost, url, options) = own_vhost(server);
    let broker = Broker::connect(&url).await;
    broker.declare("sms", "quorum").await;
    server.limit_queues(&vhost, 1);
    let mut bench = Bench::start_on(options, QueueType::Quorum, "sms".to_owned(), true);
    bench.down("queue limit in vhost").await;
    let link = bench.subscription.link().borrow().clone();
    assert!(
        matches!(&link, Link::Down(why) if why.contains("all others go on")),
        "{link:?}"
    );
    assert_eq!(bench.subscription.parked(), None, "nothing can be parked");
    broker.publish("sms", messages(1..=30)).await;
    for delivery in bench.take(30).await {
        let verdict = match number(&delivery.message().body) {
            n if n <= 10 => dead(),
            n if n <= 20 => waits(1),
            _ => Verdict::Done,
        };
        assert!(delivery.settle(verdict));
    }
    let done = || bench.events.settled_as("done") == 10;
    eventually(BOUND, "the others are done", done).await;
    assert_eq!(bench.events.settled_as("dead"), 0);
    server.limit_queues(&vhost, -1);
    for delivery in bench.take(10).await {
        assert!(delivery.settle(Verdict::Done));
    }
    let dead = || bench.events.settled_as("dead") == 10;
    eventually(BOUND, "the letters are there", dead).await;
    bench.up().await;
    let parks = || bench.subscription.parked() == Some(0);
    eventually(BOUND, "it can park", parks).await;
    bench.subscription.close(BOUND).await;
    assert_eq!(numbers(&broker, "sms.dead").await, (1..=10).collect());
}

/// All queues were made by an operator, and the user may only read and write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_that_were_made_beforehand_need_no_right_to_declare() {
    let server = shared();
    let (name, url, options) = own_vhost(server);
    let broker = Broker::connect(&url).await;
    for queue in ["sms", "sms.dead"] {
        broker.declare(queue, "quorum").await;
    }
    let arguments = of_a_wait_queue("sms");
    broker
        .declare_with("sms.wait.1s", "quorum", arguments)
        .await;
    server.set_permissions(&name, &name, ["^$", ".*", ".*"]);
    let mut bench = Bench::start_on(options, QueueType::Quorum, "sms".to_owned(), false);
    bench.up().await;
    broker.publish("sms", messages(1..=4)).await;
    for delivery in bench.take(4).await {
        let verdict = match number(&delivery.message().body) {
            1 => dead(),
            2 => waits(1),
            // Its queue was forgotten.
            3 => waits(2),
            _ => Verdict::Done,
        };
        assert!(delivery.settle(verdict));
    }
    let again = bench.next().await;
    assert_eq!(number(&again.message().body), 2);
    assert!(again.settle(Verdict::Done));
    bench
        .down("`sms.wait.2s` does not exist, and the user may not declare it")
        .await;
    let settled = || bench.events.settled_as("done") == 2 && bench.events.settled_as("dead") == 1;
    eventually(BOUND, "the others are settled", settled).await;
    server.set_permissions(&name, &name, [".*"; 3]);
    let again = bench.next().await;
    assert_eq!(number(&again.message().body), 3);
    assert!(again.settle(Verdict::Done));
    bench.up().await;
    bench.subscription.close(BOUND).await;
}

/// Parked queues that the user may not read, whether the route parks or an earlier configuration left them: the session
/// would lose its channel over a consumer of one, and repeat its calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parked_queues_that_may_not_be_read_end_no_session() {
    let server = shared();
    for parks in [true, false] {
        let (name, url, options) = own_vhost(server);
        let broker = Broker::connect(&url).await;
        let parked = format!("sms.parked.{}", ParkedQueue::of(0).label());
        for queue in ["sms", &parked] {
            broker.declare(queue, "quorum").await;
        }
        server.set_permissions(&name, &name, [".*", ".*", "^sms$"]);
        let mut bench = Bench::start_on(options, QueueType::Quorum, "sms".to_owned(), parks);
        broker.publish("sms", messages(1..=2)).await;
        let held = bench.next().await;
        assert!(bench.next().await.settle(Verdict::Done));
        if parks {
            bench
                .down("is there, and the user may not consume it")
                .await;
        }
        server.set_permissions(&name, &name, [".*"; 3]);
        eventually_async(BOUND, "it is consumed too", || async {
            let counts = broker.counts(&parked).await;
            counts.is_some_and(|(_, consumers)| consumers == 1)
        })
        .await;
        bench.up().await;
        assert!(!held.is_stale(), "the session is the first one");
        assert!(held.settle(Verdict::Done));
        bench.subscription.close(BOUND).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_queue_that_is_deleted_is_reported_with_what_it_held() {
    let server = shared();
    let mut bench = Bench::start(options(server), QueueType::Quorum);
    let broker = Broker::connect(&server.url()).await;
    broker.declare(&bench.queue, "quorum").await;
    broker.publish(&bench.queue, messages(1..=16)).await;
    for delivery in bench.take(16).await {
        assert!(delivery.settle(waits(60)));
    }
    let later = || bench.events.settled_as("later") == 16;
    eventually(BOUND, "all of them wait", later).await;
    broker.delete(&format!("{}.wait.32s", bench.queue)).await;
    let reported = || bench.events.settled_as("vanished") > 0;
    eventually(BOUND, "it is reported", reported).await;
    assert_eq!(bench.events.settled_as("vanished"), 16);
    bench.subscription.close(BOUND).await;
}

/// Nothing is lost, but what deleted it will delete the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_is_deleted_while_it_is_empty_is_reported_too() {
    let server = shared();
    let mut bench = Bench::start(options(server), QueueType::Quorum);
    let broker = Broker::connect(&server.url()).await;
    broker.declare(&bench.queue, "quorum").await;
    broker.publish(&bench.queue, messages(1..=1)).await;
    assert!(bench.next().await.settle(waits(1)));
    let back = bench.next().await;
    assert!(back.settle(Verdict::Done));
    for seconds in [1, 2] {
        broker
            .delete(&format!("{}.wait.{seconds}s", bench.queue))
            .await;
    }
    let reported = || bench.events.settled_as("gone") > 0;
    eventually(BOUND, "it is reported", reported).await;
    assert_eq!(bench.events.settled_as("vanished"), 0);
    bench.subscription.close(BOUND).await;
}

/// It is noticed by the next copy already, which makes the queue again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_is_made_again_is_reported_too() {
    let server = shared();
    let mut bench = Bench::start(options(server), QueueType::Quorum);
    let broker = Broker::connect(&server.url()).await;
    broker.declare(&bench.queue, "quorum").await;
    for round in 1..=2 {
        broker.publish(&bench.queue, messages(1..=3)).await;
        for delivery in bench.take(3).await {
            assert!(delivery.settle(dead()));
        }
        let dead = || bench.events.settled_as("dead") == 3 * round;
        eventually(BOUND, "the letters are there", dead).await;
        if round == 1 {
            broker.delete(&format!("{}.dead", bench.queue)).await;
        }
    }
    assert_eq!(bench.events.settled_as("vanished"), 3);
    bench.subscription.close(BOUND).await;
}

/// Dead letters that an operator purges are an event; those that `sluiced dead` takes are none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_of_dead_letters_is_reported_and_a_reader_is_not() {
    let server = shared();
    let broker = Broker::connect(&server.url()).await;
    let mut bench = Bench::start(options(server), QueueType::Quorum);
    let dead_queue = format!("{}.dead", bench.queue);
    broker.declare(&bench.queue, "quorum").await;
    broker.publish(&bench.queue, messages(1..=12)).await;
    for delivery in bench.take(12).await {
        assert!(delivery.settle(dead()));
    }
    let counted = |count| {
        let events = &bench.events;
        move || events.settled_as("dead counted") == count
    };
    eventually(BOUND, "the letters are counted", counted(12)).await;

    let mut letters = Letters::open(&options(server), &dead_queue)
        .await
        .unwrap()
        .unwrap();
    let mut taken = Vec::new();
    for _ in 0..5 {
        taken.push(letters.next().await.unwrap().unwrap());
    }
    for letter in taken {
        letters.discard(letter).await.unwrap();
    }
    assert_eq!(letters.close().await.unwrap(), 7);
    eventually(BOUND, "fewer are counted", counted(7)).await;
    assert_eq!(bench.events.settled_as("vanished"), 0);

    broker.delete(&format!("{dead_queue}.read")).await;
    broker.purge(&dead_queue).await;
    let reported = || bench.events.settled_as("vanished") > 0;
    eventually(BOUND, "it is reported", reported).await;
    assert_eq!(bench.events.settled_as("vanished"), 7);
    bench.subscription.close(BOUND).await;
}

/// A quorum queue without a leader counts nothing: its letters are there, and are not reported as purged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_whose_queue_has_no_leader_are_not_reported_as_purged() {
    let (_turn, server) = turn().await;
    let broker = Broker::connect(&server.url()).await;
    let mut bench = Bench::start(options(server), QueueType::Quorum);
    let dead_queue = format!("{}.dead", bench.queue);
    broker.declare(&bench.queue, "quorum").await;
    broker.publish(&bench.queue, messages(1..=3)).await;
    for delivery in bench.take(3).await {
        assert!(delivery.settle(dead()));
    }
    let counted = |count| {
        let events = &bench.events;
        move || events.settled_as("dead counted") == count
    };
    eventually(BOUND, "the letters are counted", counted(3)).await;
    server.stop_quorum_queue(&dead_queue);
    let looks = || bench.events.settled_as("looks at dead letters");
    let before = looks();
    eventually(BOUND, "it is counted again", || looks() > before + 1).await;
    assert_eq!(bench.events.settled_as("vanished"), 0);
    bench.subscription.close(BOUND).await;
}

/// A policy that deletes what is unused. The times are the subject of this test: the messages stay for longer than
/// that, and the renewal of quorum queues, which is every ten minutes, is every second here. Classic queues are looked
/// at every ten seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_deletes_unused_queues_takes_no_messages() {
    let server = shared();
    let broker = Broker::connect(&server.url()).await;
    let mut renewing = options(server);
    renewing.renew = Duration::from_secs(1);
    let mut benches = Vec::new();
    for (queue_type, expires) in [(QueueType::Quorum, 5_000), (QueueType::Classic, 15_000)] {
        let mut bench = Bench::start(renewing.clone(), queue_type);
        let policy = format!("expires-{}", bench.queue);
        let ours = format!(r"{}\..*", bench.queue);
        server.set_policy(&policy, &ours, &format!("{{\"expires\":{expires}}}"));
        broker.declare(&bench.queue, name(queue_type)).await;
        broker.publish(&bench.queue, messages(1..=5)).await;
        for delivery in bench.take(5).await {
            let n = number(&delivery.message().body);
            // For 16 seconds each.
            assert!(delivery.settle(if n == 1 { dead() } else { waits(31) }));
        }
        benches.push((bench, policy));
    }
    for (mut bench, policy) in benches {
        for delivery in bench.take(4).await {
            assert!(!delivery.message().redelivered);
            assert!(delivery.settle(Verdict::Done));
        }
        assert_eq!(bench.events.settled_as("vanished"), 0);
        bench.subscription.close(BOUND).await;
        server.clear_policy(&policy);
        let dead = numbers(&broker, &format!("{}.dead", bench.queue)).await;
        assert_eq!(dead, [1].into());
    }
}

/// A policy that bounds queues: what does not fit waits, nothing is dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_bounds_queues_drops_no_letter() {
    let server = shared();
    let broker = Broker::connect(&server.url()).await;
    for queue_type in [QueueType::Quorum, QueueType::Classic] {
        let mut bench = Bench::start(options(server), queue_type);
        let policy = format!("few-{}", bench.queue);
        let ours = format!(r"{}\..*", bench.queue);
        server.set_policy(&policy, &ours, r#"{"max-length":3}"#);
        broker.declare(&bench.queue, name(queue_type)).await;
        // A quorum queue takes more than that from a channel that does not know yet that it is full.
        let mut settled = 0;
        while bench.events.settled_as("unconfirmed") == 0 {
            broker
                .publish(&bench.queue, messages(settled + 1..=settled + 5))
                .await;
            for delivery in bench.take(5).await {
                assert!(delivery.settle(dead()));
            }
            settled += 5;
            let decided = || {
                bench.events.settled_as("dead") == settled
                    || bench.events.settled_as("unconfirmed") > 0
            };
            eventually(BOUND, "they are dead, or refused", decided).await;
            assert!(settled < 100, "none is refused");
        }
        server.clear_policy(&policy);
        let dead = || bench.events.settled_as("dead") == settled;
        eventually(BOUND, "all are dead", dead).await;
        bench.subscription.close(BOUND).await;
        let dead = numbers(&broker, &format!("{}.dead", bench.queue)).await;
        assert_eq!(dead, (1..=settled).collect());
    }
}
