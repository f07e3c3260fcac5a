//! How many connections there are, and which one a call takes.

use std::time::Duration;

use bytes::Bytes;
use http::header::CONNECTION;
use http::request::Parts;
use http::{HeaderValue, Response};
use http_body_util::Full;
use sluiced_core::judge::Outcome;
use sluiced_ports::clock;
use sluiced_ports::downstream::{Call, Downstream, LeaveBy, NotSent};
use sluiced_settings::text::Length;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::peers::{Peer, ok, read_request};
use super::{BOUND, FACTS, call, downstream, message, options};
use crate::support::authority::Authority;
use crate::support::proxy::{Mode, Proxy};
use crate::support::wait::{eventually_async, within};

pub(super) const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

fn huge(_: &Parts) -> Response<Full<Bytes>> {
    Response::new(Full::new(Bytes::from(vec![b'x'; 4 * 1024 * 1024])))
}

/// The last answer of its connection.
fn last(_: &Parts) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(Bytes::from_static(b"ok")));
    let close = HeaderValue::from_static("close");
    answer.headers_mut().insert(CONNECTION, close);
    answer
}

fn large(_: &Parts) -> Response<Full<Bytes>> {
    Response::new(Full::new(Bytes::from(vec![b'x'; 64 * 1024])))
}

#[tokio::test]
async fn one_connection_serves_many_calls() {
    for answer in [ok, large] {
        let peer = Peer::answering(answer).await;
        let downstream = downstream(&options(&peer.url()));
        for _ in 0..20 {
            assert_eq!(call(&downstream).await.detail, "200 OK");
        }
        assert_eq!(peer.seen.requests(), 20);
        assert_eq!(peer.seen.connections(), 1);
    }
}

#[tokio::test]
async fn a_huge_answer_costs_its_connection_and_nothing_else() {
    let peer = Peer::answering(huge).await;
    let downstream = downstream(&options(&peer.url()));
    for calls in 1..=3 {
        assert_eq!(call(&downstream).await.outcome, Outcome::Accepted);
        assert_eq!(peer.seen.connections(), calls);
    }
}

#[tokio::test]
async fn warming_makes_no_request_and_the_first_calls_use_it() {
    let peer = Peer::answering(ok).await;
    let mut options = options(&peer.url());
    options.warm_connections = 3;
    let downstream = downstream(&options);
    downstream.warm(BOUND).await.unwrap();
    // The peer may accept later than the client connects: the first answers prove it has.
    let calls = futures::future::join_all((0..3).map(|_| call(&downstream))).await;
    assert!(calls.iter().all(|c| c.outcome == Outcome::Accepted));
    assert_eq!(peer.seen.requests(), 3);
    assert_eq!(call(&downstream).await.outcome, Outcome::Accepted);
    // Three were used, and the shelf was filled again.
    assert!((3..=6).contains(&peer.seen.connections()));
}

#[tokio::test]
async fn warming_sends_not_a_byte() {
    let (told, mut first_read) = mpsc::unbounded_channel();
    let peer = Peer::start(move |mut stream, _| {
        let told = told.clone();
        async move {
            let mut byte = [0];
            told.send(stream.read(&mut byte).await.unwrap()).unwrap();
        }
    })
    .await;
    let mut options = options(&peer.url());
    options.warm_connections = 2;
    let downstream = downstream(&options);
    downstream.warm(BOUND).await.unwrap();
    drop(downstream);
    // The end of the stream is the first thing that the peer reads.
    assert_eq!(first_read.recv().await, Some(0));
    assert_eq!(first_read.recv().await, Some(0));
}

#[tokio::test]
async fn warming_again_only_fills_up_and_says_what_failed() {
    let peer = Peer::answering(ok).await;
    let mut options = options(&peer.url());
    options.warm_connections = 2;
    let downstream = downstream(&options);
    downstream.warm(BOUND).await.unwrap();
    downstream.warm(BOUND).await.unwrap();
    assert_eq!(call(&downstream).await.outcome, Outcome::Accepted);
    assert_eq!(peer.seen.connections(), 2);

    options.url = format!("http://127.0.0.1:{}/", crate::support::port::free_port());
    let why = super::downstream(&options).warm(BOUND).await.unwrap_err();
    assert_eq!(why, "0 of 2 connections opened: connection refused");
    options.url = "http://{{ route }}.invalid/".to_owned();
    options.allowed_hosts = vec!["*".to_owned()];
    super::downstream(&options).warm(BOUND).await.unwrap();
}

#[tokio::test]
async fn warm_connections_that_the_peer_closed_or_that_are_old_are_not_used() {
    let (told, mut closed) = mpsc::unbounded_channel();
    let peer = Peer::start(move |mut stream, seen| {
        let told = told.clone();
        async move {
            if seen.connections() <= 2 {
                stream.shutdown().await.unwrap();
                told.send(()).unwrap();
                // Held until the client lets go of it.
                let mut byte = [0];
                drop(stream.read(&mut byte).await);
            } else {
                super::peers::serve_http(stream, seen, ok).await;
            }
        }
    })
    .await;
    let mut options = options(&peer.url());
    options.warm_connections = 2;
    let downstream = downstream(&options);
    downstream.warm(BOUND).await.unwrap();
    closed.recv().await.unwrap();
    closed.recv().await.unwrap();
    // Lets the runtime look at its sockets.
    tokio::task::yield_now().await;
    assert_eq!(call(&downstream).await.detail, "200 OK");
    // A new one for the call, and up to two for the empty shelf.
    assert!((3..=5).contains(&peer.seen.connections()));

    let before = peer.seen.connections();
    options.idle_timeout = Length(Duration::ZERO);
    let impatient = super::downstream(&options);
    impatient.warm(BOUND).await.unwrap();
    assert_eq!(call(&impatient).await.detail, "200 OK");
    // Two were opened ahead and are too old already; the call opened its own.
    assert!(peer.seen.connections() >= before + 3);
}

/// Each call finds that its connections were closed. That it opened all of them again would make a storm.
#[tokio::test]
async fn a_peer_that_closes_every_connection_is_not_connected_to_without_end() {
    const CALLS: usize = 30;
    const WARM: u16 = 10;
    let peer = Peer::start(|stream, _| async move { drop(stream) }).await;
    let mut options = options(&peer.url());
    options.warm_connections = WARM;
    let downstream = downstream(&options);
    downstream.warm(BOUND).await.unwrap();
    for _ in 0..CALLS {
        assert!(call(&downstream).await.reply.is_err());
        // The pace of the calls; connections are opened in the background meanwhile.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // One for each call, and what was opened ahead: after 0.1, 0.2, 0.4 s and so on at least.
    let (all, ahead) = (peer.seen.connections(), usize::from(WARM));
    assert!(all <= CALLS + 9 * ahead, "{all} connections");
}

#[tokio::test]
async fn a_connection_that_the_server_closed_while_idle_is_replaced() {
    let (told, mut closed) = mpsc::unbounded_channel();
    let peer = Peer::start(move |mut stream, _| {
        let told = told.clone();
        async move {
            if !read_request(&mut stream).await.unwrap() {
                return;
            }
            stream.write_all(ANSWER).await.unwrap();
            stream.shutdown().await.unwrap();
            // The client has noticed as soon as it closes its side.
            let mut byte = [0];
            let end = stream.read(&mut byte).await;
            told.send(end.unwrap_or(0)).unwrap();
        }
    })
    .await;
    let downstream = downstream(&options(&peer.url()));
    for connections in 1..=3 {
        assert_eq!(call(&downstream).await.detail, "200 OK");
        assert_eq!(closed.recv().await, Some(0));
        assert_eq!(peer.seen.connections(), connections);
    }
}

/// Which side closed a connection first.
#[derive(Debug, PartialEq, Eq)]
enum Closed {
    ByServer,
    ByClient,
}

/// A server that answers, closes connections that are idle for this long, and reports each that is closed.
async fn closing(answer: &'static [u8], idle: Duration) -> (Peer, mpsc::UnboundedReceiver<Closed>) {
    let (told, closed) = mpsc::unbounded_channel();
    let peer = Peer::start(move |mut stream, _| {
        let told = told.clone();
        async move {
            loop {
                match timeout(idle, read_request(&mut stream)).await {
                    Ok(Ok(true)) => stream.write_all(answer).await.unwrap(),
                    Ok(_) => break told.send(Closed::ByClient).unwrap(),
                    Err(_) => {
                        stream.shutdown().await.unwrap();
                        // The client closes its side as soon as it has noticed.
                        drop(stream.read(&mut [0]).await);
                        break told.send(Closed::ByServer).unwrap();
                    }
                }
            }
        }
    })
    .await;
    (peer, closed)
}

/// Node.js, Apache and others say so in each answer.
#[tokio::test]
async fn a_connection_rests_for_less_than_the_server_says() {
    const SAYS: &[u8] = b"HTTP/1.1 200 OK\r\nkeep-alive: timeout=2\r\ncontent-length: 2\r\n\r\nok";
    // The server's own timer is late.
    let (peer, mut closed) = closing(SAYS, BOUND).await;
    let downstream = downstream(&options(&peer.url()));
    for connections in 1..=2 {
        assert_eq!(call(&downstream).await.detail, "200 OK");
        assert_eq!(call(&downstream).await.detail, "200 OK");
        // Without the header the idle timeout of a minute would end it.
        let first = within(BOUND, "one side closes it", closed.recv()).await;
        assert_eq!(first, Some(Closed::ByClient));
        assert_eq!(peer.seen.connections(), connections);
    }
}

/// Uvicorn closes after five seconds, and does not say so.
#[tokio::test]
async fn a_connection_rests_for_less_than_the_server_was_seen_to_allow() {
    let (peer, mut closed) = closing(ANSWER, Duration::from_millis(1_500)).await;
    let downstream = downstream(&options(&peer.url()));
    let mut rests = Vec::new();
    // Twice is enough; where this machine stands still, rests differ and show nothing.
    while rests.last() != Some(&Closed::ByClient) {
        assert!(rests.len() < 12, "{rests:?}");
        assert_eq!(call(&downstream).await.detail, "200 OK");
        let first = within(BOUND, "one side closes it", closed.recv()).await;
        rests.push(first.expect("the server runs"));
        assert_eq!(peer.seen.connections(), rests.len());
    }
    assert!(rests.len() >= 3, "{rests:?}");
}

#[tokio::test]
async fn a_connection_ends_with_its_age() {
    let (peer, mut closed) = closing(ANSWER, BOUND).await;
    let mut options = options(&peer.url());
    options.max_connection_age = Length(Duration::from_millis(200));
    let downstream = downstream(&options);
    // While it rests.
    assert_eq!(call(&downstream).await.detail, "200 OK");
    let first = within(BOUND, "one side closes it", closed.recv()).await;
    assert_eq!(first, Some(Closed::ByClient));
    // While calls flow: each is answered.
    while peer.seen.connections() < 5 {
        assert_eq!(call(&downstream).await.detail, "200 OK");
    }
}

/// 300 ms away and with TLS, a connection takes longer to open than a slot waits. After the first seconds there is one
/// for each call.
#[tokio::test]
async fn a_far_server_that_closes_after_each_answer_gets_calls_in_time() {
    const CALLS: u32 = 150;
    const EVERY: Duration = Duration::from_millis(40);
    let authority = Authority::new();
    let peer = super::secure::server(&authority, last).await;
    let far = Proxy::to(peer.address.port()).await;
    let way = Duration::from_millis(150);
    far.set(Mode::Delay(way, way));
    let mut options = options(&format!("https://{}/send", far.address()));
    options.ca_file = Some(authority.file("ca.pem"));
    options.warm_connections = 4;
    let downstream = downstream(&options);
    downstream.warm(BOUND).await.unwrap();
    let mut calls = Vec::new();
    for _ in 0..CALLS {
        tokio::time::sleep(EVERY).await;
        let prepared = downstream.prepare(&message(), FACTS).unwrap();
        let leave_by = LeaveBy::new(clock::now() + Duration::from_millis(250));
        calls.push(tokio::spawn(prepared.send(leave_by)));
    }
    let mut late = Vec::new();
    for (number, call) in calls.into_iter().enumerate() {
        match call.await.unwrap() {
            Ok(judgement) => assert_eq!(judgement.detail, "200 OK"),
            Err(_) => late.push(number),
        }
    }
    // A report had 18 of 50 in time where connections were opened only when none was left.
    let lasting = late.iter().filter(|number| **number >= 75).count();
    assert!(lasting <= 25, "too late: {late:?}");
}

/// The host is from the message, 300 ms away: its connection is opened when the message comes, and its second slot is
/// used.
#[tokio::test]
async fn a_far_host_from_a_message_is_called_at_a_later_slot() {
    let authority = Authority::new();
    let peer = super::secure::server(&authority, ok).await;
    let far = Proxy::to(peer.address.port()).await;
    let way = Duration::from_millis(150);
    far.set(Mode::Delay(way, way));
    let mut options = options("https://{{ body.to }}/send");
    options.ca_file = Some(authority.file("ca.pem"));
    options.allowed_hosts = vec![far.address().to_string()];
    let downstream = downstream(&options);
    let mut message = message();
    message.body = format!("{{\"to\": \"{}\"}}", far.address()).into();
    let late = |call: Box<dyn Call>| {
        let leave_by = LeaveBy::new(clock::now() + Duration::from_millis(50));
        call.send(leave_by)
    };
    let first = downstream.prepare(&message, FACTS).unwrap();
    assert_eq!(late(first).await, Err(NotSent::NotReady));
    let what = "a connection that was opened ahead carries the call";
    eventually_async(BOUND, what, || async {
        let again = downstream.prepare(&message, FACTS).unwrap();
        late(again).await.is_ok()
    })
    .await;
}
