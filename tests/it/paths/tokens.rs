//! Calls with a token of OAuth 2.0, from its first one to one that is refused.

use std::sync::Arc;

use super::{config, numbered, queue};
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route, get};
use crate::support::recorder::{Recorder, Reply};
use crate::support::token_server::TokenServer;
use crate::support::wait::eventually;

/// A downstream that takes calls with a good token of this server.
async fn guarded(tokens: &Arc<TokenServer>) -> Recorder {
    let tokens = Arc::clone(tokens);
    Recorder::start(move |call| {
        let is_good = tokens.knows(&call.authorization);
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

/// Each token is good for three seconds, so it is replaced several times, and never too late: no call is refused, and no
/// call waits for a token.
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
    let all = || downstream.numbers().len() == 120;
    eventually(LONG, "all are called", all).await;
    let accepted = || downstream.count_of(|call| tokens.knows(&call.authorization)) >= 60;
    eventually(LONG, "the others are accepted", accepted).await;
    let log = daemon.stop(&[NEW_SCHEDULE]).await;
    assert!(log.contains("another one is asked for"), "{log}");
    assert_eq!(tokens.asked().len(), 2);
    let dead = broker.counts(&format!("{name}.dead")).await;
    assert_eq!(dead, Some((0, 0)), "no message has a second attempt");
}

/// The client's secret is wrong: nothing is called, nothing dies, the reason is that of the token's server. Once the file
/// has the right one, messages are sent.
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
