//! A key of an API in a URL, a header and a body: it comes from a file, changes while messages wait, and is shown
//! nowhere.

use std::io::Write as _;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use super::{config, numbered, queue};
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route, get, program};
use crate::support::recorder::{Recorder, Reply, after_an_answer};
use crate::support::wait::eventually;

const MESSAGES: u64 = 60;
const FIRST: &str = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw";
const SECOND: &str = "110201543:BBBBqTcvCH1vGWJxfSeofSAs0K5PALDnew";

/// What a command writes with this configuration; a message is its input.
fn said(words: &[&str], config: &str) -> String {
    let mut command = program(words);
    command.args(["--config", config]).stdin(Stdio::piped());
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    // Not every command reads it.
    let message = b"{\"n\":1}";
    child.stdin.take().unwrap().write_all(message).ok();
    let output = child.wait_with_output().unwrap();
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

/// The first sixty slots take three seconds, and all messages are prepared before the key changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_in_a_url_changes_under_messages_that_wait_and_is_shown_nowhere() {
    let name = "path-secret";
    let broker = queue(name, "quorum").await;
    let key = Arc::new(Mutex::new(FIRST.to_owned()));
    let right = Arc::clone(&key);
    let downstream = Recorder::start(move |call| {
        let right = right.lock().unwrap();
        let body: serde_json::Value = serde_json::from_slice(&call.body).unwrap();
        let is_right = call.path == format!("/bot{right}/send")
            && call.caller == format!("App {right}")
            && body["key"] == **right;
        Reply::status(if is_right { 202 } else { 401 })
    })
    .await;
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("telegram");
    std::fs::write(&file, format!("{FIRST}\n")).unwrap();
    let mut route = Route::new(name, downstream.address);
    route.caller = "App {{ secret.telegram }}".to_owned();
    route.keys = "prefetch = 60\nmax_hold = \"1m\"\n".to_owned();
    route.downstream =
        "body = '{\"n\": {{ body.n }}, \"key\": {{ secret.telegram | tojson }}}'\n".to_owned();
    let mut config = config(name, vec![route]);
    config.rate = "20/1s".to_owned();
    config.tables = "[secrets]\ntelegram = \"credential:telegram\"\n".to_owned();
    let text = config.text();
    let text = text.replace("/send\"", "/bot{{ secret.telegram }}/send\"");
    broker.publish(name, numbered(1, MESSAGES)).await;
    let mut daemon = Daemon::start_with(&text, |command| {
        command.env("CREDENTIALS_DIRECTORY", place.path());
    });
    let accepted = |key: &str| {
        let caller = format!("App {key}");
        downstream.count_of(|call| call.caller == caller)
    };
    eventually(LONG, "the first calls", || accepted(FIRST) >= 5).await;
    let before = accepted(FIRST);
    std::fs::write(&file, SECOND).unwrap();
    SECOND.clone_into(&mut key.lock().unwrap());
    let all = || downstream.numbers().len() as u64 == MESSAGES;
    eventually(LONG, "all were called", all).await;
    let admin = daemon.admin().await;
    let done = format!("sluiced_settled_total{{route=\"{name}\",verdict=\"done\"}} {MESSAGES}\n");
    let is_done = || get(admin, "/metrics").1.contains(&done);
    eventually(LONG, "all are accepted", is_done).await;
    // What was called with the old key after the change: until the first 401 was read.
    let calls = downstream.calls().into_iter();
    let old = calls.filter(|call| call.caller == format!("App {FIRST}"));
    let refused: Vec<_> = old.skip(before).collect();
    let came = after_an_answer(&refused, LONG);
    assert!(
        came <= 10,
        "{came} of {} calls with the old key",
        refused.len()
    );

    // It is not needed to see what would be sent.
    std::fs::remove_file(&file).unwrap();
    let path = daemon.config().display().to_string();
    let tried = said(&["try"], &path);
    assert!(tried.contains("/bot***/send"), "{tried}");
    assert!(tried.contains("x-caller: (hidden)"), "{tried}");
    assert!(tried.contains("\"key\": \"***\""), "{tried}");
    let mut shown = vec![tried, said(&["check", "--print"], &path)];
    shown.extend(["/", "/metrics", "/readyz"].map(|page| get(admin, page).1));
    let known = [
        NEW_SCHEDULE,
        "the downstream is away",
        "a secret cannot be read again",
    ];
    shown.push(daemon.stop(&known).await);
    for text in shown {
        assert!(!text.contains("AAHdq") && !text.contains("BBBBq"), "{text}");
    }
    let dead = broker.counts(&format!("{name}.dead")).await;
    assert_eq!(dead, Some((0, 0)));
}
