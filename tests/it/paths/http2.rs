//! A downstream that speaks HTTP/2: from the configuration to the call, and what refusals cost.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::{config, numbered, queue};
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route, program};
use crate::support::frames::{FrameServer, NO_ERROR, OK, Peer, REFUSED_STREAM};
use crate::support::recorder::Recorder;
use crate::support::wait::eventually;

/// How long a call takes.
const LATENCY: Duration = Duration::from_millis(30);
/// After this many calls a connection ends.
const EACH: usize = 25;

/// Calls that a connection got after its goodbye.
static ABOVE: AtomicUsize = AtomicUsize::new(0);

/// The messages that were taken, and how often.
type Taken = Arc<Mutex<BTreeMap<u64, usize>>>;

/// Refuses each seventh call, and says goodbye after [`EACH`]: without a look at the last two.
async fn restless(mut peer: Peer, taken: Taken) {
    peer.settings(&[]).await;
    let (mut in_flight, mut calls, mut goodbye) = (VecDeque::new(), 0, None);
    loop {
        let far = Instant::now() + LONG;
        let next = in_flight.front().map_or(far, |(due, _)| *due);
        match timeout_at(next, peer.call()).await {
            Ok(None) => return,
            // They crossed the goodbye: it said that they are not looked at.
            Ok(Some(call)) if goodbye.is_some_and(|last| call.stream > last) => {
                ABOVE.fetch_add(1, Ordering::SeqCst);
            }
            Ok(Some(call)) => {
                calls += 1;
                if calls % 7 == 0 {
                    peer.reset(call.stream, REFUSED_STREAM).await;
                    continue;
                }
                in_flight.push_back((Instant::now() + LATENCY, call));
                if calls == EACH {
                    in_flight.truncate(in_flight.len().saturating_sub(2));
                    let last = in_flight.iter().map(|(_, call)| call.stream).max();
                    let last = last.unwrap_or(2 * (EACH as u32 - 2) - 1);
                    goodbye = Some(last);
                    peer.go_away(last, NO_ERROR).await;
                }
            }
            Err(_) => {
                let Some((_, call)) = in_flight.pop_front() else {
                    continue;
                };
                let body: serde_json::Value = serde_json::from_slice(&call.body).unwrap();
                let number = body["n"].as_u64().unwrap();
                *taken.lock().unwrap().entry(number).or_default() += 1;
                peer.answer(call.stream, OK).await;
            }
        }
    }
}

fn over_http_2(name: &str, address: std::net::SocketAddr) -> Config {
    let mut route = Route::new(name, address);
    route.keys = "max_attempts = 1\n".to_owned();
    route.downstream = "http = \"2\"\n".to_owned();
    config(name, vec![route])
}

fn checked(config: &Config) -> String {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sluiced.toml");
    fs::write(&file, config.text()).unwrap();
    let checked = program(&["check", "--connect", "--config"])
        .arg(&file)
        .output()
        .unwrap();
    String::from_utf8(checked.stdout).unwrap() + &String::from_utf8(checked.stderr).unwrap()
}

/// With one attempt, a call that counted would end as a dead letter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn goodbyes_and_refused_streams_cost_no_attempt_and_no_message() {
    const MESSAGES: u64 = 300;
    let name = "http2";
    let taken = Taken::default();
    let shared = Arc::clone(&taken);
    let server = FrameServer::start(move |peer, _| restless(peer, Arc::clone(&shared))).await;
    let broker = queue(name, "quorum").await;
    let config = over_http_2(name, server.address);
    let said = checked(&config);
    assert!(said.contains("routes.http2.downstream: ok"), "{said}");
    let daemon = Daemon::start(&config);
    broker.publish(name, numbered(1, MESSAGES)).await;
    let all = || taken.lock().unwrap().len() == MESSAGES as usize;
    eventually(LONG, "all are taken", all).await;
    daemon
        .stop(&[NEW_SCHEDULE, "nothing is kept on disk"])
        .await;
    let twice = taken
        .lock()
        .unwrap()
        .values()
        .filter(|count| **count > 1)
        .count();
    assert_eq!(twice, 0, "taken twice");
    let dead = broker.counts(&format!("{name}.dead")).await;
    assert_eq!(dead, Some((0, 0)));
    let (heads, connections) = server.seen(|seen| (seen.heads, seen.connections));
    let above = ABOVE.load(Ordering::SeqCst);
    println!(
        "{MESSAGES} messages, {heads} calls, {connections} connections, {above} crossed a goodbye"
    );
    assert!(heads > MESSAGES as usize, "none was refused");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_says_that_a_server_speaks_another_version() {
    let old = Recorder::accepting().await;
    let said = checked(&over_http_2("http2-old", old.address));
    assert!(
        said.contains("the server does not answer in HTTP/2"),
        "{said}"
    );
    assert_eq!(old.count(), 0);
}
