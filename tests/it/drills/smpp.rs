//! A message centre fails: replicas with two binds each, over SMPP.

use serde_json::json;

use super::downstream::acts;
use super::{Drill, plan};
use crate::fleet::Plan;
use crate::support::daemon::{NEW_SCHEDULE, THROTTLED};

const DECLARED: &[&str] = &[
    NEW_SCHEDULE,
    "the downstream is away",
    "only this replica stops",
    "not bound",
    THROTTLED,
];

fn centre(row: &'static str) -> Plan {
    Plan {
        smpp: true,
        marked: "{{ message_id }} REPLICA",
        // Within these two times together the next probe is made.
        downstream: "binds = 2\nwindow = 50\ntimeout = \"2s\"\nbreaker = { max_pause = \"500ms\" }\n",
        ..plan(row)
    }
}

/// What the centre does not take or does not answer is no fault of a message.
async fn none_dies(drill: Drill, done: impl Into<String>) {
    let books = drill.proves(done, DECLARED).await;
    assert_eq!(books.sums().dead, 0, "{:?}", books.sums());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed() {
    let row = "smpp::killed";
    let mut drill = Drill::start(row, "kill -9 of a replica", centre(row), 4).await;
    drill.begins();
    for _ in 0..4 {
        drill.add(1);
        drill.kill(0, DECLARED).await;
        drill.arrive(40).await;
    }
    drill.ends().await;
    none_dies(drill, "4 times, one of 4 replicas").await;
}

/// Messages that the centre has not answered when it ends a session may have been taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unbound() {
    let row = "smpp::unbound";
    let words = "the centre ends all sessions (unbind)";
    let mut drill = Drill::start(row, words, centre(row), 4).await;
    drill.begins();
    for _ in 0..4 {
        drill.fleet.provider.unbind();
        drill.arrive(40).await;
    }
    drill.ends().await;
    drill.answers_unknown();
    none_dies(drill, "4 times").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut() {
    let row = "smpp::cut";
    let mut drill = Drill::start(row, "all connections cut", centre(row), 4).await;
    drill.begins();
    for _ in 0..4 {
        drill.fleet.provider.cut();
        drill.arrive(40).await;
    }
    drill.ends().await;
    drill.answers_unknown();
    none_dies(drill, "4 times").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent() {
    let row = "smpp::silent";
    let words = (row, "accepts and never answers");
    let step = json!({"act": "hang", "accept": true});
    let (mut drill, seconds) = acts(centre(row), words, step, (3.0, 60.0)).await;
    drill.answers_unknown();
    let done = format!(
        "takes messages without an answer for {seconds} s; timeout 2 s, `max_pause` 500 ms"
    );
    none_dies(drill, done).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn throttles() {
    let row = "smpp::throttles";
    let step = json!({"smpp": 0x58});
    let (drill, seconds) = acts(centre(row), (row, "ESME_RTHROTTLED"), step, (2.0, 60.0)).await;
    none_dies(drill, format!("for {seconds} s")).await;
}
