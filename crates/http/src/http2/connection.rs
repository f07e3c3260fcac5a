//! One connection of HTTP/2, and the calls on it.
//!
//! Problem: the client library writes when its own task runs. Between the look at the clock and that there may be other
//! tasks, and a call would be late although it was handed over in time.
//!
//! So a call takes the connection for a moment, looks at the clock, hands over its request, and lets the connection
//! write at once ([`Http2Connection::begin`]). A task of its own does all else: it reads, ends the connection with its
//! idle time or its age, and asks a silent peer for a sign of life (PING, RFC 9113, section 6.7).
//!
//! A connection takes no new call once the peer says GOAWAY, its age is over, or it is shut (`heads`): the calls
//! on it come to their ends, and then it closes.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Connection, ResponseFuture, SendRequest};
use h2::{Ping, PingPong, SendStream};
use http::{HeaderMap, Request};
use tokio::select;
use tokio::sync::Notify;
use tokio::task::unconstrained;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::heads::{HeadCheck, Heads};
use super::opening::Io;
use super::pool::Pool;
use crate::connections::lifetime::{ConnectionEnd, Lifetimes, OpenConnection};
use sluiced_ports::downstream::LeaveBy;
use sluiced_ports::lock;

/// A peer that has sent nothing for this long while calls are in flight is sent a PING.
const QUIET: Duration = Duration::from_secs(2);
/// The shortest time between two PINGs: some peers take more for an attack.
const ASKED_EVERY: Duration = Duration::from_secs(10);
/// A peer that has not answered a PING for this long gets no new calls.
const NO_PONG: Duration = Duration::from_secs(2);
/// This long after that, the connection counts as gone.
const GONE: Duration = Duration::from_secs(6);
/// This long a connection may take to close.
const CLOSING: Duration = Duration::from_secs(1);
/// The last part of its age in which another one is opened ahead.
const REPLACE_PART: u32 = 10;

/// A connection that is open.
pub(super) struct Http2Connection {
    /// `None` once it has ended.
    wire: Mutex<Option<Wire>>,
    heads: Heads,
    lifetimes: Arc<Lifetimes>,
    _open: OpenConnection,
    /// From then on another one is opened ahead.
    replace_from: Instant,
    ends_at: ConnectionEnd,
    state: Mutex<ConnectionState>,
    changed: Notify,
}

/// What the client library has of it.
pub(super) struct Wire {
    pub(super) connection: Connection<HeadCheck<Io>>,
    /// `None`: it takes no call and closes.
    pub(super) send: Option<SendRequest<Bytes>>,
}

struct ConnectionState {
    calls: usize,
    has_carried: bool,
    /// Since when it has no call, and when it ends then.
    idle_since: Instant,
    ends: Instant,
    /// The last call began.
    called: Instant,
    is_retired: bool,
    has_no_pong: bool,
    /// Of its own task.
    waker: Waker,
}

/// A call on a connection. Dropped, its stream is reset if it has not ended.
pub(super) struct CallStream {
    pub(super) answer: ResponseFuture,
    pub(super) number: u32,
    /// The body that is not sent yet.
    pub(super) unsent: SendStream<Bytes>,
    pub(super) calling: Calling,
}

/// Counts a call. The last of its parts to be dropped.
pub(super) struct Calling {
    connection: Arc<Http2Connection>,
    pool: Weak<Pool>,
}

/// Why a call did not begin.
pub(super) enum NotBegun {
    /// The call would leave too late.
    Late,
    /// This connection takes no call now.
    ConnectionTakesNone,
    /// The call is no request of HTTP/2.
    Wrong,
}

impl Http2Connection {
    pub(super) fn new(wire: Wire, heads: Heads, lifetimes: Arc<Lifetimes>) -> Arc<Self> {
        let now = Instant::now();
        let age = lifetimes.age(rand::random());
        let ends_at = ConnectionEnd::after(age);
        Arc::new(Self {
            wire: Mutex::new(Some(wire)),
            heads,
            replace_from: now + age / REPLACE_PART * (REPLACE_PART - 1),
            ends_at,
            state: Mutex::new(ConnectionState {
                calls: 0,
                has_carried: false,
                idle_since: now,
                ends: ends_at.idle_until(lifetimes.unused_time()),
                called: now,
                is_retired: false,
                has_no_pong: false,
                waker: Waker::noop().clone(),
            }),
            _open: lifetimes.count_open(),
            lifetimes,
            changed: Notify::new(),
        })
    }

    /// How many calls are on it. `None`: it takes no other one now, as far as is known.
    pub(super) fn load(&self) -> Option<usize> {
        let state = lock(&self.state);
        let takes = !state.is_retired && !state.has_no_pong && !self.ends_at.is_over();
        (takes && self.heads.are_free()).then_some(state.calls)
    }

    /// Whether it will take calls for a while.
    pub(super) fn is_fresh(&self) -> bool {
        self.load().is_some() && Instant::now() < self.replace_from
    }

    /// Whether it ends with its calls.
    pub(super) fn is_retired(&self) -> bool {
        lock(&self.state).is_retired
    }

    pub(super) fn has_carried(&self) -> bool {
        lock(&self.state).has_carried
    }

    /// How many calls the peer allows at a time.
    pub(super) fn streams(&self) -> usize {
        let wire = lock(&self.wire);
        let send = wire.as_ref().and_then(|wire| wire.send.as_ref());
        send.map_or(0, SendRequest::current_max_send_streams)
    }

    pub(super) fn has_begun(&self, stream: u32) -> bool {
        self.heads.has_begun(stream)
    }

    /// A call is given up, if its head is not written. Returns whether that is so.
    pub(super) fn withdraw(&self, stream: u32) -> bool {
        self.heads.withdraw(stream)
    }

    /// Begins a call, if it is in time: its head is written before this returns, as far as the socket takes it.
    pub(super) fn begin(
        self: &Arc<Self>,
        request: &Request<()>,
        body: &Bytes,
        leave_by: LeaveBy,
        pool: &Arc<Pool>,
    ) -> Result<CallStream, NotBegun> {
        let waker = lock(&self.state).waker.clone();
        let mut cx = Context::from_waker(&waker);
        let mut wire = lock(&self.wire);
        self.poll_wire_now(&mut wire, &mut cx);
        let Some(load) = self.load() else {
            return Err(NotBegun::ConnectionTakesNone);
        };
        let send = wire
            .as_mut()
            .and_then(|wire| wire.send.as_mut())
            .filter(|send| load < send.current_max_send_streams())
            .ok_or(NotBegun::ConnectionTakesNone)?;
        if leave_by.has_passed() {
            return Err(NotBegun::Late);
        }
        let is_whole = body.is_empty();
        // The connection was looked at just now: what fails is the request.
        let sent = send.send_request(request.clone(), is_whole);
        let (answer, mut unsent) = sent.map_err(|_| NotBegun::Wrong)?;
        let number = answer.stream_id().as_u32();
        self.heads.expect(number, leave_by);
        if !is_whole {
            // If this fails, so does the answer.
            unsent.send_data(body.clone(), true).ok();
        }
        let calling = Calling::new(self, pool);
        self.poll_wire_now(&mut wire, &mut cx);
        Ok(CallStream {
            answer,
            number,
            unsent,
            calling,
        })
    }

    /// Polls the connection within the task of a call. tokio lets a task that did much wait (its "coop" budget), and
    /// the socket would seem to take nothing. So this runs without that budget.
    fn poll_wire_now(&self, place: &mut Option<Wire>, cx: &mut Context<'_>) {
        let mut polled = std::pin::pin!(unconstrained(poll_fn(|cx| {
            self.poll_wire(place, cx);
            Poll::Ready(())
        })));
        // It never waits.
        let (Poll::Ready(()) | Poll::Pending) = polled.as_mut().poll(cx);
    }

    /// Reads and writes what can be, and sees whether it takes calls.
    fn poll_wire(&self, place: &mut Option<Wire>, cx: &mut Context<'_>) {
        let Some(wire) = place else { return };
        self.heads.begin_poll();
        let is_over = Pin::new(&mut wire.connection).poll(cx).is_ready();
        // An error is the peer's GOAWAY, or the end of all numbers.
        let send = wire.send.as_mut();
        let is_last = send.is_some_and(|send| matches!(send.poll_ready(cx), Poll::Ready(Err(_))));
        if is_over {
            *place = None;
            lock(&self.state).waker.wake_by_ref();
        }
        if is_over || is_last || self.heads.are_shut() {
            self.retire();
        }
    }

    /// The connection takes no call any more.
    fn retire(&self) {
        let mut state = lock(&self.state);
        if !state.is_retired {
            state.is_retired = true;
            if state.calls == 0 {
                self.lifetimes.note_close(state.idle_since, Instant::now());
            }
            self.changed.notify_one();
        }
    }

    /// The connection's own task, until it has ended.
    pub(super) async fn run(self: Arc<Self>, pool: Weak<Pool>, pings: Option<PingPong>) {
        select! {
            () = self.drive() => {}
            () = self.until_silent(pings, &pool) => self.give_up(),
            () = self.until_over(&pool) => self.close().await,
        }
        // Its calls end with it.
        self.retire();
        lock(&self.wire).take();
        if let Some(pool) = pool.upgrade() {
            pool.remove(&self);
        }
    }

    /// It takes no call any more, and its peer did not close it: that says nothing of the idle time that the peer
    /// allows.
    fn give_up(&self) {
        lock(&self.state).is_retired = true;
    }

    /// Until the connection has ended by itself.
    async fn drive(&self) {
        poll_fn(|cx| {
            lock(&self.state).waker.clone_from(cx.waker());
            let mut wire = lock(&self.wire);
            self.poll_wire(&mut wire, cx);
            match *wire {
                None => Poll::Ready(()),
                Some(_) => Poll::Pending,
            }
        })
        .await;
    }

    /// Until its age or its idle time is over, or it takes no call any more, and none is on it.
    async fn until_over(&self, pool: &Weak<Pool>) {
        let mut must_replace = true;
        loop {
            let now = Instant::now();
            let is_over = self.ends_at.is_over();
            let (calls, ends, retired) = {
                let state = lock(&self.state);
                (state.calls, state.ends, state.is_retired)
            };
            let is_last = retired || is_over || pool.strong_count() == 0;
            if calls == 0 && (is_last || ends <= now) {
                return;
            }
            if is_last || (must_replace && self.replace_from <= now) {
                must_replace &= !is_last && self.replace_from > now;
                lock(&self.state).is_retired |= is_last;
                if let Some(pool) = pool.upgrade() {
                    pool.open_missing();
                }
            }
            let idle = (calls == 0).then_some(ends);
            let lead = must_replace.then_some(self.replace_from);
            let age = (!is_last).then(|| self.ends_at.idle_until(Duration::MAX));
            let next = [idle, lead, age].into_iter().flatten().min();
            select! {
                () = self.changed.notified() => {}
                () = sleep_until(next.unwrap_or(now)), if next.is_some() => {}
            }
        }
    }

    /// Until the peer gives no sign of life any more.
    async fn until_silent(&self, pings: Option<PingPong>, pool: &Weak<Pool>) {
        let Some(mut pings) = pings else {
            return std::future::pending().await;
        };
        loop {
            sleep(QUIET).await;
            let (calls, called) = {
                let state = lock(&self.state);
                (state.calls, state.called)
            };
            // A PING would not be written.
            let cannot_ask = calls == 0 || self.heads.are_shut();
            if cannot_ask || called.max(self.heads.last_read()).elapsed() < QUIET {
                continue;
            }
            let mut pong = std::pin::pin!(pings.ping(Ping::opaque()));
            if timeout(NO_PONG, &mut pong).await.is_err() {
                lock(&self.state).has_no_pong = true;
                if let Some(pool) = pool.upgrade() {
                    pool.open_missing();
                }
                if timeout(GONE, &mut pong).await.is_err() {
                    return;
                }
                lock(&self.state).has_no_pong = false;
            }
            sleep(ASKED_EVERY).await;
        }
    }

    /// Says goodbye.
    async fn close(&self) {
        self.give_up();
        if let Some(wire) = lock(&self.wire).as_mut() {
            wire.send = None;
        }
        // A peer that does not take it is not waited for.
        timeout(CLOSING, self.drive()).await.ok();
    }
}

impl Calling {
    fn new(connection: &Arc<Http2Connection>, pool: &Arc<Pool>) -> Self {
        let mut state = lock(&connection.state);
        state.calls += 1;
        state.has_carried = true;
        state.called = Instant::now();
        Self {
            connection: Arc::clone(connection),
            pool: Arc::downgrade(pool),
        }
    }

    pub(super) fn connection(&self) -> &Arc<Http2Connection> {
        &self.connection
    }
}

impl Drop for Calling {
    fn drop(&mut self) {
        let connection = &self.connection;
        let mut state = lock(&connection.state);
        state.calls -= 1;
        if state.calls == 0 {
            state.idle_since = Instant::now();
            let longest = connection.lifetimes.idle_after(&HeaderMap::new());
            state.ends = connection.ends_at.idle_until(longest);
            connection.changed.notify_one();
        }
        drop(state);
        if let Some(pool) = self.pool.upgrade() {
            pool.wake_waiting();
        }
    }
}
