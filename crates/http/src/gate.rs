//! A connection that carries only calls in time; how an answer is read, and what a failed call means.
//!
//! Problem: between the decision to send and the write, a call passes the pool, another task, perhaps
//! a new connection with its handshakes, or a machine that stands still. A call that leaves too late
//! could overfill a window.
//!
//! So the gate is where the bytes of a request are written, with and without a body: each connection
//! has a [`WriteGate`], and a call that got the connection hands it its own [`LeaveBy`]. The first write
//! after that looks at the clock. A write that comes too late fails, the connection closes without a
//! byte of it, and the message waits for another slot.
//!
//! Calls run on a runtime of one thread: a connection's task runs only after the call that chose
//! the connection has handed that over ([`Writing`]). A connection without one writes
//! nothing.
//!
//! A request certainly did not arrive only if there was no connection, or if the connection closed
//! before the request's body passed its gate. After that, the downstream may have read it before
//! the failure. [`Failure`] distinguishes the two, and has a text for a person.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use http::{Extensions, HeaderMap};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{CaptureConnection, Connected, Connection};

use sluiced_ports::dial::{connect_detail, find};
use sluiced_ports::downstream::{LeaveBy, MAX_ANSWER, Silence, TooLate};
use sluiced_ports::lock;

/// What a connection may write.
#[derive(Clone, Copy, Debug)]
enum MayWrite {
    /// Nothing: no call has it.
    Shut,
    /// The request of a call, if it is in time.
    Armed(LeaveBy),
    /// The rest of a request that was in time.
    Open,
}

/// The gate of one connection, shared with the call that uses it.
#[derive(Clone, Debug)]
pub(super) struct WriteGate(Arc<Mutex<MayWrite>>);

impl WriteGate {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(MayWrite::Shut)))
    }

    fn set(&self, state: MayWrite) {
        *lock(&self.0) = state;
    }

    fn get(&self) -> MayWrite {
        *lock(&self.0)
    }

    /// Right before a write.
    fn pass(&self) -> io::Result<()> {
        match self.get() {
            MayWrite::Open => Ok(()),
            MayWrite::Armed(leave_by) if !leave_by.has_passed() => {
                self.set(MayWrite::Open);
                Ok(())
            }
            MayWrite::Armed(_) | MayWrite::Shut => Err(io::Error::other(TooLate)),
        }
    }
}

/// A connection behind its gate.
#[derive(Debug)]
pub(super) struct GatedIo<T> {
    io: T,
    gate: WriteGate,
}

impl<T> GatedIo<T> {
    pub(super) fn new(io: T) -> Self {
        Self {
            io,
            gate: WriteGate::new(),
        }
    }
}

impl<T: Connection> Connection for GatedIo<T> {
    fn connected(&self) -> Connected {
        self.io.connected().extra(self.gate.clone())
    }
}

impl<T: Read + Unpin> Read for GatedIo<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl<T: Write + Unpin> Write for GatedIo<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.gate.pass()?;
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.gate.pass()?;
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// Tells the gate of the connection that the client chose for a call until when the call may leave.
pub(super) struct Writing {
    leave_by: LeaveBy,
    chosen: CaptureConnection,
    /// The gate that was told.
    armed: Option<WriteGate>,
}

impl Writing {
    pub(super) const fn new(leave_by: LeaveBy, chosen: CaptureConnection) -> Self {
        Self {
            leave_by,
            chosen,
            armed: None,
        }
    }

    /// After each poll of the call: the client may have chosen a connection in it, or another one if
    /// the first was dead.
    pub(super) fn arm(&mut self) {
        if self.maybe_begun() {
            return;
        }
        let chosen = {
            let mut extras = Extensions::new();
            if let Some(connected) = self.chosen.connection_metadata().as_ref() {
                connected.get_extras(&mut extras);
            }
            extras.remove::<WriteGate>()
        };
        let Some(chosen) = chosen else {
            return;
        };
        let known = self.armed.as_ref();
        if known.is_none_or(|known| !Arc::ptr_eq(&known.0, &chosen.0)) {
            chosen.set(MayWrite::Armed(self.leave_by));
            self.armed = Some(chosen);
        }
    }

    /// Whether a byte may have been written; before that, the downstream certainly has nothing.
    pub(super) fn maybe_begun(&self) -> bool {
        let armed = self.armed.as_ref();
        armed.is_some_and(|gate| matches!(gate.get(), MayWrite::Open))
    }
}

/// Why there is no answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) detail: String,
    pub(super) maybe_delivered: bool,
}

impl Failure {
    pub(super) fn sure(detail: impl Into<String>) -> Self {
        Self {
            detail: detail.into(),
            maybe_delivered: false,
        }
    }

    pub(super) fn unsure(detail: impl Into<String>) -> Self {
        Self {
            detail: detail.into(),
            maybe_delivered: true,
        }
    }

    /// Reads a client error. `begun`: the request may have been written in part.
    pub(super) fn of(error: &legacy::Error, begun: bool) -> Self {
        if error.is_connect() {
            return Self::sure(connect_detail(error));
        }
        let Some(cause) = find::<hyper::Error>(error) else {
            return Self {
                detail: "the call failed before the answer".to_owned(),
                maybe_delivered: begun,
            };
        };
        // With these errors hyper returns the request, which it never wrote.
        if !begun || cause.is_canceled() || cause.is_closed() {
            return Self::sure("connection closed before the request was written");
        }
        Self::unsure(answer_detail(cause))
    }
}

fn answer_detail(error: &hyper::Error) -> &'static str {
    if error.is_incomplete_message() {
        return "connection closed before the answer";
    }
    if error.is_parse_too_large() {
        return "the header of the answer is too large";
    }
    if error.is_parse() {
        return "the answer is not HTTP";
    }
    match find::<io::Error>(error).map(io::Error::kind) {
        Some(io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => {
            "connection reset before the answer"
        }
        _ => "connection lost before the answer",
    }
}

/// The headers of an answer by name. Values of one name are a list (RFC 9110, section 5.3); those that are no text are
/// left out.
pub(super) fn joined(headers: &HeaderMap) -> BTreeMap<String, String> {
    let mut joined: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in headers {
        let Ok(value) = value.to_str() else { continue };
        let all = joined.entry(name.as_str().to_owned()).or_default();
        if !all.is_empty() {
            all.push_str(", ");
        }
        all.push_str(value);
    }
    joined
}

/// How much of an answer was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerRead {
    Whole,
    /// As much as is needed; the connection closes.
    Enough,
    /// It broke off before; the connection closes.
    Cut(Silence),
    /// It came, and cannot be decoded.
    Unreadable,
}

/// Reads an answer to its end, if it is not too long. The body is in `kept`, if that is given.
pub(super) async fn read_out(mut body: Incoming, mut kept: Option<&mut Vec<u8>>) -> AnswerRead {
    if kept.is_none() && body.size_hint().lower() > MAX_ANSWER as u64 {
        return AnswerRead::Enough;
    }
    let mut left = MAX_ANSWER;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return AnswerRead::Cut(Silence::Connection);
        };
        let Some(data) = frame.data_ref() else {
            continue;
        };
        if let Some(kept) = kept.as_deref_mut() {
            kept.extend_from_slice(&data[..data.len().min(left)]);
        }
        let Some(rest) = left.checked_sub(data.len()) else {
            return AnswerRead::Enough;
        };
        left = rest;
        if left == 0 && !body.is_end_stream() {
            return AnswerRead::Enough;
        }
    }
    AnswerRead::Whole
}
