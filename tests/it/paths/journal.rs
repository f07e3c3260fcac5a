//! The journal of a route: what happened to each message, without its content.

use lapin::BasicProperties;
use serde_json::{Value, json};

use super::{NO_BREAKER, config, holds, queue};
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route, get, program};
use crate::support::recorder::{Recorder, Reply};
use crate::support::wait::{eventually, eventually_by_program};

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
    let mut route = Route::new(name, downstream.address);
    route.limits = vec!["provider", "recipient"];
    route.keys = "journal = \"after\"\njournal_id = \"{{ answer.body.id }}\"\nmax_hold = \"0s\"\n\
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

/// The question of `docs/journal.md` that begins with these words, over these logs. Returns what it says, line by
/// line.
pub(crate) fn asked(question: &str, logs: &[String]) -> Vec<Value> {
    let guide = include_str!("../../../docs/journal.md");
    let mut lines = guide.lines();
    let reads = lines.find(|line| line.starts_with("lines() {")).unwrap();
    lines.find(|line| line.starts_with(question)).unwrap();
    let asks = lines.next().unwrap();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("logs"), logs.concat()).unwrap();
    let reads = reads.replace("journalctl -u sluiced -o cat --since -1d", "cat logs");
    // As if the waits were over.
    let asks = asks.replace("< now)", "< now + 90000)");
    let script = format!("set -e\n{reads}\n{asks}");
    let mut shell = std::process::Command::new("bash");
    let output = shell
        .args(["-c", &script])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    said.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// A replica is killed while its calls are under way, and another one makes them again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_guide_finds_each_message_that_a_killed_replica_had_called() {
    const CALLED: usize = 20;
    let name = "journal-killed";
    let broker = queue(name, "quorum").await;
    let downstream = Recorder::start(|call| Reply {
        // It takes each message, and its answers to the first replica come too late.
        latency: match call.caller.as_str() {
            "one" => LONG * 10,
            _ => std::time::Duration::ZERO,
        },
        ..Reply::status(202)
    })
    .await;
    let replica = |caller: &str| {
        let mut route = Route::new(name, downstream.address);
        route.caller = caller.to_owned();
        route.keys = format!("journal = \"before\"\nprefetch = {CALLED}\n");
        route.downstream = "timeout = \"10m\"\n".to_owned();
        let mut config = config(name, vec![route]);
        config.tables = "[service]\ngrace = \"10m\"\n".to_owned();
        Daemon::start(&config)
    };
    let one = replica("one");
    broker
        .publish(name, (1..=50).map(|n| message(&format!("m-{n}"), n)))
        .await;
    let calling = "\"message\":\"calling\"";
    eventually(LONG, "its calls are under way, and logged", || {
        downstream.count() == CALLED && one.said(calling) == CALLED
    })
    .await;
    let log = one.log();
    one.kill(DECLARED).await;
    let other = replica("other");
    let done = "\"verdict\":\"done\"";
    eventually(LONG, "the other one makes all calls", || {
        downstream.numbers().len() == 50 && other.said(done) == 50
    })
    .await;
    let logs = [log, other.stop(DECLARED).await];

    let mut times = std::collections::BTreeMap::new();
    for call in downstream.calls() {
        *times.entry(format!("m-{}", call.number)).or_insert(0) += 1;
    }
    times.retain(|_, times| *times > 1);
    assert_eq!(
        times.len(),
        CALLED,
        "the provider has these twice: {times:?}"
    );
    let said = asked("# Why did it get there twice?", &logs);
    let of = |id: &str| {
        let lines = said.iter().filter(|line| line[0] == id);
        lines.cloned().collect::<Vec<_>>()
    };
    for id in times.keys() {
        let lines = of(id);
        let what: Vec<_> = lines.iter().map(|line| line[1].as_str().unwrap()).collect();
        assert_eq!(what, ["calling", "calling", "call", "verdict"], "{lines:?}");
        assert_eq!([&lines[0][6], &lines[1][6]], [false, true], "redelivered");
        assert_ne!(lines[0][7], lines[1][7], "the replicas differ");
        assert_eq!(lines[1][7], lines[2][7]);
    }
    let shown: std::collections::BTreeSet<_> =
        said.iter().map(|line| line[0].to_string()).collect();
    assert_eq!(shown.len(), CALLED, "and nothing else");
}

/// An operator deletes a wait queue: the log, the counter, the status and a question of the guide say what was in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_are_gone_with_a_wait_queue_are_counted_and_named() {
    let name = "journal-gone";
    let broker = queue(name, "quorum").await;
    let downstream = Recorder::accepting().await;
    let mut route = Route::new(name, downstream.address);
    route.limits = vec!["provider", "recipient"];
    route.keys = "journal = \"after\"\nmax_hold = \"0s\"\n".to_owned();
    let mut config = config(name, vec![route]);
    config.tables =
        "[limits.recipient]\nkind = \"sliding_log\"\nrate = \"4/1h\"\nkey = \"{{ body.to }}\"\n"
            .to_owned();
    let mut daemon = Daemon::start(&config);
    let to_one = |n: u64| {
        let (_, properties) = message(&format!("m-{n}"), n);
        let body = json!({ "n": n, "to": PHONE });
        (body.to_string().into_bytes(), properties)
    };
    broker.publish(name, (1..=20).map(to_one)).await;
    let settled = || daemon.said("\"message\":\"verdict\"") == 20;
    eventually(LONG, "all are settled", settled).await;
    let log = daemon.log();
    let waits: std::collections::BTreeSet<_> = lines_with(&log, "later")
        .map(|line| line["message_id"].to_string())
        .collect();
    assert_eq!(waits.len(), 16);
    for seconds in (0..=12).map(|step| 1 << step) {
        broker.delete(&format!("{name}.wait.{seconds}s")).await;
    }
    let admin = daemon.admin().await;
    let series =
        format!("sluiced_vanished_messages_total{{route=\"{name}\",part=\"waiting\"}} 16\n");
    eventually(LONG, "they are counted", || {
        get(admin, "/metrics").1.contains(&series)
    })
    .await;
    let url = format!("http://{admin}");
    eventually_by_program(LONG, "the status says so", || {
        let output = program(&["status", "--url", &url]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.contains("that was deleted or purged: 16 waiting")
    })
    .await;
    let log = daemon
        .stop(
            &[
                DECLARED,
                &["a queue is gone with the messages that it held"],
            ]
            .concat(),
        )
        .await;
    let told = log
        .lines()
        .filter(|line| line.contains("a queue is gone with the messages"));
    let told = told.map(|line| serde_json::from_str::<Value>(line).unwrap());
    let told: u64 = told.map(|line| line["messages"].as_u64().unwrap()).sum();
    assert_eq!(told, 16);
    assert!(log.contains(&format!("\"queue\":\"{name}.wait.")), "{log}");
    let said = asked(
        "# Which messages were in a wait queue that is gone?",
        &[log],
    );
    let named: std::collections::BTreeSet<_> =
        said.iter().map(|line| line[0].to_string()).collect();
    assert_eq!(named, waits);
}

/// The verdicts of this kind.
fn lines_with<'a>(log: &'a str, verdict: &'a str) -> impl Iterator<Item = Value> + 'a {
    let lines = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(move |line| line["verdict"] == verdict)
}
