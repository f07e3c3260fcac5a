//! A connection of the provider: it knows when its bytes arrived, and can cause faults.
//!
//! Problem: a judge that stamps a call in its own thread also measures how long that thread waited for
//! a processor, and on a busy machine it then reports calls as too close together because of its own
//! delay. So the kernel stamps (`SO_TIMESTAMPNS`): the time at which the last bytes that were read came
//! in from the network, whatever was running. Where the kernel has no stamp for a read, the time of
//! reading counts.
//!
//! The end of a connection is stamped too, and where bytes before it were not read yet, the kernel puts
//! both into one piece with the stamp of the end. So calls of a replica that was killed would all seem to
//! come at that moment, if this process had stood still before. Bytes that are read together with the end
//! have no time.
//!
//! A test may need TLS, a silent network, or garbled answers ([`ConnectionFaults`]). A proxy in front of the provider
//! could do all of that, but on a busy machine it passes bytes on late, and the provider would judge the
//! proxy. So the provider does it itself, at its own socket, after the kernel has stamped the bytes.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd as _};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrStorage, recv, recvmsg, setsockopt, sockopt,
};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use sluiced_core::time::Mono;
use sluiced_ports::clock;

/// When the bytes arrived that were read last.
#[derive(Clone, Debug)]
pub struct LastArrival(Arc<AtomicU64>);

/// The time is not known.
const UNKNOWN: u64 = u64::MAX;

impl LastArrival {
    /// `None`: the end of the connection followed them, and it is not known when they came.
    #[must_use]
    pub fn get(&self) -> Option<Mono> {
        let at = self.0.load(Ordering::Relaxed);
        (at != UNKNOWN).then(|| Mono::from_micros(at))
    }
}

/// A TCP stream that stamps what it reads.
#[derive(Debug)]
pub struct StampedStream {
    socket: TcpStream,
    last: LastArrival,
}

/// Asks the kernel for stamps on all connections to come. They inherit it, so that it also stamps
/// what arrives before a connection is accepted.
///
/// # Errors
/// The error of the kernel.
pub fn ask_for_stamps(listener: &impl AsFd) -> io::Result<()> {
    Ok(setsockopt(listener, sockopt::ReceiveTimestampns, &true)?)
}

impl StampedStream {
    /// A stream of a listener that was asked for stamps.
    pub fn new(socket: TcpStream) -> Self {
        let last = LastArrival(Arc::new(AtomicU64::new(clock::now().as_micros())));
        Self { socket, last }
    }

    /// When the last bytes that it read arrived; the value stays current while the stream is read.
    #[must_use]
    pub fn last_arrival(&self) -> LastArrival {
        self.last.clone()
    }

    /// One read that does not block: how many bytes, and when they arrived.
    fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        let mut control = nix::cmsg_space!(TimeSpec);
        let mut parts = [IoSliceMut::new(into)];
        let socket = self.socket.as_raw_fd();
        let got = recvmsg::<SockaddrStorage>(
            socket,
            &mut parts,
            Some(&mut control),
            MsgFlags::MSG_DONTWAIT,
        )?;
        let stamp = got.cmsgs()?.find_map(|message| match message {
            ControlMessageOwned::ScmTimestampns(at) => Some(at),
            _ => None,
        });
        let bytes = got.bytes;
        if bytes > 0 {
            let ago = stamp.map_or(Duration::ZERO, age);
            let arrived = (clock::now() - ago).as_micros();
            let last = if self.ends() { UNKNOWN } else { arrived };
            self.last.0.store(last, Ordering::Relaxed);
        }
        Ok(bytes)
    }

    /// Whether nothing but the end of the connection is left to read.
    fn ends(&self) -> bool {
        let look = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        recv(self.socket.as_raw_fd(), &mut [0], look) == Ok(0)
    }
}

/// How long ago the kernel's stamp was. It is on the wall clock, which may step: an impossible age
/// counts as none.
fn age(stamp: TimeSpec) -> Duration {
    let now = clock_gettime(ClockId::CLOCK_REALTIME)
        .map(Duration::from)
        .unwrap_or_default();
    let age = now.saturating_sub(Duration::from(stamp));
    if age < Duration::from_secs(60) {
        age
    } else {
        Duration::ZERO
    }
}

impl AsyncRead for StampedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            ready!(this.socket.poll_read_ready(cx))?;
            let read = this.socket.try_io(Interest::READABLE, || {
                this.receive(buf.initialize_unfilled())
            });
            match read {
                Ok(bytes) => {
                    buf.advance(bytes);
                    return Poll::Ready(Ok(()));
                }
                // The readiness was stale; `try_io` has cleared it.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for StampedStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().socket).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().socket).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(cx)
    }
}

/// How connections are treated, from now on.
#[derive(Clone, Default)]
pub struct ConnectionFaults {
    /// New connections speak TLS, with this certificate.
    pub tls: Option<TlsAcceptor>,
    /// This long passes before a new connection is served.
    pub handshake: Duration,
    /// Connections are accepted, and nothing is read from any.
    pub silent: bool,
    /// What is written instead of each piece of an answer.
    pub instead: Option<&'static [u8]>,
}

impl fmt::Debug for ConnectionFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionFaults")
            .field("tls", &self.tls.is_some())
            .field("handshake", &self.handshake)
            .field("silent", &self.silent)
            .field("instead", &self.instead)
            .finish()
    }
}

/// A connection with the faults of its way.
pub(super) struct FaultyStream {
    inner: StampedStream,
    way: watch::Receiver<ConnectionFaults>,
    /// Waits for the end of a silence.
    goes_on: Option<BoxFuture<'static, ()>>,
}

impl FaultyStream {
    pub(super) const fn new(inner: StampedStream, way: watch::Receiver<ConnectionFaults>) -> Self {
        Self {
            inner,
            way,
            goes_on: None,
        }
    }
}

impl AsyncRead for FaultyStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.way.borrow().silent {
            let mut way = this.way.clone();
            let silence = this.goes_on.get_or_insert_with(|| {
                async move { way.wait_for(|way| !way.silent).await.map_or((), drop) }.boxed()
            });
            ready!(silence.poll_unpin(cx));
            this.goes_on = None;
        }
        Pin::new(&mut this.inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for FaultyStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let instead = this.way.borrow().instead;
        let written = Pin::new(&mut this.inner).poll_write(cx, instead.unwrap_or(buf));
        written.map_ok(|count| if instead.is_some() { buf.len() } else { count })
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// Bytes that arrived before they were read, or before the connection was accepted, are
    /// stamped with their arrival, not with the reading.
    #[tokio::test]
    async fn the_stamp_is_of_the_arrival() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        ask_for_stamps(&listener).expect("stamps");
        let address = listener.local_addr().expect("bound");
        let wait = Duration::from_millis(150);
        // The kernel starts to stamp a moment after the first socket asks for it.
        for round in 0..20 {
            let mut sender = TcpStream::connect(address).await.expect("it listens");
            let mut late = Vec::new();
            let mut stamped: Option<StampedStream> = None;
            for _ in 0..2 {
                sender.write_all(b"x").await.expect("connected");
                let sent = clock::now();
                tokio::time::sleep(wait).await;
                let mut stream = match stamped.take() {
                    Some(stream) => stream,
                    None => {
                        let (socket, _) = listener.accept().await.expect("a connection");
                        StampedStream::new(socket)
                    }
                };
                stream.read_exact(&mut [0]).await.expect("a byte");
                let arrival = stream.last_arrival().get().expect("it is open");
                late.push(arrival.since(sent));
                stamped = Some(stream);
            }
            if late.iter().all(|late| *late < wait / 2) {
                return;
            }
            assert!(round < 19, "stamped so long after they were sent: {late:?}");
        }
    }

    /// A client that was killed: its bytes and its end are read together, with the stamp of the end.
    #[tokio::test]
    async fn bytes_before_the_end_have_no_time() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        ask_for_stamps(&listener).expect("stamps");
        let address = listener.local_addr().expect("bound");
        let mut sender = TcpStream::connect(address).await.expect("it listens");
        sender.write_all(b"x").await.expect("connected");
        drop(sender);
        let (socket, _) = listener.accept().await.expect("a connection");
        let mut stream = StampedStream::new(socket);
        stream.read_exact(&mut [0]).await.expect("a byte");
        assert_eq!(stream.last_arrival().get(), None);
    }
}
