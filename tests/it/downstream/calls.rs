//! What is sent, and the outcome of answers and of no answer.

use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode};
use http_body_util::Full;
use secrecy::SecretString;
use sluiced_core::judge::{Outcome, Silence};
use sluiced_net::dial::Credentials;
use sluiced_ports::downstream::Status;
use sluiced_settings::text::Length;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::peers::{Peer, ok, read_request};
use super::{call, downstream, downstream_with, message, options};
use crate::support::port::free_port;

/// Answers with the status that the path names.
fn status_in_path(request: &Parts) -> Response<Full<Bytes>> {
    let code = request.uri.path().trim_start_matches('/');
    let mut response = Response::new(Full::new(Bytes::from_static(b"no")));
    *response.status_mut() = code.parse::<StatusCode>().unwrap();
    let headers = response.headers_mut();
    headers.insert("location", "/200".parse().unwrap());
    if matches!(request.uri.query(), Some("wait")) {
        headers.insert("retry-after", "7".parse().unwrap());
    }
    response
}

#[tokio::test]
async fn a_message_arrives_as_it_is() {
    let peer = Peer::answering(ok).await;
    let judgement = call(&downstream(&options(&peer.url()))).await;
    assert_eq!(judgement.outcome, Outcome::Accepted);
    assert_eq!(judgement.status(), Some(200));
    assert_eq!(judgement.detail, "200 OK");
    assert!(judgement.maybe_delivered);
    let requests = peer.seen.requests.lock().unwrap();
    let (parts, body) = &requests[0];
    assert_eq!(parts.method, "POST");
    assert_eq!(parts.uri, "/send");
    assert_eq!(parts.headers["host"], peer.address.to_string());
    assert_eq!(parts.headers["content-type"], "application/json");
    assert_eq!(parts.headers["x-message-id"], "m-1");
    assert_eq!(parts.headers["x-attempt"], "1");
    assert_eq!(parts.headers["content-length"], "16");
    assert_eq!(*body, message().body);
}

/// Microsoft's HTTP.sys answers 411 where a POST says no length, also if its body is empty.
#[tokio::test]
async fn a_call_with_an_empty_body_says_so_where_its_method_has_one() {
    let peer = Peer::answering(ok).await;
    for method in ["POST", "PUT", "PATCH", "GET", "DELETE"] {
        let mut options = options(&peer.url());
        options.method = method.to_owned();
        options.body = Some(String::new());
        assert_eq!(call(&downstream(&options)).await.outcome, Outcome::Accepted);
        let requests = peer.seen.requests.lock().unwrap();
        let (parts, body) = requests.last().unwrap();
        assert_eq!((parts.method.as_str(), body.len()), (method, 0));
        let length = parts.headers.get("content-length");
        let says = length.map(|length| length.to_str().unwrap());
        let has_body = !matches!(method, "GET" | "DELETE");
        assert_eq!(says, has_body.then_some("0"), "{method}");
    }
}

#[tokio::test]
async fn templates_and_credentials_arrive() {
    let peer = Peer::answering(ok).await;
    let mut options = options(&format!(
        "http://{}/to/{{{{ body.to | urlencode }}}}",
        peer.address
    ));
    options.body = Some("{\"phone\": {{ body.to | tojson }}}".to_owned());
    let with = |secret: &str| Credentials {
        secret: Some(SecretString::from(secret).into()),
        ..Credentials::default()
    };
    let credentials = with("open sesame");
    options.auth = Some(toml::from_str("kind = \"basic\"\nuser = \"aladdin\"").unwrap());
    let basic = downstream_with(&options, &credentials);
    assert_eq!(call(&basic).await.outcome, Outcome::Accepted);
    options.auth = Some(toml::from_str("kind = \"bearer\"").unwrap());
    let bearer = downstream_with(&options, &with("open-sesame"));
    assert_eq!(call(&bearer).await.outcome, Outcome::Accepted);
    for shown in [
        format!("{basic:?}"),
        format!("{bearer:?}"),
        format!("{credentials:?}"),
    ] {
        assert!(!shown.contains("sesame"), "{shown}");
    }
    let requests = peer.seen.requests.lock().unwrap();
    let [(first, body), (second, _)] = requests.as_slice() else {
        panic!("{} requests", requests.len());
    };
    assert_eq!(first.uri, "/to/%2B49170");
    assert_eq!(*body, "{\"phone\": \"+49170\"}");
    assert_eq!(
        first.headers["authorization"],
        "Basic YWxhZGRpbjpvcGVuIHNlc2FtZQ=="
    );
    assert_eq!(second.headers["authorization"], "Bearer open-sesame");
}

#[tokio::test]
async fn answers_are_judged_and_redirects_not_followed() {
    let peer = Peer::answering(status_in_path).await;
    let wait = Outcome::Throttled {
        wait: Duration::from_secs(7),
    };
    let leads = |status: &str| format!("{status} to http://{}/200", peer.address);
    let (found, permanent) = (leads("302 Found"), leads("308 Permanent Redirect"));
    for (path, outcome, detail) in [
        ("201", Outcome::Accepted, "201 Created"),
        ("302", Outcome::Permanent, &*found),
        ("308", Outcome::Permanent, &*permanent),
        ("404", Outcome::Permanent, "404 Not Found"),
        ("429?wait", wait, "429 Too Many Requests"),
        ("503", Outcome::TRANSIENT, "503 Service Unavailable"),
        ("503?wait", wait, "503 Service Unavailable"),
        ("599", Outcome::TRANSIENT, "599"),
    ] {
        let url = format!("http://{}/{path}", peer.address);
        let judgement = call(&downstream(&options(&url))).await;
        assert_eq!(judgement.outcome, outcome, "{path}");
        assert_eq!(judgement.detail, detail);
        assert!(judgement.maybe_delivered);
    }
    assert_eq!(peer.seen.requests(), 8);
}

fn busy(_: &Parts) -> Response<Full<Bytes>> {
    let answer = Response::builder().header("ratelimit-reset", "7");
    answer.body(Full::from("{\"code\": \"BUSY\"}")).unwrap()
}

#[tokio::test]
async fn texts_in_an_answer_beat_its_status_and_headers_say_how_long() {
    let peer = Peer::answering(busy).await;
    let mut options = options(&peer.url());
    assert_eq!(call(&downstream(&options)).await.outcome, Outcome::Accepted);
    let wait = Duration::from_secs(7);
    options.outcomes.held_text = vec!["\"BUSY\"".to_owned()];
    assert_eq!(
        call(&downstream(&options)).await.outcome,
        Outcome::Held { wait }
    );
    options.outcomes.throttled_text = vec!["BUSY".to_owned()];
    let outcome = call(&downstream(&options)).await.outcome;
    assert_eq!(outcome, Outcome::Throttled { wait });
}

#[tokio::test]
async fn no_answer_in_time() {
    let peer = Peer::start(|stream, _| async move {
        // Held open for as long as the test lasts.
        std::future::pending::<()>().await;
        drop(stream);
    })
    .await;
    let mut options = options(&peer.url());
    options.timeout = Length(Duration::from_millis(200));
    let judgement = call(&downstream(&options)).await;
    assert_eq!(judgement.outcome, Outcome::TRANSIENT);
    assert_eq!(judgement.status(), None);
    assert_eq!(judgement.detail, "no answer within 200ms");
    assert!(judgement.maybe_delivered);
    options.outcomes.permanent = vec!["timeout".to_owned()];
    let judgement = call(&downstream(&options)).await;
    assert_eq!(judgement.outcome, Outcome::Permanent);
}

#[tokio::test]
async fn nothing_listens() {
    let url = format!("http://127.0.0.1:{}/", free_port());
    let judgement = call(&downstream(&options(&url))).await;
    assert_eq!(judgement.outcome, Outcome::TRANSIENT);
    assert_eq!(judgement.detail, "connection refused");
    assert!(!judgement.maybe_delivered);
    let nowhere = call(&downstream(&options("http://nowhere.invalid/"))).await;
    assert_eq!(nowhere.detail, "the host's name cannot be resolved");
    assert!(!nowhere.maybe_delivered);
}

/// The outcome of a call when a peer reads the request and then does `what`.
async fn after_request<F, Fut>(what: F) -> sluiced_ports::downstream::Judgement
where
    F: Fn(TcpStream) -> Fut + Send + Copy + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let peer = Peer::start(move |mut stream, _| async move {
        if read_request(&mut stream).await.unwrap() {
            what(stream).await;
        }
    })
    .await;
    let mut options = options(&peer.url());
    options.timeout = Length(Duration::from_secs(2));
    call(&downstream(&options)).await
}

#[tokio::test]
async fn peers_that_break_off_before_the_answer_may_have_taken_the_message() {
    let closed = after_request(|stream| async move { drop(stream) }).await;
    assert_eq!(closed.detail, "connection closed before the answer");
    let reset = after_request(|stream| async move {
        stream.set_zero_linger().unwrap();
        drop(stream);
    })
    .await;
    assert_eq!(reset.detail, "connection reset before the answer");
    let garbage = after_request(|mut stream| async move {
        stream
            .write_all(b"220 mail.example ESMTP\r\n")
            .await
            .unwrap();
        std::future::pending().await
    })
    .await;
    assert_eq!(garbage.detail, "the answer is not HTTP");
    let endless_head = after_request(|mut stream| async move {
        let line = [b"X-A: ".as_slice(), &[b'a'; 1000], b"\r\n"].concat();
        stream.write_all(b"HTTP/1.1 200 OK\r\n").await.unwrap();
        while stream.write_all(&line).await.is_ok() {}
    })
    .await;
    assert_eq!(endless_head.detail, "the header of the answer is too large");
    for judgement in [closed, reset, garbage, endless_head] {
        assert_eq!(judgement.outcome, Outcome::TRANSIENT);
        assert_eq!(judgement.status(), None);
        assert!(judgement.maybe_delivered);
    }
}

#[tokio::test]
async fn the_status_is_the_verdict_whatever_becomes_of_the_rest() {
    let cut = after_request(|mut stream| async move {
        let start = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf";
        stream.write_all(start).await.unwrap();
    })
    .await;
    let slow = after_request(|mut stream| async move {
        let start = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf";
        stream.write_all(start).await.unwrap();
        std::future::pending().await
    })
    .await;
    let endless = after_request(|mut stream| async move {
        let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(head).await.unwrap();
        while stream.write_all(b"4\r\nbody\r\n").await.is_ok() {}
    })
    .await;
    for judgement in [cut, slow, endless] {
        assert_eq!(judgement.outcome, Outcome::Accepted);
        assert_eq!(judgement.status(), Some(200));
        assert_eq!(
            judgement.detail,
            "200 OK (the answer was not read to its end)"
        );
    }
}

/// The texts that decide may be in a long answer, or in the part of it that never came.
#[tokio::test]
async fn where_texts_matter_a_cut_answer_is_not_accepted() {
    let judged = async |answer: fn() -> String, ends: bool| {
        let peer = Peer::start(move |mut stream, _| async move {
            if read_request(&mut stream).await.unwrap() {
                // The client need not read all of it.
                stream.write_all(answer().as_bytes()).await.ok();
                if !ends {
                    std::future::pending().await
                }
            }
        })
        .await;
        let mut options = options(&peer.url());
        options.timeout = Length(Duration::from_secs(2));
        options.outcomes.permanent_text = vec!["refused".to_owned()];
        let judgement = call(&downstream(&options)).await;
        (judgement.outcome, judgement.reply)
    };
    fn whole(text: &str) -> String {
        let body = format!("{text}{}", "x".repeat(200_000));
        let length = body.len();
        format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}")
    }
    fn cut(status: &str, body: &str) -> String {
        format!("HTTP/1.1 {status}\r\ncontent-length: 100\r\n\r\n{body}")
    }
    let said = judged(|| whole("refused "), true).await;
    assert_eq!(
        said,
        (Outcome::Permanent, Ok(Status::Http(200))),
        "it says so at its beginning"
    );
    let said = judged(|| whole("taken "), true).await;
    assert_eq!(
        said,
        (Outcome::Accepted, Ok(Status::Http(200))),
        "the first 64 KiB are looked at"
    );
    let silence = (Outcome::TRANSIENT, Err(Silence::Connection));
    assert_eq!(judged(|| cut("200 OK", "half"), true).await, silence);
    let silence = (Outcome::TRANSIENT, Err(Silence::Timeout));
    assert_eq!(judged(|| cut("200 OK", "half"), false).await, silence);
    assert_eq!(
        judged(|| cut("400 Bad Request", "half"), false).await,
        silence
    );
    let said = judged(|| cut("200 OK", "refused, for "), true).await;
    assert_eq!(
        said,
        (Outcome::Permanent, Ok(Status::Http(200))),
        "what came says so"
    );
    let (outcome, reply) = judged(|| cut("429 Too Many Requests", "half"), true).await;
    assert!(matches!(outcome, Outcome::Throttled { .. }), "{outcome:?}");
    assert_eq!(reply, Ok(Status::Http(429)));
}
