//! Clients that are silent, slow, broken or many: others are served, and what they use is bounded.

use std::time::Duration;

use http::StatusCode;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::task::JoinSet;

use super::Alone;
use crate::support::caller::Client;
use crate::support::daemon::LONG;
use crate::support::wait::{eventually, eventually_async, within};

const PROVIDER: &str = "[limits.provider]\nkind = \"paced\"\nrate = \"200/1s\"\n";
const CALLS: &str = "[limits.calls]\nkind = \"concurrency\"\nlimit = 1\nlease = \"1m\"\n";
const DECLARED: &[&str] = &["the schedule was lost", "nothing is kept on disk"];
const ASK: &str = "POST /v1/permits HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";

async fn raw(alone: &Alone, text: &[u8]) -> UnixStream {
    let mut stream = UnixStream::connect(&alone.socket).await.unwrap();
    stream.write_all(text).await.unwrap();
    stream
}

/// The status of the answer; empty: the connection was closed without one.
async fn status(mut stream: UnixStream) -> String {
    let mut text = vec![0; 256];
    let read = within(LONG, "an answer or the end", stream.read(&mut text)).await;
    let text = String::from_utf8_lossy(&text[..read.unwrap_or(0)]).into_owned();
    text.split(' ').nth(1).unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_request_ends_alone() {
    let alone = Alone::start("callers-broken", PROVIDER, "limits = [\"provider\"]").await;
    let deep = "{\"keys\":".repeat(1_000);
    let with = |body: &str| format!("{ASK}content-length: {}\r\n\r\n{body}", body.len());
    for (text, expected) in [
        (b"\x16\x03\x01\x02\x00\x01\x00".to_vec(), "400"),
        (b"GET\r\n\r\n".to_vec(), "400"),
        (with("{\"keys\":").into_bytes(), "400"),
        (with(&deep).into_bytes(), "400"),
        (with(&"x".repeat(16 * 1024 + 1)).into_bytes(), "413"),
        (with("\u{0}\u{1}").into_bytes(), "400"),
        (
            format!("{ASK}x: {}\r\n\r\n", "y".repeat(64 * 1024)).into_bytes(),
            "431",
        ),
        (
            format!("{ASK}content-length: -1\r\n\r\n").into_bytes(),
            "400",
        ),
    ] {
        let mut stream = UnixStream::connect(&alone.socket).await.unwrap();
        // It may be refused before it is written.
        drop(stream.write_all(&text).await);
        let shown = String::from_utf8_lossy(&text[..text.len().min(80)]).into_owned();
        assert_eq!(status(stream).await, expected, "{shown}");
    }
    alone.client().await.ask(&json!({})).await.granted();
    alone.daemon.stop(DECLARED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_that_says_nothing_leaves_room() {
    let callers = "limits = [\"provider\"]\nmax_waiting = 50";
    let alone = Alone::start("callers-crowd", PROVIDER, callers).await;
    let before = alone.daemon.sockets();
    let mut crowd = Vec::new();
    for number in 0..1_300 {
        // Some begin a request.
        let text: &[u8] = if number % 2 == 0 { b"" } else { ASK.as_bytes() };
        crowd.push(raw(&alone, text).await);
    }
    alone.client().await.ask(&json!({})).await.granted();
    let open = alone.daemon.sockets() - before;
    assert!(open <= 1_060, "{open} connections");
    // One that asks without end and reads nothing stops no other one either.
    let one = format!("{ASK}content-length: 2\r\n\r\n{{}}");
    let mut greedy = UnixStream::connect(&alone.socket).await.unwrap();
    let many = one.repeat(5_000);
    let writing = tokio::time::timeout(
        Duration::from_millis(500),
        greedy.write_all(many.as_bytes()),
    );
    drop(writing.await);
    alone
        .client()
        .await
        .ask(&json!({"wait": "20s"}))
        .await
        .granted();
    drop((crowd, greedy));
    let gone = || alone.daemon.sockets() <= before + 10;
    eventually(LONG, "the crowd is gone", gone).await;
    alone.daemon.stop(DECLARED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_many_wait_as_may_and_one_that_hangs_up_makes_room() {
    let callers = "limits = [\"calls\"]\nmax_waiting = 3\nends_after = \"50s\"";
    let mut alone = Alone::start("callers-many", CALLS, callers).await;
    let mut first = alone.client().await;
    let ask = json!({"wait": "30s"});
    let id = first.ask(&ask).await.id();
    // Three wait; one of them only half: it has closed its side.
    let text = format!("{ASK}content-length: 14\r\n\r\n{{\"wait\":\"30s\"}}");
    let mut half = raw(&alone, text.as_bytes()).await;
    let mut waiting = JoinSet::new();
    for _ in 0..2 {
        let mut client = alone.client().await;
        let ask = ask.clone();
        waiting.spawn(async move { client.ask(&ask).await });
    }
    // The first has its turn, and is counted until it ends.
    alone.holds(4.0).await;
    let answer = alone.client().await.ask(&json!({"wait": "100ms"})).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    let error = answer.body["error"].as_str().unwrap();
    assert!(error.contains("max_waiting"), "{answer:?}");
    assert_eq!(answer.header("retry-after"), "1");
    half.shutdown().await.unwrap();
    let has_room = || async {
        let mut client = alone.client().await;
        let answer = client.ask(&json!({"wait": "100ms"})).await;
        answer.status == StatusCode::TOO_MANY_REQUESTS
    };
    eventually_async(LONG, "there is a place again", has_room).await;
    // The two others have their turns, one after the other.
    assert!(first.end(&id, "").await);
    for _ in 0..2 {
        let answer = within(LONG, "a turn", waiting.join_next()).await;
        let id = answer.unwrap().unwrap().id();
        assert!(first.end(&id, "").await);
    }
    let refused = "sluiced_permit_requests_total{route=\"callers.web\",status=\"503\"}";
    assert!(alone.daemon.metric(refused).await >= 1.0);
    let full = "as many requests wait as max_waiting allows";
    alone.daemon.stop(&[DECLARED, &[full]].concat()).await;
}

/// What a stop does to those that wait: each has an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_answers_all_that_wait() {
    let mut alone = Alone::start("callers-stop", CALLS, "limits = [\"calls\"]").await;
    let mut first = alone.client().await;
    let id = first.ask(&json!({"wait": "20s"})).await.id();
    let mut waiting = JoinSet::new();
    for _ in 0..20 {
        let mut client = Client::at_path(&alone.socket).await;
        waiting.spawn(async move { client.ask(&json!({"wait": "30s"})).await.status });
    }
    alone.holds(21.0).await;
    let socket = alone.socket.clone();
    let stopping = alone.daemon.stop(DECLARED);
    let ending = async {
        let answers = within(LONG, "answers", waiting.join_all()).await;
        // A permit can be ended until the end.
        first.end(&id, "").await;
        answers
    };
    let (_, answers) = futures::join!(stopping, ending);
    assert_eq!(answers, vec![StatusCode::SERVICE_UNAVAILABLE; 20]);
    assert!(!socket.exists(), "the socket is removed");
}
