//! A connection that knows when its bytes arrived.
//!
//! A judge that stamps a call when its own thread gets round to it also measures how long that
//! thread waited for a processor, and on a busy machine it then accuses callers of bunching that
//! was its own. So the kernel stamps (`SO_TIMESTAMPNS`): the time at which the last bytes that were
//! read came in from the network, whoever was running. Where the kernel has no stamp for a read,
//! the time of reading counts.

use std::io::{self, IoSliceMut};
use std::os::fd::AsRawFd as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt,
};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use crate::core::time::Mono;
use crate::ports::clock::Clock;

/// When the bytes arrived that were read last.
#[derive(Clone, Debug)]
pub(super) struct LastArrival(Arc<AtomicU64>);

impl LastArrival {
    pub(super) fn get(&self) -> Mono {
        Mono::from_micros(self.0.load(Ordering::Relaxed))
    }
}

/// A TCP stream that stamps what it reads.
#[derive(Debug)]
pub(super) struct Stamped {
    socket: TcpStream,
    clock: Clock,
    last: LastArrival,
}

impl Stamped {
    /// Asks the kernel for stamps.
    pub(super) fn new(socket: TcpStream, clock: Clock) -> io::Result<Self> {
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
        let last = LastArrival(Arc::new(AtomicU64::new(clock.now().as_micros())));
        Ok(Self {
            socket,
            clock,
            last,
        })
    }

    pub(super) fn last_arrival(&self) -> LastArrival {
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
            let at = self.clock.now() - ago;
            self.last.0.store(at.as_micros(), Ordering::Relaxed);
        }
        Ok(bytes)
    }
}

/// How long ago the kernel's stamp was. It is on the wall clock, which may step: an age that makes
/// no sense counts as none.
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

impl AsyncRead for Stamped {
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

impl AsyncWrite for Stamped {
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// What arrived while nobody read is stamped with its arrival, not with the reading.
    #[tokio::test]
    async fn the_stamp_is_of_the_arrival() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let mut sender = TcpStream::connect(address).await.expect("it listens");
        let (socket, _) = listener.accept().await.expect("a connection");
        let clock = Clock::start();
        let mut stamped = Stamped::new(socket, clock).expect("stamps");
        let last = stamped.last_arrival();
        // The kernel starts to stamp a moment after the first socket asks for it.
        let wait = Duration::from_millis(150);
        for round in 0..20 {
            sender.write_all(b"x").await.expect("connected");
            let sent = clock.now();
            tokio::time::sleep(wait).await;
            let mut byte = [0];
            stamped.read_exact(&mut byte).await.expect("a byte");
            if last.get().since(sent) < wait / 2 {
                return;
            }
            assert!(round < 19, "stamped at {:?}, sent at {sent:?}", last.get());
        }
    }
}
