//! What answers say, by servers that answer as they do in the world: odd headers, compressed bodies, redirects, when to
//! come back.

use std::io::Write as _;
use std::time::Duration;

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use sluiced_core::judge::{Outcome, Silence};
use sluiced_ports::downstream::{Judgement, Status};
use sluiced_settings::text::TemplateText;
use sluiced_settings::types::Http;
use tokio::io::AsyncWriteExt;

use super::peers::{Peer, ok, read_request};
use super::{call, downstream, options};

/// The answer of a message that was refused, as Vonage writes it: with status 200, and indented.
const REFUSED: &str = "{\n  \"message-count\": \"1\",\n  \"messages\": [\n    {\n      \"status\": \"6\"\n    }\n  ]\n}";

/// One call to a peer that writes `answer` and closes.
async fn answered(answer: impl Into<Vec<u8>>, change: impl FnOnce(&mut Http)) -> Judgement {
    let answer = answer.into();
    let peer = Peer::start(move |mut stream, _| {
        let answer = answer.clone();
        async move {
            if read_request(&mut stream).await.unwrap() {
                // The client need not read all of it.
                stream.write_all(&answer).await.ok();
            }
        }
    })
    .await;
    let mut options = options(&peer.url());
    change(&mut options);
    call(&downstream(&options)).await
}

fn with_body(head: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("{head}\r\ncontent-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

fn zlib(body: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

const fn later(seconds: u64) -> Outcome {
    let wait = Some(Duration::from_secs(seconds));
    Outcome::Transient { wait }
}

const fn throttled(seconds: u64) -> Outcome {
    let wait = Duration::from_secs(seconds);
    Outcome::Throttled { wait }
}

#[tokio::test]
async fn answers_that_every_client_takes_are_taken() {
    let many: String = (0..200).map(|n| format!("x-{n}: {n}\r\n")).collect();
    for odd in [
        "Server : gw\r\n",
        "X-Long: one\r\n two\r\n\tthree\r\n",
        "this is no header\r\n",
        "X Name With Spaces: 1\r\n",
        ": no name\r\n",
        &many,
    ] {
        let ok = format!("HTTP/1.1 200 OK\r\n{odd}content-length: 2\r\n\r\nok");
        let judgement = answered(ok, |_| {}).await;
        let shown = &odd[..odd.len().min(40)];
        assert_eq!(
            judgement.outcome,
            Outcome::Accepted,
            "{shown}: {judgement:?}"
        );
        assert_eq!(judgement.detail, "200 OK", "{shown}");
        // What stands behind it is read.
        let busy =
            format!("HTTP/1.1 429 Busy\r\n{odd}Retry-After : 4\r\ncontent-length: 0\r\n\r\n");
        let judgement = answered(busy, |_| {}).await;
        assert_eq!(judgement.outcome, throttled(4), "{shown}");
    }
}

#[tokio::test]
async fn compressed_answers_are_judged_as_they_read() {
    let peer = Peer::answering(ok).await;
    call(&downstream(&options(&peer.url()))).await;
    let asked = peer.seen.requests.lock().unwrap()[0].0.headers.clone();
    assert_eq!(asked["accept-encoding"], "identity");
    let refused = |http: &mut Http| {
        http.outcomes.permanent_text = vec!["{\"status\":\"6\"".to_owned()];
    };
    for (coding, body) in [
        ("identity", REFUSED.as_bytes().to_vec()),
        ("gzip", gzip(REFUSED.as_bytes())),
        ("x-gzip", gzip(REFUSED.as_bytes())),
        ("deflate", zlib(REFUSED.as_bytes())),
        ("deflate, gzip", gzip(&zlib(REFUSED.as_bytes()))),
    ] {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-encoding: {coding}");
        let judgement = answered(with_body(&head, &body), refused).await;
        assert_eq!(judgement.outcome, Outcome::Permanent, "{coding}");
    }
    let keep = |http: &mut Http| http.keep_answer = true;
    let head = "HTTP/1.1 400 Bad Request\r\ncontent-encoding: gzip";
    let kept = answered(with_body(head, &gzip(REFUSED.as_bytes())), keep).await;
    let answer = kept.answer.expect("it is kept");
    assert_eq!(
        (&answer.body[..], answer.is_whole),
        (REFUSED.as_bytes(), true)
    );
    assert!(!answer.headers.contains_key("content-encoding"));
}

#[tokio::test]
async fn what_cannot_be_decoded_is_never_accepted_where_its_text_matters() {
    let refused = |http: &mut Http| http.outcomes.permanent_text = vec!["refused".to_owned()];
    let gzipped = gzip(REFUSED.as_bytes());
    let cut = &gzipped[..gzipped.len() / 2];
    for (coding, body, why) in [
        (
            "zstd",
            &gzipped[..],
            "200 OK (the answer cannot be read: its coding `zstd` is unknown)",
        ),
        (
            "gzip",
            cut,
            "200 OK (the answer cannot be read: its gzip is cut or damaged)",
        ),
        (
            "gzip",
            b"plain",
            "200 OK (the answer cannot be read: its gzip is cut or damaged)",
        ),
    ] {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-encoding: {coding}");
        let judgement = answered(with_body(&head, body), refused).await;
        assert_eq!(judgement.outcome, Outcome::TRANSIENT, "{why}");
        assert_eq!(judgement.reply, Err(Silence::Unreadable), "{why}");
        assert!(judgement.maybe_delivered);
        assert_eq!(judgement.detail, why);
        // Where no text decides, the status does.
        let judgement = answered(with_body(&head, body), |_| {}).await;
        assert_eq!(judgement.outcome, Outcome::Accepted, "{why}");
    }
    // An operator may want no repeat of it.
    let judgement = answered(
        with_body("HTTP/1.1 200 OK\r\ncontent-encoding: zstd", b"?"),
        |http| {
            refused(http);
            http.outcomes.permanent = vec!["unreadable".to_owned()];
        },
    );
    assert_eq!(judgement.await.outcome, Outcome::Permanent);
    // A bomb: 50 MB in 50 KB, of which no more than the bound is made.
    let bomb = gzip(&vec![b'a'; 50_000_000]);
    let head = "HTTP/1.1 200 OK\r\ncontent-encoding: gzip";
    let judgement = answered(with_body(head, &bomb), |http| {
        refused(http);
        http.keep_answer = true;
    });
    let judgement = judgement.await;
    assert_eq!(
        judgement.outcome,
        Outcome::Accepted,
        "the first 64 KiB are looked at"
    );
    assert_eq!(judgement.answer.expect("it is kept").body.len(), 64 * 1024);
}

#[tokio::test]
async fn a_redirect_says_where_it_leads() {
    let head =
        "HTTP/1.1 308 Permanent Redirect\r\nlocation: https://u:p@new.example/v2/send?api_key=k";
    let judgement = answered(with_body(head, b""), |_| {}).await;
    assert_eq!(judgement.outcome, Outcome::Permanent);
    assert_eq!(
        judgement.detail,
        "308 Permanent Redirect to https://new.example/v2/send"
    );
}

#[tokio::test]
async fn no_status_is_a_refusal_if_it_says_when_to_come_back() {
    for (status, outcome) in [
        (403, throttled(4)),
        (408, later(4)),
        (409, later(4)),
        (413, later(4)),
        (420, throttled(4)),
        (423, later(4)),
        (425, later(4)),
        (429, throttled(4)),
        (430, throttled(4)),
        (477, throttled(4)),
        (500, later(4)),
        (502, later(4)),
        (503, throttled(4)),
        (504, later(4)),
        (529, throttled(4)),
    ] {
        for wait in [
            "Retry-After: 4",
            "retry-after-ms: 4000",
            "Retry-After: 4, 4",
            // Lines of one name are one list (RFC 9110, section 5.3).
            "Retry-After: 1\r\nRetry-After: 4",
            "RateLimit: \"second\";r=9;t=1\r\nRateLimit: \"minute\";r=0;t=4",
        ] {
            let head = format!("HTTP/1.1 {status} x\r\n{wait}");
            let judgement = answered(with_body(&head, b""), |_| {}).await;
            assert_eq!(judgement.outcome, outcome, "{status} {wait}");
        }
    }
    let date = "Date: Thu, 26 Nov 2026 15:56:19 GMT\r\nRetry-After: 1795708583";
    let head = format!("HTTP/1.1 429 x\r\n{date}");
    assert_eq!(
        answered(with_body(&head, b""), |_| {}).await.outcome,
        throttled(4)
    );
    // The longest wait that is believed is a minute here.
    let judgement = answered(
        with_body("HTTP/1.1 429 x\r\nRetry-After: 7200", b""),
        |_| {},
    )
    .await;
    assert_eq!(judgement.outcome, throttled(60));
    assert_eq!(judgement.cut_from, Some(Duration::from_secs(7200)));
}

/// The first call with this key still runs (Sinch: "idempotency-conflict"; Stripe: `idempotency_key_in_use`).
#[tokio::test]
async fn a_conflict_of_an_idempotency_key_is_no_refusal() {
    let conflict = || with_body("HTTP/1.1 409 Conflict", b"");
    let with_key = |http: &mut Http| {
        let key = "{{ message_id }}".to_owned();
        http.headers.insert("Idempotency-Key".to_owned(), key);
    };
    assert_eq!(
        answered(conflict(), with_key).await.outcome,
        Outcome::TRANSIENT
    );
    assert_eq!(
        answered(conflict(), |_| {}).await.outcome,
        Outcome::Permanent
    );
}

#[tokio::test]
async fn templates_say_what_an_answer_means_and_when_to_come_back() {
    // Telegram: ResponseParameters of the Bot API.
    let telegram = br#"{"ok":false,"error_code":429,"parameters":{"retry_after":7}}"#;
    let wait = |http: &mut Http| {
        http.wait = Some(TemplateText(
            "{{ answer.body.parameters.retry_after }}".to_owned(),
        ));
    };
    let head = "HTTP/1.1 429 Too Many Requests";
    let judgement = answered(with_body(head, telegram), wait).await;
    assert_eq!(judgement.outcome, throttled(7));
    assert_eq!(judgement.answer, None, "nothing else uses it");
    let outcome = |http: &mut Http| {
        let text = "{{ 'held' if answer.body.messages[0].status == '1' else 'permanent' if answer.body.messages[0].status != '0' }}";
        http.outcome = Some(TemplateText(text.to_owned()));
    };
    let vonage =
        |status: &str| with_body("HTTP/1.1 200 OK", REFUSED.replace('6', status).as_bytes());
    assert_eq!(
        answered(vonage("0"), outcome).await.outcome,
        Outcome::Accepted
    );
    assert_eq!(
        answered(vonage("6"), outcome).await.outcome,
        Outcome::Permanent
    );
    let held = Outcome::Held {
        wait: Duration::from_secs(1),
    };
    assert_eq!(answered(vonage("1"), outcome).await.outcome, held);
    // What it cannot be applied to is not accepted, and keeps a status of failure.
    let html = answered(with_body("HTTP/1.1 200 OK", b"<html>"), outcome).await;
    assert_eq!(html.reply, Err(Silence::Unreadable));
    assert!(
        html.detail
            .starts_with("200 OK (the answer cannot be read: outcome: "),
        "{}",
        html.detail
    );
    let html = answered(with_body("HTTP/1.1 502 Bad Gateway", b"<html>"), outcome).await;
    assert_eq!(
        (html.outcome, html.reply),
        (Outcome::TRANSIENT, Ok(Status::Http(502)))
    );
    let cut = answered(
        "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"messages",
        outcome,
    )
    .await;
    assert_eq!(cut.reply, Err(Silence::Connection));
    // Texts of acceptance.
    let accepted = answered(
        with_body("HTTP/1.1 409 Conflict", b"{\"error\" : \"duplicate\"}"),
        |http| {
            http.outcomes.accepted_text = vec!["\"error\": \"duplicate\"".to_owned()];
            http.outcomes.held = vec!["423".to_owned()];
        },
    );
    assert_eq!(accepted.await.outcome, Outcome::Accepted);
}
