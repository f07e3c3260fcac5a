//! What becomes of messages when RabbitMQ fails: nothing is lost, nothing is acknowledged early.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use lapin::BasicProperties;
use sluiced::core::parking::Space;
use sluiced::ports::clock::Clock;
use sluiced::ports::link::Link;
use sluiced::ports::queue::{Delivery, Subscription, Tap, Verdict};
use sluiced::queue::rabbit::{RabbitOptions, RabbitQueue, RouteOptions};
use sluiced::settings::types::QueueType;
use tokio::sync::{Mutex, MutexGuard, mpsc};

use support::broker::Broker;
use support::messages::{Counted, body, dead, number, options};
use support::rabbit::Rabbit;
use support::wait::{eventually, eventually_async, within};

/// A broker takes seconds to restart, more on a busy machine.
const BOUND: Duration = Duration::from_secs(60);

const PREFETCH: u16 = 200;

/// The faults hit the whole server, so one test at a time has it.
async fn alone() -> (MutexGuard<'static, ()>, &'static Rabbit) {
    static TURN: Mutex<()> = Mutex::const_new(());
    let turn = TURN.lock().await;
    // Shown when a test fails; `RUST_LOG` says how much.
    drop(
        tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_test_writer()
            .try_init(),
    );
    (turn, Rabbit::shared())
}

struct Bench {
    subscription: Arc<dyn Subscription>,
    deliveries: mpsc::UnboundedReceiver<Delivery>,
    events: Arc<Counted>,
    queue: String,
}

impl Bench {
    /// Subscribes to a queue that need not exist, the tap open.
    fn start(options: RabbitOptions, queue_type: QueueType) -> Self {
        let queue = format!("q-{}", uuid::Uuid::new_v4());
        Self::start_on(options, queue_type, queue, false)
    }

    /// To that queue, parking or not.
    fn start_on(options: RabbitOptions, queue_type: QueueType, queue: String, parks: bool) -> Self {
        let events = Arc::new(Counted::default());
        let rabbit = RabbitQueue::new(options, Clock::start(), events.clone()).unwrap();
        let route = RouteOptions {
            route: "sms".to_owned(),
            queue: queue.clone(),
            declare: false,
            queue_type,
            prefetch: PREFETCH,
            parks,
            longest_wait: Duration::from_secs(60),
        };
        let subscription = rabbit.subscribe(route).unwrap();
        subscription.set_tap(Tap::Open);
        Self {
            deliveries: subscription.deliveries().unwrap(),
            subscription,
            events,
            queue,
        }
    }

    async fn next(&mut self) -> Delivery {
        support::messages::next(&mut self.deliveries, BOUND).await
    }

    async fn take(&mut self, count: usize) -> Vec<Delivery> {
        support::messages::take(&mut self.deliveries, count, BOUND).await
    }

    async fn up(&self) {
        let mut link = self.subscription.link();
        within(BOUND, "link up", link.wait_for(Link::is_up))
            .await
            .expect("the subscription lives");
    }

    /// Waits until the link is down for a reason that says `part`.
    async fn down(&self, part: &str) {
        let mut link = self.subscription.link();
        let says = |link: &Link| matches!(link, Link::Down(reason) if reason.contains(part));
        within(BOUND, part, link.wait_for(says))
            .await
            .expect("the subscription lives");
    }

    fn unacknowledged(&self, server: &Rabbit) -> u64 {
        let list = server.ctl(&["-q", "list_queues", "name", "messages_unacknowledged"]);
        list.lines()
            .find_map(|line| line.strip_prefix(&self.queue)?.trim().parse().ok())
            .unwrap_or(0)
    }
}

fn messages(
    numbers: impl IntoIterator<Item = u64>,
) -> impl IntoIterator<Item = (Vec<u8>, BasicProperties)> {
    numbers
        .into_iter()
        .map(|n| (body(n), BasicProperties::default()))
}

fn later() -> Verdict {
    Verdict::Later {
        delay: Duration::from_secs(1),
        headers: Vec::new(),
    }
}

fn dead_or_done(n: u64) -> Verdict {
    if n.is_multiple_of(10) {
        dead()
    } else {
        Verdict::Done
    }
}

async fn a_restart_loses_nothing(queue_type: QueueType, name: &str, restart_server: fn(&Rabbit)) {
    let (_turn, server) = alone().await;
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
                restart_server(Rabbit::shared());
            }));
            // The server dies with deliveries and verdicts on their way.
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

async fn numbers(broker: &Broker, queue: &str) -> BTreeSet<u64> {
    let all = broker.drain(queue).await;
    all.iter().map(|(body, _)| number(body)).collect()
}

fn crash(server: &Rabbit) {
    server.kill();
    server.boot();
}

fn restart(server: &Rabbit) {
    server.ctl(&["stop_app"]);
    server.ctl(&["start_app"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_loses_nothing_on_a_quorum_queue() {
    a_restart_loses_nothing(QueueType::Quorum, "quorum", restart).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_loses_nothing_on_a_classic_queue() {
    a_restart_loses_nothing(QueueType::Classic, "classic", crash).await;
}

/// The consumers of all channels. A quorum queue counts those too that are cancelled and hold messages.
fn consumers(server: &Rabbit) -> u64 {
    let counts = server.ctl(&["-q", "list_channels", "consumer_count"]);
    counts
        .lines()
        .filter_map(|line| line.trim().parse::<u64>().ok())
        .sum()
}

/// A quorum queue takes a few dozen commands of a channel at a time. What goes beyond waits in the channel,
/// and is lost with it. A broker that stood still for a moment has so many at once.
async fn a_broker_that_stood_still_forgets_no_acknowledgement(queue_type: QueueType) {
    let (_turn, server) = alone().await;
    let broker = Broker::connect(&server.url()).await;
    for parks in [false, true] {
        let queue = format!("q-{}", uuid::Uuid::new_v4());
        broker.declare(&queue, name(queue_type)).await;
        broker.publish(&queue, messages(1..=300)).await;
        let mut bench = Bench::start_on(options(server), queue_type, queue.clone(), parks);
        let mut held = bench.take(usize::from(PREFETCH)).await;
        // As a replica does when it stops: it consumes no more, and finishes what it began.
        bench.subscription.set_tap(Tap::Closed);
        eventually(BOUND, "nothing is consumed", || consumers(server) == 0).await;
        server.freeze();
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
        tokio::join!(closing, async { server.thaw() });
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_may_come_late_and_go() {
    let (_turn, server) = alone().await;
    let mut bench = Bench::start(options(server), QueueType::Classic);
    bench.down("does not exist").await;
    let broker = Broker::connect(&server.url()).await;
    broker.declare(&bench.queue, "classic").await;
    bench.up().await;
    broker.publish(&bench.queue, messages([1])).await;
    let held = bench.next().await;

    broker.delete(&bench.queue).await;
    bench.down("does not exist").await;
    assert!(held.is_stale());
    assert!(!held.settle(Verdict::Done));

    broker.declare(&bench.queue, "classic").await;
    broker.publish(&bench.queue, messages([2])).await;
    let delivery = bench.next().await;
    assert_eq!(number(&delivery.message().body), 2);
    assert!(delivery.settle(Verdict::Done));
    assert_eq!(bench.subscription.close(BOUND).await.unsettled, 0);
    assert_eq!(numbers(&broker, &bench.queue).await, BTreeSet::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_the_server_closes_is_rebuilt() {
    let (_turn, server) = alone().await;
    let mut bench = Bench::start(options(server), QueueType::Quorum);
    let broker = Broker::connect(&server.url()).await;
    broker.declare(&bench.queue, "quorum").await;
    broker.publish(&bench.queue, messages([1])).await;
    let held = bench.next().await;
    server.ctl(&["close_all_connections", "maintenance"]);
    let again = bench.next().await;
    assert!(held.is_stale());
    assert!(!held.settle(Verdict::Done));
    assert!(again.message().redelivered);
    assert!(again.settle(Verdict::Done));
    assert!(bench.events.settled_as("reconnected") >= 1);
    assert_eq!(bench.subscription.close(BOUND).await.unsettled, 0);
    let broker = Broker::connect(&server.url()).await;
    assert_eq!(numbers(&broker, &bench.queue).await, BTreeSet::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_acknowledged_while_publishing_is_blocked() {
    let (_turn, server) = alone().await;
    let quick = RabbitOptions {
        confirm_timeout: Duration::from_millis(500),
        ..options(server)
    };
    let mut bench = Bench::start(quick, QueueType::Classic);
    let broker = Broker::connect(&server.url()).await;
    broker.declare(&bench.queue, "classic").await;
    broker.publish(&bench.queue, messages([1, 2])).await;
    let first = bench.next().await;
    let second = bench.next().await;
    server.ctl(&["set_vm_memory_high_watermark", "0"]);
    assert!(first.settle(later()));
    eventually(BOUND, "a copy is not confirmed", || {
        bench.events.settled_as("unconfirmed") >= 2
    })
    .await;
    // Acknowledgements go their own way.
    assert!(second.settle(Verdict::Done));
    eventually(BOUND, "the other is done", || {
        bench.events.settled_as("done") == 1
    })
    .await;
    assert_eq!(bench.events.settled_as("later"), 0);
    assert_eq!(bench.unacknowledged(server), 1);

    server.ctl(&["set_vm_memory_high_watermark", "absolute", "2GB"]);
    let again = bench.next().await;
    assert_eq!(number(&again.message().body), 1);
    eventually(BOUND, "the copy is confirmed", || {
        bench.events.settled_as("later") == 1
    })
    .await;
    assert!(again.settle(Verdict::Done));
    bench.subscription.close(BOUND).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_verdict_that_cannot_be_made_safe_leaves_the_message_in_its_queue() {
    let (_turn, server) = alone().await;
    let mut bench = Bench::start(options(server), QueueType::Classic);
    let broker = Broker::connect(&server.url()).await;
    broker.declare(&bench.queue, "classic").await;
    broker.publish(&bench.queue, messages([1])).await;
    let delivery = bench.next().await;
    server.ctl(&["set_vm_memory_high_watermark", "0"]);
    assert!(delivery.settle(dead()));
    let left = bench.subscription.close(Duration::from_secs(3)).await;
    assert_eq!((left.unsettled, left.given_back), (1, 0));
    server.ctl(&["set_vm_memory_high_watermark", "absolute", "2GB"]);
    let broker = Broker::connect(&server.url()).await;
    eventually_async(BOUND, "it is back in its queue", || async {
        broker.counts(&bench.queue).await == Some((1, 0))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_queue_that_is_deleted_is_declared_again() {
    let (_turn, server) = alone().await;
    let mut bench = Bench::start(options(server), QueueType::Quorum);
    let broker = Broker::connect(&server.url()).await;
    broker.declare(&bench.queue, "quorum").await;
    broker.publish(&bench.queue, messages([1])).await;
    assert!(bench.next().await.settle(later()));
    let delivery = bench.next().await;
    broker.delete(&format!("{}.wait.1s", bench.queue)).await;
    assert!(delivery.settle(later()));
    let delivery = bench.next().await;
    assert!(!delivery.message().redelivered, "it went through the queue");
    assert_eq!(bench.events.settled_as("unconfirmed"), 1);
    assert!(delivery.settle(Verdict::Done));
    bench.subscription.close(BOUND).await;
    assert_eq!(numbers(&broker, &bench.queue).await, BTreeSet::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_queue_with_other_settings_gives_back_in_the_end() {
    let (_turn, server) = alone().await;
    let impatient = RabbitOptions {
        ack_timeout: Duration::from_secs(4),
        ..options(server)
    };
    let mut bench = Bench::start(impatient, QueueType::Classic);
    let broker = Broker::connect(&server.url()).await;
    broker.declare(&bench.queue, "classic").await;
    broker
        .declare(&format!("{}.wait.1s", bench.queue), "classic")
        .await;
    broker.publish(&bench.queue, messages([1])).await;
    assert!(bench.next().await.settle(later()));
    let again = bench.next().await;
    assert!(again.message().redelivered, "it was given back");
    assert!(bench.events.settled_as("unconfirmed") >= 2);
    assert_eq!(bench.events.settled_as("later"), 0);
    // The dead-letter queue is not affected.
    assert!(again.settle(dead()));
    bench.subscription.close(BOUND).await;
    let dead = numbers(&broker, &format!("{}.dead", bench.queue)).await;
    assert_eq!(dead, BTreeSet::from([1]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_queue_with_other_settings_shows_early() {
    let (_turn, server) = alone().await;
    let bench = Bench::start(options(server), QueueType::Quorum);
    let broker = Broker::connect(&server.url()).await;
    broker
        .declare(&format!("{}.dead", bench.queue), "classic")
        .await;
    broker.declare(&bench.queue, "quorum").await;
    bench.down("exists with other settings").await;
    broker.delete(&format!("{}.dead", bench.queue)).await;
    bench.up().await;
    bench.subscription.close(BOUND).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_url_is_tried() {
    let (_turn, server) = alone().await;
    let nobody = format!("amqp://127.0.0.1:{}", support::process::free_port());
    let two = RabbitOptions {
        urls: vec![nobody.into(), server.url().into()],
        ..options(server)
    };
    let bench = Bench::start(two, QueueType::Classic);
    let broker = Broker::connect(&server.url()).await;
    broker.declare(&bench.queue, "classic").await;
    bench.up().await;
    bench.subscription.close(BOUND).await;
}

/// Parks those that come, and answers when they are.
async fn park(bench: &mut Bench, count: usize, space: Space) {
    for delivery in bench.take(count).await {
        let headers = Vec::new();
        assert!(delivery.settle(Verdict::Parked { space, headers }));
    }
    let parked = || bench.events.settled_as("parked") == count as u64;
    eventually(BOUND, "they are parked", parked).await;
}

fn parked_queue(queue: &str, space: Space) -> String {
    format!("{queue}.parked.{}", space.label())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_stands_parked_survives_the_broker_and_the_end_of_parking() {
    let (_turn, server) = alone().await;
    for queue_type in [QueueType::Classic, QueueType::Quorum] {
        let space = Space::of(5);
        let broker = Broker::connect(&server.url()).await;
        let queue = format!("q-{}", uuid::Uuid::new_v4());
        broker.declare(&queue, name(queue_type)).await;
        broker.publish(&queue, messages(1..=40)).await;
        let mut bench = Bench::start_on(options(server), queue_type, queue.clone(), true);
        park(&mut bench, 40, space).await;
        // Some are out when the broker dies, and come again.
        let held = bench.take(5).await;
        let restart = tokio::task::spawn_blocking(|| {
            Rabbit::shared().kill();
            Rabbit::shared().boot();
        });
        restart.await.unwrap();
        eventually(BOUND, "the session is gone", || {
            held.iter().all(Delivery::is_stale)
        })
        .await;
        bench.up().await;
        bench.subscription.close(BOUND).await;

        // Without parking, what was left behind is consumed all the same; and only that.
        let mut bench = Bench::start_on(options(server), queue_type, queue.clone(), false);
        // Acknowledgements that the broker had not written down are lost with it: some come twice.
        let mut seen = BTreeSet::new();
        done(&mut bench, &mut seen, 25).await;
        assert_eq!(bench.subscription.parked(), None, "nothing more is parked");
        let broker = Broker::connect(&server.url()).await;
        let left = broker.counts(&parked_queue(&queue, space)).await.unwrap();
        assert_eq!(left.1, 1, "one consumer");
        done(&mut bench, &mut seen, 40).await;
        bench.subscription.close(BOUND).await;
    }
}

/// Takes and settles until so many different ones were seen.
async fn done(bench: &mut Bench, seen: &mut BTreeSet<u64>, count: usize) {
    while seen.len() < count {
        let delivery = bench.next().await;
        seen.insert(number(&delivery.message().body));
        assert!(delivery.settle(Verdict::Done));
    }
}

const fn name(queue_type: QueueType) -> &'static str {
    match queue_type {
        QueueType::Classic => "classic",
        QueueType::Quorum => "quorum",
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parked_queue_that_is_deleted_is_made_again() {
    let (_turn, server) = alone().await;
    let space = Space::of(2);
    let broker = Broker::connect(&server.url()).await;
    let queue = format!("q-{}", uuid::Uuid::new_v4());
    broker.declare(&queue, "classic").await;
    let mut bench = Bench::start_on(options(server), QueueType::Classic, queue.clone(), true);
    bench.up().await;
    let link = bench.subscription.link();
    eventually(BOUND, "all are consumed", || {
        bench.subscription.parked() == Some(0)
    })
    .await;
    broker.delete(&parked_queue(&queue, space)).await;
    bench.down("does not exist").await;
    eventually(BOUND, "it is up again", || link.borrow().is_up()).await;
    broker.publish(&queue, messages(1..=3)).await;
    park(&mut bench, 3, space).await;
    done(&mut bench, &mut BTreeSet::new(), 3).await;
    bench.subscription.close(BOUND).await;
}
