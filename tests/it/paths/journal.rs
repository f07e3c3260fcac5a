//! The journal of a route: what happened to each message, without its content.

use lapin::BasicProperties;
use serde_json::{Value, json};

use super::{NO_BREAKER, config, holds, queue};
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route};
use crate::support::recorder::{Recorder, Reply};
use crate::support::wait::eventually;

/// Texts that must be in no line.
const PHONE: &str = "+4915550100";
const TEXT: &str = "Your code is 123456";

fn message(id: &str, number: u64) -> (Vec<u8>, BasicProperties) {
    let body = json!({ "n": number, "to": format!("{PHONE}{number}"), "text": TEXT });
    let properties = BasicProperties::default().with_message_id(id.into());
    (body.to_string().into_bytes(), properties)
}

/// The lines about one message, in order.
fn lines(log: &str, id: &str) -> Vec<Value> {
    let lines = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines
        .filter(|line| line["target"] == "sluiced::journal" && line["message_id"] == id)
        .collect()
}

/// These fields of each line; those that it lacks are null.
fn fields(lines: &[Value], names: &[&str]) -> Vec<Vec<Value>> {
    let of = |line: &Value| names.iter().map(|name| line[*name].clone()).collect();
    lines.iter().map(of).collect()
}

/// One message is accepted, one is rejected, one fails once, and one is denied by the limit of its recipient.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_call_and_each_verdict_of_a_message_is_a_line() {
    let name = "journal";
    let broker = queue(name, "quorum").await;
    let downstream = Recorder::start(|call| Reply {
        body: r#"{"id":"provider-7","echo":"Your code is 123456"}"#,
        ..Reply::status(match (call.number, call.repeat) {
            (2, _) => 400,
            (3, 0) => 503,
            _ => 202,
        })
    })
    .await;
    let mut route = Route::new(name, downstream.address);
    route.limits = vec!["provider", "recipient"];
    route.keys = "journal = true\njournal_id = \"{{ answer.body.id }}\"\nmax_hold = \"0s\"\n\
        retry = { base = \"100ms\", max = \"100ms\" }\n"
        .to_owned();
    route.downstream = format!("{NO_BREAKER}auth = {{ kind = \"bearer\", token = \"hunter2\" }}\n");
    let mut config = config(name, vec![route]);
    config.tables =
        "[limits.recipient]\nkind = \"sliding_log\"\nrate = \"2/1h\"\nkey = \"{{ body.to }}\"\n"
            .to_owned();
    let daemon = Daemon::start(&config);
    for number in [1, 2, 3] {
        broker
            .publish(name, [message(&format!("m-{number}"), number)])
            .await;
    }
    eventually(LONG, "four calls", || downstream.count() >= 4).await;
    eventually(LONG, "the first is settled", || {
        lines(&daemon.log(), "m-1").len() == 2
    })
    .await;
    broker.publish(name, [message("m-4", 1)]).await;
    eventually(LONG, "the last that fits", || downstream.count() == 5).await;
    broker.publish(name, [message("m-late", 1)]).await;
    holds(&broker, &format!("{name}.dead"), 1).await;
    daemon.says("\"message_id\":\"m-late\"").await;
    let said = |id| lines(&daemon.log(), id);
    eventually(LONG, "the verdicts", || {
        ["m-1", "m-2", "m-3"].iter().all(|id| {
            let said = said(id);
            said.iter()
                .any(|line| line["verdict"] == "done" || line["verdict"] == "dead")
        })
    })
    .await;
    let log = daemon
        .stop(&[NEW_SCHEDULE, "dead letter", "nothing is kept on disk"])
        .await;

    let call = [
        "message",
        "attempt",
        "outcome",
        "status",
        "provider_id",
        "verdict",
    ];
    let m1 = lines(&log, "m-1");
    assert_eq!(
        fields(&m1, &call),
        [
            vec![
                json!("call"),
                json!(1),
                json!("accepted"),
                json!(202),
                json!("provider-7"),
                Value::Null
            ],
            vec![
                json!("verdict"),
                Value::Null,
                Value::Null,
                Value::Null,
                Value::Null,
                json!("done")
            ],
        ]
    );
    assert!(
        m1[0]["ms"].is_u64() && m1[0]["age_ms"].is_u64(),
        "{}",
        m1[0]
    );
    assert_eq!(
        (&m1[0]["redelivered"], &m1[0]["route"]),
        (&json!(false), &json!(name))
    );
    let m2 = fields(
        &lines(&log, "m-2"),
        &["status", "verdict", "reason", "detail", "attempts"],
    );
    assert_eq!(m2[0][0], json!(400));
    let dead = [
        Value::Null,
        json!("dead"),
        json!("rejected"),
        json!("400 Bad Request"),
        json!(1),
    ];
    assert_eq!(m2[1], dead);
    let m3 = lines(&log, "m-3");
    let calls = m3.iter().filter(|line| line["message"] == "call");
    let calls: Vec<_> = calls
        .map(|line| (line["attempt"].clone(), line["status"].clone()))
        .collect();
    assert_eq!(calls, [(json!(1), json!(503)), (json!(2), json!(202))]);
    let retried = m3.iter().find(|line| line["verdict"] == "later").unwrap();
    assert_eq!(retried["why"], "its call failed", "{m3:?}");
    let late = lines(&log, "m-late");
    assert_eq!(late[0]["verdict"], "later");
    assert_eq!(late[0]["why"], "denied by limits.recipient");
    assert!(late[0]["wait_ms"].as_u64().unwrap() > 1000, "{}", late[0]);

    // The same recipient has the same digest, another one has another.
    assert_eq!(m1[0]["keys"], late[0]["keys"]);
    assert_ne!(m1[0]["keys"], m3[0]["keys"]);
    assert!(
        m1[0]["keys"].as_str().unwrap().starts_with("recipient="),
        "{}",
        m1[0]
    );
    for secret in [PHONE, TEXT, "hunter2"] {
        assert!(!log.contains(secret), "{secret} in\n{log}");
    }
}

/// Without `journal` there is no such line, and at the level debug the HTTP client does not hide ours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_it_no_message_is_logged_and_debug_is_readable() {
    let name = "no-journal";
    let broker = queue(name, "classic").await;
    let downstream = Recorder::accepting().await;
    let mut config = config(name, vec![Route::new(name, downstream.address)]);
    config.tables = "[log]\nlevel = \"debug\"\n".to_owned();
    let daemon = Daemon::start(&config);
    broker
        .publish(name, (1..=20).map(|n| message("m", n)))
        .await;
    eventually(LONG, "all calls", || downstream.count() == 20).await;
    let log = daemon.stop(&[NEW_SCHEDULE]).await;
    assert_eq!(lines(&log, "m"), Vec::<Value>::new());
    let entries = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let targets: Vec<String> = entries
        .map(|line| line["target"].as_str().unwrap().to_owned())
        .collect();
    let theirs = targets
        .iter()
        .filter(|target| target.starts_with("hyper"))
        .count();
    assert_eq!(theirs, 0, "{log}");
    let ours = targets
        .iter()
        .filter(|target| target.starts_with("sluiced"))
        .count();
    assert!(
        ours * 2 > targets.len(),
        "{ours} of {} lines are ours\n{log}",
        targets.len()
    );
}
