//! The stream between the broker and the client, which shows the client no frame that would end it.
//!
//! Problem: RabbitMQ passes on whatever a publisher wrote into properties. The client reads them on
//! one thread for all routes: a short string that is not UTF-8 ends its connection, on every
//! delivery of that message and on every replica, and deep tables overflow its stack, which ends
//! the process. So this stream looks at the frames first (`frames`), and a message that the client
//! cannot read gets properties that it can (`properties`). Such a message is known by its header
//! `header::UNREADABLE` and goes to the dead-letter queue like any other that cannot be sent.
//!
//! It can also be cut from outside: lapin goes on with a connection that was given up, and a broker
//! that accepts and stays silent would cost a thread and a socket for each attempt.

mod frames;
mod properties;

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use futures::{AsyncRead, AsyncWrite};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use frames::Frames;

/// Bytes that are read at once.
const READ: usize = 64 * 1024;

/// What the caller keeps of a stream.
#[derive(Clone, Debug, Default)]
pub(super) struct Control {
    /// Ends it.
    pub(super) cut: CancellationToken,
    /// The broker's major version, once it has greeted.
    pub(super) major: Arc<OnceLock<u32>>,
}

/// A stream from a broker, read frame by frame.
pub(super) struct Guarded<S> {
    inner: S,
    frames: Frames,
    read: Box<[u8]>,
    /// What the client may see, from `shown` on.
    ready: Vec<u8>,
    shown: usize,
    /// One for each direction: the client waits for them with different wakers.
    cut: [Pin<Box<WaitForCancellationFutureOwned>>; 2],
}

impl<S> Guarded<S> {
    /// `frame_max` is what the client asks for; the broker may lower it. `control` stays with the
    /// caller.
    pub(super) fn new(inner: S, frame_max: u32, control: &Control) -> Self {
        let ended = || Box::pin(control.cut.clone().cancelled_owned());
        Self {
            inner,
            frames: Frames::new(frame_max, Arc::clone(&control.major)),
            read: vec![0; READ].into(),
            ready: Vec::new(),
            shown: 0,
            cut: [ended(), ended()],
        }
    }

    fn check(&mut self, direction: usize, cx: &mut Context<'_>) -> io::Result<()> {
        match self.cut[direction].as_mut().poll(cx) {
            Poll::Pending => Ok(()),
            Poll::Ready(()) => Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "the connection was given up",
            )),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        this.check(0, cx)?;
        while this.shown == this.ready.len() {
            this.ready.clear();
            this.shown = 0;
            let count = match Pin::new(&mut this.inner).poll_read(cx, &mut this.read)? {
                Poll::Ready(0) => return Poll::Ready(Ok(0)),
                Poll::Ready(count) => count,
                Poll::Pending => return Poll::Pending,
            };
            this.frames.pass(&this.read[..count], &mut this.ready);
        }
        let count = buf.len().min(this.ready.len() - this.shown);
        buf[..count].copy_from_slice(&this.ready[this.shown..][..count]);
        this.shown += count;
        Poll::Ready(Ok(count))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(1, cx)?;
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(1, cx)?;
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(1, cx)?;
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(1, cx)?;
        Pin::new(&mut self.inner).poll_close(cx)
    }
}

impl<S> fmt::Debug for Guarded<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded").finish_non_exhaustive()
    }
}
