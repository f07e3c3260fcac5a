//! Receipts of a message centre: published as results, and answered once they are safe.

use std::collections::BTreeSet;

use lapin::BasicProperties;
use serde_json::{Value, json};
use sluiced_core::smpp::CommandStatus;
use sluiced_provider::{Behaviour, Provider};

use super::{config, holds, queue};
use crate::support::broker::Broker;
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route};
use crate::support::wait::eventually;

/// Takes everything, and sends receipts.
fn centre() -> Provider {
    let behaviour = Behaviour::judging("1000/1s".parse().unwrap());
    Provider::start("127.0.0.1:0".parse().unwrap(), behaviour).unwrap()
}

fn route(queue: &str, centre: &Provider, results: &str) -> Route {
    let mut route = Route::new(queue, centre.address());
    route.smpp = true;
    route.downstream = "bind = \"transceiver\"\nregistered_delivery = 1\n".to_owned();
    route.tables = format!("[routes.{queue}.results]\n{results}");
    route
}

async fn publish(broker: &Broker, queue: &str, count: u64) {
    let messages = (1..=count).map(|number| {
        let body = format!("{{\"id\":\"m-{number}\"}}");
        (body.into_bytes(), BasicProperties::default())
    });
    broker.publish(queue, messages).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_message_has_a_result_and_a_receipt_with_the_same_id() {
    let (name, into) = ("receipts-each", "receipts-each.out");
    let broker = queue(name, "quorum").await;
    broker.declare(into, "quorum").await;
    publish(&broker, name, 20).await;
    let centre = centre();
    let results = format!("routing_key = \"{into}\"\non = [\"accepted\", \"receipt\"]\n");
    let daemon = Daemon::start(&config(name, vec![route(name, &centre, &results)]));
    holds(&broker, into, 40).await;
    eventually(LONG, "all receipts are answered", || {
        let (sent, mut answers) = centre.receipts();
        answers.sort_unstable();
        (sent, answers) == (20, (1..=20).map(|number| (number, 0)).collect())
    })
    .await;
    daemon.stop(&[NEW_SCHEDULE]).await;
    let (mut accepted, mut delivered) = (BTreeSet::new(), BTreeSet::new());
    for (body, _) in broker.drain(into).await {
        let result: Value = serde_json::from_slice(&body).expect("JSON");
        let answer = &result["answer"]["body"];
        let id = answer["message_id"].as_str().expect("an id").to_owned();
        if result["verdict"] == "receipt" {
            assert_eq!(answer["state"], "delivered", "{result}");
            assert_eq!(answer["source"], "4915112345678");
            delivered.insert(id);
        } else {
            assert_eq!(result["status"], 0, "{result}");
            accepted.insert(id);
        }
    }
    assert_eq!((accepted.len(), &accepted), (20, &delivered));
}

/// Two centres for one queue, and the first one fails: results and receipts name the route that sent the message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_moved_to_another_centre_has_the_receipt_of_that_one() {
    const COUNT: usize = 20;
    let (name, into) = ("receipts-moved", "receipts-moved.out");
    let broker = queue(name, "quorum").await;
    broker.declare(into, "quorum").await;
    publish(&broker, name, COUNT as u64).await;
    let centres = [centre(), centre()];
    let fails = serde_json::from_value(json!({ "status": 500, "for": "10m" }));
    centres[0].script(fails.unwrap()).unwrap();
    let routes = ["receipts-moved-a", "receipts-moved-b"]
        .iter()
        .zip(&centres);
    let routes = routes.map(|(own, centre)| {
        let results = format!("routing_key = \"{into}\"\non = [\"accepted\", \"receipt\"]\n");
        let mut route = route(own, centre, &results);
        route.queue = name.to_owned();
        route.downstream += "breaker = { failures = 1 }\n";
        route
    });
    let daemon = Daemon::start(&config(name, routes.collect()));
    holds(&broker, into, 2 * COUNT as u32).await;
    eventually(LONG, "all receipts are answered", || {
        centres[1].receipts().1.len() == COUNT
    })
    .await;
    daemon.stop(&[NEW_SCHEDULE, "the downstream is away"]).await;
    assert_eq!(broker.counts(name).await, Some((0, 0)));
    assert_eq!(centres[0].receipts().0, 0);
    let mut verdicts = Vec::new();
    for (body, _) in broker.drain(into).await {
        let result: Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(result["route"], "receipts-moved-b", "{result}");
        verdicts.push(result["verdict"].to_string());
    }
    verdicts.sort_unstable();
    let (accepted, receipt) = ("\"accepted\"".to_owned(), "\"receipt\"".to_owned());
    assert_eq!(
        verdicts,
        [vec![accepted; COUNT], vec![receipt; COUNT]].concat()
    );
}

/// No queue accepts them: the centre is asked to keep them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receipt_that_is_not_safe_stays_with_the_centre() {
    let name = "receipts-missing";
    let broker = queue(name, "quorum").await;
    publish(&broker, name, 5).await;
    let centre = centre();
    let results = "routing_key = \"receipts-missing.out\"\non = [\"receipt\"]\n";
    let daemon = Daemon::start(&config(name, vec![route(name, &centre, results)]));
    eventually(LONG, "all receipts are answered", || {
        centre.receipts().1.len() == 5
    })
    .await;
    let (_, answers) = centre.receipts();
    let kept = CommandStatus::TRY_LATER.0;
    assert!(
        answers.iter().all(|(_, status)| *status == kept),
        "{answers:?}"
    );
    daemon.stop(&[NEW_SCHEDULE]).await;
    assert_eq!(
        broker.counts(name).await,
        Some((0, 0)),
        "the calls are settled"
    );
}
