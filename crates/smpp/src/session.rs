//! A bound connection: what may be written on it, and which call waits for which answer.
//!
//! **The check of the clock.** A call writes its PDUs itself, in the poll in which its slot is due: there is
//! no queue and no task between the check of its time and the system call. So no call that was in time leaves
//! late. If the system does not take them at once, nothing was written, and the call may try again while its
//! time is left. If the system took the beginning, the rest follows as soon as it can, before anything else;
//! no other call writes on this connection until then.
//!
//! **The window.** At most this many `submit_sm` are without an answer (SMPP 3.4, section 2.9). All segments of a
//! message are written together or not at all. A call that ends, with its answers or without, makes room.

use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};

use tokio::io::AsyncWrite;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::judge::SubmitReply;
use sluiced_core::judge::Silence;
use sluiced_pdu::{Command, CommandStatus, LAST_SEQUENCE, plain, set_sequence};
use sluiced_ports::downstream::LeaveBy;
use sluiced_ports::lock;

/// This many octets of answers may wait for a centre that does not read.
const MAX_UNWRITTEN: usize = 64 * 1024;

/// Where PDUs are written.
pub(super) type PduOutput = Box<dyn AsyncWrite + Send + Unpin>;

/// The centre's answer to one `submit_sm`, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SegmentReply {
    pub(super) heard: SubmitReply,
    /// Empty if it gave none.
    pub(super) message_id: String,
}

impl SegmentReply {
    const fn none(silence: Silence) -> Self {
        Self {
            heard: SubmitReply::Nothing(silence),
            message_id: String::new(),
        }
    }
}

/// The result of an attempt to write.
#[derive(Debug)]
pub(super) enum WriteOutcome {
    /// All of it, or the beginning, and the rest follows.
    Begun(Outstanding),
    /// Nothing: there is no room in the window, or the system takes nothing now.
    Full,
    /// Nothing: it was too late.
    TooLate,
    /// The connection broke; it is not known how much was written.
    Broken,
}

/// A bound connection, and its PDUs that have no answer yet.
pub(super) struct Session {
    window: usize,
    /// Notified when there may be room again, in any session of the downstream.
    room: Arc<Notify>,
    state: Mutex<SessionState>,
}

struct SessionState {
    output: PduOutput,
    /// New calls may begin.
    is_open: bool,
    /// The rest of a message that was begun.
    unwritten: Vec<u8>,
    /// The layer below holds something back (TLS).
    unflushed: bool,
    sequence: u32,
    waiting: HashMap<u32, oneshot::Sender<SegmentReply>>,
    /// The task that writes the rest.
    writer: Option<Waker>,
}

impl Session {
    /// The session of a bound connection. `sequence` was used last.
    pub(super) fn new(output: PduOutput, window: usize, room: Arc<Notify>, sequence: u32) -> Self {
        Self {
            window,
            room,
            state: Mutex::new(SessionState {
                output,
                is_open: true,
                unwritten: Vec::new(),
                unflushed: false,
                sequence,
                waiting: HashMap::new(),
                writer: None,
            }),
        }
    }

    /// How many `submit_sm` are without an answer. `None`: the session takes no new call.
    pub(super) fn load(&self) -> Option<usize> {
        let state = lock(&self.state);
        state.is_open.then_some(state.waiting.len())
    }

    /// Writes the PDUs of one message, if that is possible now and not too late.
    pub(super) fn write(self: &Arc<Self>, pdus: &mut [Vec<u8>], leave_by: LeaveBy) -> WriteOutcome {
        let mut state = lock(&self.state);
        let has_room = state.waiting.len() + pdus.len() <= self.window;
        if !state.is_open || !has_room || state.is_blocked() {
            return WriteOutcome::Full;
        }
        let mut sequences = Vec::with_capacity(pdus.len());
        for pdu in &mut *pdus {
            let sequence = state.next_sequence();
            set_sequence(pdu, sequence);
            sequences.push(sequence);
        }
        let octets = pdus.concat();
        if leave_by.has_passed() {
            return WriteOutcome::TooLate;
        }
        match state.push(&octets) {
            Poll::Pending => return WriteOutcome::Full,
            Poll::Ready(Err(_)) => {
                state.is_open = false;
                state.wake_writer();
                return WriteOutcome::Broken;
            }
            Poll::Ready(Ok(())) => {}
        }
        let answers = sequences.iter().map(|sequence| {
            let (sender, answer) = oneshot::channel();
            state.waiting.insert(*sequence, sender);
            answer
        });
        WriteOutcome::Begun(Outstanding {
            answers: answers.collect(),
            session: Arc::clone(self),
            sequences,
        })
    }

    /// Writes a PDU that is no message of a call: it goes when the system takes it.
    pub(super) fn write_control(&self, pdu: &[u8]) {
        let mut state = lock(&self.state);
        let written = state.unwritten.is_empty() && !state.unflushed && {
            // The task that reads sees an error, too.
            !matches!(state.push(pdu), Poll::Pending)
        };
        if !written {
            state.unwritten.extend_from_slice(pdu);
            state.is_open &= state.unwritten.len() <= MAX_UNWRITTEN;
            state.wake_writer();
        }
    }

    /// Sends a request that is no message.
    pub(super) fn ask(&self, command: Command) {
        let sequence = lock(&self.state).next_sequence();
        self.write_control(&plain(command, CommandStatus::OK, sequence));
    }

    /// Writes the rest whenever there is one. Returns the failure that ends it.
    pub(super) async fn write_unwritten(&self) -> String {
        poll_fn(|cx| {
            let mut state = lock(&self.state);
            let was_blocked = state.is_blocked();
            let ended = state.poll_unwritten(cx);
            if was_blocked && !state.is_blocked() {
                self.room.notify_waiters();
            }
            ended
        })
        .await
    }

    /// The centre answered a request: its call hears it.
    pub(super) fn hand_over(&self, sequence: u32, reply: SegmentReply) {
        let waiting = lock(&self.state).waiting.remove(&sequence);
        if let Some(waiting) = waiting {
            // A call that no longer waits has counted it as no answer.
            drop(waiting.send(reply));
            self.room.notify_waiters();
        }
    }

    /// Stops new calls; answers to those that are under way may still come.
    pub(super) fn shut(&self) {
        lock(&self.state).is_open = false;
    }

    /// Whether no call waits for an answer.
    pub(super) fn is_idle(&self) -> bool {
        lock(&self.state).waiting.is_empty()
    }

    /// The connection is gone: no answer will come.
    pub(super) fn end(&self) {
        let mut state = lock(&self.state);
        state.is_open = false;
        state.waiting.clear();
        drop(state);
        self.room.notify_waiters();
    }
}

impl SessionState {
    fn next_sequence(&mut self) -> u32 {
        self.sequence = match self.sequence {
            LAST_SEQUENCE => 1,
            last => last + 1,
        };
        self.sequence
    }

    /// Whether a message that was begun must be written first.
    const fn is_blocked(&self) -> bool {
        !self.unwritten.is_empty() || self.unflushed
    }

    fn wake_writer(&mut self) {
        if let Some(writer) = self.writer.take() {
            writer.wake();
        }
    }

    /// Writes as much as the system takes now; the rest is kept. Pending: it takes nothing, and nothing was written.
    fn push(&mut self, octets: &[u8]) -> Poll<io::Result<()>> {
        // This poll wakes nothing: the writer's task polls again for the rest.
        let mut cx = Context::from_waker(Waker::noop());
        let count = ready!(Pin::new(&mut self.output).poll_write(&mut cx, octets))?;
        if count == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.unwritten.extend_from_slice(&octets[count..]);
        self.unflushed = Pin::new(&mut self.output).poll_flush(&mut cx)?.is_pending();
        if self.unflushed || !self.unwritten.is_empty() {
            self.wake_writer();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_unwritten(&mut self, cx: &mut Context<'_>) -> Poll<String> {
        self.writer = Some(cx.waker().clone());
        if self.unwritten.len() > MAX_UNWRITTEN {
            return Poll::Ready("the centre does not read".to_owned());
        }
        match self.poll_write_unwritten(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(format!("connection lost: {error}")),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
        }
    }

    fn poll_write_unwritten(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.unwritten.is_empty() {
            let written = Pin::new(&mut self.output).poll_write(cx, &self.unwritten);
            match ready!(written)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => drop(self.unwritten.drain(..count)),
            }
            self.unflushed = true;
        }
        if self.unflushed {
            ready!(Pin::new(&mut self.output).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("window", &self.window)
            .field("load", &self.load())
            .finish_non_exhaustive()
    }
}

/// The answers that a call waits for. Dropped, it makes room in the window.
#[derive(Debug)]
pub(super) struct Outstanding {
    session: Arc<Session>,
    sequences: Vec<u32>,
    answers: Vec<oneshot::Receiver<SegmentReply>>,
}

impl Outstanding {
    /// One entry for each PDU, in their order.
    pub(super) async fn answers(mut self, deadline: Instant) -> Vec<SegmentReply> {
        let mut all = Vec::with_capacity(self.answers.len());
        for answer in std::mem::take(&mut self.answers) {
            all.push(match timeout_at(deadline, answer).await {
                Ok(Ok(reply)) => reply,
                Ok(Err(_)) => SegmentReply::none(Silence::Connection),
                Err(_) => SegmentReply::none(Silence::Timeout),
            });
        }
        all
    }
}

impl Drop for Outstanding {
    fn drop(&mut self) {
        let mut state = lock(&self.session.state);
        for sequence in &self.sequences {
            state.waiting.remove(sequence);
        }
        drop(state);
        self.session.room.notify_waiters();
    }
}
