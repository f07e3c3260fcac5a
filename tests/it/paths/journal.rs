//! The journal of a route: what happened to each message, without its content.

pub(crate) mod guide;

use lapin::BasicProperties;
use serde_json::{Value, json};

use super::{NO_BREAKER, config, holds, queue};
use crate::support::broker::Broker;
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route};
use crate::support::recorder::{Recorder, Reply};
use crate::support::wait::eventually;

const DECLARED: &[&str] = &[NEW_SCHEDULE, "nothing is kept on disk"];
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
    let daemon = daemon_with_a_journal(name, &downstream);
    publish_and_await_each_verdict(name, &broker, &downstream, &daemon).await;
    let log = daemon
        .stop(&[NEW_SCHEDULE, "dead letter", "nothing is kept on disk"])
        .await;

    let [accepted, failed, late] = ["m-1", "m-3", "m-late"].map(|id| lines(&log, id));
    assert_an_accepted_message_has_its_call_and_verdict(&accepted, name);
    assert_a_rejected_message_has_its_reason(&lines(&log, "m-2"));
    assert_a_failed_message_has_both_calls(&failed);
    assert_a_denied_message_has_its_limit_and_wait(&late);
    // The same recipient has the same digest, another one has another.
    assert_eq!(accepted[0]["keys"], late[0]["keys"]);
    assert_ne!(accepted[0]["keys"], failed[0]["keys"]);
    assert!(
        accepted[0]["keys"]
            .as_str()
            .unwrap()
            .starts_with("recipient="),
        "{}",
        accepted[0]
    );
    for secret in [PHONE, TEXT, "hunter2"] {
        assert!(!log.contains(secret), "{secret} in\n{log}");
    }
}

/// Each recipient may get two messages in an hour, and its calls carry a secret.
fn daemon_with_a_journal(name: &str, downstream: &Recorder) -> Daemon {
    let mut route = Route::new(name, downstream.address);
    route.limits = vec!["provider", "recipient"];
    route.keys = "journal = \"after\"\njournal_id = \"{{ answer.body.id }}\"\nmax_hold = \"0s\"\n\
        retry = { base = \"100ms\", max = \"100ms\" }\n"
        .to_owned();
    route.downstream = format!("{NO_BREAKER}auth = {{ kind = \"bearer\", token = \"hunter2\" }}\n");
    let mut config = config(name, vec![route]);
    config.tables = limit_of_recipients("2/1h");
    Daemon::start(&config)
}

fn limit_of_recipients(rate: &str) -> String {
    format!(
        "[limits.recipient]\nkind = \"sliding_log\"\nrate = \"{rate}\"\nkey = \"{{{{ body.to }}}}\"\n"
    )
}

/// The recipient of the first message gets a second one, and a third that is too many.
async fn publish_and_await_each_verdict(
    name: &str,
    broker: &Broker,
    downstream: &Recorder,
    daemon: &Daemon,
) {
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
    holds(broker, &format!("{name}.dead"), 1).await;
    daemon.says("\"message_id\":\"m-late\"").await;
    let has_ended = |id: &&str| {
        let lines = lines(&daemon.log(), id);
        let mut verdicts = lines.iter().map(|line| &line["verdict"]);
        verdicts.any(|verdict| verdict == "done" || verdict == "dead")
    };
    eventually(LONG, "the verdicts", || {
        ["m-1", "m-2", "m-3"].iter().all(has_ended)
    })
    .await;
}

fn assert_an_accepted_message_has_its_call_and_verdict(said: &[Value], route: &str) {
    let names = [
        "message",
        "attempt",
        "outcome",
        "status",
        "provider_id",
        "verdict",
    ];
    assert_eq!(
        json!(fields(said, &names)),
        json!([
            ["call", 1, "accepted", 202, "provider-7", null],
            ["verdict", null, null, null, null, "done"],
        ])
    );
    assert!(
        said[0]["ms"].is_u64() && said[0]["age_ms"].is_u64(),
        "{}",
        said[0]
    );
    assert_eq!(
        (&said[0]["redelivered"], &said[0]["route"]),
        (&json!(false), &json!(route))
    );
}

fn assert_a_rejected_message_has_its_reason(said: &[Value]) {
    let said = fields(said, &["status", "verdict", "reason", "detail", "attempts"]);
    assert_eq!(said[0][0], json!(400));
    let dead = json!([null, "dead", "rejected", "400 Bad Request", 1]);
    assert_eq!(json!(said[1]), dead);
}

fn assert_a_failed_message_has_both_calls(said: &[Value]) {
    let calls = said.iter().filter(|line| line["message"] == "call");
    let calls: Vec<_> = calls
        .map(|line| (line["attempt"].clone(), line["status"].clone()))
        .collect();
    assert_eq!(calls, [(json!(1), json!(503)), (json!(2), json!(202))]);
    let retried = said.iter().find(|line| line["verdict"] == "later").unwrap();
    assert_eq!(retried["why"], "its call failed", "{said:?}");
}

fn assert_a_denied_message_has_its_limit_and_wait(said: &[Value]) {
    assert_eq!(said[0]["verdict"], "later");
    assert_eq!(said[0]["why"], "denied by limits.recipient");
    assert!(said[0]["wait_ms"].as_u64().unwrap() > 1000, "{}", said[0]);
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
