//! Where RabbitMQ is, and which queues a route has; opens the stream to a broker: resolve its name, connect, TLS, and the
//! frame filter around it.
//!
//! lapin takes the streams that it is given (`Streams`), so that its stream can be ours. Names are resolved
//! here, before lapin has a thread: a lookup cannot be cancelled, so attempts for the same host share the one
//! that is under way. TLS is that of `ports::connect`. The AMQP client could do this too, but only with a library
//! for key stores that took a tenth of the whole build.

use std::future::ready;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
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
use rustls::pki_types::ServerName;
use secrecy::{ExposeSecret, SecretString};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_util::compat::TokioAsyncReadCompatExt as _;
use url::{Host, Url};

use super::RabbitError;
use super::frame_filter::{Control, Filtered};
use super::renewal::RENEW;
use sluiced_core::ladder::Ladder;
use sluiced_core::parking::Space;
use sluiced_ports::connect::{Resolver, Secret, Tls, first_stream};
use sluiced_settings::types::{RabbitMq, Results, Route, Settings};
use sluiced_settings::urls::is_encoded;

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
        let dial = async move |uri: AMQPUri, _: Runtime<Kit>| {
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

/// A stream to a broker, encrypted or not.
trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

/// The stream to the first address that answers, with TLS if the URI says so. The certificate must be for the
/// host of the URI.
async fn open(
    uri: &AMQPUri,
    addresses: &[SocketAddr],
    tls: Option<&Arc<ClientConfig>>,
) -> io::Result<Box<dyn Duplex>> {
    let stream = first_stream(addresses).await?;
    // Acknowledgements are small, and must not wait to be sent together.
    stream.set_nodelay(true)?;
    match tls.filter(|_| uri.scheme == AMQPScheme::AMQPS) {
        None => Ok(Box::new(stream.compat())),
        Some(config) => {
            let host = uri.authority.host.clone();
            let name = ServerName::try_from(host).map_err(io::Error::other)?;
            let connector = TlsConnector::from(Arc::clone(config));
            Ok(Box::new(connector.connect(name, stream).await?.compat()))
        }
    }
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
        .then(|| options.tls.client_config());
    let config = config.transpose().map_err(|why| RabbitError::Tls { why })?;
    Ok(config.map(Arc::new))
}

type Kit = RuntimeParts<Tokio, Streams>;

/// tokio's reactor with filtered streams, which only [`Dial`] makes.
#[derive(Clone, Debug)]
struct Streams(Tokio);

impl Reactor for Streams {
    type TcpStream = Filtered<Box<dyn Duplex>>;
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

/// The largest frame that is asked for; the broker's own default. Without a limit the client would
/// reserve memory for frames of 4 GiB.
pub(super) const FRAME_MAX: u32 = 131_072;

/// The settings of RabbitMQ, and the secrets and certificates that they name.
#[derive(Clone, Debug)]
pub struct RabbitOptions {
    pub settings: RabbitMq,
    /// Replaces the password of the URLs; read again for each attempt.
    pub password: Option<Secret>,
    /// Only with `amqps://`.
    pub tls: Tls,
    /// How often a quorum queue of ours that holds messages is kept from expiring (`renewal`).
    pub renew: Duration,
}

/// The virtual host of the first URL: after the slash, where `%2f` is a slash of its own.
pub(super) fn virtual_host(options: &RabbitOptions) -> String {
    let url = options.settings.urls.first();
    let uri = url.and_then(|url| parsed(url.expose_secret()).ok());
    uri.map_or_else(|| "/".to_owned(), |uri| uri.vhost)
}

/// Without credentials or certificates besides those of the URLs.
impl From<RabbitMq> for RabbitOptions {
    fn from(settings: RabbitMq) -> Self {
        Self {
            settings,
            password: None,
            tls: Tls::default(),
            renew: RENEW,
        }
    }
}

impl RabbitOptions {
    /// One broker, with the times of `default.toml`.
    #[must_use]
    pub fn single(url: SecretString) -> Self {
        Self::from(RabbitMq {
            urls: vec![url],
            ..Settings::default().rabbitmq
        })
    }
}

/// The settings of a route, and what follows from them and from others.
#[derive(Clone, Debug)]
pub struct RouteOptions {
    /// The name of the route, for logs and events.
    pub name: Arc<str>,
    pub settings: Arc<Route>,
    /// How many unsettled deliveries the broker hands out at most; at least 1. Each parked queue has
    /// one of its own beside it ([`Space::prefetch`]).
    pub prefetch: u16,
    /// The longest wait that one step of the ladder should cover (a step is 4096 s at most).
    pub longest_wait: Duration,
    /// Where results of the routes of this queue go.
    pub results: Option<Results>,
    /// Whether its messages at the broker are counted for this route. Otherwise they are for another one of the queue.
    pub counts: bool,
}

impl RouteOptions {
    /// The exchange of its results.
    pub(super) fn exchange(&self) -> &str {
        let results = self.results.as_ref();
        results.map_or("", |results| &results.exchange)
    }

    /// The work queue.
    pub(super) fn queue(&self) -> &str {
        &self.settings.queue
    }

    /// Whether parked queues are declared. Those that exist are consumed in any case.
    pub(super) fn parks(&self) -> bool {
        self.settings.parks() > 0
    }

    /// The prefetch of each parked queue.
    pub(super) const fn parked_prefetch(&self) -> u16 {
        Space::prefetch(self.prefetch)
    }

    pub(super) fn ladder(&self) -> Ladder {
        Ladder::up_to(self.longest_wait)
    }
}

/// A parsed URL that does not show its password.
#[derive(Clone)]
pub(super) struct BrokerAddress {
    pub(super) uri: AMQPUri,
    pub(super) host: String,
}

impl std::fmt::Debug for BrokerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.host)
    }
}

/// Parses the URLs. A heartbeat in a URL has precedence over the general one.
pub(super) fn addresses(options: &RabbitOptions) -> Result<Vec<BrokerAddress>, RabbitError> {
    let rabbit = &options.settings;
    let heartbeat = rabbit.heartbeat.get().as_secs().max(1);
    let heartbeat = u16::try_from(heartbeat).unwrap_or(u16::MAX);
    rabbit
        .urls
        .iter()
        .enumerate()
        .map(|(index, url)| {
            let mut uri =
                parsed(url.expose_secret()).map_err(|reason| RabbitError::Url { index, reason })?;
            uri.query.heartbeat.get_or_insert(heartbeat);
            uri.query.frame_max = uri.query.frame_max.filter(|&most| most > 0);
            uri.query.frame_max.get_or_insert(FRAME_MAX);
            let (host, port) = (&uri.authority.host, uri.authority.port);
            let host = match host.parse() {
                Ok(IpAddr::V6(ip)) => format!("[{ip}]:{port}"),
                _ => format!("{host}:{port}"),
            };
            Ok(BrokerAddress { uri, host })
        })
        .collect()
}

/// Parses a URL. The error does not quote it: it holds a password. The client's own parser quotes text that
/// it does not understand, and reads an IPv6 address as no host, which means `localhost` to it.
fn parsed(text: &str) -> Result<AMQPUri, String> {
    is_encoded(text)?;
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    if !matches!(url.scheme(), "amqp" | "amqps") || url.cannot_be_a_base() {
        return Err("write amqp://user:password@host:5672/%2f, or amqps://".to_owned());
    }
    let mut uri: AMQPUri = text.parse()?;
    if let Some(Host::Ipv6(address)) = url.host() {
        uri.authority.host = address.to_string();
    }
    Ok(uri)
}

#[cfg(test)]
mod tests;
