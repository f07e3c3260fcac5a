//! A queue with messages in it, on either backend, and the numbers that tests read.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use sluiced_amqp::embedded::{self, EmbeddedOptions, Input};
use sluiced_amqp::rabbit::{RabbitQueue, RouteOptions};
use sluiced_core::gate::Tap;
use sluiced_core::parking::ParkedQueue;
use sluiced_ports::message::header;
use sluiced_ports::queue::Delivery;
use sluiced_ports::queue::Subscription;
use sluiced_settings::text::TemplateText;
use sluiced_settings::types::{QueueType, Route};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::support::broker::Broker;
use crate::support::messages::{self, Counted, body, marks, number, options};
use crate::support::rabbit::Rabbit;
use crate::support::wait::within;

use super::{BOUND, QUIET};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Backend {
    Embedded,
    Rabbit(QueueType),
}

/// A queue with messages in it, and a subscription to it.
pub(crate) struct Bench {
    pub(crate) subscription: Arc<Subscription>,
    pub(crate) deliveries: mpsc::UnboundedReceiver<Delivery>,
    pub(crate) events: Arc<Counted>,
    pub(crate) queue: String,
    pub(crate) broker: Option<Broker>,
    pub(crate) dir: tempfile::TempDir,
}

impl Bench {
    /// Messages `{"n":1}` to `{"n":count}`, the tap open.
    pub(crate) async fn start(backend: Backend, count: u64, prefetch: u16) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let events = Arc::new(Counted::default());
        let queue = format!("q-{}", uuid::Uuid::new_v4());
        let (subscription, broker): (Arc<Subscription>, _) = match backend {
            Backend::Embedded => (embedded(&dir, &events, count, prefetch), None),
            Backend::Rabbit(queue_type) => {
                let (subscription, broker) =
                    rabbit(queue_type, &queue, &events, count, prefetch).await;
                (subscription, Some(broker))
            }
        };
        let deliveries = subscription.deliveries().unwrap();
        assert!(subscription.deliveries().is_none(), "taken once");
        subscription.set_tap(Tap::Open);
        Self {
            subscription,
            deliveries,
            events,
            queue,
            broker,
            dir,
        }
    }

    pub(crate) async fn next(&mut self) -> Delivery {
        messages::next(&mut self.deliveries, BOUND).await
    }

    pub(crate) async fn take(&mut self, count: usize) -> Vec<Delivery> {
        messages::take(&mut self.deliveries, count, BOUND).await
    }

    pub(crate) async fn assert_quiet(&mut self, why: &str) {
        let more = timeout(QUIET, self.deliveries.recv()).await;
        assert!(more.is_err(), "{why}: {more:?}");
    }

    /// Closes, and returns how many messages were returned.
    pub(crate) async fn close(&mut self) -> u64 {
        let left = within(BOUND, "close", self.subscription.close(BOUND)).await;
        assert_eq!(left.unsettled, 0);
        left.given_back
    }

    /// After closing: what is still in the work queue.
    pub(crate) async fn remaining(&self) -> BTreeSet<u64> {
        match &self.broker {
            Some(broker) => {
                let mut all = broker.drain(&self.queue).await;
                for parked_queue in ParkedQueue::all() {
                    let queue = format!("{}.parked.{}", self.queue, parked_queue.label());
                    all.extend(broker.drain(&queue).await);
                }
                all.iter().map(|(body, _)| number(body)).collect()
            }
            None => self
                .records()
                .iter()
                .filter(|record| record["reason"] == "not_delivered")
                .map(|record| record["body"]["n"].as_u64().unwrap())
                .collect(),
        }
    }

    /// Number and reason of the dead.
    pub(crate) async fn dead(&self) -> Vec<(u64, String, i64)> {
        match &self.broker {
            Some(broker) => broker
                .drain(&format!("{}.dead", self.queue))
                .await
                .iter()
                .map(|(body, properties)| {
                    let headers = properties.headers().clone().unwrap();
                    let get = |name: &str| headers.inner().get(name).cloned().unwrap();
                    let AMQPValue::LongString(reason) = get(header::REASON) else {
                        panic!("a text")
                    };
                    let AMQPValue::LongLongInt(attempts) = get(header::ATTEMPTS) else {
                        panic!("a number")
                    };
                    (number(body), reason.to_string(), attempts)
                })
                .collect(),
            None => self
                .records()
                .iter()
                .filter(|record| record["reason"] != "not_delivered")
                .map(|record| {
                    (
                        record["body"]["n"].as_u64().unwrap(),
                        record["reason"].as_str().unwrap().to_owned(),
                        record["attempts"].as_i64().unwrap(),
                    )
                })
                .collect(),
        }
    }

    pub(crate) fn leftover(&self) -> PathBuf {
        self.dir.path().join("leftover.ndjson")
    }

    pub(crate) fn records(&self) -> Vec<serde_json::Value> {
        std::fs::read_to_string(self.leftover())
            .unwrap_or_default()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    pub(crate) fn settled(&self, verdict: &'static str) -> u64 {
        self.events.settled_as(verdict)
    }
}

fn properties(n: u64) -> BasicProperties {
    let mut headers = FieldTable::default();
    headers.insert("tenant".into(), AMQPValue::LongString("t1".into()));
    headers.insert(
        "nested".into(),
        AMQPValue::FieldTable(FieldTable::default()),
    );
    BasicProperties::default()
        .with_message_id(format!("m{n}").into())
        .with_content_type("application/json".into())
        .with_priority(3)
        .with_headers(headers)
}

/// A file with messages.
fn embedded(
    dir: &tempfile::TempDir,
    events: &Arc<Counted>,
    count: u64,
    prefetch: u16,
) -> Arc<Subscription> {
    let input = dir.path().join("input.ndjson");
    let text: String = (1..=count).map(|n| format!("{{\"n\":{n}}}\n")).collect();
    std::fs::write(&input, text).unwrap();
    let options = EmbeddedOptions {
        route: "sms".into(),
        prefetch,
        leftover: Some(dir.path().join("leftover.ndjson")),
        checkpoint: None,
    };
    embedded::start(Input::File(input), options, Arc::<Counted>::clone(events))
}

/// A queue with messages, and the test's own connection to its broker.
async fn rabbit(
    queue_type: QueueType,
    queue: &str,
    events: &Arc<Counted>,
    count: u64,
    prefetch: u16,
) -> (Arc<Subscription>, Broker) {
    let server = Rabbit::shared();
    let broker = Broker::connect(&server.url()).await;
    let name = match queue_type {
        QueueType::Classic => "classic",
        QueueType::Quorum => "quorum",
    };
    broker.declare(queue, name).await;
    broker
        .publish(queue, (1..=count).map(|n| (body(n), properties(n))))
        .await;
    let events = Arc::<Counted>::clone(events);
    let rabbit = RabbitQueue::new(options(server), events, marks());
    let route = RouteOptions {
        name: "sms".into(),
        results: None,
        counts: true,
        settings: Arc::new(Route {
            queue: queue.to_owned(),
            queue_type,
            fair_by: Some(TemplateText("{{ body.tenant }}".to_owned())),
            ..Route::example()
        }),
        prefetch,
        longest_wait: Duration::from_secs(3600),
    };
    (rabbit.unwrap().subscribe(route), broker)
}
