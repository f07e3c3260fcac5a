//! Connections to the downstream: plain or TLS, opened on demand or ahead of time.
//!
//! Problem: the first slot must not wait for a handshake, and a request made only to warm a
//! connection would count against the limit. So `WarmConnector` sits between the client's pool and
//! the network, and keeps connections that are open, TLS included, and have carried nothing (`warm`).
//! When the pool asks for a new connection it gets one of those, if one is still good: younger than
//! the idle timeout, not closed by the peer, and silent. `egress` is the network, perhaps through a proxy; `lifetime`
//! says for how long each connection is used.
//!
//! Where the host is from the message, no connection can be opened before the first message names it. So one is opened
//! when a message comes for a host that has none ([`WarmConnector::open_ahead`]), and more for a host that takes more;
//! the hosts that were called last (`places`) keep theirs.

use std::future::ready;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use std::{fmt, io};

use futures::future::BoxFuture;
use futures::{StreamExt, stream};
use http::Uri;
use hyper::rt::{Read, ReadBuf};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tower_service::Service;

use super::egress::{ConnectError, Dns, Egress, Proxy};
use super::lifetime::Lifetimes;
use super::places::Places;
use super::warm::{WarmConnections, WarmState};
use super::write_check::CheckedIo;
use crate::hosts::{AllowedHosts, usual_port};
use sluiced_net::dial::connect_detail;
use sluiced_ports::clock;
use sluiced_ports::lock;
use sluiced_settings::types::HttpVersion;

/// A peer that vanished without closing is noticed by the kernel after this long without traffic.
const TCP_KEEPALIVE: Duration = Duration::from_secs(30);
/// How many connections are opened at the same time while warming.
const WARM_AT_ONCE: usize = 32;

type Connection = CheckedIo<MaybeHttpsStream<TokioIo<TcpStream>>>;

/// Plain connections and those with TLS, perhaps through a proxy, and to `allowed` addresses only.
pub(crate) fn network(
    tls: ClientConfig,
    connect_timeout: Duration,
    proxy: Option<Proxy>,
    allowed: Option<AllowedHosts>,
    version: HttpVersion,
) -> HttpsConnector<Egress> {
    let mut tcp = HttpConnector::new_with_resolver(Dns::new(allowed));
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(TCP_KEEPALIVE));
    // Divided among the addresses of a host, so that a dead one leaves time for the next.
    tcp.set_connect_timeout(Some(connect_timeout));
    let egress = Egress::new(tcp, proxy, connect_timeout);
    let builder = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http();
    match version {
        HttpVersion::One => builder.enable_http1().wrap_connector(egress),
        // Both versions are offered (ALPN): a server without HTTP/2 chooses HTTP/1.1, which is reported then.
        HttpVersion::Two => builder.enable_all_versions().wrap_connector(egress),
    }
}

/// Opens connections, or returns one that is open already. Clones share the warm connections.
#[derive(Clone)]
pub(crate) struct WarmConnector {
    network: HttpsConnector<Egress>,
    connect_timeout: Duration,
    lifetimes: Arc<Lifetimes>,
    places: Places<WarmPlace>,
}

/// The warm connections to one place, and what they need.
struct WarmPlace {
    /// Scheme and authority.
    origin: Uri,
    timeout: Duration,
    /// A task closes those that are too old.
    discards: AtomicBool,
    warm: Mutex<WarmConnections<WarmConnection>>,
}

struct WarmConnection {
    connection: Connection,
    opened: Instant,
}

impl WarmConnector {
    /// A connector for calls to `origin` (scheme and authority), or to any host without one.
    pub(crate) fn new(
        network: HttpsConnector<Egress>,
        origin: Option<Uri>,
        connect_timeout: Duration,
        lifetimes: Arc<Lifetimes>,
    ) -> Self {
        let timeout = lifetimes.unused_time();
        Self {
            network,
            connect_timeout,
            places: Places::new(origin, |origin| WarmPlace::new(origin, timeout)),
            lifetimes,
        }
    }

    /// Opens warm connections up to `wanted`, within `bound`. The error says what failed.
    pub(crate) async fn warm(&self, wanted: usize, bound: Duration) -> Result<(), String> {
        let Some(place) = self.places.only() else {
            return Ok(());
        };
        place.discard_stale();
        let missing = lock(&place.warm).want(wanted);
        let (opened, failure) = self.open_warm(place, missing, bound).await;
        match failure {
            Some(why) => Err(format!("{opened} of {missing} connections opened: {why}")),
            None => Ok(()),
        }
    }

    /// A message will be called at this URL: opens a connection in the background if its host is from the message and
    /// has no warm one. Must be called inside a tokio runtime.
    pub(crate) fn open_ahead(&self, url: &Uri) {
        if self.places.only().is_none()
            && let Some(place) = self.warm_place(url)
        {
            let missing = lock(&place.warm).want_first(clock::now());
            self.open_later(place, missing);
        }
    }

    /// Opens warm connections in the background.
    fn open_later(&self, place: Arc<WarmPlace>, missing: usize) {
        if missing == 0 {
            return;
        }
        let this = self.clone();
        tokio::spawn(async move {
            // If this fails, calls fail in the same way and report it.
            let bound = this.connect_timeout;
            this.open_warm(&place, missing, bound).await;
        });
    }

    /// The warm connections to a place.
    fn warm_place(&self, to: &Uri) -> Option<Arc<WarmPlace>> {
        let timeout = self.lifetimes.unused_time();
        let new = |origin| WarmPlace::new(origin, timeout);
        self.places.find_or_make(to, clock::now(), new)
    }

    /// Opens this many, within `bound`: how many it opened, and why not all of them.
    async fn open_warm(
        &self,
        place: &Arc<WarmPlace>,
        missing: usize,
        bound: Duration,
    ) -> (usize, Option<String>) {
        let until = Instant::now() + bound;
        let mut opening = stream::iter(0..missing)
            .map(|_| self.open(place.origin.clone()))
            .buffer_unordered(WARM_AT_ONCE);
        let (mut opened, mut failure) = (0, None);
        for _ in 0..missing {
            let connection = match timeout_at(until, opening.next()).await {
                Ok(Some(Ok(connection))) => Some(connection),
                Ok(Some(Err(error))) => {
                    failure = Some(connect_detail(error.as_ref()));
                    None
                }
                Ok(None) | Err(_) => {
                    failure = Some(format!("not done within {bound:?}"));
                    None
                }
            };
            opened += usize::from(connection.is_some());
            let warm = connection.map(|connection| WarmConnection {
                connection,
                opened: Instant::now(),
            });
            lock(&place.warm).add_opened(warm);
        }
        if failure.is_some() {
            let now = clock::now();
            lock(&place.warm).note_refusal(now, rand::random());
        }
        place.discard_later();
        (opened, failure)
    }

    /// Opens a connection, with its TLS handshake, within the connect timeout.
    fn open(&self, to: Uri) -> BoxFuture<'static, Result<Connection, ConnectError>> {
        let connecting = self.network.clone().call(to);
        let bound = self.connect_timeout;
        let lifetimes = Arc::clone(&self.lifetimes);
        Box::pin(async move {
            let opened = timeout(bound, connecting).await.unwrap_or_else(|_| {
                let why = format!("not open within {bound:?}");
                Err(io::Error::new(io::ErrorKind::TimedOut, why).into())
            });
            opened.map(|io| CheckedIo::new(io, lifetimes))
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
        let Some(place) = self.warm_place(&to) else {
            return self.open(to);
        };
        let warm = place.take();
        let missing = lock(&place.warm).missing(clock::now());
        self.open_later(place, missing);
        match warm {
            Some(connection) => Box::pin(ready(Ok(connection))),
            None => self.open(to),
        }
    }
}

impl WarmPlace {
    fn new(origin: Uri, timeout: Duration) -> Self {
        Self {
            origin,
            timeout,
            discards: AtomicBool::new(false),
            warm: Mutex::new(WarmConnections::new()),
        }
    }

    /// Closes connections that were not used when they are too old, as the pool does with its own.
    fn discard_later(self: &Arc<Self>) {
        if self.discards.swap(true, Ordering::Relaxed) {
            return;
        }
        let place = Arc::downgrade(self);
        let wait = self.timeout;
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(wait).await;
                let Some(place) = place.upgrade() else {
                    return;
                };
                place.discard_stale();
                if lock(&place.warm).ready() == 0 {
                    place.discards.store(false, Ordering::Relaxed);
                    return;
                }
            }
        });
    }

    /// A good warm connection, if there is one.
    fn take(&self) -> Option<Connection> {
        let now = clock::now();
        let look = |warm: &mut WarmConnection| warm.look(self.timeout);
        let warm = lock(&self.warm).take(look, now, rand::random());
        warm.map(|warm| warm.connection)
    }

    /// Closes warm connections that are no longer good.
    fn discard_stale(&self) {
        let now = clock::now();
        let look = |warm: &mut WarmConnection| warm.look(self.timeout);
        lock(&self.warm).discard(look, now, rand::random());
    }
}

impl WarmConnection {
    /// Reads without waiting: on a good connection that carried no request there is nothing to
    /// read. (TLS session tickets are consumed on the way.)
    fn look(&mut self, idle_timeout: Duration) -> WarmState {
        if self.opened.elapsed() >= idle_timeout {
            return WarmState::Old;
        }
        let mut byte = [0];
        let mut buffer = ReadBuf::new(&mut byte);
        let mut cx = Context::from_waker(Waker::noop());
        match Pin::new(&mut self.connection).poll_read(&mut cx, buffer.unfilled()) {
            Poll::Pending => WarmState::Good,
            Poll::Ready(_) => WarmState::Closed,
        }
    }
}

impl fmt::Debug for WarmConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Hosts from messages are not shown.
        let (origin, warm) = match self.places.only() {
            Some(place) => (Some(&place.origin), lock(&place.warm).ready()),
            None => (None, self.places.len()),
        };
        f.debug_struct("WarmConnector")
            .field("origin", &origin)
            .field("warm", &warm)
            .finish_non_exhaustive()
    }
}

/// Host and port of `origin`.
pub(crate) fn place(origin: &Uri) -> Option<(&str, u16)> {
    // An IPv6 address is in brackets.
    let host = origin.host()?.trim_matches(['[', ']']);
    let port = origin.port_u16().unwrap_or_else(|| usual_port(origin));
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
