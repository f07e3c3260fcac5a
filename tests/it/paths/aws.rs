//! Calls that are signed for AWS, with credentials that end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{config, numbered, queue};
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route};
use crate::support::recorder::{Recorder, Reply};
use crate::support::wait::eventually;

/// As AWS answers a call whose session token has ended ("Common error types" of its APIs: 403).
const EXPIRED: &str = "<ErrorResponse xmlns=\"http://sns.amazonaws.com/doc/2010-03-31/\"><Error><Type>Sender</Type>\
    <Code>ExpiredToken</Code><Message>The security token included in the request is expired</Message></Error></ErrorResponse>";

fn credentials(number: u32) -> String {
    format!(
        "[default]\naws_access_key_id = ASIA{number}\naws_secret_access_key = secret{number}\naws_session_token = token{number}\n"
    )
}

/// The credentials end while messages wait. They are written anew, and no message dies, although each has one attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_that_ended_are_read_again_and_cost_no_attempt() {
    let name = "aws-ended";
    let broker = queue(name, "quorum").await;
    let ended = Arc::new(AtomicBool::new(false));
    let is_ended = Arc::clone(&ended);
    let downstream = Recorder::start(move |call| {
        let is_old = call.headers["x-amz-security-token"] == "token1";
        match is_old && is_ended.load(Ordering::SeqCst) {
            true => Reply {
                body: EXPIRED,
                ..Reply::status(403)
            },
            false => Reply::status(200),
        }
    })
    .await;
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("aws");
    std::fs::write(&file, credentials(1)).unwrap();
    let mut route = Route::new(name, downstream.address);
    route.keys = "max_attempts = 1\n".to_owned();
    route.downstream = "auth = { kind = \"aws_sigv4\", region = \"eu-central-1\", service = \"sns\", credentials_file = \"credential:aws\" }\n".to_owned();
    let mut config = config(name, vec![route]);
    config.rate = "20/1s".to_owned();
    broker.publish(name, numbered(1, 60)).await;
    let daemon = Daemon::start_with(&config.text(), |command| {
        command.env("CREDENTIALS_DIRECTORY", place.path());
    });
    eventually(LONG, "the first calls", || downstream.count() >= 10).await;
    std::fs::write(&file, credentials(2)).unwrap();
    ended.store(true, Ordering::SeqCst);
    let all = || downstream.numbers().len() == 60;
    eventually(LONG, "all are called", all).await;
    let with = |id: &str| {
        let part = format!("Credential={id}/");
        downstream.count_of(|call| call.authorization.contains(&part))
    };
    eventually(LONG, "the others are accepted", || with("ASIA2") >= 45).await;
    let log = daemon.stop(&[NEW_SCHEDULE]).await;
    assert!(!log.contains("secret1") && !log.contains("token1"), "{log}");
    let dead = broker.counts(&format!("{name}.dead")).await;
    assert_eq!(dead, Some((0, 0)), "no message has a second attempt");
    for call in downstream.calls() {
        let signed = "/eu-central-1/sns/aws4_request, SignedHeaders=content-type;host;x-amz-date;x-amz-security-token, Signature=";
        assert!(call.authorization.contains(signed), "{call:?}");
    }
}
