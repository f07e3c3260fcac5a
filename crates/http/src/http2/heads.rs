//! What a connection of HTTP/2 may write: no head of a call after its slot has passed.
//!
//! Problem: many calls share a connection, so a call may be handed over in time and written much later, behind the
//! bodies of others, when the socket takes no more. A head that waits cannot be taken out (each is compressed against
//! those before it, RFC 7541), and an error would end the calls that are in flight.
//!
//! So [`HeadCheck`] follows the frames that the connection writes (RFC 9113, section 4.1). Where the head of a call
//! begins, all before it must be in the kernel, and the socket must take more; then it looks at the clock. If the slot
//! has passed, the connection is shut: nothing more is written, the answers to what was written are read, and it takes
//! no call any more. What comes to be written after that is dropped and counts as written: the client library reads
//! nothing while a frame of its own, such as the answer to a PING, cannot be written.
//!
//! A connection whose socket takes no more bytes takes no call either. [`super::opening`] lets the kernel keep little
//! that it has not sent.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use sluiced_ports::downstream::LeaveBy;
use sluiced_ports::lock;

/// The length of a frame's header, in octets (RFC 9113, section 4.1).
const HEADER: usize = 9;
/// The length of what a client sends before its first frame, in octets (RFC 9113, section 3.4).
const PREFACE: usize = 24;
/// This many times a connection reads before others are polled: a peer may send without end.
const READS: u32 = 64;
/// The type of the frame that begins a call.
const HEADERS: u8 = 1;

/// What of a connection's bytes is written, shared with the calls on it.
#[derive(Clone, Debug)]
pub(super) struct Heads(Arc<Mutex<HeadsState>>);

#[derive(Debug)]
struct HeadsState {
    /// The calls whose heads are not written yet, by their streams. `None`: given up.
    waiting: HashMap<u32, Option<LeaveBy>>,
    /// Some bytes are not in the kernel.
    is_blocked: bool,
    /// Nothing is written any more.
    is_shut: bool,
    /// When the peer sent something last.
    read: Instant,
    /// How often it may read in this poll.
    reads: u32,
}

impl Heads {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(HeadsState {
            waiting: HashMap::new(),
            is_blocked: false,
            is_shut: false,
            read: Instant::now(),
            reads: READS,
        })))
    }

    /// Gives a stream to a call. Must be called before the connection can write the head of the call.
    pub(super) fn expect(&self, stream: u32, leave_by: LeaveBy) {
        lock(&self.0).waiting.insert(stream, Some(leave_by));
    }

    /// Whether a byte of the call may have been written; before that, the downstream certainly has nothing.
    pub(super) fn has_begun(&self, stream: u32) -> bool {
        !lock(&self.0).waiting.contains_key(&stream)
    }

    /// The call is given up, if no byte of it is written: none will be. Returns whether that is so.
    pub(super) fn withdraw(&self, stream: u32) -> bool {
        let mut written = lock(&self.0);
        let waiting = written.waiting.get_mut(&stream);
        waiting.is_some_and(|leave_by| {
            *leave_by = None;
            true
        })
    }

    /// Whether a head would be written at once.
    pub(super) fn are_free(&self) -> bool {
        let written = lock(&self.0);
        !written.is_blocked && !written.is_shut && written.waiting.is_empty()
    }

    /// The connection is polled.
    pub(super) fn begin_poll(&self) {
        lock(&self.0).reads = READS;
    }

    fn may_read(&self) -> bool {
        let mut written = lock(&self.0);
        let may = written.reads > 0;
        written.reads = written.reads.saturating_sub(1);
        may
    }

    pub(super) fn are_shut(&self) -> bool {
        lock(&self.0).is_shut
    }

    pub(super) fn last_read(&self) -> Instant {
        lock(&self.0).read
    }

    /// Right before its head is written: shuts if it is too late for it. Only heads that are expected are written. From
    /// now on the call counts as begun, because it could be given up on another thread while its head is written.
    fn begin(&self, stream: u32) -> Option<WrittenHead> {
        let mut written = lock(&self.0);
        let leave_by = written.waiting.get(&stream).copied().flatten();
        let in_time = leave_by.filter(|leave_by| !leave_by.has_passed());
        match in_time {
            Some(_) => {
                written.waiting.remove(&stream);
            }
            None => written.is_shut = true,
        }
        in_time.map(|leave_by| WrittenHead { stream, leave_by })
    }

    /// Nothing of the head was written after all.
    fn put_back(&self, head: &WrittenHead) {
        self.expect(head.stream, head.leave_by);
    }
}

/// A head that is written just now.
struct WrittenHead {
    stream: u32,
    leave_by: LeaveBy,
}

/// What is below the check.
pub(super) trait Socket {
    /// Whether the kernel takes more bytes now. Wakes the task when it does.
    fn poll_takes(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

/// The bytes of a connection; the last check of each call that it carries.
#[derive(Debug)]
pub(super) struct HeadCheck<T> {
    io: T,
    heads: Heads,
    frames: FrameCursor,
}

/// The first of the bytes that the client library wants to write.
struct WritableBytes {
    /// How many.
    end: usize,
    /// The head that they begin.
    begins: Option<WrittenHead>,
}

impl WritableBytes {
    const fn up_to(end: usize) -> Self {
        Self { end, begins: None }
    }
}

impl<T> HeadCheck<T> {
    pub(super) const fn new(io: T, heads: Heads) -> Self {
        Self {
            io,
            heads,
            frames: FrameCursor::new(),
        }
    }
}

impl<T: AsyncWrite + Socket + Unpin> HeadCheck<T> {
    /// What of these bytes may be written now. `None`: the connection is shut.
    fn poll_may_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<Option<WritableBytes>>> {
        if self.heads.are_shut() {
            return Poll::Ready(Ok(None));
        }
        match self.frames.head_in(bytes) {
            None => Poll::Ready(Ok(Some(WritableBytes::up_to(bytes.len())))),
            // It is looked at when it is the next to be written.
            Some((at, _)) if at > 0 => Poll::Ready(Ok(Some(WritableBytes::up_to(at)))),
            Some((_, stream)) => {
                ready!(Pin::new(&mut self.io).poll_flush(cx))?;
                ready!(self.io.poll_takes(cx))?;
                let begins = self.heads.begin(stream);
                if begins.is_none() {
                    return Poll::Ready(Ok(None));
                }
                let mut behind = self.frames;
                behind.pass(&bytes[..HEADER]);
                let next_head = behind.head_in(&bytes[HEADER..]);
                let end = next_head.map_or(bytes.len(), |(at, _)| HEADER + at);
                Poll::Ready(Ok(Some(WritableBytes { end, begins })))
            }
        }
    }

    fn poll_pass(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Some(WritableBytes { end, begins }) = ready!(self.poll_may_write(cx, bytes))? else {
            return Poll::Ready(Ok(bytes.len()));
        };
        let passed = Pin::new(&mut self.io).poll_write(cx, &bytes[..end]);
        if let (Poll::Pending | Poll::Ready(Ok(0)), Some(head)) = (&passed, &begins) {
            self.heads.put_back(head);
        }
        let written = ready!(passed)?;
        self.frames.pass(&bytes[..written]);
        Poll::Ready(Ok(written))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for HeadCheck<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.heads.may_read() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let read = Pin::new(&mut self.io).poll_read(cx, buffer);
        if read.is_ready() {
            lock(&self.heads.0).read = Instant::now();
        }
        read
    }
}

impl<T: AsyncWrite + Socket + Unpin> AsyncWrite for HeadCheck<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let passed = self.poll_pass(cx, bytes);
        if passed.is_pending() {
            lock(&self.heads.0).is_blocked = true;
        }
        passed
    }

    /// TLS keeps what the socket does not take, and says that it is written: only this shows it.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        lock(&self.heads.0).is_blocked = flushed.is_pending();
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// Where the frames begin in what is written.
#[derive(Clone, Copy, Debug)]
struct FrameCursor {
    /// Until the next header of a frame.
    left: usize,
    /// The header that has begun, as far as it is known.
    header: [u8; HEADER],
    known: usize,
}

impl FrameCursor {
    const fn new() -> Self {
        Self {
            left: PREFACE,
            header: [0; HEADER],
            known: 0,
        }
    }

    /// The first head of a call that begins in these bytes: where, and in which stream. `h2` hands over whole headers.
    fn head_in(mut self, bytes: &[u8]) -> Option<(usize, u32)> {
        let mut at = 0;
        while at < bytes.len() {
            let is_new = self.left == 0 && self.known == 0;
            let step = self.step(&bytes[at..]);
            if is_new && step == HEADER && self.header[3] == HEADERS {
                let [.., a, b, c, d] = self.header;
                return Some((at, u32::from_be_bytes([a, b, c, d]) & 0x7fff_ffff));
            }
            at += step;
        }
        None
    }

    /// These bytes were written.
    fn pass(&mut self, bytes: &[u8]) {
        let mut at = 0;
        while at < bytes.len() {
            at += self.step(&bytes[at..]);
        }
    }

    /// To the end of a header or of a payload, or of the bytes. How many of them that is.
    fn step(&mut self, bytes: &[u8]) -> usize {
        if self.left > 0 {
            let step = self.left.min(bytes.len());
            self.left -= step;
            return step;
        }
        let step = (HEADER - self.known).min(bytes.len());
        self.header[self.known..self.known + step].copy_from_slice(&bytes[..step]);
        self.known += step;
        if self.known == HEADER {
            self.known = 0;
            let [a, b, c, ..] = self.header;
            self.left = u32::from_be_bytes([0, a, b, c]) as usize;
        }
        step
    }
}

#[cfg(test)]
mod tests;
