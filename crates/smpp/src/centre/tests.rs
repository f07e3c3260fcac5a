//! An address of the centre that does not answer leaves time for the next one.

use std::net::Ipv4Addr;
use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};
use secrecy::SecretString;
use tokio::net::TcpListener;

use super::*;

/// How the peer at an address treats a connection.
#[derive(Clone, Copy)]
enum Peer {
    /// It takes the connection, and never sends a byte.
    Silent,
    /// It ends the connection at once.
    Closing,
    /// It answers the first request with this status.
    Answering(CommandStatus),
}

/// A centre at this port, where connecting to all addresses may take a second, and so may the bind at each.
fn centre(port: u16) -> Centre {
    Centre {
        resolver: Resolver::new(),
        host: "smsc.example".to_owned(),
        port,
        tls: None,
        connect_timeout: Duration::from_secs(1),
        bind_as: BindAs::Transceiver,
        system_id: "id".to_owned(),
        password: Secret::from(SecretString::from("secret")),
        system_type: String::new(),
    }
}

/// A centre with TLS.
fn centre_with_tls(port: u16) -> Centre {
    let config = ClientConfig::builder()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    Centre {
        tls: Some(Arc::new(config)),
        ..centre(port)
    }
}

/// Listens at 127.0.0.`host`, at a free port if this is 0. Returns the port.
async fn listen(host: u8, port: u16, peer: Peer) -> u16 {
    let address = Ipv4Addr::new(127, 0, 0, host);
    let listener = TcpListener::bind((address, port)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut held = Vec::new();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            match peer {
                Peer::Silent => held.push(stream),
                Peer::Closing => drop(stream),
                Peer::Answering(status) => {
                    let answer = bind_response(status);
                    stream.write_all(&answer).await.unwrap();
                    held.push(stream);
                }
            }
        }
    });
    port
}

/// `bind_transceiver_resp` without a body, as section 4.1.6 of SMPP 3.4 has it for a bind that is refused.
fn bind_response(status: CommandStatus) -> Vec<u8> {
    [16, 0x8000_0009, status.0, FIRST_SEQUENCE]
        .into_iter()
        .flat_map(u32::to_be_bytes)
        .collect()
}

/// What opening at 127.0.0.1 and then at 127.0.0.2 came to.
async fn opened(centre: fn(u16) -> Centre, first: Peer, second: Peer) -> Result<(), String> {
    let port = listen(1, 0, first).await;
    listen(2, port, second).await;
    let addresses = [1, 2].map(|host| IpAddr::from([127, 0, 0, host]));
    let opened = centre(port).open_first(&addresses).await;
    opened.map(|_| ()).map_err(|error| error.to_string())
}

#[tokio::test]
async fn a_tls_handshake_that_hangs_or_fails_leaves_the_next_address_to_be_tried() {
    let closed = opened(centre_with_tls, Peer::Silent, Peer::Closing)
        .await
        .unwrap_err();
    assert!(closed.ends_with("while it was opened"), "{closed}");
    let silent = opened(centre_with_tls, Peer::Closing, Peer::Silent)
        .await
        .unwrap_err();
    assert_eq!(silent, "no connection within 500ms");
}

#[tokio::test]
async fn a_bind_without_an_answer_leaves_the_next_address_to_be_tried() {
    for first in [Peer::Silent, Peer::Closing] {
        let bound = opened(centre, first, Peer::Answering(CommandStatus::OK)).await;
        assert_eq!(bound, Ok(()));
    }
}

/// A second bind with the same password could lock the account.
#[tokio::test]
async fn a_bind_that_is_refused_is_not_tried_at_the_next_address() {
    let refused = Peer::Answering(CommandStatus(0x0d));
    let said = opened(centre, refused, Peer::Answering(CommandStatus::OK))
        .await
        .unwrap_err();
    assert!(said.starts_with("the centre refused the bind"), "{said}");
}
