//! Messages whose result or copy no queue takes: they hold up no other message, and no call is repeated.
//!
//! The broker ends a channel whose deliveries are not acknowledged in time, which gives back all of them. Here it does
//! so after eight seconds, and looks twice a second.

use std::collections::BTreeSet;
use std::time::Duration;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};

use super::{NO_BREAKER, holds, to};
use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route};
use crate::support::rabbit::Rabbit;
use crate::support::recorder::{Recorder, Reply};
use crate::support::wait::{eventually, eventually_async};

/// They take two of the broker's timeouts at [`RATE`].
const MESSAGES: u64 = 1_000;
const RATE: &str = "60/1s";
/// A message that was set aside is back by then.
const ROUND: Duration = Duration::from_secs(150);
const AGAIN: &str = "copies are not confirmed";
const ASIDE: &str = "no queue took a result or a copy";
/// With a timeout of seconds, a busy machine may hold a message for half of it.
const HELD: &str = "held for longer than half of the broker's ack timeout";
/// Belongs into no log.
const NUMBER: &str = "4915112345678";

/// A broker with a short timeout, and the work queue.
async fn impatient(name: &str, queue_type: &str, timeout: u32) -> (Rabbit, Broker) {
    let rabbit = Rabbit::start();
    let millis = timeout * 1_000;
    for (key, millis) in [("consumer_timeout", millis), ("channel_tick_interval", 500)] {
        rabbit.eval(&format!("application:set_env(rabbit, {key}, {millis})"));
    }
    let broker = Broker::connect(&rabbit.url()).await;
    broker.declare(name, queue_type).await;
    (rabbit, broker)
}

/// The message without a place is the first one.
fn messages() -> impl Iterator<Item = (Vec<u8>, BasicProperties)> {
    let others = (2..=MESSAGES).map(|number| to(number, "placeless.out"));
    [to(1, NUMBER)].into_iter().chain(others)
}

fn fleet(rabbit: &Rabbit, route: Route) -> [Daemon; 2] {
    let config = Config {
        rabbit: Some(rabbit.url()),
        ..Config::shared(&route.name.clone(), RATE, vec![route])
    };
    [(); 2].map(|()| {
        Daemon::start_with(&config.text(), |command| {
            command.env("SLUICED__RABBITMQ__ACK_TIMEOUT", "8s");
        })
    })
}

async fn all_are_called(downstream: &Recorder) {
    let all = || {
        let numbers = downstream.calls().into_iter().map(|call| call.number);
        numbers.collect::<BTreeSet<_>>().len() == MESSAGES as usize
    };
    eventually(LONG, "all are called", all).await;
}

async fn stop(daemons: [Daemon; 2], downstream: &Recorder) {
    let said = |text: &str| {
        daemons
            .iter()
            .map(|daemon| daemon.said(text))
            .sum::<usize>()
    };
    assert_eq!(said("the queue cannot be consumed"), 0, "no channel ends");
    assert_eq!(said(NUMBER), 0, "no log has a number");
    assert!(said(ASIDE) > 0);
    assert_eq!(downstream.count(), MESSAGES as usize, "each once");
    for daemon in daemons {
        let declared = [NEW_SCHEDULE, "dead letter", AGAIN, ASIDE, HELD];
        daemon.stop(&declared).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_that_no_queue_takes_harms_no_other_message() {
    let name = "placeless-result";
    let (rabbit, broker) = impatient(name, "quorum", 8).await;
    broker.declare("placeless.out", "quorum").await;
    broker.publish(name, messages()).await;
    let downstream = Recorder::accepting().await;
    let mut route = Route::new(name, downstream.address);
    route.keys = "prefetch = 100\n".to_owned();
    route.tables = format!(
        "[routes.{name}.results]\nrouting_key = \"{{{{ body.to }}}}\"\nunroutable = \"retry\"\n"
    );
    let daemons = fleet(&rabbit, route);
    let says_so = "no queue is bound for results to queue `{{ body.to }}`";
    let names_it = || daemons.iter().any(|daemon| daemon.said(says_so) > 0);
    eventually(LONG, "the log names the queue", names_it).await;
    all_are_called(&downstream).await;
    holds(&broker, "placeless.out", MESSAGES as u32 - 1).await;
    broker.declare(NUMBER, "quorum").await;
    arrives(&broker, NUMBER, 1).await;
    stop(daemons, &downstream).await;
    assert_eq!(broker.counts(name).await, Some((0, 0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_of_dead_letters_harms_no_other_message() {
    let name = "placeless-dead";
    let (rabbit, broker) = impatient(name, "quorum", 8).await;
    let dead = format!("{name}.dead");
    let full = r#"{"max-length":1,"overflow":"reject-publish"}"#;
    rabbit.set_policy("full", &dead, full);
    broker.declare(&dead, "quorum").await;
    broker.fill(&dead).await;
    let before = broker.counts(&dead).await.expect("it was declared").0;
    broker.publish(name, messages()).await;
    let refuses = |number| Reply::status(if number == 1 { 422 } else { 202 });
    let downstream = Recorder::start(move |call| refuses(call.number)).await;
    let mut route = Route::new(name, downstream.address);
    route.keys = "prefetch = 100\n".to_owned();
    route.downstream = NO_BREAKER.to_owned();
    let daemons = fleet(&rabbit, route);
    let says_so = format!("queue `{dead}` refuses copies: it is full");
    let names_it = || daemons.iter().any(|daemon| daemon.said(&says_so) > 0);
    eventually(LONG, "the log names the queue", names_it).await;
    all_are_called(&downstream).await;
    rabbit.clear_policy("full");
    arrives(&broker, &dead, before + 1).await;
    stop(daemons, &downstream).await;
    assert_eq!(broker.counts(name).await, Some((0, 0)));
}

/// Before a broker drops a message that was returned too often, a copy goes to the end of its queue. If that is full,
/// and there is no wait queue, the message goes back, time after time: held for any longer, it would end the channel.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_last_copy_that_no_queue_takes_ends_no_channel() {
    let name = "placeless-last";
    // Three places are tried, each for a quarter of the timeout and up to a second.
    let (rabbit, broker) = impatient(name, "classic", 24).await;
    broker.declare("placeless.last", "quorum").await;
    // A classic queue counts no returns, and leaves this header as it was published.
    let mut returned = FieldTable::default();
    returned.insert("x-delivery-count".into(), AMQPValue::LongLongInt(12));
    // Without an id it could not be told from another one that looks the same, and would stay where it is.
    let (body, properties) = to(1, NUMBER);
    let first = (
        body,
        properties
            .with_message_id("m-1".into())
            .with_headers(returned),
    );
    let others = (2..=10).map(|number| to(number, "placeless.last"));
    broker
        .publish(name, [first].into_iter().chain(others))
        .await;
    // A length that comes first would drop what is in the queue.
    for full in [
        r#"{"overflow":"reject-publish"}"#,
        r#"{"max-length":0,"overflow":"reject-publish"}"#,
    ] {
        rabbit.set_policy("full", name, full);
    }
    // With these settings it is no wait queue.
    broker.declare(&format!("{name}.wait.64s"), "classic").await;
    let downstream = Recorder::accepting().await;
    let mut route = Route::new(name, downstream.address);
    route.tables = format!(
        "[routes.{name}.results]\nrouting_key = \"{{{{ body.to }}}}\"\nunroutable = \"retry\"\n"
    );
    let config = Config {
        rabbit: Some(rabbit.url()),
        ..Config::shared(name, RATE, vec![route])
    };
    let mut daemon = Daemon::start_with(&config.text(), |command| {
        command.env("SLUICED__RABBITMQ__ACK_TIMEOUT", "24s");
    });
    let given_back = format!("sluiced_settled_total{{route=\"{name}\",verdict=\"given_back\"}}");
    daemon.until_metric(&given_back, 2.0).await;
    broker.declare(NUMBER, "quorum").await;
    arrives(&broker, NUMBER, 1).await;
    assert_eq!(daemon.said("the queue cannot be consumed"), 0);
    assert_eq!(daemon.said(NUMBER), 0, "no log has a number");
    assert_eq!(downstream.count(), 10, "each once");
    let unusable = "a queue cannot be used";
    daemon
        .stop(&[NEW_SCHEDULE, AGAIN, ASIDE, HELD, unusable])
        .await;
    assert_eq!(broker.counts(name).await, Some((0, 0)));
}

/// What waited for a place has it.
async fn arrives(broker: &Broker, queue: &str, count: u32) {
    eventually_async(ROUND, "it has its place", || async {
        broker.counts(queue).await.map(|(ready, _)| ready) == Some(count)
    })
    .await;
}
