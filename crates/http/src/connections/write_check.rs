//! A connection that carries only calls in time.
//!
//! Problem: between the decision to send and the write, a call passes the pool, another task, perhaps
//! a new connection with its handshakes, or a machine that stands still. A call that leaves too late
//! could overfill a window.
//!
//! So the last check is where the bytes of a request are written, with and without a body: each connection
//! has a [`WriteCheck`], and a call that got the connection hands it its own [`LeaveBy`]. The first write
//! after that looks at the clock. A write that comes too late fails, the connection closes without a
//! byte of it, and the message waits for another slot.
//!
//! A connection also knows when its call is over. From then on it is idle; `lifetime` says how long it may be idle
//! before it is closed.
//!
//! Calls run on a runtime of one thread: a connection's task runs only after the call that chose
//! the connection has handed that over ([`CallCheck`]). A connection without one writes
//! nothing.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::Extensions;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{CaptureConnection, Connected, Connection};
use tokio::time::{Instant, Sleep, sleep_until};

use super::lifetime::{ConnectionEnd, Lifetimes, OpenConnection};
use sluiced_ports::downstream::{LeaveBy, NotSent};
use sluiced_ports::lock;

/// What a connection may write.
#[derive(Clone, Copy, Debug)]
enum MayWrite {
    /// Nothing: no call has it.
    Shut,
    /// The request of a call, if it is in time.
    Armed(LeaveBy),
    /// What is left of a request that was in time.
    Open,
}

/// The last check of one connection, shared with the call that uses it.
#[derive(Clone, Debug)]
pub(super) struct WriteCheck(Arc<Mutex<WriteState>>);

#[derive(Debug)]
struct WriteState {
    opened: Instant,
    may: MayWrite,
    ends_at: ConnectionEnd,
    /// The calls that had the connection so far.
    calls: u64,
    /// No call has the connection.
    idle: Option<Idle>,
    /// Reads the connection, and must know when it is idle.
    reader: Option<Waker>,
}

/// The time between two calls.
#[derive(Clone, Copy, Debug)]
struct Idle {
    since: Instant,
    until: Instant,
}

impl WriteCheck {
    fn new(ends_at: ConnectionEnd) -> Self {
        Self(Arc::new(Mutex::new(WriteState {
            opened: Instant::now(),
            may: MayWrite::Shut,
            ends_at,
            calls: 0,
            idle: None,
            reader: None,
        })))
    }

    /// A call has the connection. Returns its number.
    fn arm(&self, leave_by: LeaveBy) -> u64 {
        let mut state = lock(&self.0);
        state.may = MayWrite::Armed(leave_by);
        state.idle = None;
        state.calls += 1;
        state.calls
    }

    /// That call is over: the connection is idle for this long at most. Another call may have it already.
    fn begin_idle(&self, call: u64, longest: Duration) {
        let mut state = lock(&self.0);
        if state.calls == call {
            state.may = MayWrite::Shut;
            state.idle = Some(Idle {
                since: Instant::now(),
                until: state.ends_at.idle_until(longest),
            });
            if let Some(reader) = state.reader.take() {
                reader.wake();
            }
        }
    }

    fn idle(&self) -> Option<Idle> {
        lock(&self.0).idle
    }

    fn has_begun(&self) -> bool {
        matches!(lock(&self.0).may, MayWrite::Open)
    }

    /// Checks the time right before a write.
    fn pass(&self) -> io::Result<()> {
        let mut state = lock(&self.0);
        match state.may {
            MayWrite::Open => Ok(()),
            MayWrite::Armed(leave_by) if !leave_by.has_passed() => {
                state.may = MayWrite::Open;
                Ok(())
            }
            MayWrite::Armed(_) | MayWrite::Shut => Err(io::Error::other(NotSent::TooLate)),
        }
    }
}

/// A connection that looks at the clock before it writes.
#[derive(Debug)]
pub(crate) struct CheckedIo<T> {
    io: T,
    check: WriteCheck,
    lifetimes: Arc<Lifetimes>,
    _open: OpenConnection,
    /// The end of its idle time.
    ends: Option<Pin<Box<Sleep>>>,
}

impl<T> CheckedIo<T> {
    pub(super) fn new(io: T, lifetimes: Arc<Lifetimes>) -> Self {
        let ends_at = ConnectionEnd::after(lifetimes.age(rand::random()));
        Self {
            io,
            check: WriteCheck::new(ends_at),
            _open: lifetimes.count_open(),
            lifetimes,
            ends: None,
        }
    }

    /// Whether its idle time is over. Wakes the reader when one begins, and when it ends.
    fn poll_idle_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = lock(&self.check.0);
        let reader = state.reader.as_ref();
        if reader.is_none_or(|reader| !reader.will_wake(cx.waker())) {
            state.reader = Some(cx.waker().clone());
        }
        let Some(Idle { until, .. }) = state.idle else {
            self.ends = None;
            return Poll::Pending;
        };
        drop(state);
        let ends = self
            .ends
            .get_or_insert_with(|| Box::pin(sleep_until(until)));
        if ends.deadline() != until {
            ends.as_mut().reset(until);
        }
        ends.as_mut().poll(cx)
    }
}

impl<T: Connection> Connection for CheckedIo<T> {
    fn connected(&self) -> Connected {
        self.io.connected().extra(self.check.clone())
    }
}

impl<T: Read + Unpin> Read for CheckedIo<T> {
    /// At the end of its idle time there is nothing more to read, so that the client closes it.
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.io).poll_read(cx, buffer);
        if read.is_pending() {
            return self.poll_idle_over(cx).map(Ok);
        }
        // No request is in flight, so what was read is the end of the connection.
        if let Some(idle) = self.check.idle() {
            self.lifetimes.note_close(idle.since, Instant::now());
        }
        read
    }
}

impl<T: Write + Unpin> Write for CheckedIo<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check.pass()?;
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check.pass()?;
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

/// Tells the connection that the client chose until when the call may leave, and when it is over.
pub(crate) struct CallCheck {
    began: Instant,
    /// How long it may wait.
    slack: Duration,
    leave_by: LeaveBy,
    chosen: CaptureConnection,
    /// What was told, and the call's number there.
    armed: Option<(WriteCheck, u64)>,
}

impl CallCheck {
    pub(crate) fn new(leave_by: LeaveBy, chosen: CaptureConnection) -> Self {
        Self {
            began: Instant::now(),
            slack: leave_by.left(),
            leave_by,
            chosen,
            armed: None,
        }
    }

    /// After each poll of the call: the client may have chosen a connection in it, or another one if
    /// the first was dead.
    pub(crate) fn arm(&mut self) {
        if self.maybe_begun() {
            return;
        }
        let chosen = {
            let mut extras = Extensions::new();
            if let Some(connected) = self.chosen.connection_metadata().as_ref() {
                connected.get_extras(&mut extras);
            }
            extras.remove::<WriteCheck>()
        };
        let Some(chosen) = chosen else {
            return;
        };
        let armed = self.armed.as_ref();
        if armed.is_none_or(|(check, _)| !Arc::ptr_eq(&check.0, &chosen.0)) {
            let call = chosen.arm(self.leave_by);
            self.armed = Some((chosen, call));
        }
    }

    /// Whether a byte may have been written; before that, the downstream certainly has nothing.
    pub(crate) fn maybe_begun(&self) -> bool {
        self.armed
            .as_ref()
            .is_some_and(|(check, _)| check.has_begun())
    }

    /// How long the call waited until its connection was open. `None`: not long, for the time that it had.
    pub(crate) fn opened_in(&self) -> Option<Duration> {
        let (check, _) = self.armed.as_ref()?;
        let opened = lock(&check.0).opened;
        let waited = opened.checked_duration_since(self.began)?;
        (waited >= self.slack / 2).then_some(waited)
    }

    /// The answer came. A connection that is too old takes no other call.
    pub(crate) fn retire_if_old(&self) {
        let is_over = |(check, _): &(WriteCheck, u64)| lock(&check.0).ends_at.is_over();
        if self.armed.as_ref().is_some_and(is_over)
            && let Some(connected) = self.chosen.connection_metadata().as_ref()
        {
            connected.poison();
        }
    }

    /// The answer was read: the connection may be idle for this long.
    pub(crate) fn begin_idle(&self, longest: Duration) {
        if let Some((check, call)) = &self.armed {
            check.begin_idle(*call, longest);
        }
    }
}
