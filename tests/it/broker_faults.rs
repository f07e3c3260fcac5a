//! What becomes of messages when RabbitMQ fails: nothing is lost, nothing is acknowledged early.
mod arrivals;
mod bench;
mod copies;
mod neighbours;
mod ours;
mod parked;
mod restarts;
mod returns;
mod slow;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lapin::BasicProperties;
use sluiced_amqp::rabbit::RabbitOptions;
use sluiced_core::gate::Tap;
use sluiced_ports::queue::Verdict;
use sluiced_settings::text::Length;
use sluiced_settings::types::QueueType;
use tokio::sync::{Mutex, MutexGuard};

use crate::support::broker::Broker;
use crate::support::machine;
use crate::support::messages::{body, dead, number, options};
use crate::support::proxy::{Proxy, held_from_method, without_method};
use crate::support::rabbit::Rabbit;
use crate::support::wait::{eventually, eventually_async};
use bench::Bench;

/// A broker takes seconds to restart, more on a busy machine.
const BOUND: Duration = Duration::from_secs(60);

const PREFETCH: u16 = 200;

/// For a fault that hits the whole server: it is one that no other suite uses, and one test at a time has it.
async fn turn() -> (MutexGuard<'static, ()>, &'static Rabbit) {
    static TURN: Mutex<()> = Mutex::const_new(());
    let turn = TURN.lock().await;
    machine::share();
    show_warnings();
    static SERVER: OnceLock<Rabbit> = OnceLock::new();
    (turn, SERVER.get_or_init(Rabbit::start))
}

/// For a fault that hits queues, connections or a user of the test alone: the server that all tests share.
fn shared() -> &'static Rabbit {
    show_warnings();
    Rabbit::shared()
}

/// When a test fails.
fn show_warnings() {
    drop(
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::WARN)
            .with_test_writer()
            .try_init(),
    );
}

/// A user of the test's own, and the options of a replica that connects as this user.
fn own_user(server: &Rabbit) -> (String, RabbitOptions) {
    let user = format!("u-{}", uuid::Uuid::new_v4());
    let url = server.add_user(&user, "secret");
    (user, RabbitOptions::single(url.into()))
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

async fn numbers(broker: &Broker, queue: &str) -> BTreeSet<u64> {
    let all = broker.drain(queue).await;
    all.iter().map(|(body, _)| number(body)).collect()
}

const fn name(queue_type: QueueType) -> &'static str {
    match queue_type {
        QueueType::Classic => "classic",
        QueueType::Quorum => "quorum",
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_may_come_late_and_go() {
    let server = shared();
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
    bench.takes(2).await;
    assert_eq!(bench.subscription.close(BOUND).await.unsettled, 0);
    assert_eq!(numbers(&broker, &bench.queue).await, BTreeSet::new());
}

/// A subscription to a classic queue that gets no `basic.cancel`: RabbitMQ 4.0.5 at times sends none when such a queue
/// is deleted.
async fn untold() -> (Proxy, Bench) {
    const CANCEL: [u8; 4] = [0, 60, 0, 30];
    let silent = || Arc::new(AtomicBool::new(true));
    let filter = move || without_method(CANCEL, silent());
    let proxy = Proxy::filtering(shared().port(), filter).await;
    let options = RabbitOptions::single(proxy.amqp().into());
    (proxy, Bench::start(options, QueueType::Classic))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_is_not_told_of_its_end_is_replaced() {
    let (_proxy, mut bench) = untold().await;
    let broker = Broker::connect(&shared().url()).await;
    broker.declare(&bench.queue, "classic").await;
    bench.up().await;
    for number_of in 1..=2 {
        // While it is missing, and where it is made again at once.
        broker.publish(&bench.queue, messages([number_of])).await;
        bench.takes(number_of).await;
        broker.delete(&bench.queue).await;
        if number_of == 1 {
            bench.down("does not exist").await;
        }
        broker.declare(&bench.queue, "classic").await;
    }
    broker.publish(&bench.queue, messages([3])).await;
    bench.takes(3).await;
    assert_eq!(bench.subscription.close(BOUND).await.unsettled, 0);
}

/// A look at the queue before the consumer begins finds no consumer, as the one after its end does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_begins_and_ends_between_two_looks_is_replaced() {
    let (_proxy, mut bench) = untold().await;
    bench.subscription.set_tap(Tap::Closed);
    let broker = Broker::connect(&shared().url()).await;
    broker.declare(&bench.queue, "classic").await;
    broker.publish(&bench.queue, messages([1])).await;
    let looked = || bench.events.settled_as("ready counted") == 1;
    eventually(BOUND, "a look at the queue", looked).await;
    bench.subscription.set_tap(Tap::Open);
    bench.takes(1).await;
    broker.delete(&bench.queue).await;
    broker.declare(&bench.queue, "classic").await;
    broker.publish(&bench.queue, messages([2])).await;
    bench.takes(2).await;
    assert_eq!(bench.subscription.close(BOUND).await.unsettled, 0);
}

/// A busy broker begins a consumer after this side gave up waiting for it: nothing would read what it delivers, and
/// those messages would come again only after the acknowledgement timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_begins_late_holds_no_messages() {
    const CONSUMING: [u8; 4] = [0, 60, 0, 21];
    let server = shared();
    let held = Arc::new(AtomicBool::new(true));
    let holds = Arc::clone(&held);
    let filter = move || held_from_method(CONSUMING, Arc::clone(&holds));
    let proxy = Proxy::filtering(server.port(), filter).await;
    let broker = Broker::connect(&server.url()).await;
    let queue = format!("q-{}", uuid::Uuid::new_v4());
    broker.declare(&queue, "quorum").await;
    broker.publish(&queue, messages(1..=20)).await;
    let mut quick = RabbitOptions::single(proxy.amqp().into());
    quick.settings.connect_timeout = Length(Duration::from_secs(1));
    let mut bench = Bench::start_on(quick, QueueType::Quorum, queue, false);
    bench.down("did not answer basic.consume").await;
    held.store(false, Ordering::Relaxed);
    for delivery in bench.take(20).await {
        assert!(delivery.settle(Verdict::Done));
    }
    assert_eq!(bench.subscription.close(BOUND).await.unsettled, 0);
    assert_eq!(numbers(&broker, &bench.queue).await, BTreeSet::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_the_server_closes_is_rebuilt() {
    let server = shared();
    let (user, options) = own_user(server);
    let mut bench = Bench::start(options, QueueType::Quorum);
    let broker = Broker::connect(&server.url()).await;
    broker.declare(&bench.queue, "quorum").await;
    broker.publish(&bench.queue, messages([1])).await;
    let held = bench.next().await;
    server.close_connections_of(&user);
    let again = bench.next().await;
    assert!(held.is_stale());
    assert!(!held.settle(Verdict::Done));
    assert!(again.message().redelivered);
    assert!(again.settle(Verdict::Done));
    assert!(bench.events.settled_as("reconnected") >= 1);
    assert_eq!(bench.subscription.close(BOUND).await.unsettled, 0);
    assert_eq!(numbers(&broker, &bench.queue).await, BTreeSet::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_acknowledged_while_publishing_is_blocked() {
    let (_turn, server) = turn().await;
    let mut quick = options(server);
    quick.settings.confirm_timeout = Length(Duration::from_millis(500));
    let mut bench = Bench::start(quick, QueueType::Classic);
    let broker = Broker::connect(&server.url()).await;
    broker.declare(&bench.queue, "classic").await;
    broker.publish(&bench.queue, messages([1, 2])).await;
    let first = bench.next().await;
    let second = bench.next().await;
    server.memory_alarm(true);
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
    assert_eq!(server.unacknowledged(&bench.queue), 1);

    server.memory_alarm(false);
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
    let (_turn, server) = turn().await;
    let mut bench = Bench::start(options(server), QueueType::Classic);
    let broker = Broker::connect(&server.url()).await;
    broker.declare(&bench.queue, "classic").await;
    broker.publish(&bench.queue, messages([1])).await;
    let delivery = bench.next().await;
    server.memory_alarm(true);
    assert!(delivery.settle(dead()));
    let left = bench.subscription.close(Duration::from_secs(3)).await;
    assert_eq!((left.unsettled, left.given_back), (1, 0));
    server.memory_alarm(false);
    let broker = Broker::connect(&server.url()).await;
    eventually_async(BOUND, "it is back in its queue", || async {
        broker.counts(&bench.queue).await == Some((1, 0))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_queue_that_is_deleted_is_declared_again() {
    let server = shared();
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
async fn a_dead_letter_queue_with_other_settings_is_used_as_it_is() {
    let server = shared();
    let mut bench = Bench::start(options(server), QueueType::Quorum);
    let broker = Broker::connect(&server.url()).await;
    let dead_queue = format!("{}.dead", bench.queue);
    broker.declare(&dead_queue, "classic").await;
    broker.declare(&bench.queue, "quorum").await;
    broker.publish(&bench.queue, messages([1])).await;
    bench.up().await;
    assert!(bench.next().await.settle(dead()));
    bench.subscription.close(BOUND).await;
    assert_eq!(numbers(&broker, &dead_queue).await, [1].into());
}

/// A stream would keep its letters for ever: letters wait, everything else goes on, and the route says why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_queue_that_cannot_be_used_shows_early_and_stops_only_letters() {
    let server = shared();
    let mut bench = Bench::start(options(server), QueueType::Quorum);
    let broker = Broker::connect(&server.url()).await;
    let dead_queue = format!("{}.dead", bench.queue);
    broker.declare(&dead_queue, "stream").await;
    broker.declare(&bench.queue, "quorum").await;
    bench.down("exists with other settings").await;
    broker.publish(&bench.queue, messages([1, 2])).await;
    for delivery in bench.take(2).await {
        let n = number(&delivery.message().body);
        assert!(delivery.settle(if n == 1 { dead() } else { Verdict::Done }));
    }
    let done = || bench.events.settled_as("done") == 1;
    eventually(BOUND, "the other is done", done).await;
    broker.delete(&dead_queue).await;
    bench.up().await;
    let dead = || bench.events.settled_as("dead") == 1;
    eventually(BOUND, "the letter is there", dead).await;
    bench.subscription.close(BOUND).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_url_is_tried() {
    let server = shared();
    let closed = format!("amqp://127.0.0.1:{}", crate::support::port::free_port());
    let mut two = options(server);
    two.settings.urls = vec![closed.into(), server.url().into()];
    let bench = Bench::start(two, QueueType::Classic);
    let broker = Broker::connect(&server.url()).await;
    broker.declare(&bench.queue, "classic").await;
    bench.up().await;
    bench.subscription.close(BOUND).await;
}
