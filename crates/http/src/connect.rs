//! Connections to the downstream: plain or TLS, opened on demand or ahead of time.
//!
//! Problem: the first slot must not wait for a handshake, and a request made only to warm a
//! connection would count against the limit. So `WarmConnector` sits between the client's pool and
//! the network, and keeps idle connections that are open, TLS included, and have carried nothing.
//! When the pool asks for a new connection it gets one of those, if one is still good: younger than
//! the idle timeout, not closed by the peer, and silent. When the last one is taken, more are
//! opened in the background, because the number of calls at a time may still grow. A peer that closes them before
//! they are used gets fewer and fewer: otherwise each call would open as many again.

use std::future::ready;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use std::{fmt, io};

use futures::future::BoxFuture;
use futures::{StreamExt, stream};
use http::Uri;
use http::uri::Scheme;
use hyper::rt::{Read, ReadBuf};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tower_service::Service;

use super::gate::GatedIo;
use sluiced_core::backoff::{Backoff, Failures};
use sluiced_ports::clock::Clock;
use sluiced_ports::connect::Resolver;
use sluiced_ports::dial::connect_detail;
use sluiced_ports::lock;

/// A peer that vanished without closing is noticed by the kernel after this long without traffic.
const TCP_KEEPALIVE: Duration = Duration::from_secs(30);
/// Waits before more idle connections are opened, after the peer closed those that were.
const CLOSED: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
/// How many connections are opened at the same time while warming.
const WARM_AT_ONCE: usize = 32;

type Connection = GatedIo<MaybeHttpsStream<TokioIo<TcpStream>>>;
type ConnectError = Box<dyn std::error::Error + Send + Sync>;

/// Opens connections, or returns one that is open already. Clones share the idle connections.
#[derive(Clone)]
pub(super) struct WarmConnector {
    network: HttpsConnector<HttpConnector<Dns>>,
    connect_timeout: Duration,
    idle: Arc<IdleConnections>,
}

/// Name resolution in the form that the HTTP client needs.
#[derive(Clone, Debug, Default)]
struct Dns(Resolver);

impl Service<Name> for Dns {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let resolver = self.0.clone();
        Box::pin(async move {
            let found = resolver.addresses(name.as_str()).await?;
            // The client sets the port.
            let found: Vec<_> = found.into_iter().map(|ip| SocketAddr::new(ip, 0)).collect();
            Ok(found.into_iter())
        })
    }
}

/// Open connections that have carried nothing yet; at most as many as `warm` was called with.
struct IdleConnections {
    /// Where they lead. `None`: the host differs from message to message.
    origin: Option<Uri>,
    idle_timeout: Duration,
    /// How many to keep, since the last `warm`.
    wanted: AtomicUsize,
    /// A top-up is under way.
    filling: AtomicBool,
    /// How often in a row the peer had closed one that was wanted. Top-ups wait for that.
    closed: Mutex<Failures>,
    clock: Clock,
    spare: Mutex<Vec<IdleConnection>>,
}

struct IdleConnection {
    connection: Connection,
    opened: Instant,
}

impl WarmConnector {
    /// A connector for calls to `origin` (scheme and authority), or to any host without one.
    pub(super) fn new(
        tls: ClientConfig,
        origin: Option<Uri>,
        connect_timeout: Duration,
        idle_timeout: Duration,
    ) -> Self {
        let mut tcp = HttpConnector::new_with_resolver(Dns::default());
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(TCP_KEEPALIVE));
        // Divided among the addresses of a host, so that a dead one leaves time for the next.
        tcp.set_connect_timeout(Some(connect_timeout));
        let network = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        Self {
            network,
            connect_timeout,
            idle: Arc::new(IdleConnections {
                origin,
                idle_timeout,
                wanted: AtomicUsize::new(0),
                filling: AtomicBool::new(false),
                closed: Mutex::new(Failures::new(CLOSED)),
                clock: Clock::start(),
                spare: Mutex::default(),
            }),
        }
    }

    /// Opens idle connections up to `wanted` connections, within `bound`. The error says what failed.
    pub(super) async fn warm(&self, wanted: usize, bound: Duration) -> Result<(), String> {
        let Some(origin) = self.idle.origin.clone() else {
            return Ok(());
        };
        self.idle.wanted.store(wanted, Ordering::Relaxed);
        let missing = wanted.saturating_sub(self.idle.discard_stale());
        let opening = stream::iter(0..missing).map(|_| self.open(origin.clone()));
        let mut opening = opening.buffer_unordered(WARM_AT_ONCE);
        let mut opened = 0;
        let mut failure = None;
        let all = timeout(bound, async {
            while let Some(result) = opening.next().await {
                match result {
                    Ok(connection) => {
                        self.idle.put(connection);
                        opened += 1;
                    }
                    Err(error) => failure = Some(connect_detail(error.as_ref())),
                }
            }
        });
        if all.await.is_err() {
            failure = Some(format!("not done within {bound:?}"));
        }
        self.discard_later();
        match failure {
            Some(why) => Err(format!("{opened} of {missing} connections opened: {why}")),
            None => Ok(()),
        }
    }

    /// Opens idle connections again in the background. More calls at a time need more connections, and
    /// a call that has to wait for a handshake misses its slot.
    fn top_up(&self) {
        let wanted = self.idle.wanted.load(Ordering::Relaxed);
        let waits = lock(&self.idle.closed).retry_at() > self.idle.clock.now();
        if wanted == 0 || waits || self.idle.filling.swap(true, Ordering::Relaxed) {
            return;
        }
        let this = self.clone();
        tokio::spawn(async move {
            // If this fails, calls fail in the same way and report it.
            this.warm(wanted, this.connect_timeout).await.ok();
            this.idle.filling.store(false, Ordering::Relaxed);
        });
    }

    /// Closes connections that were not used when they are too old, as the pool does with its own.
    fn discard_later(&self) {
        let idle = Arc::downgrade(&self.idle);
        let wait = self.idle.idle_timeout;
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            if let Some(idle) = idle.upgrade() {
                idle.discard_stale();
            }
        });
    }

    /// Opens a connection, with its TLS handshake, within the connect timeout.
    fn open(&self, to: Uri) -> BoxFuture<'static, Result<Connection, ConnectError>> {
        let connecting = self.network.clone().call(to);
        let bound = self.connect_timeout;
        Box::pin(async move {
            let opened = timeout(bound, connecting).await.unwrap_or_else(|_| {
                let why = format!("not open within {bound:?}");
                Err(io::Error::new(io::ErrorKind::TimedOut, why).into())
            });
            opened.map(GatedIo::new)
        })
    }
}

impl Service<Uri> for WarmConnector {
    type Response = Connection;
    type Error = ConnectError;
    type Future = BoxFuture<'static, Result<Connection, ConnectError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        self.network.poll_ready(cx)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let spare = self.idle.take(&to);
        if lock(&self.idle.spare).is_empty() {
            self.top_up();
        }
        match spare {
            Some(connection) => Box::pin(ready(Ok(connection))),
            None => self.open(to),
        }
    }
}

impl IdleConnections {
    fn put(&self, connection: Connection) {
        lock(&self.spare).push(IdleConnection {
            connection,
            opened: Instant::now(),
        });
    }

    /// A good idle connection to this origin, if there is one.
    fn take(&self, to: &Uri) -> Option<Connection> {
        let origin = self.origin.as_ref()?;
        if origin.scheme() != to.scheme() || origin.authority() != to.authority() {
            return None;
        }
        let mut spare = lock(&self.spare);
        let mut is_closed = false;
        while let Some(mut candidate) = spare.pop() {
            if candidate.is_good(self.idle_timeout) {
                lock(&self.closed).succeeded();
                return Some(candidate.connection);
            }
            is_closed |= candidate.opened.elapsed() < self.idle_timeout;
        }
        if is_closed {
            lock(&self.closed).failed(self.clock.now(), rand::random());
        }
        None
    }

    /// Closes connections that are no longer good, and returns how many are left.
    fn discard_stale(&self) -> usize {
        let mut spare = lock(&self.spare);
        spare.retain_mut(|candidate| candidate.is_good(self.idle_timeout));
        spare.len()
    }
}

impl IdleConnection {
    /// Reads without waiting: on a good connection that carried no request there is nothing to
    /// read. (TLS session tickets are consumed on the way.)
    fn is_good(&mut self, idle_timeout: Duration) -> bool {
        if self.opened.elapsed() >= idle_timeout {
            return false;
        }
        let mut byte = [0];
        let mut buffer = ReadBuf::new(&mut byte);
        let mut cx = Context::from_waker(Waker::noop());
        Pin::new(&mut self.connection)
            .poll_read(&mut cx, buffer.unfilled())
            .is_pending()
    }
}

impl fmt::Debug for WarmConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WarmConnector")
            .field("origin", &self.idle.origin)
            .field("spare", &lock(&self.idle.spare).len())
            .finish_non_exhaustive()
    }
}

/// Host and port of `origin`.
pub(super) fn place(origin: &Uri) -> Option<(&str, u16)> {
    // An IPv6 address is in brackets.
    let host = origin.host()?.trim_matches(['[', ']']);
    let is_tls = origin.scheme() == Some(&Scheme::HTTPS);
    let port = origin.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    Some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_has_a_host_and_a_port() {
        for (origin, host, port) in [
            ("http://127.0.0.1:81", "127.0.0.1", 81),
            ("http://127.0.0.1", "127.0.0.1", 80),
            ("https://[::1]", "::1", 443),
            ("http://nowhere.invalid", "nowhere.invalid", 80),
        ] {
            let origin = origin.parse().expect("a uri");
            assert_eq!(place(&origin), Some((host, port)), "{origin}");
        }
    }
}
