//! Opens connections of HTTP/2, up to the point where they take calls.
//!
//! The peer must speak HTTP/2: over TLS it says so in the handshake (ALPN, RFC 7301), without TLS it is known before
//! (RFC 9113, section 3.3). A connection is open once the peer has said how many calls it allows at a time. Pushed
//! answers are refused, and what the peer may send unasked is bounded.

use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use h2::client::Builder;
use h2::{PingPong, Reason};
use http::Uri;
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::rt::TokioIo;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tower_service::Service as _;

use super::connection::{Http2Connection, Wire};
use super::heads::{HeadCheck, Heads, Socket};
use crate::answer::MAX_ANSWER_HEAD;
use crate::connections::egress::Egress;
use crate::connections::lifetime::Lifetimes;
use sluiced_net::dial::connect_detail;
use sluiced_ports::downstream::MAX_ANSWER;

/// The kernel keeps no more bytes that it has not sent: what waits there can leave late.
const UNSENT: u32 = 16 * 1024;
/// What the peer may send of all answers before it is read.
const WINDOW: u32 = 1024 * 1024;
/// The headers that it may refer to again.
const HEADER_TABLE: u32 = 4096;

const STRANGE: &str =
    "the server does not answer in HTTP/2; write http = \"1.1\", if it speaks that";

/// What it takes to open a connection.
#[derive(Clone)]
pub(super) struct Opener {
    network: HttpsConnector<Egress>,
    timeout: Duration,
    lifetimes: Arc<Lifetimes>,
}

impl Opener {
    pub(super) const fn new(
        network: HttpsConnector<Egress>,
        timeout: Duration,
        lifetimes: Arc<Lifetimes>,
    ) -> Self {
        Self {
            network,
            timeout,
            lifetimes,
        }
    }

    /// Opens one, within the connect timeout. The error is for a person.
    pub(super) async fn open(
        &self,
        to: Uri,
    ) -> Result<(Arc<Http2Connection>, Option<PingPong>), String> {
        let bound = self.timeout;
        let opened = timeout(bound, self.open_unbounded(to)).await;
        opened.unwrap_or_else(|_| Err(format!("not open within {bound:?}")))
    }

    async fn open_unbounded(
        &self,
        to: Uri,
    ) -> Result<(Arc<Http2Connection>, Option<PingPong>), String> {
        let connected = self.network.clone().call(to).await;
        let stream = connected.map_err(|error| connect_detail(error.as_ref()))?;
        negotiated(&stream)?;
        let is_known = matches!(stream, MaybeHttpsStream::Https(_));
        let strange = |error: &h2::Error| strange(error, is_known);
        let io = Io(TokioIo::new(stream));
        // Where the system does not know it, the check sees less.
        SockRef::from(io.tcp()).set_tcp_notsent_lowat(UNSENT).ok();
        let heads = Heads::new();
        let check = HeadCheck::new(io, heads.clone());
        let (send, mut connection) = builder().handshake(check).await.map_err(|e| strange(&e))?;
        poll_fn(|cx| match Pin::new(&mut connection).poll(cx) {
            Poll::Ready(Ok(())) => Poll::Ready(Err(STRANGE.to_owned())),
            Poll::Ready(Err(error)) => Poll::Ready(Err(strange(&error))),
            // None is allowed before the peer has said how many.
            Poll::Pending if send.current_max_send_streams() > 0 => Poll::Ready(Ok(())),
            Poll::Pending => Poll::Pending,
        })
        .await?;
        let pings = connection.ping_pong();
        let send = Some(send);
        let wire = Wire { connection, send };
        Ok((
            Http2Connection::new(wire, heads, Arc::clone(&self.lifetimes)),
            pings,
        ))
    }
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        .initial_max_send_streams(0)
        .header_table_size(HEADER_TABLE)
        .max_header_list_size(u32::try_from(MAX_ANSWER_HEAD).unwrap_or(u32::MAX))
        .initial_window_size(u32::try_from(MAX_ANSWER).unwrap_or(u32::MAX))
        .initial_connection_window_size(WINDOW);
    builder
}

/// Whether the peer speaks HTTP/2.
fn negotiated(stream: &MaybeHttpsStream<TokioIo<TcpStream>>) -> Result<(), String> {
    let MaybeHttpsStream::Https(tls) = stream else {
        return Ok(());
    };
    let (_, session) = tls.inner().get_ref();
    match session.alpn_protocol() {
        Some(b"h2") => Ok(()),
        Some(other) => Err(format!(
            "the server offers {} and not HTTP/2 (ALPN); write http = \"1.1\"",
            String::from_utf8_lossy(other).escape_debug()
        )),
        None => Err(
            "the server offers no HTTP/2 (it names no protocol by ALPN); write http = \"1.1\""
                .to_owned(),
        ),
    }
}

/// Why no connection of HTTP/2 came about, after one of TCP did. `is_known`: the server has said that it speaks HTTP/2.
fn strange(error: &h2::Error, is_known: bool) -> String {
    match (error.reason(), error.get_io()) {
        // Servers of HTTP/1.1 may close such a connection before their answer is read.
        (None, Some(io)) if !is_known && has_closed(io) => STRANGE.to_owned(),
        (Some(Reason::FRAME_SIZE_ERROR | Reason::PROTOCOL_ERROR), _) if !error.is_remote() => {
            STRANGE.to_owned()
        }
        (Some(reason), _) => format!("the server ended the connection ({reason:?})"),
        (None, Some(io)) => connect_detail(io),
        (None, None) => "no connection of HTTP/2".to_owned(),
    }
}

fn has_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// The bytes of a connection, with or without TLS.
pub(super) struct Io(TokioIo<MaybeHttpsStream<TokioIo<TcpStream>>>);

impl Io {
    fn tcp(&self) -> &TcpStream {
        match self.0.inner() {
            MaybeHttpsStream::Http(tcp) => tcp.inner(),
            MaybeHttpsStream::Https(tls) => tls.inner().get_ref().0.inner().inner(),
        }
    }
}

impl Socket for Io {
    fn poll_takes(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let tcp = self.tcp();
        loop {
            ready!(tcp.poll_write_ready(cx))?;
            // The runtime remembers that it was so; only the kernel knows whether it still is.
            match tcp.try_io(Interest::WRITABLE, || takes(tcp)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }
}

fn takes(tcp: &TcpStream) -> io::Result<()> {
    let mut asked = [PollFd::from_borrowed_fd(tcp.as_fd(), PollFlags::OUT)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    match poll(&mut asked, Some(&now))? {
        0 => Err(io::ErrorKind::WouldBlock.into()),
        _ => Ok(()),
    }
}

impl AsyncRead for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
