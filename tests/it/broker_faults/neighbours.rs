//! Routes share their connections: a route that ends must not end the channels of the others.

use sluiced_ports::queue::Delivery;
use tokio::time::sleep;

use crate::support::broker::Broker;
use crate::support::messages::options;
use crate::support::proxy::{Mode, Proxy};
use crate::support::wait::eventually;

use super::bench::Bench;
use super::*;

/// An answer of the broker takes twice this: time enough to end while one is awaited.
const WAY: Duration = Duration::from_millis(10);
/// Each route ends this much later than the one before, as they count their queues for a second or so.
const LATER: Duration = Duration::from_millis(7);
const ROUTES: u32 = 24;

/// A quorum queue without a leader that answers: the broker ends the whole connection of a client that consumes it, and
/// shows nothing before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_ends_its_connection_ends_that_of_others_once_at_most() {
    let (_turn, server) = turn().await;
    let broker = Broker::connect(&server.url()).await;
    let mut stays = Bench::start(options(server), QueueType::Quorum);
    broker.declare(&stays.queue, "quorum").await;
    let broken = format!("{}-broken", stays.queue);
    broker.declare(&broken, "quorum").await;
    broker.publish(&stays.queue, messages(1..=20)).await;
    drop(stays.take(1).await);
    server.stop_quorum_queue(&broken);
    let breaks = stays.beside(broken);
    breaks.down("INTERNAL_ERROR").await;
    // Each try opens a session and loses it: that is seen as two changes, or as one.
    let mut link = breaks.subscription.link();
    for _ in 0..4 {
        let changed = tokio::time::timeout(BOUND, link.changed()).await;
        changed.expect("it is tried again").expect("it lives");
    }
    let ended = stays.events.settled_as("reconnected");
    assert!(ended <= 1, "{ended} times");
    stays.up().await;
    breaks.subscription.close(BOUND).await;
    stays.subscription.close(BOUND).await;
}

/// The broker closes the channel if a queue that is looked for on it does not exist, and the end of a
/// route closes it too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_route_that_ends_while_it_counts_leaves_the_others_their_connection() {
    let server = shared();
    let proxy = Proxy::to(server.port()).await;
    proxy.set(Mode::Delay(WAY, Duration::ZERO));
    let mut far = options(server);
    far.settings.urls = vec![proxy.amqp().into()];
    let broker = Broker::connect(&server.url()).await;
    let mut stays = Bench::start(far, QueueType::Classic);
    broker.declare(&stays.queue, "classic").await;
    broker.publish(&stays.queue, messages(1..=20)).await;
    let held: Vec<Delivery> = stays.take(20).await;
    for number in 0..ROUTES {
        let queue = format!("{}-{number}", stays.queue);
        broker.declare(&queue, "classic").await;
        let ends = stays.beside(queue);
        ends.up().await;
        // This waits for nothing: the moments are to differ.
        sleep(number * LATER).await;
        ends.subscription.close(BOUND).await;
        assert_eq!(stays.events.settled_as("reconnected"), 0, "route {number}");
    }
    for delivery in held {
        assert!(delivery.settle(Verdict::Done), "its channel lives");
    }
    let all = || stays.events.settled_as("done") == 20;
    eventually(BOUND, "all are done", all).await;
    assert_eq!(stays.events.settled_as("redelivered"), 0);
    stays.subscription.close(BOUND).await;
    assert_eq!(broker.counts(&stays.queue).await, Some((0, 0)));
}
