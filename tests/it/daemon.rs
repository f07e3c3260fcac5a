//! The real program as a process: how it starts, what it logs, how it ends.
mod embedded;
mod looks;
mod outside;
mod panics;
mod refused;
mod rotated;
mod secure;
mod silent;
mod stopping;
mod threads;

use crate::support::broker::Broker;
use crate::support::daemon::{Config, Route};
use crate::support::messages::body;
use crate::support::rabbit::Rabbit;

/// A fleet of its own on the servers that all tests share.
fn config(name: &str, routes: Vec<Route>) -> Config {
    Config::shared(name, "200/1s", routes)
}

/// A queue with the messages 1 to `count`.
async fn filled(queue: &str, count: u64) -> Broker {
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    broker.declare(queue, "quorum").await;
    let messages = (1..=count).map(|n| (body(n), lapin::BasicProperties::default()));
    broker.publish(queue, messages).await;
    broker
}
