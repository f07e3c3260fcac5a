//! Opens the stream to a broker: resolve its name, connect, TLS, and the frame filter around it.
//!
//! lapin takes the streams that it is given (`Streams`), so that its stream can be ours. Names are resolved
//! here, before lapin has a thread: a lookup cannot be cancelled, so attempts for the same host share the one
//! that is under way. TLS is that of `net::connect`. The AMQP client could do this too, but only with a library
//! for key stores that took a tenth of the whole build.

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
use rustls::ClientConfig;
use tokio::time::timeout;
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt as _};

use super::RabbitError;
use super::frame_filter::{Control, Filtered};
use super::options::{BrokerAddress, FRAME_MAX, RabbitOptions};
use sluiced_net::connect::{Resolver, ServerStream, first_stream, secured};

/// Where to connect to, and how.
pub(super) struct Dial<'a> {
    pub(super) resolver: &'a Resolver,
    pub(super) uri: AMQPUri,
    /// `None`: no URL is one for TLS.
    pub(super) tls: Option<&'a Arc<ClientConfig>>,
    pub(super) properties: ConnectionProperties,
    pub(super) bound: Duration,
}

impl Dial<'_> {
    /// Connects and logs in. Once `control.cut` is cancelled, the connection ends in any state; the caller
    /// must do that too if this is dropped before it is done.
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
        let (control, tls) = (control.clone(), tls.cloned());
        let dial = async move |uri: AMQPUri, _: Runtime<LapinRuntime>| {
            // This runs on lapin's thread, and would go on after a timeout on our side only.
            let opening = open(&uri, &addresses, tls.as_ref());
            let stream = timeout(bound, opening)
                .await
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
            let frame_max = uri.query.frame_max.unwrap_or(FRAME_MAX);
            Ok(AsyncTcpStream::Plain(Filtered::new(
                stream, frame_max, &control,
            )))
        };
        Connection::connector(uri, Runtime::new(kit), dial, properties).await
    }
}

/// The stream to the first address that answers, with TLS if the URI says so. The certificate must be for the
/// host of the URI.
async fn open(
    uri: &AMQPUri,
    addresses: &[SocketAddr],
    tls: Option<&Arc<ClientConfig>>,
) -> io::Result<Compat<ServerStream>> {
    let stream = first_stream(addresses).await?;
    let tls = tls.filter(|_| uri.scheme == AMQPScheme::AMQPS);
    let opened = secured(stream, tls, &uri.authority.host).await?;
    Ok(opened.compat())
}

/// How to speak TLS, if one of the addresses needs it.
pub(super) fn tls(
    options: &RabbitOptions,
    addresses: &[BrokerAddress],
) -> Result<Option<Arc<ClientConfig>>, RabbitError> {
    let is_tls = |address: &BrokerAddress| address.uri.scheme == AMQPScheme::AMQPS;
    let config = addresses
        .iter()
        .any(is_tls)
        .then(|| options.tls.client_config())
        .transpose()
        .map_err(|why| RabbitError::Tls { why })?;
    Ok(config.map(Arc::new))
}

type LapinRuntime = RuntimeParts<Tokio, Streams>;

/// tokio's reactor with filtered streams, which only [`Dial`] makes.
#[derive(Clone, Debug)]
struct Streams(Tokio);

impl Reactor for Streams {
    type TcpStream = Filtered<Compat<ServerStream>>;
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
