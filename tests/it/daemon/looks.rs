//! Each look for what is missing uses up a number of a channel, and here a connection has few of them. What one route
//! misses must not end the sessions and the copies of the others.

use sluiced_pdu::{Command, Message};
use sluiced_provider::{Behaviour, Provider};

use super::config;
use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route};
use crate::support::messages::body;
use crate::support::rabbit::Rabbit;
use crate::support::recorder::{Recorder, Reply};
use crate::support::wait::{eventually, eventually_async};

/// This many channels a connection may have.
const CHANNELS: usize = 12;
/// What the log of the broker calls connections of two purposes. It tells of those that end without a word.
const TO_CONSUME: &str = "(consume)";
const TO_PUBLISH: &str = "(publish)";
const AGAIN: &str = "copies are not confirmed";
const UNUSABLE: &str = "a queue cannot be used";
/// This many messages, each of which is called by itself.
const MESSAGES: u64 = 60;

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

/// Calls one message after the other. Each has a copy or a result without a place: all of them wait, and no connection
/// has ended for that.
async fn all_wait(route: Route, calls: &Recorder, (rabbit, broker): &(Rabbit, Broker)) -> Daemon {
    let name = route.name.clone();
    broker.declare(&name, "quorum").await;
    let messages = (1..=MESSAGES).map(|n| (body(n), lapin::BasicProperties::default()));
    broker.publish(&name, messages).await;
    let mut daemon = Daemon::start(&Config {
        rabbit: Some(url(rabbit)),
        rate: "20/1s".to_owned(),
        ..config(&name, vec![route])
    });
    let all = || calls.count() as u64 == MESSAGES;
    eventually(LONG, "all are called once", all).await;
    let waiting = format!("sluiced_unconfirmed_total{{route=\"{name}\"}}");
    assert!(daemon.metric(&waiting).await >= MESSAGES as f64 / 2.0);
    assert_eq!(rabbit.said(TO_PUBLISH), 0, "{}", daemon.log());
    daemon
}

/// Each message has a result for an exchange.
fn with_results(name: &str, exchange: &str, downstream: &Recorder) -> Route {
    let mut route = Route::new(name, downstream.address);
    route.keys = format!("prefetch = {MESSAGES}\n");
    route.tables =
        format!("[routes.{name}.results]\nexchange = \"{exchange}\"\nrouting_key = \"sms\"\n");
    route
}

/// All results are in their queue, and nothing is left of the messages.
async fn all_have_results(daemon: Daemon, broker: &Broker, name: &str, into: &str) {
    eventually_async(LONG, "all results are there", || async {
        broker.counts(into).await == Some((MESSAGES as u32, 0))
    })
    .await;
    daemon.stop(&[NEW_SCHEDULE, AGAIN]).await;
    assert_eq!(broker.counts(name).await, Some((0, 0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_without_an_exchange_end_no_connection() {
    let (name, exchange, into) = ("looks-results", "looks-none", "looks-results.out");
    let servers = few_channels().await;
    let downstream = Recorder::accepting().await;
    let route = with_results(name, exchange, &downstream);
    let daemon = all_wait(route, &downstream, &servers).await;
    let (_, broker) = &servers;
    broker.declare(into, "quorum").await;
    broker.fanout(exchange, into).await;
    all_have_results(daemon, broker, name, into).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_that_may_not_be_published_end_no_connection() {
    let (name, exchange, into) = ("looks-refused", "looks-closed", "looks-refused.out");
    let servers = few_channels().await;
    let (rabbit, broker) = &servers;
    broker.declare(into, "quorum").await;
    broker.fanout(exchange, into).await;
    rabbit.set_permissions("/", USER, [".*", "^amq.default$", ".*"]);
    let downstream = Recorder::accepting().await;
    let route = with_results(name, exchange, &downstream);
    let daemon = all_wait(route, &downstream, &servers).await;
    rabbit.set_permissions("/", USER, [".*"; 3]);
    all_have_results(daemon, broker, name, into).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_queue_with_other_settings_ends_no_connection() {
    let (name, wait) = ("looks-waits", "looks-waits.wait.1s");
    let servers = few_channels().await;
    let (_, broker) = &servers;
    broker.declare(wait, "quorum").await;
    let fails_once = |repeat| Reply::status(if repeat == 0 { 503 } else { 202 });
    let downstream = Recorder::start(move |call| fails_once(call.repeat)).await;
    let mut route = Route::new(name, downstream.address);
    route.keys = format!(
        "prefetch = {MESSAGES}\nretry = {{ base = \"1s\", max = \"1s\" }}\nmax_hold = \"20ms\"\n"
    );
    route.downstream = "breaker = { failures = 0, dead_letters = 0 }\n".to_owned();
    let daemon = all_wait(route, &downstream, &servers).await;
    broker.delete(wait).await;
    let again = || downstream.count() as u64 == 2 * MESSAGES;
    eventually(LONG, "all are called again", again).await;
    daemon.stop(&[NEW_SCHEDULE, AGAIN, UNUSABLE]).await;
    assert_eq!(broker.counts(name).await, Some((0, 0)));
}

/// A message from a phone, as a centre delivers it.
fn from_phone(sequence: u32) -> Vec<u8> {
    let sms = Message {
        text: b"STOP".to_vec(),
        ..Message::default()
    };
    sms.write(Command::DELIVER_SM, sequence).unwrap()
}

/// The centre delivers again what was not confirmed, as often as it likes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arrivals_without_an_exchange_end_no_connection() {
    let (name, into) = ("looks-arrivals", "looks-arrivals.out");
    let (rabbit, broker) = few_channels().await;
    broker.declare(name, "quorum").await;
    let behaviour = Behaviour::judging("1000/1s".parse().unwrap());
    let centre = Provider::start("127.0.0.1:0".parse().unwrap(), behaviour).unwrap();
    let mut route = Route::new(name, centre.address());
    route.smpp = true;
    route.downstream = "bind = \"transceiver\"\n".to_owned();
    route.tables = format!(
        "[routes.{name}.results]\nexchange = \"looks-none\"\nrouting_key = \"sms\"\non = [\"inbound\"]\n"
    );
    let mut daemon = Daemon::start(&Config {
        rabbit: Some(url(&rabbit)),
        ..config(name, vec![route])
    });
    daemon.ready().await;
    let mut sequence = 1000;
    let mut deliver = || {
        sequence += 1;
        centre.deliver(from_phone(sequence));
    };
    eventually(LONG, "it is looked for again and again", || {
        deliver();
        rabbit.said("no exchange 'looks-none'") > CHANNELS
    })
    .await;
    broker.declare(into, "quorum").await;
    broker.fanout("looks-none", into).await;
    eventually(LONG, "one is taken", || {
        deliver();
        centre.receipts().1.iter().any(|(_, status)| *status == 0)
    })
    .await;
    assert_eq!(rabbit.said(TO_PUBLISH), 0, "{}", daemon.log());
    let kept = "what the centre delivers is not confirmed";
    daemon.stop(&[NEW_SCHEDULE, kept]).await;
}
