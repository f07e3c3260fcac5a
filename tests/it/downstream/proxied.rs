//! Calls through an HTTP proxy that others wrote.

use secrecy::SecretString;
use sluiced_core::judge::Outcome;
use sluiced_http::HttpDownstream;
use sluiced_net::connect::Secret;
use sluiced_net::dial::Credentials;
use sluiced_ports::downstream::Downstream as _;
use sluiced_settings::types::Http;

use super::peers::{Peer, ok};
use super::{BOUND, call, downstream_with, options, secure};
use crate::support::authority::Authority;
use crate::support::http_proxy::HttpProxy;
use crate::support::wait::eventually;

/// With that password of the proxy's user.
pub(super) fn with(options: &Http, password: &str) -> HttpDownstream {
    let password = SecretString::from(password.to_owned());
    let credentials = Credentials {
        proxy: Some(Secret::from(password)),
        ..Credentials::default()
    };
    downstream_with(options, &credentials)
}

#[tokio::test]
async fn calls_and_warm_connections_go_through_a_proxy() {
    let authority = Authority::new();
    let proxy = HttpProxy::start("");
    let encrypted = secure::server(&authority, ok).await;
    let plain = Peer::answering(ok).await;
    for (peer, scheme) in [(encrypted, "https"), (plain, "http")] {
        let mut options = options(&format!("{scheme}://{}/send", peer.address));
        options.ca_file = Some(authority.file("ca.pem"));
        options.proxy = Some(proxy.url());
        options.warm_connections = 2;
        let downstream = with(&options, HttpProxy::PASSWORD);
        downstream.warm(BOUND).await.unwrap();
        for _ in 0..3 {
            assert_eq!(call(&downstream).await.detail, "200 OK");
        }
        assert_eq!(peer.seen.requests(), 3);
    }
    let asked = || proxy.asked() >= 4;
    eventually(BOUND, "the proxy was asked for the warm connections", asked).await;
}

/// The proxy is on this host: without what is behind it the way would have no length.
#[tokio::test]
async fn the_way_behind_a_proxy_is_measured() {
    let proxy = HttpProxy::start("");
    let peer = Peer::answering(ok).await;
    let mut options = options(&peer.url());
    options.proxy = Some(proxy.url());
    let downstream = with(&options, HttpProxy::PASSWORD);
    let handshake = downstream.handshake(BOUND).await.expect("a handshake");
    assert!(!handshake.is_local && !handshake.took.is_zero());
    let reached = || peer.seen.connections() == 1;
    eventually(BOUND, "the server was reached", reached).await;
    assert_eq!(peer.seen.requests(), 0);
}

#[tokio::test]
async fn what_a_proxy_refuses_was_not_sent_and_is_said() {
    let peer = Peer::answering(ok).await;
    let (proxy, open) = (HttpProxy::start("ConnectPort 443\n"), HttpProxy::start(""));
    let mut options = options(&peer.url());
    options.proxy = Some(proxy.url());
    let other = crate::support::port::free_port();
    let filtered = "it refuses this host or port (403 Forbidden)";
    let forbidden = with(&options, HttpProxy::PASSWORD);
    options.proxy = Some(open.url());
    let strange = with(&options, "another");
    options.proxy = Some(open.url().replace("sluiced@", ""));
    let without_user = downstream_with(&options, &Credentials::default());
    options.proxy = Some(format!("http://sluiced@127.0.0.1:{other}"));
    let away = with(&options, HttpProxy::PASSWORD);
    options.proxy = Some(open.url());
    options.url = format!("http://127.0.0.1:{other}/send");
    let unreached = with(&options, HttpProxy::PASSWORD);
    for (downstream, port, why) in [
        (forbidden, proxy.port(), filtered),
        // Some versions say 401, others 407.
        (strange, open.port(), "user and password"),
        (
            without_user,
            open.port(),
            "it asks for another user and password (407 Proxy Authentication Required)",
        ),
        (
            unreached,
            open.port(),
            "it does not reach the server (500 Internal Server Error)",
        ),
        (away, other, "connection refused"),
    ] {
        let place = format!("no connection: the proxy 127.0.0.1:{port}: ");
        let judgement = call(&downstream).await;
        let said = judgement.detail.strip_prefix(&place);
        assert!(said.is_some_and(|said| said.contains(why)), "{judgement:?}");
        assert_eq!(judgement.outcome, Outcome::TRANSIENT);
        assert!(!judgement.maybe_delivered);
        assert!(downstream.handshake(BOUND).await.is_none());
    }
    assert_eq!(peer.seen.requests(), 0);
}

#[tokio::test]
async fn hosts_that_are_excepted_are_called_directly() {
    let peer = Peer::answering(ok).await;
    let mut options = options(&peer.url());
    let nothing = crate::support::port::free_port();
    options.proxy = Some(format!("http://127.0.0.1:{nothing}"));
    options.no_proxy = vec!["internal.example".to_owned(), "127.0.0.0/8".to_owned()];
    let downstream = downstream_with(&options, &Credentials::default());
    assert_eq!(call(&downstream).await.detail, "200 OK");
    assert!(
        downstream
            .handshake(BOUND)
            .await
            .expect("it is here")
            .is_local
    );
}
