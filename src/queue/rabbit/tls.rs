//! TLS to a broker: the system's authorities and those of `ca_file`, and our own certificate if it asks.
//!
//! The AMQP client could do this too, but only with a library for key stores that made a tenth of the whole
//! build.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use futures::{AsyncRead, AsyncWrite};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::compat::TokioAsyncReadCompatExt as _;

use crate::ports::tls::Tls;

/// A stream to a broker, encrypted or not.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

/// Connects to the first address that answers.
pub(super) async fn plain(addresses: &[SocketAddr]) -> io::Result<Box<dyn Duplex>> {
    Ok(Box::new(tcp(addresses).await?.compat()))
}

/// The same with TLS: the certificate must be for `host`, of an authority of the system or of `tls`.
pub(super) async fn encrypted(
    addresses: &[SocketAddr],
    host: &str,
    tls: &Tls,
) -> io::Result<Box<dyn Duplex>> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let connector = TlsConnector::from(Arc::new(config(tls)?));
    let stream = connector.connect(name, tcp(addresses).await?).await?;
    Ok(Box::new(stream.compat()))
}

async fn tcp(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(addresses).await?;
    // Acknowledgements are small, and must not wait for more of them.
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn config(tls: &Tls) -> io::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    // Systems carry odd certificates; those that cannot be parsed are none to trust.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    for certificate in CertificateDer::pem_slice_iter(tls.ca.as_deref().unwrap_or_default()) {
        let certificate = certificate.map_err(io::Error::other)?;
        roots.add(certificate).map_err(io::Error::other)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots);
    Ok(match &tls.certificate {
        Some(ours) => config.with_client_cert_resolver(ours.resolver()),
        None => config.with_no_client_auth(),
    })
}
