//! `sluiced dead`: the program itself, on the letters of real daemons and a real broker.
mod cut;
mod dropped;
mod found;
mod refused;
mod replayed;
mod seen;

use std::process::{Command, Output};

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use serde_json::Value;
use sluiced_ports::message::header as known;

use crate::support::broker::Broker;
use crate::support::daemon::{LONG, program};
use crate::support::messages::body;
use crate::support::rabbit::Rabbit;
use crate::support::wait::eventually_async;

/// How a command ended, and what it wrote.
#[derive(Debug)]
struct Said {
    code: i32,
    out: String,
    err: String,
}

impl Said {
    /// Runs a command to its end.
    fn by(command: &mut Command) -> Self {
        Self::of(command.output().unwrap())
    }

    fn of(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Self {
            code: output.status.code().unwrap(),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }

    /// What it wrote, if it ended well.
    fn good(self) -> String {
        assert_eq!(self.code, 0, "{}{}", self.out, self.err);
        self.out
    }

    fn json(self) -> Value {
        serde_json::from_str(&self.good()).unwrap()
    }

    /// What it wrote to stderr, if it ended with this code.
    fn bad(self, code: i32) -> String {
        assert_eq!(self.code, code, "{}{}", self.out, self.err);
        self.err
    }
}

/// `sluiced dead` with the words of a line and then these arguments.
fn dead(line: &str, arguments: &[&str]) -> Said {
    let mut command = program(&["dead"]);
    command.args(line.split(' ')).args(arguments);
    Said::by(&mut command)
}

/// Where the letters of a work queue are.
fn at(queue: &str) -> [String; 4] {
    [
        "--rabbitmq".to_owned(),
        Rabbit::shared().url(),
        "--queue".to_owned(),
        format!("{queue}.dead"),
    ]
}

/// The same command for the letters of that queue, without a configuration.
fn dead_at(queue: &str, line: &str, arguments: &[&str]) -> Said {
    let at = at(queue);
    let at: Vec<&str> = at.iter().map(String::as_str).collect();
    dead(line, &[arguments, &at].concat())
}

async fn broker() -> Broker {
    Broker::connect(&Rabbit::shared().url()).await
}

/// That text has each of these parts.
#[track_caller]
fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no `{part}` in\n{text}");
    }
}

/// Waits until this many messages are ready in a queue.
async fn holds(broker: &Broker, queue: &str, count: u32) {
    eventually_async(LONG, &format!("{count} messages in {queue}"), || async {
        broker.counts(queue).await.map(|(ready, _)| ready) == Some(count)
    })
    .await;
}

/// A work queue and its dead letters 1 to `count`, as a daemon would have left them.
async fn buried(name: &str, queue_type: &str, count: u64) -> Broker {
    let broker = broker().await;
    broker.declare(name, queue_type).await;
    let dead = format!("{name}.dead");
    broker.declare(&dead, queue_type).await;
    let letters = (1..=count).map(|n| {
        let mut headers = FieldTable::default();
        let text = |text: &str| AMQPValue::LongString(text.into());
        headers.insert(known::REASON.into(), text("rejected"));
        headers.insert(known::ROUTE.into(), text("sms"));
        headers.insert(known::QUEUE.into(), text(name));
        headers.insert(known::ATTEMPTS.into(), AMQPValue::LongLongInt(1));
        let id = format!("m-{n}").as_str().into();
        let properties = BasicProperties::default()
            .with_message_id(id)
            .with_headers(headers);
        (body(n), properties)
    });
    broker.publish(&dead, letters).await;
    broker
}
