//! The stream between the broker and the client, which passes the client no frame that would end the
//! connection.
//!
//! Problem: RabbitMQ passes on all properties that a publisher wrote. The client reads them on one thread for
//! all routes: a short string that is not UTF-8 ends its connection, on every delivery of that message and on
//! every replica, and deep tables overflow its stack, which ends the process. So this stream looks at the
//! frames first, and a message that the client cannot read gets properties that it can (`properties`). Such a
//! message is known by its header `header::UNREADABLE` and goes to the dead-letter queue like any other that
//! cannot be sent.
//!
//! A frame is `type, channel, size, payload, end`. Bodies and heartbeats pass through as they come. Content
//! headers and methods are small, so they are held until they are complete, checked, and passed on unchanged
//! or repaired.
//!
//! It can also be cut from outside: lapin goes on with an abandoned connection, so a broker that
//! accepts and stays silent would cost a thread and a socket for each attempt.
//!
//! `docs/upstream/README.md` has what is offered to the client's authors, with which this is not needed.

mod properties;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use futures::{AsyncRead, AsyncWrite};
use lapin::protocol::connection::AMQPMethod;
use lapin::protocol::{AMQPClass, parse_class};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use properties::Unreadable;

pub(super) use properties::found_by;

/// Bytes that are read at once.
const READ: usize = 64 * 1024;

/// The caller's control of a stream.
#[derive(Clone, Debug, Default)]
pub(super) struct Control {
    /// Ends it.
    pub(super) cut: CancellationToken,
    /// What the broker said of itself, once it has greeted.
    pub(super) greeting: Arc<OnceLock<Greeting>>,
}

/// What a broker says of itself in its `connection.start`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Greeting {
    /// The broker's major version.
    pub(super) major: Option<u32>,
    /// The name of its cluster: `rabbit@` and a host, unless an operator gave it another one. RabbitMQ has one,
    /// other brokers may have none.
    pub(super) cluster: Option<String>,
}

/// A stream from a broker, read frame by frame.
pub(super) struct Filtered<S> {
    inner: S,
    frames: Frames,
    read: Box<[u8]>,
    /// The bytes that the client may read, from `shown` on.
    ready: Vec<u8>,
    shown: usize,
    /// One future for each direction: the client waits for them with different wakers.
    cut: [Pin<Box<WaitForCancellationFutureOwned>>; 2],
}

impl<S> Filtered<S> {
    /// `frame_max` is what the client asks for; the broker may lower it. `control` stays with the
    /// caller.
    pub(super) fn new(inner: S, frame_max: u32, control: &Control) -> Self {
        let ended = || Box::pin(control.cut.clone().cancelled_owned());
        Self {
            inner,
            frames: Frames::new(frame_max, Arc::clone(&control.greeting)),
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

impl<S: AsyncRead + Unpin> AsyncRead for Filtered<S> {
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

impl<S: AsyncWrite + Unpin> AsyncWrite for Filtered<S> {
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

impl<S> fmt::Debug for Filtered<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filtered").finish_non_exhaustive()
    }
}

const METHOD: u8 = 1;
const HEADER: u8 = 2;
const END: u8 = 0xCE;
/// `type, channel, size`.
const PREFIX: usize = 7;
/// What a frame has besides its payload.
const OVERHEAD: usize = PREFIX + 1;
/// No frame limit may be smaller.
const SMALLEST: u32 = 4096;

const START: [u8; 4] = [0, 10, 0, 10];
const TUNE: [u8; 4] = [0, 10, 0, 30];

/// The parts of a method's arguments.
enum Part {
    Text,
    Bytes(usize),
}
use Part::{Bytes, Text};

/// The methods that carry text of a publisher: `return`, `deliver` and `get-ok` of the class
/// `basic`.
const SPEAKING: [([u8; 4], &[Part]); 3] = [
    ([0, 60, 0, 50], &[Bytes(2), Text, Text, Text]),
    ([0, 60, 0, 60], &[Text, Bytes(9), Text, Text]),
    ([0, 60, 0, 71], &[Bytes(9), Text, Text, Bytes(4)]),
];

enum FrameState {
    /// Before a payload.
    Prefix,
    /// This many bytes that are not checked.
    Pass(usize),
    /// A payload that is checked, with its end; this many bytes are still to come.
    Hold(usize),
}

/// The frames of one connection.
struct Frames {
    state: FrameState,
    /// The current frame: its prefix, and the held part of its payload.
    held: Vec<u8>,
    /// The largest frame that the client takes.
    most: usize,
    greeting: Arc<OnceLock<Greeting>>,
    /// Methods that were repaired, by channel: the header behind one belongs to the same message.
    repaired: HashMap<[u8; 2], Vec<u8>>,
}

impl Frames {
    /// `greeting` receives what the broker says of itself.
    fn new(frame_max: u32, greeting: Arc<OnceLock<Greeting>>) -> Self {
        Self {
            state: FrameState::Prefix,
            held: Vec::new(),
            most: frame_max.max(SMALLEST) as usize,
            greeting,
            repaired: HashMap::new(),
        }
    }

    /// Takes the bytes that came, and adds to `out` those that the client may read.
    fn pass(&mut self, mut input: &[u8], out: &mut Vec<u8>) {
        while !input.is_empty() {
            match self.state {
                FrameState::Prefix => {
                    let wanted = PREFIX - self.held.len();
                    self.held.extend_from_slice(split(&mut input, wanted));
                    if self.held.len() == PREFIX {
                        self.begin(out);
                    }
                }
                FrameState::Pass(left) => {
                    let passed = split(&mut input, left);
                    out.extend_from_slice(passed);
                    self.state = match left - passed.len() {
                        0 => FrameState::Prefix,
                        left => FrameState::Pass(left),
                    };
                }
                FrameState::Hold(left) => {
                    let part = split(&mut input, left);
                    // No more than the client takes in one frame need be kept.
                    let room = (PREFIX + self.most).saturating_sub(self.held.len());
                    self.held.extend_from_slice(&part[..part.len().min(room)]);
                    match left - part.len() {
                        0 => self.end(out),
                        left => self.state = FrameState::Hold(left),
                    }
                }
            }
        }
    }

    /// The prefix of a frame is there.
    fn begin(&mut self, out: &mut Vec<u8>) {
        let size = size(&self.held);
        let kind = self.held[0];
        self.state = match kind {
            HEADER => FrameState::Hold(size + 1),
            METHOD if size + OVERHEAD <= self.most => FrameState::Hold(size + 1),
            _ => {
                out.append(&mut self.held);
                FrameState::Pass(size + 1)
            }
        };
    }

    /// Handles a held frame that is complete.
    fn end(&mut self, out: &mut Vec<u8>) {
        self.state = FrameState::Prefix;
        let frame = std::mem::take(&mut self.held);
        let channel = [frame[1], frame[2]];
        let size = size(&frame);
        let behind_prefix = &frame[PREFIX..];
        let payload = &behind_prefix[..size.min(behind_prefix.len())];
        let repaired = match frame[0] {
            METHOD => self.method(channel, payload),
            _ => self.header(channel, payload, size + OVERHEAD <= self.most),
        };
        match repaired {
            None => out.extend_from_slice(&frame),
            Some(replacement) => {
                let new_size = u32::try_from(replacement.len()).unwrap_or(u32::MAX);
                out.extend_from_slice(&frame[..3]);
                out.extend_from_slice(&new_size.to_be_bytes());
                out.extend_from_slice(&replacement);
                out.push(END);
            }
        }
        // Its memory is used again.
        self.held = frame;
        self.held.clear();
    }

    /// The method with all texts in UTF-8, if it has any that are not.
    fn method(&mut self, channel: [u8; 2], payload: &[u8]) -> Option<Vec<u8>> {
        let (name, arguments) = payload.split_at_checked(4)?;
        if name == TUNE {
            // channel-max, frame-max; the smaller of both sides counts, and 0 is no limit.
            let offered = u32::from_be_bytes(arguments.get(2..6)?.try_into().ok()?);
            if offered > 0 {
                self.most = self.most.min(offered.max(SMALLEST) as usize);
            }
            return None;
        }
        if name == START {
            if let Some(greeting) = greeting(payload) {
                self.greeting.get_or_init(|| greeting);
            }
            return None;
        }
        let (_, parts) = SPEAKING.iter().find(|(method, _)| name == method)?;
        self.repaired.remove(&channel);
        let repaired = [name, &readable_texts(arguments, parts)?].concat();
        self.repaired.insert(channel, payload.to_vec());
        Some(repaired)
    }

    /// A header that the client can read, if it cannot read this one.
    fn header(&mut self, channel: [u8; 2], payload: &[u8], whole: bool) -> Option<Vec<u8>> {
        let method = self.repaired.remove(&channel);
        let why = match (&method, whole) {
            (_, false) => Unreadable::TooLarge,
            (Some(_), _) => Unreadable::Address,
            (None, _) => properties::fault(payload)?,
        };
        properties::replacement(payload, why, method.as_deref(), self.most - OVERHEAD)
    }
}

/// What a `connection.start` says of the broker.
fn greeting(payload: &[u8]) -> Option<Greeting> {
    let (_, method) = parse_class(payload).ok()?;
    let AMQPClass::Connection(AMQPMethod::Start(start)) = method else {
        return None;
    };
    let property = |name: &str| {
        let value = start.server_properties.inner().get(name)?;
        Some(
            std::str::from_utf8(value.as_long_string()?.as_bytes())
                .ok()?
                .to_owned(),
        )
    };
    let major = property("version").and_then(|version| version.split('.').next()?.parse().ok());
    Some(Greeting {
        major,
        cluster: property("cluster_name").filter(|name| !name.is_empty()),
    })
}

/// The size of a frame's payload.
fn size(frame: &[u8]) -> usize {
    u32::from_be_bytes([frame[3], frame[4], frame[5], frame[6]]) as usize
}

/// Takes the first bytes away, at most this many.
fn split<'a>(input: &mut &'a [u8], most: usize) -> &'a [u8] {
    let (taken, behind) = input.split_at(most.min(input.len()));
    *input = behind;
    taken
}

/// The arguments with all texts in UTF-8; `None` if they already are, or have another form.
fn readable_texts(mut arguments: &[u8], parts: &[Part]) -> Option<Vec<u8>> {
    let mut all = Vec::with_capacity(arguments.len());
    let mut changed = false;
    for part in parts {
        let count = match part {
            Bytes(count) => *count,
            Text => 1 + usize::from(*arguments.first()?),
        };
        let (bytes, behind) = arguments.split_at_checked(count)?;
        arguments = behind;
        match part {
            Text if std::str::from_utf8(&bytes[1..]).is_err() => {
                changed = true;
                let text = String::from_utf8_lossy(&bytes[1..]);
                // The replacement of a byte is longer than a byte.
                let fits = |end: &u8| text.is_char_boundary(usize::from(*end));
                let end = (0..=u8::MAX).rev().find(fits).unwrap_or(0);
                all.push(end);
                all.extend_from_slice(&text.as_bytes()[..usize::from(end)]);
            }
            _ => all.extend_from_slice(bytes),
        }
    }
    (changed && arguments.is_empty()).then_some(all)
}

#[cfg(test)]
mod tests;
