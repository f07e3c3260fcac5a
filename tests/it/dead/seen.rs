//! Reading letters: what is shown of them, and that they stay where they are.

use std::process::{Command, Stdio};

use lapin::BasicProperties;
use lapin::types::AMQPValue;
use serde_json::Value;

use super::{broker, buried, dead, dead_at, holds};
use crate::support::daemon::{Config, Daemon, NEW_SCHEDULE, Route, file};
use crate::support::messages::{body, number};
use crate::support::rabbit::Rabbit;
use crate::support::raw_amqp::{RawMessage, RawPublisher, short};
use crate::support::recorder::{Recorder, Reply};

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

fn numbers(list: &Value) -> Vec<(u64, String)> {
    let letters = list["letters"].as_array().unwrap().iter();
    letters
        .map(|letter| {
            let id = letter["message_id"].as_str().unwrap_or_default().to_owned();
            (letter["number"].as_u64().unwrap(), id)
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_of_every_kind_are_counted_and_shown_and_stay() {
    let name = "dead-seen";
    let broker = broker().await;
    broker.declare(name, "quorum").await;
    let downstream = Recorder::start(|call| Reply {
        body: "{\"error\":\"no such sender\"}",
        ..Reply::status(if call.number == 3 { 404 } else { 400 })
    })
    .await;
    let mut route = Route::new(name, downstream.address);
    route.keys = "max_age = \"1h\"\n".to_owned();
    route.caller = "{{ body.n }}".to_owned();
    route.downstream += "keep_answer = true\n";
    let daemon = Daemon::start(&Config::shared(name, "100/1s", vec![route]));
    let config = daemon.config().display().to_string();
    let list = |arguments: &[&str]| {
        dead(
            "list --json --config",
            &[&[config.as_str()], arguments].concat(),
        )
        .json()[0]
            .clone()
    };

    // One after the other, so that their places are known.
    let letters = format!("{name}.dead");
    broker
        .publish(name, [message("first", r#"{"n":1,"code":"s3cret"}"#)])
        .await;
    holds(&broker, &letters, 1).await;
    broker.publish(name, [message("second", "{\"n\":2}")]).await;
    holds(&broker, &letters, 2).await;
    broker.publish(name, [message("third", "{\"n\":3}")]).await;
    holds(&broker, &letters, 3).await;
    broker.publish(name, [message("fourth", "no json")]).await;
    holds(&broker, &letters, 4).await;
    let old = BasicProperties::default().with_timestamp(1_700_000_000);
    broker.publish(name, [(body(5), old)]).await;
    holds(&broker, &letters, 5).await;
    let mut raw = RawPublisher::connect(&Rabbit::shared().url());
    raw.publish(&RawMessage {
        routing_key: name.into(),
        properties: [&[0x80, 0][..], &short(b"\xff")].concat(),
        body: body(6),
        ..RawMessage::default()
    });
    raw.confirmed();
    holds(&broker, &letters, 6).await;

    let all = list(&[]);
    let kind = |reason: &str, status, count| (reason.to_owned(), status, count);
    assert_eq!(all["queue"], letters.as_str());
    assert_eq!(all["total"], 6);
    assert_eq!(
        counts(&all),
        [
            kind("expired", None, 1),
            kind("rejected", Some(400), 2),
            kind("rejected", Some(404), 1),
            kind("undecodable", None, 1),
            kind("unreadable", None, 1),
        ]
    );
    let ids: Vec<_> = numbers(&all).into_iter().map(|(_, id)| id).collect();
    assert_eq!(ids[0], "first");
    assert_eq!(ids[3], "fourth");
    assert_eq!(ids[4].len(), 36, "an id was made: {}", ids[4]);
    assert_eq!(all["letters"][0]["attempts"], 1);
    assert_eq!(all["letters"][0]["bytes"], 23);
    assert_eq!(
        counts(&list(&["--reason", "rejected", "--status", "404"])),
        [kind("rejected", Some(404), 1)]
    );
    assert_eq!(numbers(&list(&["--limit", "2"])).len(), 2);
    let (none, some) = (list(&["--older", "1h"]), list(&["--newer", "1h"]));
    assert_eq!(
        (&none["meant"], &some["meant"]),
        (&Value::from(0), &Value::from(6))
    );
    let where_ = list(&["--where", "body.n == 2"]);
    assert_eq!(
        (&where_["meant"], &where_["unasked"]),
        (&Value::from(1), &Value::from(1))
    );

    let text = dead("list --config", &[&config]).good();
    for said in [
        "dead-seen.dead: 6 letters, the oldest died ",
        "COUNT  ROUTE      REASON       STATUS\n",
        "    2  dead-seen  rejected     400\n",
        "NO  AGE",
        "1   ",
        "first\n",
    ] {
        assert!(text.contains(said), "no `{said}` in\n{text}");
    }
    assert!(!text.contains("s3cret"), "{text}");

    let show = |letter: &str, more: &[&str]| {
        dead(
            "show --config",
            &[&[config.as_str(), letter], more].concat(),
        )
    };
    let first = show("1", &[]).good();
    for said in [
        "letter 1 of dead-seen.dead\n",
        "rejected: the downstream said that it can never pass\n",
        "400 Bad Request",
        "answer            {\"error\":\"no such sender\"}\n",
        "last status       400\n",
        "attempts          1\n",
        "Z (",
        "message id        first\n",
        "body              23B; --body shows it\n",
    ] {
        assert!(first.contains(said), "no `{said}` in\n{first}");
    }
    assert!(!first.contains("s3cret"), "{first}");
    assert!(show("first", &["--body"]).good().contains("s3cret"));
    let third = show("third", &["--json", "--body"]).json();
    assert_eq!(
        (&third["number"], &third["body"]),
        (&Value::from(3), &Value::from("{\"n\":3}"))
    );
    let unreadable = show("6", &[]).good();
    assert!(
        unreadable.contains("unreadable: its properties cannot be read\n"),
        "{unreadable}"
    );
    assert!(
        unreadable.contains("x-sluiced-raw-properties"),
        "{unreadable}"
    );
    let missing = show("seventh", &[]).bad(1);
    assert!(
        missing.contains("there is no letter `seventh`: dead-seen.dead has 6 letters"),
        "{missing}"
    );

    let again = list(&[]);
    let mut ids: Vec<_> = numbers(&again).into_iter().map(|(_, id)| id).collect();
    let mut before: Vec<_> = numbers(&all).into_iter().map(|(_, id)| id).collect();
    ids.sort_unstable();
    before.sort_unstable();
    assert_eq!(ids, before, "all are there still");
    assert_eq!(
        numbers(&dead_at(name, "list --json", &[]).json()[0]).len(),
        before.len()
    );
    assert_eq!(downstream.count(), 3);
    daemon.stop(&[NEW_SCHEDULE, "dead", "unreadable"]).await;
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
            let mut ids: Vec<_> = numbers(&list).into_iter().map(|(_, id)| id).collect();
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_done_is_said_with_what_would_be_right() {
    let rabbit = Rabbit::shared().url();
    let none = dead_at("dead-nowhere", "list", &[]).good();
    assert!(
        none.contains("dead-nowhere.dead: no dead letters, for there is no such queue"),
        "{none}"
    );
    let live = dead("list --queue sms --rabbitmq", &[&rabbit]).bad(2);
    assert!(
        live.contains("`sms` is no queue of dead letters; did you mean `sms.dead`?"),
        "{live}"
    );
    let alone = dead("list", &[]).bad(2);
    assert!(alone.contains("--config"), "{alone}");
    let away = dead(
        "list --queue sms.dead --rabbitmq amqp://me:hunter2@127.0.0.1:1",
        &["--json"],
    )
    .bad(1);
    assert!(
        away.contains("cannot be reached") && !away.contains("hunter2"),
        "{away}"
    );
    let template = dead_at("dead-nowhere", "replay --where", &["bodi.to == 1"]).bad(2);
    assert!(template.contains("templates know no `bodi`"), "{template}");
    let to = dead_at("dead-nowhere", "replay --to sms.dead", &[]).bad(2);
    assert!(to.contains("name a work queue"), "{to}");

    let dir = tempfile::tempdir().unwrap();
    let downstream = ([127, 0, 0, 1], 1).into();
    let routes = vec![
        Route::new("dead-errors", downstream),
        Route::new("dead-others", downstream),
    ];
    let mut config = Config::shared("dead-errors", "100/1s", routes);
    let good = file(dir.path(), "good.toml", &config.text());
    let good = good.display().to_string();
    let typo = dead("list --route dead-eror --config", &[&good]).bad(2);
    assert!(
        typo.contains("there is no route `dead-eror`; did you mean `dead-errors`?"),
        "{typo}"
    );
    let which = dead("show 1 --config", &[&good]).bad(2);
    assert!(which.contains("name the route with --route"), "{which}");
    let wrong = file(
        dir.path(),
        "wrong.toml",
        &config.text().replace("limits = [", "limit = ["),
    );
    let wrong = dead("list --config", &[&wrong.display().to_string()]).bad(78);
    assert!(wrong.contains("wrong.toml:"), "{wrong}");

    // Only RabbitMQ's secret is asked for.
    let text = config
        .text()
        .replace("[redis]\n", "[redis]\npassword_file = \"/nowhere/redis\"\n");
    let apart = file(dir.path(), "apart.toml", &text);
    dead("list --config", &[&apart.display().to_string()]).good();
    let text = config.text().replace(
        "[rabbitmq]\n",
        "[rabbitmq]\npassword_file = \"/nowhere/rabbit\"\n",
    );
    let apart = file(dir.path(), "apart.toml", &text);
    let asked = dead("list --config", &[&apart.display().to_string()]).bad(78);
    assert!(asked.contains("/nowhere/rabbit"), "{asked}");

    config.rabbit = None;
    config.routes.truncate(1);
    config.tables = "[embedded]\nleftover = \"rest.ndjson\"\n".to_owned();
    let embedded = file(dir.path(), "embedded.toml", &config.text());
    let embedded = dead("list --config", &[&embedded.display().to_string()]).bad(1);
    assert!(
        embedded.contains("what was not delivered is in `rest.ndjson`"),
        "{embedded}"
    );
}

/// However the URL is written, and whatever becomes of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_is_never_shown() {
    let port = Rabbit::shared().port();
    for url in [
        format!("amqp://guest:s3cret@127.0.0.1:{port}/%2f"),
        format!("guest:s3cret@127.0.0.1:{port}"),
        "amqp://guest:s3cret@127.0.0.1:1/%2f".to_owned(),
        "amqp://guest:s3cret@[2001:db8::5:5672".to_owned(),
        "amqp://guest:s3cret@no such host/".to_owned(),
        "amqp://guest:s3cret@127.0.0.1:port/".to_owned(),
    ] {
        let said = dead("list --queue sms.dead --rabbitmq", &[&url]);
        assert_ne!(said.code, 0, "{url}");
        assert!(!said.err.is_empty(), "{url}");
        let all = said.out + &said.err;
        assert!(!all.contains("s3cret"), "{url}: {all}");
    }
    let url = "amqp://guest:s3cret@127.0.0.1:1/%2f";
    let said = dead("list --rabbitmq", &[url]);
    assert_eq!(said.code, 2, "no queue is named");
    assert!(!said.err.contains("s3cret"), "{}", said.err);
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
    for part in [
        "looked at 100 of 1000",
        "looked at 1000 of 1000",
        "giving 1000 letters back",
        "dead-long.dead: 1000 letters",
    ] {
        assert!(said.contains(part), "no `{part}` in\n{said}");
    }
    let letters = broker.drain(&format!("{name}.dead")).await;
    let found: Vec<u64> = letters.iter().map(|(body, _)| number(body)).collect();
    assert_eq!(found, (1..=COUNT).collect::<Vec<_>>());
}
