//! The questions of `docs/journal.md`, asked of real journals.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};

use super::super::{config, queue};
use super::{DECLARED, PHONE, limit_of_recipients, message};
use crate::support::daemon::{Daemon, LONG, Route, get, program};
use crate::support::recorder::{Recorder, Reply};
use crate::support::wait::{eventually, eventually_by_program};

/// The question of `docs/journal.md` that begins with these words, over these logs. Returns what it says, line by
/// line.
pub(crate) fn asked(question: &str, logs: &[String]) -> Vec<Value> {
    let guide = include_str!("../../../../docs/journal.md");
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

/// Calls of the first replica that are under way when it is killed.
const CALLED: usize = 20;

/// A replica is killed while its calls are in flight, and another one makes them again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_guide_finds_each_message_that_a_killed_replica_had_called() {
    let name = "journal-killed";
    let broker = queue(name, "quorum").await;
    let downstream = Recorder::start(|call| Reply {
        // It takes each message, and its answers to the first replica come too late.
        latency: match call.caller.as_str() {
            "killed" => LONG * 10,
            _ => Duration::ZERO,
        },
        ..Reply::status(202)
    })
    .await;
    let killed = patient_replica(name, "killed", &downstream);
    broker
        .publish(name, (1..=50).map(|n| message(&format!("m-{n}"), n)))
        .await;
    let calling = "\"message\":\"calling\"";
    eventually(LONG, "its calls are under way, and logged", || {
        downstream.count() == CALLED && killed.said(calling) == CALLED
    })
    .await;
    let log = killed.log();
    killed.kill(DECLARED).await;
    let other = patient_replica(name, "other", &downstream);
    let done = "\"verdict\":\"done\"";
    eventually(LONG, "the other one makes all calls", || {
        downstream.numbers().len() == 50 && other.said(done) == 50
    })
    .await;
    let logs = [log, other.stop(DECLARED).await];
    let said = asked("# Why did it get there twice?", &logs);
    assert_each_was_called_by_both(&said, &called_twice(&downstream));
}

/// It waits for its answers longer than the test lasts.
fn patient_replica(name: &str, caller: &str, downstream: &Recorder) -> Daemon {
    let mut route = Route::new(name, downstream.address);
    route.caller = caller.to_owned();
    route.keys = format!("journal = \"before\"\nprefetch = {CALLED}\n");
    route.downstream = "timeout = \"10m\"\n".to_owned();
    let mut config = config(name, vec![route]);
    config.tables = "[service]\ngrace = \"10m\"\n".to_owned();
    Daemon::start(&config)
}

/// The messages that the downstream has twice.
fn called_twice(downstream: &Recorder) -> Vec<String> {
    let mut times = BTreeMap::new();
    for call in downstream.calls() {
        *times.entry(format!("m-{}", call.number)).or_insert(0) += 1;
    }
    times.retain(|_, times| *times > 1);
    assert_eq!(
        times.len(),
        CALLED,
        "the provider has these twice: {times:?}"
    );
    times.into_keys().collect()
}

fn assert_each_was_called_by_both(said: &[Value], twice: &[String]) {
    for id in twice {
        let lines: Vec<_> = said.iter().filter(|line| line[0] == id.as_str()).collect();
        let what: Vec<_> = lines.iter().map(|line| line[1].as_str().unwrap()).collect();
        assert_eq!(what, ["calling", "calling", "call", "verdict"], "{lines:?}");
        assert_eq!([&lines[0][6], &lines[1][6]], [false, true], "redelivered");
        assert_ne!(lines[0][7], lines[1][7], "the replicas differ");
        assert_eq!(lines[1][7], lines[2][7]);
    }
    let shown: BTreeSet<_> = said.iter().map(|line| line[0].to_string()).collect();
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
    config.tables = limit_of_recipients("4/1h");
    let mut daemon = Daemon::start(&config);
    let to_one = |n: u64| {
        let (_, properties) = message(&format!("m-{n}"), n);
        let body = json!({ "n": n, "to": PHONE });
        (body.to_string().into_bytes(), properties)
    };
    broker.publish(name, (1..=20).map(to_one)).await;
    let settled = || daemon.said("\"message\":\"verdict\"") == 20;
    eventually(LONG, "all are settled", settled).await;
    let waits: BTreeSet<_> = lines_with(&daemon.log(), "later")
        .map(|line| line["message_id"].to_string())
        .collect();
    assert_eq!(waits.len(), 16);
    for seconds in (0..=12).map(|step| 1 << step) {
        broker.delete(&format!("{name}.wait.{seconds}s")).await;
    }
    the_metrics_and_the_status_say_what_is_gone(name, &mut daemon).await;
    let gone = "a queue is gone with the messages that it held";
    let log = daemon.stop(&[DECLARED, &[gone]].concat()).await;
    assert_the_log_says_how_many_are_gone(&log, name);
    let said = asked(
        "# Which messages were in a wait queue that is gone?",
        &[log],
    );
    let named: BTreeSet<_> = said.iter().map(|line| line[0].to_string()).collect();
    assert_eq!(named, waits);
}

async fn the_metrics_and_the_status_say_what_is_gone(name: &str, daemon: &mut Daemon) {
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
}

fn assert_the_log_says_how_many_are_gone(log: &str, name: &str) {
    let told = log
        .lines()
        .filter(|line| line.contains("a queue is gone with the messages"));
    let told = told.map(|line| serde_json::from_str::<Value>(line).unwrap());
    let told: u64 = told.map(|line| line["messages"].as_u64().unwrap()).sum();
    assert_eq!(told, 16);
    assert!(log.contains(&format!("\"queue\":\"{name}.wait.")), "{log}");
}

/// The verdicts of this kind.
fn lines_with<'a>(log: &'a str, verdict: &'a str) -> impl Iterator<Item = Value> + 'a {
    let lines = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(move |line| line["verdict"] == verdict)
}
