//! Reading letters: what is shown of them, and that they stay where they are.

use std::process::{Command, Stdio};

use lapin::BasicProperties;
use lapin::types::AMQPValue;
use serde_json::{Value, json};

use super::{Said, assert_says, broker, buried, dead, dead_at, holds};
use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, NEW_SCHEDULE, Route};
use crate::support::messages::{body, number};
use crate::support::rabbit::Rabbit;
use crate::support::raw_amqp::{RawMessage, RawPublisher, short};
use crate::support::recorder::{Recorder, Reply};

/// The queue whose letters are of every kind.
const KINDS: &str = "dead-seen";
const KINDS_DEAD: &str = "dead-seen.dead";

fn message(id: &str, body: &str) -> (Vec<u8>, BasicProperties) {
    let id = BasicProperties::default().with_message_id(id.into());
    (body.as_bytes().to_vec(), id)
}

/// The counts of a list by reason and status.
fn counts(list: &Value) -> Vec<(String, Option<i64>, u64)> {
    let counts = list["counts"].as_array().unwrap().iter();
    counts
        .map(|kind| {
            let reason = kind["reason"].as_str().unwrap().to_owned();
            (
                reason,
                kind["last_status"].as_i64(),
                kind["count"].as_u64().unwrap(),
            )
        })
        .collect()
}

/// The number and the id of each letter of a list.
fn letters_of(list: &Value) -> Vec<(u64, String)> {
    let letters = list["letters"].as_array().unwrap().iter();
    letters
        .map(|letter| {
            let id = letter["message_id"].as_str().unwrap_or_default().to_owned();
            (letter["number"].as_u64().unwrap(), id)
        })
        .collect()
}

/// The ids of a list in their own order: letters that were copied to the end are in another one.
fn ids_in_order(list: &Value) -> Vec<String> {
    let mut ids: Vec<_> = letters_of(list).into_iter().map(|(_, id)| id).collect();
    ids.sort_unstable();
    ids
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_of_every_kind_are_counted_and_shown_and_stay() {
    let broker = broker().await;
    broker.declare(KINDS, "quorum").await;
    let downstream = Recorder::start(|call| Reply {
        body: "{\"error\":\"no such sender\"}",
        ..Reply::status(if call.number == 3 { 404 } else { 400 })
    })
    .await;
    let mut route = Route::new(KINDS, downstream.address);
    route.keys = "max_age = \"1h\"\n".to_owned();
    route.caller = "{{ body.n }}".to_owned();
    route.downstream += "keep_answer = true\n";
    let daemon = Daemon::start(&Config::shared(KINDS, "100/1s", vec![route]));
    let config = daemon.config().display().to_string();
    publish_letters_of_every_kind(&broker).await;

    let all = list(&config, &[]);
    assert_each_kind_is_counted(&all);
    assert_a_list_is_narrowed_as_asked(&config);
    assert_the_table_shows_the_letters_without_their_bodies(&config);
    assert_the_first_letter_is_explained(&config);
    assert_letters_are_shown_by_their_id_and_number(&config);

    let again = list(&config, &[]);
    assert_eq!(
        ids_in_order(&again),
        ids_in_order(&all),
        "all are there still"
    );
    assert_eq!(
        letters_of(&dead_at(KINDS, "list --json", &[]).json()[0]).len(),
        letters_of(&all).len()
    );
    assert_eq!(downstream.count(), 3);
    daemon.stop(&[NEW_SCHEDULE, "dead", "unreadable"]).await;
}

/// Three that the downstream refuses, one that cannot be decoded, one that is too old and one that cannot be read: one
/// after the other, so that their places are known.
async fn publish_letters_of_every_kind(broker: &Broker) {
    let old = BasicProperties::default().with_timestamp(1_700_000_000);
    let messages = [
        message("first", r#"{"n":1,"code":"s3cret"}"#),
        message("second", "{\"n\":2}"),
        message("third", "{\"n\":3}"),
        message("fourth", "no json"),
        (body(5), old),
    ];
    for (count, message) in (1..).zip(messages) {
        broker.publish(KINDS, [message]).await;
        holds(broker, KINDS_DEAD, count).await;
    }
    let mut raw = RawPublisher::connect(&Rabbit::shared().url());
    raw.publish(&RawMessage {
        routing_key: KINDS.into(),
        properties: [&[0x80, 0][..], &short(b"\xff")].concat(),
        body: body(6),
        ..RawMessage::default()
    });
    raw.confirmed();
    holds(broker, KINDS_DEAD, 6).await;
}

fn list(config: &str, arguments: &[&str]) -> Value {
    let arguments = [&[config], arguments].concat();
    dead("list --json --config", &arguments).json()[0].clone()
}

fn show(config: &str, letter: &str, more: &[&str]) -> Said {
    dead("show --config", &[&[config, letter], more].concat())
}

fn kind(reason: &str, status: Option<i64>, count: u64) -> (String, Option<i64>, u64) {
    (reason.to_owned(), status, count)
}

fn assert_each_kind_is_counted(all: &Value) {
    assert_eq!(all["queue"], KINDS_DEAD);
    assert_eq!(all["total"], 6);
    assert_eq!(
        counts(all),
        [
            kind("expired", None, 1),
            kind("rejected", Some(400), 2),
            kind("rejected", Some(404), 1),
            kind("undecodable", None, 1),
            kind("unreadable", None, 1),
        ]
    );
    let ids: Vec<_> = letters_of(all).into_iter().map(|(_, id)| id).collect();
    assert_eq!(ids[0], "first");
    assert_eq!(ids[3], "fourth");
    assert_eq!(ids[4].len(), 36, "an id was made: {}", ids[4]);
    assert_eq!(all["letters"][0]["attempts"], 1);
    assert_eq!(all["letters"][0]["bytes"], 23);
}

fn assert_a_list_is_narrowed_as_asked(config: &str) {
    assert_eq!(
        counts(&list(config, &["--reason", "rejected", "--status", "404"])),
        [kind("rejected", Some(404), 1)]
    );
    assert_eq!(letters_of(&list(config, &["--limit", "2"])).len(), 2);
    assert_eq!(list(config, &["--older", "1h"])["meant"], 0);
    assert_eq!(list(config, &["--newer", "1h"])["meant"], 6);
    let second = list(config, &["--where", "body.n == 2"]);
    assert_eq!(
        (&second["meant"], &second["unasked"]),
        (&json!(1), &json!(1))
    );
}

fn assert_the_table_shows_the_letters_without_their_bodies(config: &str) {
    let text = dead("list --config", &[config]).good();
    assert_says(
        &text,
        &[
            "dead-seen.dead: 6 letters, the oldest died ",
            "COUNT  ROUTE      REASON       STATUS\n",
            "    2  dead-seen  rejected     400\n",
            "NO  AGE",
            "1   ",
            "first\n",
        ],
    );
    assert!(!text.contains("s3cret"), "{text}");
}

fn assert_the_first_letter_is_explained(config: &str) {
    let first = show(config, "1", &[]).good();
    assert_says(
        &first,
        &[
            "letter 1 of dead-seen.dead\n",
            "rejected: the downstream said that it can never pass\n",
            "400 Bad Request",
            "answer            {\"error\":\"no such sender\"}\n",
            "last status       400\n",
            "attempts          1\n",
            "Z (",
            "message id        first\n",
            "body              23B; --body shows it\n",
        ],
    );
    assert!(!first.contains("s3cret"), "{first}");
    let with_body = show(config, "first", &["--body"]).good();
    assert!(with_body.contains("s3cret"));
}

fn assert_letters_are_shown_by_their_id_and_number(config: &str) {
    let third = show(config, "third", &["--json", "--body"]).json();
    assert_eq!(
        (&third["number"], &third["body"]),
        (&json!(3), &json!("{\"n\":3}"))
    );
    let unreadable = show(config, "6", &[]).good();
    assert!(
        unreadable.contains("unreadable: its properties cannot be read\n"),
        "{unreadable}"
    );
    assert!(
        unreadable.contains("x-sluiced-raw-properties"),
        "{unreadable}"
    );
    let missing = show(config, "seventh", &[]).bad(1);
    assert!(
        missing.contains("there is no letter `seventh`: dead-seen.dead has 6 letters"),
        "{missing}"
    );
}

/// RabbitMQ 4 drops a letter that was returned 20 times, unless its queue has another limit. This
/// one was declared without a limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_that_are_looked_at_often_are_not_used_up() {
    for queue_type in ["quorum", "classic"] {
        let name = format!("dead-often-{queue_type}");
        let broker = buried(&name, queue_type, 30).await;
        for look in 0..25 {
            let list = dead_at(&name, "list --json --limit", &["30"]).json()[0].clone();
            let mut ids: Vec<_> = letters_of(&list).into_iter().map(|(_, id)| id).collect();
            let mut expected: Vec<_> = (1..=30).map(|n| format!("m-{n}")).collect();
            if look >= 10 {
                // They were copied to the end, which may change their order.
                ids.sort_unstable();
                expected.sort_unstable();
            }
            assert_eq!(ids, expected, "look {look}");
        }
        let letters = broker.drain(&format!("{name}.dead")).await;
        let mut found: Vec<u64> = letters.iter().map(|(body, _)| number(body)).collect();
        found.sort_unstable();
        assert_eq!(found, (1..=30).collect::<Vec<_>>(), "each once");
        for (_, properties) in &letters {
            let headers = properties.headers().clone().unwrap_or_default();
            let returns = headers.inner().get("x-delivery-count").cloned();
            let returns = match returns {
                Some(AMQPValue::LongLongInt(returns)) => returns,
                Some(other) => panic!("{other:?}"),
                None => 0,
            };
            assert!(returns <= 11, "{returns} returns");
        }
    }
}

/// On a terminal, which `script` of util-linux provides.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_list_shows_how_far_it_came_and_keeps_the_order() {
    const COUNT: u64 = 1_000;
    let name = "dead-long";
    let broker = buried(name, "quorum", COUNT).await;
    let command = format!(
        "{} dead list --rabbitmq {} --queue {name}.dead",
        env!("CARGO_BIN_EXE_sluiced"),
        Rabbit::shared().url()
    );
    let mut script = Command::new("script");
    script.args(["-qec", &command, "/dev/null"]);
    let output = script.stdin(Stdio::null()).output().expect("`script` runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_says(
        &said,
        &[
            "looked at 100 of 1000",
            "looked at 1000 of 1000",
            "giving 1000 letters back",
            "dead-long.dead: 1000 letters",
        ],
    );
    let letters = broker.drain(&format!("{name}.dead")).await;
    let found: Vec<u64> = letters.iter().map(|(body, _)| number(body)).collect();
    assert_eq!(found, (1..=COUNT).collect::<Vec<_>>());
}
