//! What is written of a call, and when: not a byte too early or too late, and nothing twice.

use sluiced_core::judge::Outcome;
use sluiced_core::time::Mono;
use sluiced_ports::clock;
use sluiced_ports::downstream::{Downstream, LeaveBy, NotSent};
use sluiced_settings::types::Http;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::connections::ANSWER;
use super::peers::{Peer, ok, read_request};
use super::{BOUND, FACTS, call, downstream, message, options};

#[tokio::test]
async fn a_request_that_was_read_is_never_repeated_by_the_client() {
    let (told, mut requests) = mpsc::unbounded_channel();
    let peer = Peer::start(move |mut stream, _| {
        let told = told.clone();
        async move {
            // Answers the first request of a connection and closes on the second.
            for answer in [true, false] {
                if !read_request(&mut stream).await.unwrap() {
                    return;
                }
                told.send(answer).unwrap();
                if answer {
                    stream.write_all(ANSWER).await.unwrap();
                }
            }
        }
    })
    .await;
    let downstream = downstream(&options(&peer.url()));
    assert_eq!(call(&downstream).await.detail, "200 OK");
    let second = call(&downstream).await;
    assert_eq!(second.detail, "connection closed before the answer");
    assert!(second.maybe_delivered);
    assert_eq!(requests.recv().await, Some(true));
    assert_eq!(requests.recv().await, Some(false));
    assert!(requests.try_recv().is_err());
    assert_eq!(peer.seen.connections(), 1);
}

#[tokio::test]
async fn nothing_happens_before_the_first_poll() {
    let peer = Peer::answering(ok).await;
    let downstream = downstream(&options(&peer.url()));
    drop(downstream.prepare(&message(), FACTS).unwrap());
    drop(
        downstream
            .prepare(&message(), FACTS)
            .unwrap()
            .send(LeaveBy::any_time()),
    );
    assert_eq!(call(&downstream).await.detail, "200 OK");
    assert_eq!(peer.seen.connections(), 1);
    assert_eq!(peer.seen.requests(), 1);
}

#[tokio::test]
async fn a_call_that_cannot_leave_in_time_writes_not_a_byte() {
    not_a_byte(|options| options.method = "POST".to_owned()).await;
}

#[tokio::test]
async fn a_call_without_a_body_that_cannot_leave_in_time_writes_not_a_byte() {
    for method in ["GET", "HEAD"] {
        not_a_byte(|options| {
            options.method = method.to_owned();
            options.body = Some(String::new());
        })
        .await;
    }
}

async fn not_a_byte(change: impl FnOnce(&mut Http)) {
    let (told, mut bytes_read) = mpsc::unbounded_channel();
    let peer = Peer::start(move |mut stream, _| {
        let told = told.clone();
        async move {
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).await.ok();
            told.send(bytes.len()).ok();
        }
    })
    .await;
    let mut options = options(&peer.url());
    change(&mut options);
    let downstream = downstream(&options);
    // In time when it is passed to the client, and too late once a connection is open.
    let closed = LeaveBy::new(clock::now());
    let prepared = downstream.prepare(&message(), FACTS).unwrap();
    let sent = timeout(BOUND, prepared.send(closed)).await;
    assert_eq!(sent.unwrap(), Err(NotSent::NotReady));
    let read = timeout(BOUND, bytes_read.recv()).await;
    assert_eq!(read.unwrap(), Some(0));
}

#[tokio::test]
async fn after_a_call_that_was_too_late_the_next_one_passes() {
    let peer = Peer::answering(ok).await;
    let mut options = options(&peer.url());
    options.warm_connections = 1;
    let downstream = downstream(&options);
    downstream.warm(BOUND).await.unwrap();
    let closed = LeaveBy::new(Mono::from_micros(clock::now().as_micros() - 1));
    for _ in 0..3 {
        let late = downstream.prepare(&message(), FACTS).unwrap();
        assert_eq!(late.send(closed).await, Err(NotSent::TooLate));
        assert_eq!(call(&downstream).await.outcome, Outcome::Accepted);
    }
    assert_eq!(peer.seen.requests(), 3);
}
