//! Receipts of a message centre: published as results, and answered once they are safe.

use std::collections::BTreeSet;

use lapin::BasicProperties;
use serde_json::{Value, json};
use sluiced_pdu::{Address, Command, CommandStatus, Message as Sms, plain};
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

/// What a centre sends by itself: a message from a phone, a receipt as `data_sm`, in UCS-2 and without the class, one
/// that cannot be read, and one behind them. Sequence numbers are those of the answers.
fn deliveries() -> Vec<Vec<u8>> {
    let from_phone = |sms: Sms| Sms {
        source: address("4915112345678"),
        destination: address("ACME"),
        ..sms
    };
    let wide = |text: &str| text.encode_utf16().flat_map(u16::to_be_bytes).collect();
    let texted = |esm_class, text: &str| {
        from_phone(Sms {
            esm_class,
            text: text.as_bytes().to_vec(),
            ..Sms::default()
        })
    };
    let in_ucs2 = from_phone(Sms {
        data_coding: 8,
        text: wide("Id:77 Stat:EXPIRED err:001"),
        ..Sms::default()
    });
    let all = [
        texted(0, "STOP"),
        in_ucs2,
        texted(
            4,
            "00,0210021543,0210021500,,447887123456,8000,we2345678i9o03er45ty67u",
        ),
        texted(4, "id:88 submit date: done date: stat:DELIVRD"),
    ];
    let mut pdus: Vec<Vec<u8>> = (1001..)
        .zip(all)
        .map(|(sequence, sms)| sms.write(Command::DELIVER_SM, sequence).unwrap())
        .collect();
    pdus.insert(1, data_sm(2000, "id:66 stat:UNDELIV"));
    pdus
}

fn address(digits: &str) -> Address {
    Address {
        ton: 1,
        npi: 1,
        digits: digits.as_bytes().to_vec(),
    }
}

/// A receipt whose text is a parameter (SMPP 3.4, section 4.7.1).
fn data_sm(sequence: u32, text: &str) -> Vec<u8> {
    let head = b"\0\x01\x014915112345678\0\x05\0ACME\0\x04\0\0\x04\x24\0";
    let body = [&head[..], &[text.len() as u8], text.as_bytes()].concat();
    let mut pdu = plain(Command::DATA_SM, CommandStatus::OK, sequence);
    pdu.extend(body);
    let length = pdu.len() as u32;
    pdu[..4].copy_from_slice(&length.to_be_bytes());
    pdu
}

/// All of them are answered, in whichever form they come, and the route's results have those that it wants.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_centre_delivers_is_answered_and_published() {
    let (name, into) = ("receipts-forms", "receipts-forms.out");
    let broker = queue(name, "quorum").await;
    broker.declare(into, "quorum").await;
    let centre = centre();
    let results = format!("routing_key = \"{into}\"\non = [\"inbound\", \"receipt\"]\n");
    let mut daemon = Daemon::start(&config(name, vec![route(name, &centre, &results)]));
    daemon.ready().await;
    for pdu in deliveries() {
        centre.deliver(pdu);
    }
    holds(&broker, into, 5).await;
    eventually(LONG, "all are answered with success", || {
        let mut answers = centre.receipts().1;
        answers.sort_unstable();
        answers == [1001, 1002, 1003, 1004, 2000].map(|sequence| (sequence, 0))
    })
    .await;
    let unread = "a receipt does not say in a known form which message it is about";
    daemon.stop(&[NEW_SCHEDULE, unread]).await;
    let mut all = Vec::new();
    for (body, properties) in broker.drain(into).await {
        let result: Value = serde_json::from_slice(&body).expect("JSON");
        let kind = properties.kind().as_ref().expect("a type").to_string();
        assert_eq!(
            kind,
            format!("sluiced.{}", result["verdict"].as_str().unwrap())
        );
        let answer = &result["answer"]["body"];
        assert_eq!(answer["source"], "4915112345678", "{result}");
        assert_eq!(answer["destination"], "ACME", "{result}");
        all.push(answer.clone());
    }
    all.sort_by_key(|answer| answer["text"].as_str().unwrap().to_owned());
    let field = |name: &str| -> Vec<&Value> { all.iter().map(|answer| &answer[name]).collect() };
    let null = Value::Null;
    assert_eq!(
        field("text"),
        [
            "00,0210021543,0210021500,,447887123456,8000,we2345678i9o03er45ty67u",
            "Id:77 Stat:EXPIRED err:001",
            "STOP",
            "id:66 stat:UNDELIV",
            "id:88 submit date: done date: stat:DELIVRD",
        ]
    );
    assert_eq!(
        field("message_id"),
        [&null, &json!("77"), &null, &json!("66"), &json!("88")]
    );
    let (expired, failed) = (json!("expired"), json!("undeliverable"));
    assert_eq!(
        field("state"),
        [&null, &expired, &null, &failed, &json!("delivered")]
    );
    assert_eq!(field("submitted"), [&null; 5]);
    assert_eq!(field("data_coding")[2], &json!(0));
}

/// Nothing wants messages from phones: they are counted and answered, and the receipts behind them come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_wanted_is_counted_and_holds_nothing_up() {
    let (name, into) = ("receipts-unwanted", "receipts-unwanted.out");
    let broker = queue(name, "quorum").await;
    broker.declare(into, "quorum").await;
    let centre = centre();
    for (round, on, wanted) in [(1, "receipt", 4), (2, "inbound", 2)] {
        let results = format!("routing_key = \"{into}\"\non = [\"{on}\"]\n");
        let mut daemon = Daemon::start(&config(name, vec![route(name, &centre, &results)]));
        daemon.ready().await;
        for pdu in deliveries() {
            centre.deliver(pdu);
        }
        // The receipt that cannot be read may be anything, so it is published in both.
        holds(&broker, into, wanted).await;
        eventually(LONG, "all are answered with success", || {
            let answers = centre.receipts().1;
            answers.len() == 5 * round && answers.iter().all(|(_, status)| *status == 0)
        })
        .await;
        let counted = format!("sluiced_inbound_total{{route=\"{name}\"}}");
        assert_eq!(daemon.metric(&counted).await, 1.0);
        daemon.stop(&[NEW_SCHEDULE, "a receipt does not say"]).await;
        broker.drain(into).await;
    }
}
