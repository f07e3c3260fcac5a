//! `sluiced try`: what would happen to a message, without calling or taking anything.

use std::io::Write as _;
use std::process::Stdio;

use lapin::types::{AMQPValue, FieldTable};
use serde_json::Value;

use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route, file, program};
use crate::support::messages::body;
use crate::support::rabbit::Rabbit;
use crate::support::recorder::{Recorder, Reply};
use crate::support::wait::eventually_by_program;
use crate::support::zones::where_it_is;

fn tried(config: &Config, message: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), "sluiced.toml", &config.text());
    let path = path.display().to_string();
    let mut command = program(&["try", "--config", &path]);
    command.args(arguments).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // With --peek it reads nothing, and may have ended.
    child
        .stdin
        .take()
        .unwrap()
        .write_all(message.as_bytes())
        .ok();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

fn config(name: &str, downstream: std::net::SocketAddr) -> Config {
    let mut route = Route::new(name, downstream);
    route.limits = vec!["recipient", "provider"];
    let mut config = Config::shared(name, "100/1s", vec![route]);
    config.tables =
        "[limits.recipient]\nkind = \"fixed_window\"\nrate = \"2/1d\"\nlost_wait = \"0s\"\n\
                     key = \"{{ body.n }}\"\ncost = \"{{ body.parts | default(1) }}\"\n"
            .to_owned();
    config
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_limit_and_the_request_are_told_and_nothing_is_called() {
    let name = "tried";
    let downstream = Recorder::accepting().await;
    let config = config(name, downstream.address);
    let mut locked = config.clone();
    locked.routes[0].downstream +=
        "auth = { kind = \"bearer\", token_file = \"/nowhere/token\" }\n";
    let (code, text, err) = tried(&locked, "{\"n\":7,\"parts\":1,\"text\":\"\u{9b}2J\"}", &[]);
    assert_eq!(code, Some(0), "no secret is needed: {err}");
    assert!(text.contains("authorization: (hidden)"), "{text}");
    assert!(!text.contains('\u{9b}'), "{text:?}");
    for _ in 0..3 {
        let (code, text, err) = tried(
            &config,
            "{\"n\":7,\"parts\":2}",
            &["--header", "traceparent=00-ab-cd-01"],
        );
        assert_eq!(code, Some(0), "{err}");
        for said in [
            "key 7 costs 2 units: passes, 2 of 2 left",
            "it would go once a replica runs",
            "POST http://",
            "traceparent: 00-ab-cd-01",
            "\"parts\":2",
        ] {
            assert!(text.contains(said), "no `{said}` in\n{text}");
        }
    }
    let (code, text, _) = tried(&config, "{\"n\":7}", &["--json"]);
    assert_eq!(code, Some(0));
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&json["limits"][0]["key"], &json["limits"][0]["cost"]),
        (&"7".into(), &1.into())
    );
    assert_eq!(
        (&json["limits"][0]["wait_us"], &json["wait_us"]),
        (&0.into(), &Value::Null)
    );
    assert_eq!(json["fleet"]["replicas"], 0);
    let (code, _, err) = tried(&config, "{\"to\":7}", &[]);
    assert_eq!(code, Some(1));
    assert!(
        err.contains("a limit cannot count it") && err.contains("dead letter"),
        "{err}"
    );
    let (code, _, err) = tried(&config, "{}", &["--route", "emails"]);
    assert_eq!(code, Some(2));
    assert!(
        err.contains("there is no route `emails`; there are: tried"),
        "{err}"
    );
    assert_eq!(downstream.count(), 0);
}

/// As replicas send it: by the clock of its own time zone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_hours_of_the_time_zone_of_a_message_count() {
    let name = "tried-hours";
    let mut config = config(name, "127.0.0.1:1".parse().unwrap());
    config.routes[0].keys = "open = \"06:00-18:00\"\ntimezone = \"{{ body.zone }}\"\n".to_owned();
    for (hour, says) in [(12, "open"), (0, "closed for another ")] {
        let message = format!("{{\"n\":7,\"zone\":\"{}\"}}", where_it_is(hour));
        let (code, text, err) = tried(&config, &message, &[]);
        assert_eq!(code, Some(0), "{err}");
        let line = text.lines().find(|line| line.contains("opening hours"));
        assert!(line.is_some_and(|line| line.contains(says)), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_message_of_the_queue_is_looked_at_and_given_back() {
    let name = "tried-peek";
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    // As RabbitMQ 4 limits each quorum queue that does not say otherwise.
    let mut arguments = FieldTable::default();
    arguments.insert("x-delivery-limit".into(), AMQPValue::LongInt(20));
    broker.declare_with(name, "quorum", arguments).await;
    let config = config(name, "127.0.0.1:1".parse().unwrap());
    let (code, _, err) = tried(&config, "", &["--peek"]);
    assert_eq!(code, Some(1));
    assert!(err.contains("no message is ready"), "{err}");
    broker
        .publish(
            name,
            [9, 10].map(|n| (body(n), lapin::BasicProperties::default())),
        )
        .await;
    // More often than the broker returns a message before it drops it: in time it is copied behind the other.
    for peek in 0..44 {
        let (code, text, err) = tried(&config, "", &["--peek"]);
        assert_eq!(code, Some(0), "{err}");
        let is_first = text.contains("key 9 costs 1 unit");
        assert!(is_first || peek > 9, "{text}");
    }
    assert_eq!(broker.counts(name).await, Some((2, 0)));
}

/// In an outage the message is not sent now, and the command reports the outage and the messages before
/// it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_and_the_messages_before_it_are_told() {
    let name = "tried-away";
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    broker.declare(name, "quorum").await;
    let downstream = Recorder::start(|_| Reply::status(503)).await;
    let mut route = Route::new(name, downstream.address);
    route.keys = "prefetch = 20\n".to_owned();
    let config = Config::shared(name, "100/1s", vec![route]);
    let said = |parts: &[&str]| {
        let (code, text, err) = tried(&config, "{\"n\":7}", &[]);
        assert_eq!(code, Some(0), "{err}");
        parts.iter().all(|part| text.contains(part))
    };
    assert!(said(&["it would go once a replica runs"]));
    let mut daemon = Daemon::start(&config);
    daemon.ready().await;
    eventually_by_program(LONG, "nothing is before it", || {
        said(&[
            "before it        0 in the queue, 0 held by 1 replica\n",
            "it would go now\n",
        ])
    })
    .await;
    let messages = (1..=50).map(|n| (body(n), lapin::BasicProperties::default()));
    broker.publish(name, messages).await;
    eventually_by_program(LONG, "the outage, and those before it", || {
        said(&[
            "before it        30 in the queue, 20 held by 1 replica\n",
            "it would go once the downstream takes messages again: only single probes are sent (503 Service Unavailable)",
        ])
    })
    .await;
    let (_, text, _) = tried(&config, "{\"n\":7}", &["--json"]);
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&json["wait_us"], &json["fleet"]["before"]),
        (&Value::Null, &50.into())
    );
    daemon
        .stop(&[
            NEW_SCHEDULE,
            "nothing is kept on disk",
            "the downstream is away",
        ])
        .await;
}
