//! Messages, verdicts and options that the queue tests use.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use sluiced_amqp::rabbit::RabbitOptions;
use sluiced_amqp::{QueueEvent, QueueEvents};
use sluiced_core::judge::DeadReason;
use sluiced_net::connect::Tls;
use sluiced_ports::marks::Marks;
use sluiced_ports::message::{HeaderValue, header};
use sluiced_ports::queue::{Delivery, QueuePart, Verdict};
use tokio::sync::mpsc;

use super::rabbit::Rabbit;
use super::wait::within;

/// Counts verdicts and events.
#[derive(Debug, Default)]
pub struct Counted(Mutex<BTreeMap<&'static str, u64>>);

impl Counted {
    fn add(&self, what: &'static str, count: u64) {
        *self.0.lock().unwrap().entry(what).or_default() += count;
    }

    fn counted(&self, part: QueuePart, count: u64) {
        if part == QueuePart::Dead {
            self.add("looks at dead letters", 1);
        }
        if count > 0 {
            let name = match part {
                QueuePart::Ready => "ready counted",
                QueuePart::Dead => "dead counted",
                QueuePart::Waiting => "waiting counted",
                QueuePart::Parked => return,
            };
            self.0.lock().unwrap().insert(name, count);
        }
    }

    /// How many were settled with that verdict, or what else was counted under that name.
    pub fn settled_as(&self, verdict: &'static str) -> u64 {
        self.0.lock().unwrap().get(verdict).copied().unwrap_or(0)
    }
}

impl QueueEvents for Counted {
    fn note(&self, _route: &str, event: QueueEvent) {
        match event {
            QueueEvent::Settled { verdict, count } => self.add(verdict, count),
            QueueEvent::Counted(part, count) => self.counted(part, count),
            QueueEvent::Redelivered => self.add("redelivered", 1),
            QueueEvent::Shortened => self.add("shortened", 1),
            QueueEvent::Vanished(_, count) => self.add("vanished", count),
            QueueEvent::Gone(_) => self.add("gone", 1),
            QueueEvent::Unconfirmed => self.add("unconfirmed", 1),
            QueueEvent::Forged | QueueEvent::Result(_) => {}
        }
    }

    fn resumed(&self, _done: u64, _dead: u64) {}

    fn reconnected(&self) {
        self.add("reconnected", 1);
    }
}

/// The keys of marks that all queues of this process share, as the replicas of a fleet do.
#[must_use]
pub fn marks() -> Marks {
    static MARKS: LazyLock<Marks> = LazyLock::new(Marks::of_this_process);
    MARKS.clone()
}

/// For that server.
#[must_use]
pub fn options(server: &Rabbit) -> RabbitOptions {
    RabbitOptions::single(server.url().into())
}

/// The next delivery, which must come within `bound`.
pub async fn next(deliveries: &mut mpsc::UnboundedReceiver<Delivery>, bound: Duration) -> Delivery {
    within(bound, "a delivery", deliveries.recv())
        .await
        .expect("the queue goes on")
}

/// This many deliveries, each of which must come within `bound`.
pub async fn take(
    deliveries: &mut mpsc::UnboundedReceiver<Delivery>,
    count: usize,
    bound: Duration,
) -> Vec<Delivery> {
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(next(deliveries, bound).await);
    }
    all
}

/// A message's body.
#[must_use]
pub fn body(n: u64) -> Vec<u8> {
    format!("{{\"n\":{n}}}").into_bytes()
}

/// The number in a body. What makes it large, blanks behind it, is not read.
#[must_use]
pub fn number(body: &[u8]) -> u64 {
    let mut values = serde_json::Deserializer::from_slice(body).into_iter::<serde_json::Value>();
    let value = values.next().unwrap().unwrap();
    value["n"].as_u64().unwrap()
}

/// Rejected, with what the pipeline would write.
#[must_use]
pub fn dead() -> Verdict {
    Verdict::Dead {
        reason: DeadReason::Rejected,
        headers: vec![
            (header::ATTEMPTS, HeaderValue::Int(3)),
            (header::DETAIL, HeaderValue::Text("400 Bad Request".into())),
        ],
    }
}
