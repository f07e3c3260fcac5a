//! Each look for what is missing uses up a number of a channel, and here a connection has few of them. What one route
//! misses must not end the sessions and the copies of the others.

use super::config;
use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route};
use crate::support::messages::body;
use crate::support::rabbit::Rabbit;
use crate::support::recorder::Recorder;
use crate::support::wait::eventually;

/// So many channels a connection may have.
const CHANNELS: usize = 12;
/// What the log of the broker calls the connection that consumes. It tells of one that ends without a word.
const TO_CONSUME: &str = "(consume)";

/// The replica's user, and its password.
const USER: &str = "looks";
const PASSWORD: &str = "secret";

/// A broker with few channels for each connection, but that of the test.
async fn few_channels() -> (Rabbit, Broker) {
    let rabbit = Rabbit::start();
    let broker = Broker::connect(&rabbit.url()).await;
    rabbit.eval(&format!(
        "application:set_env(rabbit, channel_max, {CHANNELS})"
    ));
    rabbit.add_user(USER, PASSWORD);
    (rabbit, broker)
}

/// As the replica connects.
fn url(rabbit: &Rabbit) -> String {
    let user = format!("{USER}:{PASSWORD}");
    rabbit.url().replace("guest:guest", &user)
}

/// One queue is missing, and another one may not be read: both routes try again all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_route_that_cannot_consume_ends_no_session_of_another() {
    let [name, missing, forbidden] = ["looks-there", "looks-missing", "looks-forbidden"];
    let (rabbit, broker) = few_channels().await;
    for queue in [name, forbidden] {
        broker.declare(queue, "quorum").await;
    }
    rabbit.set_permissions("/", USER, [".*", ".*", "^looks-there"]);
    let downstream = Recorder::accepting().await;
    let routes = [name, missing, forbidden].map(|queue| Route::new(queue, downstream.address));
    let daemon = Daemon::start(&Config {
        rabbit: Some(url(&rabbit)),
        ..config(name, routes.to_vec())
    });
    let tried = |why: String| rabbit.said(&why) > CHANNELS;
    eventually(LONG, "they try more often than there are channels", || {
        tried(format!("no queue '{missing}'"))
            && tried(format!("access to queue '{forbidden}' in vhost"))
    })
    .await;
    broker
        .publish(name, [(body(1), lapin::BasicProperties::default())])
        .await;
    eventually(LONG, "delivered", || downstream.count() == 1).await;
    assert_eq!(rabbit.said(TO_CONSUME), 0, "{}", daemon.log());
    let refused = "the queue cannot be consumed";
    let log = daemon.stop(&[NEW_SCHEDULE, refused]).await;
    let lost = |line: &&str| line.contains(refused) && line.contains(&format!("\"{name}\""));
    assert_eq!(log.lines().find(lost), None);
}
