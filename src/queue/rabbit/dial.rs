//! Opens the stream to a broker: resolve its name, connect, TLS, and the guard around it.
//!
//! lapin takes the streams that it is given (`Streams`), so that its stream can be ours. Names are resolved here,
//! before lapin has a thread: a lookup cannot be cancelled, so attempts for the same host share the
//! one that is under way.

use std::collections::HashMap;
use std::fmt;
use std::future::ready;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_rs::traits::Reactor;
use async_rs::util::RuntimeParts;
use async_rs::{Runtime, Tokio};
use futures::future::{BoxFuture, Shared};
use futures::{AsyncRead, AsyncWrite, FutureExt, Stream};
use lapin::tcp::OwnedTLSConfig;
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{AsyncTcpStream, Connection, ConnectionProperties};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::guard::{Control, Guarded};
use super::options::FRAME_MAX;

type Addresses = Result<Vec<SocketAddr>, Arc<io::Error>>;
type Lookup = Shared<BoxFuture<'static, Addresses>>;

/// Lookups of names under way.
#[derive(Default)]
pub(super) struct Lookups(Mutex<HashMap<(String, u16), Lookup>>);

impl Lookups {
    /// The addresses of a host. May take as long as the resolver likes.
    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let asked = (host.to_owned(), port);
        let lookup = {
            let mut under_way = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // What was answered already is not asked for by this attempt.
            under_way.retain(|_, lookup| lookup.peek().is_none());
            let start = || look_up(asked.clone());
            under_way.entry(asked.clone()).or_insert_with(start).clone()
        };
        let addresses = lookup.await;
        addresses.map_err(|error| io::Error::new(error.kind(), error.to_string()))
    }
}

fn look_up(asked: (String, u16)) -> Lookup {
    let lookup = spawn_blocking(move || asked.to_socket_addrs().map(Iterator::collect));
    let answer = async {
        let found = lookup
            .await
            .unwrap_or_else(|gone| Err(io::Error::other(gone)));
        found.map_err(Arc::new)
    };
    answer.boxed().shared()
}

impl fmt::Debug for Lookups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lookups").finish_non_exhaustive()
    }
}

/// Where to connect to, and how.
pub(super) struct Dial<'a> {
    pub(super) lookups: &'a Lookups,
    pub(super) uri: AMQPUri,
    pub(super) tls: OwnedTLSConfig,
    pub(super) properties: ConnectionProperties,
    pub(super) bound: Duration,
}

impl Dial<'_> {
    /// Connects and logs in. Once `control.cut` is cancelled, whatever there is of the connection ends; that
    /// is up to the caller also when this is dropped before it is done.
    pub(super) async fn connect(self, control: &Control) -> lapin::Result<Connection> {
        let Self {
            lookups,
            uri,
            tls,
            properties,
            bound,
        } = self;
        let (host, port) = (&uri.authority.host, uri.authority.port);
        let addresses = lookups.resolve(host, port).await?;
        let tokio = Tokio::current();
        let kit = RuntimeParts::new(tokio.clone(), Streams(tokio.clone()));
        let control = control.clone();
        let dial = async move |uri: AMQPUri, _: Runtime<Kit>| {
            // This runs on lapin's thread, and would go on after a timeout that is only ours.
            let opening = open(&tokio, &uri, addresses.clone(), &tls);
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

/// The stream to the first address that answers, with TLS if the URI says so.
async fn open(
    tokio: &Tokio,
    uri: &AMQPUri,
    addresses: Vec<SocketAddr>,
    tls: &OwnedTLSConfig,
) -> io::Result<Plain> {
    let stream = AsyncTcpStream::connect(tokio, addresses).await?;
    match uri.scheme {
        AMQPScheme::AMQP => Ok(stream),
        AMQPScheme::AMQPS => stream.into_tls(&uri.authority.host, tls.as_ref()).await,
    }
}

type Plain = AsyncTcpStream<<Tokio as Reactor>::TcpStream>;
type Kit = RuntimeParts<Tokio, Streams>;

/// tokio's reactor with guarded streams, which only [`Dial`] makes.
#[derive(Clone, Debug)]
struct Streams(Tokio);

impl Reactor for Streams {
    type TcpStream = Guarded<Plain>;
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
