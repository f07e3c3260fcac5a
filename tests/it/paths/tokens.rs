//! Calls with a token of OAuth 2.0, from its first one to one that is refused, and with claims that are signed.

use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

use super::{config, numbered, queue};
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route, file, get, program};
use crate::support::recorder::{Recorder, Reply};
use crate::support::token_server::{TokenServer, is_token_of};
use crate::support::wait::eventually;

/// A downstream that takes calls with a good token of this server.
async fn guarded(tokens: &Arc<TokenServer>) -> Recorder {
    let tokens = Arc::clone(tokens);
    Recorder::start(move |call| {
        let is_good = tokens.knows(&call.authorization, call.at);
        Reply::status(if is_good { 202 } else { 401 })
    })
    .await
}

/// A route to it; `more`: further keys of `auth`.
fn route(name: &str, downstream: &Recorder, tokens: &TokenServer, more: &str) -> Route {
    let mut route = Route::new(name, downstream.address);
    route.downstream = format!(
        "auth = {{ kind = \"oauth2\", token_url = \"http://{}/oauth/token\", client_id = \"sluiced\", {more} }}\n",
        tokens.address
    );
    route
}

fn by_ten(mut config: Config) -> Config {
    config.rate = "10/1s".to_owned();
    config
}

/// Each token is good for three seconds, so it is replaced several times, and never too late: no call is refused, and
/// no call waits for a token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_shared_by_routes_and_renewed_before_they_end() {
    let (one, other) = ("tokens-one", "tokens-other");
    let tokens = Arc::new(TokenServer::start("sluiced", "s3cret", 3).await);
    let downstream = guarded(&tokens).await;
    let broker = queue(one, "quorum").await;
    broker.declare(other, "quorum").await;
    broker.publish(one, numbered(1, 40)).await;
    broker.publish(other, numbered(41, 80)).await;
    let more = "client_secret = \"s3cret\", client_auth = \"body\", scope = \"sms:send\", audience = \"a b\"";
    let routes = [one, other].map(|name| route(name, &downstream, &tokens, more));
    let daemon = Daemon::start(&by_ten(config(one, routes.to_vec())));
    let all = || downstream.numbers().len() == 80;
    eventually(LONG, "all are called", all).await;
    let log = daemon.stop(&[NEW_SCHEDULE]).await;
    assert!(!log.contains("token-"), "{log}");
    assert_eq!(downstream.count(), 80, "none was refused");
    let asked = tokens.asked();
    // Eight seconds of calls, and a token for two of them at a time: for both routes together.
    assert!((3..=8).contains(&asked.len()), "{} tokens", asked.len());
    let form = "grant_type=client_credentials&scope=sms%3Asend&audience=a+b&client_id=sluiced&client_secret=s3cret";
    assert_eq!(asked[0], form);
}

/// What the server withdraws is asked for again once, and costs no attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_is_refused_is_replaced_and_costs_no_attempt() {
    let name = "tokens-withdrawn";
    let tokens = Arc::new(TokenServer::start("sluiced", "s3cret", 3600).await);
    let downstream = guarded(&tokens).await;
    let broker = queue(name, "quorum").await;
    broker.publish(name, numbered(1, 120)).await;
    let mut route = route(name, &downstream, &tokens, "client_secret = \"s3cret\"");
    route.keys = "max_attempts = 1\n".to_owned();
    let daemon = Daemon::start(&by_ten(config(name, vec![route])));
    // A token that is younger would be refused for another reason.
    eventually(LONG, "six seconds of calls", || downstream.count() >= 60).await;
    tokens.withdraw();
    let all = || downstream.accepted().len() == 120;
    eventually(LONG, "all are accepted", all).await;
    let log = daemon.stop(&[NEW_SCHEDULE]).await;
    assert!(log.contains("another one is asked for"), "{log}");
    assert_eq!(tokens.asked().len(), 2);
    let dead = broker.counts(&format!("{name}.dead")).await;
    assert_eq!(dead, Some((0, 0)), "no message has a second attempt");
}

/// The client's secret is wrong: nothing is called, nothing dies, the reason is that of the token's server. Once the
/// file has the right one, messages are sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_token_nothing_is_called_and_the_reason_is_named() {
    let name = "tokens-refused";
    let tokens = Arc::new(TokenServer::start("sluiced", "s3cret", 3600).await);
    let downstream = guarded(&tokens).await;
    let broker = queue(name, "quorum").await;
    broker.publish(name, numbered(1, 20)).await;
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("client"), "wr0ng").unwrap();
    let more = "client_secret_file = \"credential:client\"";
    let route = route(name, &downstream, &tokens, more);
    let text = config(name, vec![route]).text();
    let mut daemon = Daemon::start_with(&text, |command| {
        command.env("CREDENTIALS_DIRECTORY", place.path());
    });
    daemon.says("the downstream is away").await;
    let admin = daemon.admin().await;
    let named = || {
        let (code, page) = get(admin, "/readyz");
        code == 503 && page.contains("invalid_client Client authentication failed")
    };
    eventually(LONG, "it says why", named).await;
    assert_eq!(downstream.count(), 0);
    std::fs::write(place.path().join("client"), "s3cret").unwrap();
    let all = || downstream.numbers().len() == 20;
    eventually(LONG, "all are called", all).await;
    let known = [
        NEW_SCHEDULE,
        "the downstream is away",
        "no token could be fetched",
        "no connection to the downstream yet",
    ];
    let log = daemon.stop(&known).await;
    assert!(!log.contains("wr0ng") && !log.contains("s3cret"), "{log}");
    let dead = broker.counts(&format!("{name}.dead")).await;
    assert_eq!(dead, Some((0, 0)));
}

/// The key of RFC 7515, appendix A.2, which is no secret.
const KEY: &str = include_str!("../../../crates/http/src/credentials/tokens/oauth/key/rfc7515.pem");

/// A route to it with claims that are signed; `more`: further keys of `auth`.
fn signing(name: &str, downstream: &Recorder, key: &Path, more: &str) -> Route {
    let mut route = Route::new(name, downstream.address);
    route.downstream = format!(
        "auth = {{ kind = \"jwt\", key_file = \"{}\", key_id = \"K1\", {more} }}\n",
        key.display()
    );
    route
}

/// The parts of a token that are JSON.
fn parts(token: &str) -> [serde_json::Value; 2] {
    let parts: Vec<&str> = token.split('.').collect();
    let [header, claims, _] = *parts else {
        panic!("{token} has three parts");
    };
    [header, claims].map(|part| {
        let json = BASE64_URL_SAFE_NO_PAD.decode(part).unwrap();
        serde_json::from_slice(&json).unwrap()
    })
}

/// Claims that are signed are the token itself, as Apple and GitHub take it: one for many calls. A file that has
/// changed makes the next one at once, and neither key nor token is shown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_that_are_signed_are_the_token_of_many_calls() {
    let name = "tokens-signed";
    let place = tempfile::tempdir().unwrap();
    let key = file(place.path(), "key.pem", KEY);
    let downstream = Recorder::start(|call| {
        let token = call.authorization.strip_prefix("Bearer ");
        let is_signed = token.is_some_and(|token| token.split('.').count() == 3);
        Reply::status(if is_signed { 202 } else { 401 })
    })
    .await;
    let broker = queue(name, "quorum").await;
    broker.publish(name, numbered(1, 40)).await;
    let route = signing(
        name,
        &downstream,
        &key,
        "claims = { iss = \"1234\" }, lifetime = \"9m\"",
    );
    let daemon = Daemon::start(&by_ten(config(name, vec![route])));
    eventually(LONG, "all are called", || downstream.numbers().len() == 40).await;
    assert_eq!(downstream.count(), 40, "none was refused");
    let tokens: std::collections::BTreeSet<String> = downstream
        .calls()
        .into_iter()
        .map(|call| call.authorization)
        .collect();
    assert_eq!(tokens.len(), 1, "{tokens:?}");
    let token = tokens.first().unwrap().strip_prefix("Bearer ").unwrap();
    assert_is_signed_for_nine_minutes(token);

    // Another key is used long before that token ends.
    let other = another_key(place.path());
    std::fs::write(&key, &other).unwrap();
    daemon.says("the secret of the tokens has changed").await;
    broker.publish(name, numbered(41, 60)).await;
    eventually(LONG, "the others are called", || {
        downstream.numbers().len() == 60
    })
    .await;
    let last = downstream.calls().pop().unwrap().authorization;
    let last = last.strip_prefix("Bearer ").unwrap();
    assert!(
        is_token_of(last, &other) && !is_token_of(last, KEY),
        "{last}"
    );
    let log = daemon.stop(&[NEW_SCHEDULE]).await;
    assert!(!log.contains(token) && !log.contains("PRIVATE"), "{log}");
}

fn assert_is_signed_for_nine_minutes(token: &str) {
    assert!(is_token_of(token, KEY), "{token}");
    let [header, claims] = parts(token);
    assert_eq!(
        (&header["alg"], &header["kid"]),
        (&"RS256".into(), &"K1".into())
    );
    assert_eq!(claims["iss"], "1234");
    let [issued, ends] = ["iat", "exp"].map(|name| claims[name].as_u64().unwrap());
    let now = std::time::SystemTime::UNIX_EPOCH
        .elapsed()
        .unwrap()
        .as_secs();
    assert!(issued <= now && now - issued < 300, "{issued} {now}");
    assert_eq!(ends - issued, 540);
}

fn another_key(dir: &Path) -> String {
    let path = dir.join("other.pem");
    let made = std::process::Command::new("openssl")
        .args(["genrsa", "-out"])
        .arg(&path)
        .arg("2048")
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    std::fs::read_to_string(path).unwrap()
}

/// Claims that are signed are exchanged for a token, as Google wants it. A file without a key is refused by `check`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_that_are_signed_are_exchanged_for_a_token() {
    let name = "tokens-exchanged";
    let tokens = Arc::new(TokenServer::start("", KEY, 3).await);
    let downstream = guarded(&tokens).await;
    let broker = queue(name, "quorum").await;
    broker.publish(name, numbered(1, 40)).await;
    let place = tempfile::tempdir().unwrap();
    let account =
        serde_json::json!({ "private_key": KEY, "private_key_id": "K2", "client_email": "a@b" });
    let key = file(place.path(), "account.json", &account.to_string());
    let more = format!(
        "claims = {{ aud = \"t\", scope = \"s\" }}, token_url = \"http://{}/token\"",
        tokens.address
    );
    let route = signing(name, &downstream, &key, &more);
    let daemon = Daemon::start(&by_ten(config(name, vec![route.clone()])));
    eventually(LONG, "all are called", || downstream.numbers().len() == 40).await;
    assert_eq!(downstream.count(), 40, "none was refused");
    let asked = tokens.asked();
    assert!((2..=6).contains(&asked.len()), "{} tokens", asked.len());
    let assertion = asked[0].split_once("&assertion=").unwrap().1;
    let [header, claims] = parts(assertion);
    assert_eq!(header["kid"], "K1", "what is written has precedence");
    for (claim, value) in [("iss", "a@b"), ("aud", "t"), ("scope", "s")] {
        assert_eq!(claims[claim], value);
    }
    let log = daemon.stop(&[NEW_SCHEDULE]).await;
    assert!(
        !log.contains(assertion) && !log.contains("PRIVATE"),
        "{log}"
    );

    std::fs::write(&key, "{\"token\": \"s3cret\"}").unwrap();
    let text = config(name, vec![route]).text();
    let config = file(place.path(), "c.toml", &text);
    let checked = program(&["check", "--config"])
        .arg(config)
        .output()
        .unwrap();
    assert_eq!(checked.status.code(), Some(78));
    let said = String::from_utf8(checked.stdout).unwrap();
    assert!(
        said.contains("auth.key_file: it is JSON without a private_key: write"),
        "{said}"
    );
    assert!(!said.contains("s3cret"), "{said}");
}
