//! TLS: a private certificate authority, one that is not known, and handshakes that never end.

use std::sync::Arc;
use std::time::Duration;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use secrecy::SecretString;
use sluiced_core::judge::Outcome;
use sluiced_http::HttpDownstream;
use sluiced_net::connect::ClientCertificate;
use sluiced_net::dial::Credentials;
use sluiced_ports::downstream::Downstream;
use sluiced_settings::text::Length;
use tempfile::TempDir;

use super::peers::{Answer, Peer, ok, serve_http};
use super::{BOUND, call, downstream, downstream_with, options};
use crate::support::authority::Authority;
use crate::support::secure_front::acceptor;

/// A TLS server for 127.0.0.1 with a certificate of this authority.
pub(super) async fn server(authority: &Authority, answer: Answer) -> Peer {
    let anybody = WebPkiClientVerifier::no_client_auth();
    asking(authority, anybody, answer).await
}

/// The same, for clients that `clients` accepts.
async fn asking(
    authority: &Authority,
    clients: Arc<dyn ClientCertVerifier>,
    answer: Answer,
) -> Peer {
    let signed = authority.server();
    let acceptor = acceptor(&signed, clients);
    Peer::start(move |stream, seen| {
        let acceptor = acceptor.clone();
        async move {
            if let Ok(stream) = acceptor.accept(stream).await {
                serve_http(stream, seen, answer).await;
            }
        }
    })
    .await
}

fn trusting(peer: &Peer, authority: &Authority, warm_connections: u16) -> HttpDownstream {
    let mut options = options(&format!("https://{}/send", peer.address));
    options.ca_file = Some(authority.file("ca.pem"));
    options.warm_connections = warm_connections;
    downstream(&options)
}

#[tokio::test]
async fn a_private_authority_is_trusted_if_it_is_configured() {
    let authority = Authority::new();
    let peer = server(&authority, ok).await;
    let downstream = trusting(&peer, &authority, 0);
    for _ in 0..3 {
        assert_eq!(call(&downstream).await.detail, "200 OK");
    }
    assert_eq!(peer.seen.connections(), 1);
}

#[tokio::test]
async fn an_unknown_authority_is_refused_before_anything_is_sent() {
    let authority = Authority::new();
    let peer = server(&authority, ok).await;
    let downstream = trusting(&peer, &Authority::new(), 1);
    let judgement = call(&downstream).await;
    assert_eq!(judgement.outcome, Outcome::TRANSIENT);
    assert!(
        judgement
            .detail
            .starts_with("TLS refused: the server's certificate is from an authority")
    );
    assert!(!judgement.maybe_delivered);
    assert_eq!(peer.seen.requests(), 0);
    let why = downstream.warm(BOUND).await.unwrap_err();
    assert!(
        why.starts_with("0 of 1 connections opened: TLS refused"),
        "{why}"
    );
}

#[tokio::test]
async fn warm_connections_have_their_handshake_behind_them() {
    let authority = Authority::new();
    let peer = server(&authority, ok).await;
    let downstream = trusting(&peer, &authority, 2);
    downstream.warm(BOUND).await.unwrap();
    assert_eq!(peer.seen.requests(), 0);
    let calls = futures::future::join_all((0..2).map(|_| call(&downstream))).await;
    assert!(calls.iter().all(|c| c.detail == "200 OK"), "{calls:?}");
    // Two were used; taking the last one filled the shelf again.
    assert!((2..=4).contains(&peer.seen.connections()));
}

#[tokio::test]
async fn a_handshake_that_never_ends_is_no_connection() {
    let peer = Peer::start(|stream, _| async move {
        std::future::pending::<()>().await;
        drop(stream);
    })
    .await;
    let authority = Authority::new();
    let mut options = options(&format!("https://{}/", peer.address));
    options.ca_file = Some(authority.file("ca.pem"));
    options.outcomes.permanent = vec!["timeout".to_owned()];
    let short = Length(Duration::from_millis(200));

    options.connect_timeout = short;
    let judgement = call(&downstream(&options)).await;
    assert_eq!(judgement.detail, "no connection: not open within 200ms");
    assert_eq!(judgement.outcome, Outcome::TRANSIENT);
    assert!(!judgement.maybe_delivered);

    options.connect_timeout = Length(BOUND);
    options.timeout = short;
    let judgement = call(&downstream(&options)).await;
    assert_eq!(judgement.detail, "no connection within 200ms");
    assert_eq!(judgement.outcome, Outcome::TRANSIENT);
    assert!(!judgement.maybe_delivered);
}

#[test]
fn a_ca_file_that_is_none_is_found_at_the_start() {
    let directory = TempDir::new().unwrap();
    let mut options = options("https://h/");
    for content in [None, Some(""), Some("no certificate")] {
        let file = directory.path().join("ca.pem");
        if let Some(content) = content {
            std::fs::write(&file, content).unwrap();
        }
        options.ca_file = Some(file);
        let wrong = HttpDownstream::new(&options, &Credentials::default(), false, None);
        assert_eq!(wrong.unwrap_err().key, "ca_file");
    }
}

#[tokio::test]
async fn our_own_certificate_is_shown_where_the_server_asks_for_one() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap();
    roots.add(root).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let known = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let peer = asking(&authority, known.build().unwrap(), ok).await;
    let shown = |by: Option<&Authority>| {
        let mut options = options(&format!("https://{}/send", peer.address));
        options.ca_file = Some(authority.file("ca.pem"));
        let certificate = by.map(|by| {
            let signed = by.client();
            ClientCertificate {
                certificate: SecretString::from(signed.certificate).into(),
                key: SecretString::from(signed.key).into(),
            }
        });
        let credentials = Credentials {
            certificate,
            ..Credentials::default()
        };
        downstream_with(&options, &credentials)
    };
    assert_eq!(call(&shown(Some(&authority))).await.detail, "200 OK");
    for refused in [None, Some(&stranger)] {
        let judgement = call(&shown(refused)).await;
        assert_eq!(judgement.outcome, Outcome::TRANSIENT, "{judgement:?}");
    }
    // A key that does not belong to its certificate is reported at the start.
    let (one, other) = (authority.client(), authority.client());
    let options = options("https://127.0.0.1:1/send");
    let certificate = Some(ClientCertificate {
        certificate: SecretString::from(one.certificate).into(),
        key: SecretString::from(other.key).into(),
    });
    let credentials = Credentials {
        certificate,
        ..Credentials::default()
    };
    let wrong = HttpDownstream::new(&options, &credentials, false, None)
        .map(drop)
        .unwrap_err();
    assert_eq!(wrong.key, "cert_file");
}
