//! Streams to servers: a connection of TCP, with TLS where it is wanted.

use std::io;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// What is read and written, encrypted or not.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

/// A stream to a server, encrypted or not.
pub type ServerStream = Box<dyn Duplex>;

/// A stream over this connection, encrypted if `tls` is given. The certificate must then be for `host`; an address of
/// the sixth version has no brackets. Has no bound in time.
///
/// # Errors
/// When the handshake fails, or `host` is no name of a server.
pub async fn secured(
    stream: TcpStream,
    tls: Option<&Arc<ClientConfig>>,
    host: &str,
) -> io::Result<ServerStream> {
    // What is sent is small, and must not wait to be sent together.
    stream.set_nodelay(true)?;
    let Some(config) = tls else {
        return Ok(Box::new(stream));
    };
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let connector = TlsConnector::from(Arc::clone(config));
    Ok(Box::new(connector.connect(name, stream).await?))
}
