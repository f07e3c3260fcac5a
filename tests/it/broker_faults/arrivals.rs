//! What a message centre delivers, while the broker takes nothing.

use std::sync::Arc;

use bytes::Bytes;
use sluiced_amqp::rabbit::RabbitQueue;
use sluiced_ports::message::Properties;
use sluiced_ports::queue::{Publication, PublishRequest};
use sluiced_settings::text::TemplateText;
use sluiced_settings::types::{ResultOn, Results};
use tokio::sync::oneshot;

use crate::support::broker::Broker;
use crate::support::messages::{Counted, marks, options};
use crate::support::wait::within;

use super::*;

/// A publication for a queue, and whether it is confirmed.
fn publication(queue: &str) -> (PublishRequest, oneshot::Receiver<bool>) {
    let (confirmed, is_safe) = oneshot::channel();
    let publication = Publication {
        routing_key: queue.to_owned(),
        body: Bytes::from_static(b"{}"),
        properties: Properties::default(),
        headers: Vec::new(),
        yields_to_call_result: false,
    };
    let request = PublishRequest {
        publication,
        confirmed,
    };
    (request, is_safe)
}

/// To the default exchange.
fn results() -> Results {
    Results {
        exchange: String::new(),
        routing_key: TemplateText("{{ route }}".to_owned()),
        on: vec![ResultOn::Inbound],
        body: None,
        headers: Vec::new(),
        unroutable: None,
    }
}

/// The broker has what was published before it raised the alarm, or reads it later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_alarm_gives_up_nothing_that_is_under_way() {
    let (_turn, server) = turn().await;
    let broker = Broker::connect(&server.url()).await;
    let queue = format!("q-{}", uuid::Uuid::new_v4());
    broker.declare(&queue, "quorum").await;
    let mut quick = options(server);
    quick.settings.confirm_timeout = Length(Duration::from_secs(5));
    let events = Arc::new(Counted::default());
    let rabbit = RabbitQueue::new(quick, events.clone(), marks()).unwrap();
    let arrivals = rabbit.arrivals(&"sms".into(), results());
    let (first, is_safe) = publication(&queue);
    arrivals.send(first).await.unwrap();
    let safe = within(BOUND, "the first one", is_safe).await;
    assert_eq!(safe, Ok(true));

    server.memory_alarm(true);
    let (under_way, mut is_safe) = publication(&queue);
    arrivals.send(under_way).await.unwrap();
    // Once the alarm is known, others are refused. That may take the time of a confirm.
    eventually_async(BOUND, "others are refused", || async {
        let (other, is_safe) = publication(&queue);
        arrivals.send(other).await.unwrap();
        let refused = tokio::time::timeout(Duration::from_millis(100), is_safe).await;
        matches!(refused, Ok(Err(_)))
    })
    .await;
    assert!(
        is_safe
            .try_recv()
            .is_err_and(|why| why == oneshot::error::TryRecvError::Empty)
    );
    server.memory_alarm(false);
    let safe = within(BOUND, "the one that was under way", is_safe).await;
    assert_eq!(safe, Ok(true));
    assert_eq!(events.settled_as("reconnected"), 0);
}
