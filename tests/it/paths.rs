//! The paths of a message, from a real queue through real daemons to a verdict.
mod actual;
mod adaptive;
mod auto_headroom;
mod aws;
mod clocks;
mod comes_back;
mod counted;
mod denied;
mod downstream_away;
mod dying;
mod envelopes;
mod forged;
mod frozen;
mod guides;
mod hosts;
mod hours;
mod http2;
mod in_memory;
mod interop;
pub(crate) mod journal;
mod keys_by_class;
mod name_moves;
mod named_by_answers;
mod once;
mod one_message;
mod owner;
mod paused;
mod placeless;
mod providers;
mod proxied;
mod quota;
mod receipts;
mod recipes;
mod requeue;
mod results;
mod secrets;
mod segments;
mod shared_limit;
mod signed;
mod stalled;
mod throttled;
mod tokens;
mod unreadable;
mod wrong_replica;

use std::time::Duration;

use crate::support::broker::Broker;
use crate::support::daemon::{Config, LONG, Route};
use crate::support::messages::body;
use crate::support::rabbit::Rabbit;
use crate::support::wait::eventually_async;
use lapin::BasicProperties;
use lapin::types::AMQPValue;

/// For downstreams that fail many messages in a row, each because of the message.
const NO_BREAKER: &str = "breaker = { failures = 0, dead_letters = 0 }\n";

fn config(name: &str, routes: Vec<Route>) -> Config {
    Config::shared(name, "100/1s", routes)
}

async fn queue(name: &str, queue_type: &str) -> Broker {
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    broker.declare(name, queue_type).await;
    broker
}

/// The messages `first` to `last`.
fn numbered(first: u64, last: u64) -> impl Iterator<Item = (Vec<u8>, BasicProperties)> {
    (first..=last).map(|n| (body(n), BasicProperties::default()))
}

/// A message with a number and a recipient.
fn to(number: u64, to: &str) -> (Vec<u8>, BasicProperties) {
    let body = format!("{{\"n\":{number},\"to\":\"{to}\"}}");
    (body.into_bytes(), BasicProperties::default())
}

/// Waits until this many messages are ready in a queue.
async fn holds(broker: &Broker, queue: &str, count: u32) {
    eventually_async(LONG, &format!("{count} messages in {queue}"), || async {
        broker.counts(queue).await.map(|(ready, _)| ready) == Some(count)
    })
    .await;
}

/// A header of a message, as text.
pub(crate) fn header(properties: &BasicProperties, name: &str) -> Option<String> {
    let headers = properties.headers().as_ref()?;
    match headers.inner().get(name)? {
        AMQPValue::LongString(text) => Some(text.to_string()),
        AMQPValue::LongLongInt(number) => Some(number.to_string()),
        other => Some(format!("{other:?}")),
    }
}

/// A header that counts microseconds.
fn micros(properties: &BasicProperties, name: &str) -> u64 {
    let text = header(properties, name).unwrap_or_else(|| panic!("no {name}"));
    text.parse().unwrap()
}

/// Seconds since the Unix epoch.
fn unix() -> u64 {
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
