//! Calls over HTTP/2: to proper servers, one of them written by others. `refusals` has servers that refuse, `hostile`
//! those that misbehave.
mod hostile;
mod refusals;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use http::request::Parts;
use http::{Response, Version};
use http_body_util::Full;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use sluiced_core::judge::Outcome;
use sluiced_http::HttpDownstream;
use sluiced_ports::clock;
use sluiced_ports::downstream::{Downstream as _, Judgement, LeaveBy, NotSent};
use sluiced_ports::message::Message;
use sluiced_settings::text::Length;
use sluiced_settings::types::{Http, HttpVersion};
use tokio::io::{AsyncRead, AsyncWrite};

use super::peers::{Answer, Peer, Seen, answering, ok, serve_http};
use super::{BOUND, FACTS, call, downstream, message, options};
use crate::support::authority::Authority;
use crate::support::http_proxy::HttpProxy;
use crate::support::nghttpd::Nghttpd;
use crate::support::secure_front::speaking;
use crate::support::wait::{eventually, within};

/// The settings of a downstream over HTTP/2.
fn options2(url: &str) -> Http {
    Http {
        http: HttpVersion::Two,
        ..options(url)
    }
}

/// A message with this body.
fn saying(body: impl Into<Bytes>) -> Message {
    Message {
        body: body.into(),
        ..message()
    }
}

/// A call that may begin for this long from now on, and must end.
async fn called(
    downstream: &HttpDownstream,
    message: &Message,
    slack: Option<Duration>,
) -> Result<Judgement, NotSent> {
    let leave_by = match slack {
        Some(slack) => LeaveBy::new(clock::now() + slack),
        None => LeaveBy::any_time(),
    };
    let prepared = downstream.prepare(message, FACTS).unwrap();
    within(BOUND, "a call ends", prepared.send(leave_by)).await
}

/// This many calls at a time, numbered from 0.
async fn all_at_once(downstream: &HttpDownstream, calls: usize) -> Vec<Judgement> {
    let calls = (0..calls).map(|n| async move {
        let message = saying(n.to_string());
        called(downstream, &message, None).await.unwrap()
    });
    join_all(calls).await
}

/// Serves HTTP/2 on one connection.
async fn serve_http2<S>(stream: S, seen: Arc<Seen>, answer: Answer)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // An error here is a client that went away.
    drop(
        http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), answering(seen, answer))
            .await,
    );
}

async fn plain(answer: Answer) -> Peer {
    Peer::start(move |stream, seen| serve_http2(stream, seen, answer)).await
}

/// With TLS, for clients that choose one of these protocols.
async fn encrypted(authority: &Authority, protocols: &'static [&str]) -> Peer {
    let acceptor = speaking(&authority.server(), protocols);
    Peer::start(move |stream, seen| {
        let acceptor = acceptor.clone();
        async move {
            let Ok(stream) = acceptor.accept(stream).await else {
                return;
            };
            match stream.get_ref().1.alpn_protocol() {
                Some(b"h2") => serve_http2(stream, seen, ok).await,
                _ => serve_http(stream, seen, ok).await,
            }
        }
    })
    .await
}

#[tokio::test]
async fn a_message_arrives_as_it_is_with_and_without_tls() {
    let authority = Authority::new();
    let both: &[&str] = &["http/1.1", "h2"];
    for (peer, scheme) in [
        (plain(ok).await, "http"),
        (encrypted(&authority, &both[1..]).await, "https"),
    ] {
        let mut options = options2(&format!("{scheme}://{}/send?x=1", peer.address));
        options.ca_file = Some(authority.file("ca.pem"));
        options.headers = [("X-Tenant".to_owned(), "a".to_owned())].into();
        let judgement = call(&downstream(&options)).await;
        assert_eq!(judgement.detail, "200 OK");
        let requests = peer.seen.requests.lock().unwrap();
        let (parts, body) = &requests[0];
        assert_eq!(parts.version, Version::HTTP_2);
        let uri = format!("{scheme}://{}/send?x=1", peer.address);
        assert_eq!(parts.uri.to_string(), uri);
        assert!(!parts.headers.contains_key("host"));
        for (name, value) in [
            ("content-type", "application/json"),
            ("content-length", "16"),
            ("x-message-id", "m-1"),
            ("x-tenant", "a"),
        ] {
            assert_eq!(parts.headers[name], value);
        }
        assert_eq!(*body, message().body);
    }
}

#[tokio::test]
async fn a_server_that_speaks_another_version_is_said_to() {
    let authority = Authority::new();
    let other: &[&str] = &["http/1.1"];
    let old = encrypted(&authority, other).await;
    let mute = encrypted(&authority, &[]).await;
    let plain = Peer::answering(ok).await;
    for (peer, scheme, said) in [
        (
            old,
            "https",
            "the server offers http/1.1 and not HTTP/2 (ALPN); write http = \"1.1\"",
        ),
        (
            mute,
            "https",
            "the server offers no HTTP/2 (it names no protocol by ALPN); write http = \"1.1\"",
        ),
        (
            plain,
            "http",
            "the server does not answer in HTTP/2; write http = \"1.1\", if it speaks that",
        ),
    ] {
        let mut options = options2(&format!("{scheme}://{}/send", peer.address));
        options.ca_file = Some(authority.file("ca.pem"));
        options.warm_connections = 1;
        let downstream = downstream(&options);
        let why = downstream.warm(BOUND).await.unwrap_err();
        assert_eq!(why, format!("0 of 1 connections opened: {said}"));
        let judgement = call(&downstream).await;
        assert_eq!(judgement.detail, said);
        assert_eq!(judgement.outcome, Outcome::TRANSIENT);
        assert!(!judgement.maybe_delivered);
        assert_eq!(peer.seen.requests(), 0);
    }
    let away = options2(&format!(
        "http://127.0.0.1:{}/",
        crate::support::port::free_port()
    ));
    let judgement = call(&downstream(&away)).await;
    assert_eq!(judgement.detail, "connection refused");
    assert!(!judgement.maybe_delivered);
}

#[tokio::test]
async fn many_calls_share_the_warm_connections() {
    let peer = plain(ok).await;
    let mut options = options2(&peer.url());
    options.warm_connections = 2;
    let downstream = downstream(&options);
    downstream.warm(BOUND).await.unwrap();
    assert_eq!(peer.seen.requests(), 0);
    for _ in 0..3 {
        let judgements = all_at_once(&downstream, 100).await;
        assert!(judgements.iter().all(|call| call.detail == "200 OK"));
    }
    assert_eq!(peer.seen.requests(), 300);
    assert_eq!(peer.seen.connections(), 2);
}

fn unwell(_: &Parts) -> Response<Full<Bytes>> {
    let answer = Response::builder().status(503).header("retry-after", "7");
    answer.body(Full::from("later")).unwrap()
}

fn huge(_: &Parts) -> Response<Full<Bytes>> {
    Response::new(Full::new(Bytes::from(vec![b'x'; 4 * 1024 * 1024])))
}

fn wordy(_: &Parts) -> Response<Full<Bytes>> {
    let answer = Response::builder().header("x-much", "x".repeat(100_000));
    answer.body(Full::default()).unwrap()
}

#[tokio::test]
async fn answers_mean_the_same_and_are_bounded() {
    let peer = plain(unwell).await;
    let judgement = call(&downstream(&options2(&peer.url()))).await;
    let wait = Duration::from_secs(7);
    assert_eq!(judgement.outcome, Outcome::Throttled { wait });
    // A large answer is not read to its end, and costs no connection.
    let peer = plain(huge).await;
    let huge = downstream(&options2(&peer.url()));
    for _ in 0..40 {
        let judgement = call(&huge).await;
        assert_eq!(judgement.outcome, Outcome::Accepted);
        assert!(judgement.detail.contains("not read to its end"));
    }
    assert_eq!(peer.seen.connections(), 1);
    let peer = plain(wordy).await;
    let judgement = call(&downstream(&options2(&peer.url()))).await;
    assert_eq!(judgement.outcome, Outcome::TRANSIENT);
    assert!(judgement.maybe_delivered);
}

/// Much more than a peer takes at a time.
#[tokio::test]
async fn large_bodies_arrive() {
    let peer = plain(ok).await;
    let downstream = downstream(&options2(&peer.url()));
    let body = Bytes::from(vec![b'y'; 3_000_000]);
    let message = saying(body.clone());
    let calls = (0..4).map(|_| called(&downstream, &message, None));
    for judgement in join_all(calls).await {
        assert_eq!(judgement.unwrap().detail, "200 OK");
    }
    let requests = peer.seen.requests.lock().unwrap();
    assert!(requests.iter().all(|(_, arrived)| *arrived == body));
    // A connection whose socket is full takes no other call.
    assert_eq!(requests.len(), 4);
    assert!(peer.seen.connections() <= 5);
}

#[tokio::test]
async fn a_slot_that_has_passed_is_not_used() {
    let peer = plain(ok).await;
    let downstream = downstream(&options2(&peer.url()));
    assert_eq!(call(&downstream).await.detail, "200 OK");
    let closed = LeaveBy::new(clock::now());
    eventually(BOUND, "time passes", || closed.has_passed()).await;
    for _ in 0..20 {
        let late = downstream.prepare(&message(), FACTS).unwrap();
        assert_eq!(late.send(closed).await, Err(NotSent::TooLate));
    }
    assert_eq!(call(&downstream).await.detail, "200 OK");
    assert_eq!(peer.seen.requests(), 2);
    assert_eq!(peer.seen.connections(), 1);
}

#[tokio::test]
async fn connections_end_with_their_age_and_their_rest() {
    let peer = plain(ok).await;
    let mut options = options2(&peer.url());
    options.max_connection_age = Length(Duration::from_millis(300));
    let aging = downstream(&options);
    // While calls flow: each is answered.
    while peer.seen.connections() < 5 {
        assert_eq!(call(&aging).await.detail, "200 OK");
    }
    options.max_connection_age = Length(Duration::from_secs(300));
    options.idle_timeout = Length(Duration::from_millis(100));
    let resting = downstream(&options);
    for _ in 0..3 {
        let before = peer.seen.connections();
        assert_eq!(call(&resting).await.detail, "200 OK");
        assert_eq!(peer.seen.connections(), before + 1);
        let open = || peer.seen.open() == 0;
        eventually(BOUND, "the connection is closed", open).await;
    }
}

#[tokio::test]
async fn calls_go_through_a_proxy() {
    let authority = Authority::new();
    let proxy = HttpProxy::start("");
    let mut connections = 0;
    for (peer, scheme) in [
        (plain(ok).await, "http"),
        (encrypted(&authority, &["h2"]).await, "https"),
    ] {
        let mut options = options2(&format!("{scheme}://{}/send", peer.address));
        options.ca_file = Some(authority.file("ca.pem"));
        options.proxy = Some(proxy.url());
        options.warm_connections = 2;
        let downstream = super::proxied::with(&options, HttpProxy::PASSWORD);
        downstream.warm(BOUND).await.unwrap();
        let judgements = all_at_once(&downstream, 20).await;
        assert!(judgements.iter().all(|call| call.detail == "200 OK"));
        assert_eq!(peer.seen.requests(), 20);
        // More than the two that are kept where a busy machine lets a socket take nothing for a moment.
        connections += peer.seen.connections();
    }
    assert!(connections >= 4, "{connections} connections");
    let asked = || proxy.asked() >= connections;
    eventually(BOUND, "the proxy was asked for the connections", asked).await;
}

#[tokio::test]
async fn hosts_of_messages_have_their_own_connections() {
    let peer = plain(ok).await;
    let mut options = options2("{{ body.url }}");
    options.allowed_hosts = vec![peer.address.to_string()];
    let downstream = downstream(&options);
    let to = |url: &str| saying(serde_json::json!({ "url": url }).to_string());
    for _ in 0..5 {
        let message = to(&format!("http://{}/hook", peer.address));
        let judgement = called(&downstream, &message, None).await.unwrap();
        assert_eq!(judgement.detail, "200 OK");
    }
    assert_eq!(peer.seen.connections(), 1);
    let elsewhere = to("http://127.0.0.9:1/hook");
    assert!(downstream.prepare(&elsewhere, FACTS).is_err());
}

/// Four hundred calls a second, for three seconds.
#[tokio::test]
async fn a_server_of_others_takes_a_flow_of_calls() {
    const CALLS: usize = 1_200;
    const EVERY: Duration = Duration::from_micros(2_500);
    let authority = Authority::new();
    for (server, scheme) in [
        (Nghttpd::start(None, ""), "http"),
        (Nghttpd::start(Some(&authority), "-m 20"), "https"),
    ] {
        let url = format!("{scheme}://127.0.0.1:{}/send", server.port());
        let mut options = options2(&url);
        options.ca_file = Some(authority.file("ca.pem"));
        options.warm_connections = 4;
        let downstream = downstream(&options);
        downstream.warm(BOUND).await.unwrap();
        let mut pace = tokio::time::interval(EVERY);
        let mut calls = Vec::new();
        for n in 0..CALLS {
            pace.tick().await;
            let prepared = downstream.prepare(&saying(n.to_string()), FACTS).unwrap();
            calls.push(tokio::spawn(prepared.send(LeaveBy::any_time())));
        }
        for call in calls {
            assert_eq!(call.await.unwrap().unwrap().detail, "200 OK");
        }
        let all = || server.requests() == CALLS;
        eventually(BOUND, "its log is written", all).await;
        let connections = server.connections();
        println!("{scheme}: {CALLS} calls on {connections} connections");
        // Four, unless this machine stands still: each takes twenty calls at a time.
        assert!((1..=CALLS / 20).contains(&connections), "{connections}");
    }
}
