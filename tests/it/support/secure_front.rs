//! TLS in front of a server of this machine, which has a plain port only. Never in front of a judge, which
//! would then judge this as well.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

use super::authority::Signed;
use super::proxy::network;

/// Runs until it is dropped.
pub struct SecureFront {
    address: SocketAddr,
    _server: AbortOnDropHandle<()>,
}

impl SecureFront {
    /// In front of that port, with that certificate.
    pub async fn to(port: u16, signed: &Signed) -> Self {
        let listener = network().spawn(TcpListener::bind(("127.0.0.1", 0)));
        let listener = listener.await.unwrap().unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = for_anybody(signed);
        let server = network().spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, acceptor.clone(), port));
            }
        });
        Self {
            address,
            _server: AbortOnDropHandle::new(server),
        }
    }

    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Until one of both sides closes, or the client rejects the certificate.
async fn pass(client: TcpStream, acceptor: TlsAcceptor, port: u16) {
    drop(client.set_nodelay(true));
    let Ok(mut client) = acceptor.accept(client).await else {
        return;
    };
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await else {
        return;
    };
    drop(server.set_nodelay(true));
    drop(copy_bidirectional(&mut client, &mut server).await);
}

/// Shows that certificate to each client.
#[must_use]
pub fn for_anybody(signed: &Signed) -> TlsAcceptor {
    acceptor(signed, WebPkiClientVerifier::no_client_auth())
}

/// Shows that certificate to clients that `clients` accepts.
#[must_use]
pub fn acceptor(signed: &Signed, clients: Arc<dyn ClientCertVerifier>) -> TlsAcceptor {
    TlsAcceptor::from(Arc::new(config(signed, clients)))
}

/// Shows that certificate to each client, and speaks one of these protocols (ALPN).
#[must_use]
pub fn speaking(signed: &Signed, protocols: &[&str]) -> TlsAcceptor {
    let mut config = config(signed, WebPkiClientVerifier::no_client_auth());
    let protocols = protocols.iter().map(|name| name.as_bytes().to_vec());
    config.alpn_protocols = protocols.collect();
    TlsAcceptor::from(Arc::new(config))
}

fn config(signed: &Signed, clients: Arc<dyn ClientCertVerifier>) -> ServerConfig {
    let certificate = CertificateDer::from_pem_slice(signed.certificate.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(signed.key.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients)
        .with_single_cert(vec![certificate], key)
        .unwrap()
}
