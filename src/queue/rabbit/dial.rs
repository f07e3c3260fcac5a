//! Opens the stream to a broker: resolve its name, connect, TLS, and the guard around it.
//!
//! lapin takes the streams that it is given (`Streams`), so that its stream can be ours. Names are resolved here,
//! before lapin has a thread: a lookup cannot be cancelled, so attempts for the same host share the one that is
//! under way. With TLS, the system's authorities and those of `ca_file` are trusted, and our own certificate is
//! shown if the broker asks. The AMQP client could do this too, but only with a library for key stores that made
//! a tenth of the whole build.

use std::future::ready;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_rs::traits::Reactor;
use async_rs::util::RuntimeParts;
use async_rs::{Runtime, Tokio};
use futures::{AsyncRead, AsyncWrite, Stream};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{AsyncTcpStream, Connection, ConnectionProperties};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_util::compat::TokioAsyncReadCompatExt as _;

use super::guard::{Control, Guarded};
use super::options::FRAME_MAX;
use crate::ports::connect::{Resolver, Tls};

/// Where to connect to, and how.
pub(super) struct Dial<'a> {
    pub(super) resolver: &'a Resolver,
    pub(super) uri: AMQPUri,
    pub(super) tls: &'a Tls,
    pub(super) properties: ConnectionProperties,
    pub(super) bound: Duration,
}

impl Dial<'_> {
    /// Connects and logs in. Once `control.cut` is cancelled, whatever there is of the connection ends; that
    /// is up to the caller also when this is dropped before it is done.
    pub(super) async fn connect(self, control: &Control) -> lapin::Result<Connection> {
        let Self {
            resolver,
            uri,
            tls,
            properties,
            bound,
        } = self;
        let (host, port) = (&uri.authority.host, uri.authority.port);
        let found = resolver.addresses(host).await?.into_iter();
        let addresses: Vec<_> = found.map(|ip| SocketAddr::new(ip, port)).collect();
        let tokio = Tokio::current();
        let kit = RuntimeParts::new(tokio.clone(), Streams(tokio));
        let (control, tls) = (control.clone(), tls.clone());
        let dial = async move |uri: AMQPUri, _: Runtime<Kit>| {
            // This runs on lapin's thread, and would go on after a timeout that is only ours.
            let opening = open(&uri, &addresses, &tls);
            let stream = timeout(bound, opening)
                .await
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
            let frame_max = uri.query.frame_max.unwrap_or(FRAME_MAX);
            Ok(AsyncTcpStream::Plain(Guarded::new(
                stream, frame_max, &control,
            )))
        };
        Connection::connector(uri, Runtime::new(kit), dial, properties).await
    }
}

/// A stream to a broker, encrypted or not.
trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

/// The stream to the first address that answers, with TLS if the URI says so. The certificate must be for the
/// host of the URI, of an authority of the system or of `tls`.
async fn open(uri: &AMQPUri, addresses: &[SocketAddr], tls: &Tls) -> io::Result<Box<dyn Duplex>> {
    let stream = TcpStream::connect(addresses).await?;
    // Acknowledgements are small, and must not wait for more of them.
    stream.set_nodelay(true)?;
    match uri.scheme {
        AMQPScheme::AMQP => Ok(Box::new(stream.compat())),
        AMQPScheme::AMQPS => {
            let host = uri.authority.host.clone();
            let name = ServerName::try_from(host).map_err(io::Error::other)?;
            let connector = TlsConnector::from(Arc::new(client_config(tls)?));
            Ok(Box::new(connector.connect(name, stream).await?.compat()))
        }
    }
}

fn client_config(tls: &Tls) -> io::Result<ClientConfig> {
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

type Kit = RuntimeParts<Tokio, Streams>;

/// tokio's reactor with guarded streams, which only [`Dial`] makes.
#[derive(Clone, Debug)]
struct Streams(Tokio);

impl Reactor for Streams {
    type TcpStream = Guarded<Box<dyn Duplex>>;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: Read + Write + AsFd + AsRawFd + Send + 'static>(
        &self,
        socket: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        self.0.register(socket)
    }

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        self.0.sleep(duration)
    }

    fn interval(&self, period: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.0.interval(period)
    }

    fn tcp_connect_addr(
        &self,
        _: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        ready(Err(io::ErrorKind::Unsupported.into()))
    }
}
