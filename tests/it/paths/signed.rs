//! Signed calls, verified as receivers verify them.

use std::collections::BTreeSet;

use lapin::BasicProperties;
use standardwebhooks::Webhook;

use super::recipes::recipes;
use super::{config, queue, to, unix};
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route};
use crate::support::rabbit::Rabbit;
use crate::support::recorder::{Call, Recorder, Reply};
use crate::support::redis::RedisServer;
use crate::support::wait::eventually;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn header<'a>(call: &'a Call, name: &str) -> &'a str {
    call.headers[name].to_str().unwrap()
}

/// When a call was signed, in seconds.
fn signed_at(call: &Call) -> u64 {
    header(call, "webhook-timestamp").parse().unwrap()
}

/// The recipe as on the page. Its receiver verifies each call when it comes, and refuses the first one once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_library_of_standard_webhooks_verifies_the_recipe() {
    let name = "signed-webhooks";
    let broker = queue(name, "quorum").await;
    let downstream = Recorder::start(|call| {
        let verified = Webhook::new(SECRET)
            .unwrap()
            .verify(&call.body, &call.headers);
        Reply::status(match verified {
            Ok(()) if call.place == 0 => 500,
            Ok(()) => 202,
            Err(_) => 400,
        })
    })
    .await;
    let secrets = tempfile::tempdir().unwrap();
    std::fs::write(secrets.path().join("webhook"), SECRET).unwrap();
    let (_, recipe) = recipes()
        .into_iter()
        .find(|(heading, _)| heading.contains("Standard Webhooks"))
        .unwrap();
    let text = recipe
        .replace("127.0.0.1:8080", &downstream.address.to_string())
        .replace("queue = \"webhooks\"", &format!("queue = {name:?}"));
    let (rabbit, redis) = (Rabbit::shared().url(), RedisServer::shared().url());
    let servers = format!(
        "\n[rabbitmq]\nurls = [{rabbit:?}]\n[redis]\nurl = {redis:?}\nresponse_timeout = \"5s\"\nprefix = {name:?}\n[admin]\nlisten = \"127.0.0.1:0\"\n"
    );
    // One message has an id of its publisher, the other one gets ours.
    let body = |n| format!("{{\"n\": {n}, \"text\": \"Grüße\"}}").into_bytes();
    let theirs = BasicProperties::default().with_message_id("msg_1".into());
    broker.publish(name, [(body(1), theirs)]).await;
    broker
        .publish(name, [(body(2), BasicProperties::default())])
        .await;
    let daemon = Daemon::start_with(&(text + &servers), |command| {
        command.env("CREDENTIALS_DIRECTORY", secrets.path());
    });
    eventually(LONG, "three calls", || downstream.count() >= 3).await;
    daemon
        .stop(&[NEW_SCHEDULE, "nothing is kept on disk"])
        .await;
    let calls = downstream.calls();
    assert_eq!(calls.len(), 3, "a signature was refused: {calls:?}");
    let ids = |n| {
        let of = calls.iter().filter(move |call| call.number == n);
        of.map(|call| header(call, "webhook-id").to_owned())
            .collect::<Vec<_>>()
    };
    let repeated = calls[0].number;
    assert_eq!(
        ids(repeated)[0],
        ids(repeated)[1],
        "a repeat has the same id"
    );
    assert_eq!(ids(1)[0], "msg_1");
    assert!(!ids(2)[0].is_empty());
}

/// The first three slots are two seconds apart, and all three messages are prepared before the second one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_waits_is_signed_when_it_is_sent() {
    let name = "signed-late";
    let broker = queue(name, "classic").await;
    let downstream = Recorder::accepting().await;
    let mut route = Route::new(name, downstream.address);
    route.keys = "max_hold = \"1m\"\nprefetch = 10\n".to_owned();
    route.downstream = "auth = { kind = \"hmac\", secret = \"s\", signed = \"{{ timestamp }}\", \
        headers = { webhook-timestamp = \"{{ timestamp }}\", x-sig = \"{{ signature_hex }}\" } }\n"
        .to_owned();
    let mut config = config(name, vec![route]);
    config.rate = "1/2s".to_owned();
    broker.publish(name, super::numbered(1, 3)).await;
    let before = unix();
    let daemon = Daemon::start(&config);
    eventually(LONG, "three calls", || downstream.count() == 3).await;
    daemon.stop(&[NEW_SCHEDULE]).await;
    let calls = downstream.calls();
    let times: Vec<_> = calls.iter().map(signed_at).collect();
    assert!(times[0] >= before, "{times:?}");
    for two in times.windows(2) {
        // Rounding down loses up to a second, and a call may leave late by the headroom.
        assert!(two[1] > two[0], "signed when it was prepared: {times:?}");
    }
}

/// A call that takes long to sign holds up no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_signed_message_is_sent_and_stops_no_other() {
    let name = "signed-large";
    let broker = queue(name, "quorum").await;
    let large = format!(
        "{{\"n\":1,\"to\":\"1\",\"pad\":\"{}\"}}",
        "x".repeat(4 << 20)
    );
    let message = (large.into_bytes(), BasicProperties::default());
    broker.publish(name, [message]).await;
    broker.publish(name, (2..=31).map(|n| to(n, "1"))).await;
    let downstream = Recorder::accepting().await;
    let mut route = Route::new(name, downstream.address);
    route.keys = "max_body = \"8MiB\"\n".to_owned();
    route.tables = format!(
        "[routes.{name}.downstream.auth]\nkind = \"hmac\"\nsecret = \"0123456789abcdef0123456789abcdef\"\n\
         signed = \"{{{{ timestamp }}}}.{{{{ request_body }}}}\"\nheaders = {{ x-signature = \"{{{{ signature_hex }}}}\" }}\n"
    );
    let mut config = config(name, vec![route]);
    config.headroom = "5ms";
    let daemon = Daemon::start(&config);
    let all = || downstream.numbers() == (1..=31).collect::<BTreeSet<_>>();
    eventually(LONG, "all were called", all).await;
    daemon.stop(&[NEW_SCHEDULE]).await;
}
