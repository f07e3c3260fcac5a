//! The connections of HTTP/2 to one place.
//!
//! Problem: all calls would fit on one connection, and a lost segment would stall all of them. And the peer says how
//! many it allows at a time, may say less at any time, and ends connections when it likes.
//!
//! So calls go to the connection with the fewest calls, of as many as `warm_connections`. When half of these are gone,
//! old or stalled, others are opened ahead; so are more where calls wait because the peer allows no more on those that
//! are there. Where they cannot be opened, or are of no use, attempts become rare.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use http::{Request, Uri};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout_at};

use super::connection::{CallStream, Http2Connection, NotBegun};
use super::opening::Opener;
use sluiced_core::backoff::{Backoff, Failures};
use sluiced_core::time::Mono;
use sluiced_ports::clock;
use sluiced_ports::downstream::LeaveBy;
use sluiced_ports::lock;

/// The most connections to one place.
const MAX_CONNECTIONS: usize = 256;
/// As many calls at a time as a peer allows, as long as none has said it (RFC 9113, section 6.5.2).
const USUAL: usize = 100;
/// Waits before more are opened ahead, after one could not be opened: calls that find none show when it can.
const REFUSED: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(2));
/// Waits before another one is opened, after one ended or was full before it carried a call.
const WASTED: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));

/// The connections to one place.
pub(super) struct Pool {
    /// Scheme and authority.
    origin: Uri,
    opener: Opener,
    /// A connection that was not used for this long is not needed.
    idle: Duration,
    state: Mutex<PoolState>,
    /// Changes whenever waiting calls must look at the connections again.
    changes: watch::Sender<u64>,
}

struct PoolState {
    connections: Vec<Arc<Http2Connection>>,
    opening: usize,
    /// How many to keep.
    wanted: usize,
    /// Calls that found no connection that takes them.
    waiting: usize,
    /// When a connection was wanted last.
    called: Option<Mono>,
    refused: Failures,
    wasted: Failures,
    /// How many could not be opened so far, and why the last one could not.
    failed: (u64, String),
}

/// A call that waits for a connection.
pub(super) struct ConnectionWait<'a> {
    pool: &'a Arc<Pool>,
    changes: watch::Receiver<u64>,
    failed: u64,
}

impl Pool {
    pub(super) fn new(origin: Uri, opener: Opener, idle: Duration) -> Self {
        Self {
            origin,
            opener,
            idle,
            state: Mutex::new(PoolState {
                connections: Vec::new(),
                opening: 0,
                wanted: 0,
                waiting: 0,
                called: None,
                refused: Failures::new(REFUSED),
                wasted: Failures::new(WASTED),
                failed: (0, String::new()),
            }),
            changes: watch::Sender::new(0),
        }
    }

    /// Opens connections up to `wanted`, within `bound`. The error says what failed.
    pub(super) async fn warm(
        self: &Arc<Self>,
        wanted: usize,
        bound: Duration,
    ) -> Result<(), String> {
        let missing = lock(&self.state).want(wanted, clock::now());
        let until = Instant::now() + bound;
        let opening: Vec<_> = (0..missing).map(|_| self.open()).collect();
        let all = join_all(
            opening
                .into_iter()
                .map(|opening| timeout_at(until, opening)),
        )
        .await;
        let (mut opened, mut failure) = (0, None);
        for attempt in all {
            match attempt {
                Ok(Ok(Ok(()))) => opened += 1,
                Ok(Ok(Err(why))) => failure = Some(why),
                Ok(Err(_)) | Err(_) => failure = Some(format!("not done within {bound:?}")),
            }
        }
        match failure {
            Some(why) => Err(format!("{opened} of {missing} connections opened: {why}")),
            None => Ok(()),
        }
    }

    /// A message will be called here: opens a connection in the background if there is none.
    pub(super) fn open_ahead(self: &Arc<Self>) {
        lock(&self.state).called = Some(clock::now());
        self.open_missing();
    }

    /// Begins a call on the connection with the fewest calls.
    pub(super) fn begin(
        self: &Arc<Self>,
        request: &Request<()>,
        body: &Bytes,
        leave_by: LeaveBy,
    ) -> Result<CallStream, NotBegun> {
        let connections = {
            let mut state = lock(&self.state);
            state.called = Some(clock::now());
            state.by_load()
        };
        let mut begun = Err(NotBegun::ConnectionTakesNone);
        for connection in connections {
            begun = connection.begin(request, body, leave_by, self);
            if !matches!(begun, Err(NotBegun::ConnectionTakesNone)) {
                break;
            }
        }
        if begun.is_ok() {
            lock(&self.state).wasted.succeeded();
        }
        self.open_missing();
        begun
    }

    /// A call that found no connection waits for one.
    pub(super) fn wait(self: &Arc<Self>) -> ConnectionWait<'_> {
        // Before the call looks again.
        let changes = self.changes.subscribe();
        let mut state = lock(&self.state);
        state.waiting += 1;
        ConnectionWait {
            pool: self,
            changes,
            failed: state.failed.0,
        }
    }

    /// A connection changed: opens others ahead, if now too few take calls.
    pub(super) fn open_missing(self: &Arc<Self>) {
        let missing = lock(&self.state).missing_ahead(clock::now(), self.idle);
        (0..missing).for_each(|_| drop(self.open()));
    }

    /// A call has ended.
    pub(super) fn wake_waiting(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// A connection has ended.
    pub(super) fn remove(self: &Arc<Self>, connection: &Arc<Http2Connection>) {
        {
            let mut state = lock(&self.state);
            state
                .connections
                .retain(|pooled| !Arc::ptr_eq(pooled, connection));
            if !connection.has_carried() {
                state.wasted.failed(clock::now(), rand::random());
            }
        }
        self.open_missing();
        self.wake_waiting();
    }

    /// Opens one in the background, which was counted already, and tells when it is there. Must be called inside a
    /// tokio runtime.
    fn open(self: &Arc<Self>) -> oneshot::Receiver<Result<(), String>> {
        let (tell, told) = oneshot::channel();
        let (opener, origin) = (self.opener.clone(), self.origin.clone());
        let pool = Arc::downgrade(self);
        tokio::spawn(async move {
            let opened = opener.open(origin).await;
            let Some(strong) = pool.upgrade() else { return };
            strong.note_opened(opened.as_ref().map(|(connection, _)| connection));
            drop(strong);
            // No call waits where it was opened ahead.
            drop(tell.send(opened.as_ref().map(drop).map_err(Clone::clone)));
            if let Ok((connection, pings)) = opened {
                connection.run(pool, pings).await;
            }
        });
        told
    }

    fn note_opened(&self, opened: Result<&Arc<Http2Connection>, &String>) {
        {
            let mut state = lock(&self.state);
            state.opening = state.opening.saturating_sub(1);
            match opened {
                Ok(connection) => {
                    state.refused.succeeded();
                    state.connections.push(Arc::clone(connection));
                }
                Err(why) => {
                    state.refused.failed(clock::now(), rand::random());
                    state.failed = (state.failed.0 + 1, why.clone());
                }
            }
        }
        self.wake_waiting();
    }
}

impl PoolState {
    /// The connections that take calls, as far as is known, the one with the fewest calls first.
    fn by_load(&self) -> Vec<Arc<Http2Connection>> {
        let mut loads: Vec<_> = self
            .connections
            .iter()
            .filter_map(|connection| Some((connection.load()?, connection)))
            .collect();
        loads.sort_by_key(|(load, _)| *load);
        loads
            .into_iter()
            .map(|(_, connection)| Arc::clone(connection))
            .collect()
    }

    /// Keeps this many from now on. Returns how many to open, and counts them as under way.
    fn want(&mut self, wanted: usize, now: Mono) -> usize {
        self.wanted = wanted;
        self.called = Some(now);
        let missing = wanted.saturating_sub(self.fresh() + self.opening);
        self.opening += missing;
        missing
    }

    fn fresh(&self) -> usize {
        self.connections
            .iter()
            .filter(|connection| connection.is_fresh())
            .count()
    }

    /// How many to open, so that as many as are wanted take calls; counts them as under way.
    fn missing_ahead(&mut self, now: Mono, idle: Duration) -> usize {
        let is_wanted = self.called.is_some_and(|called| now.since(called) <= idle);
        let waits = self.wasted.retry_at().max(self.refused.retry_at()) > now;
        let there = self.fresh() + self.opening;
        if !is_wanted || waits || there >= self.wanted.div_ceil(2).max(1) {
            return 0;
        }
        self.count(self.wanted.max(1) - there)
    }

    /// How many to open for the calls that wait; counts them as under way.
    fn missing_for_waiting(&mut self, now: Mono) -> usize {
        if self.wasted.retry_at() > now {
            return 0;
        }
        let allowed = self
            .connections
            .iter()
            .map(|connection| connection.streams())
            .max();
        if allowed == Some(0) && self.opening == 0 {
            // The next one may be of no more use.
            self.wasted.failed(now, rand::random());
        }
        let needed = self.waiting.div_ceil(allowed.unwrap_or(USUAL).max(1));
        // Without any connection each failure must be seen by a call.
        let is_rare = allowed == Some(0) || self.refused.retry_at() > now;
        let most = if is_rare { 1 } else { MAX_CONNECTIONS };
        self.count(needed.min(most).saturating_sub(self.opening))
    }

    fn count(&mut self, missing: usize) -> usize {
        let missing =
            missing.min(MAX_CONNECTIONS.saturating_sub(self.connections.len() + self.opening));
        self.opening += missing;
        missing
    }
}

impl ConnectionWait<'_> {
    /// Until it may be worth another look. The error: no connection could be opened meanwhile, and there is none.
    pub(super) async fn wait(&mut self) -> Result<(), String> {
        let pool = self.pool;
        let missing = {
            let mut state = lock(&pool.state);
            let (failed, why) = &state.failed;
            let has_failed = *failed > self.failed;
            if has_failed
                && state.opening == 0
                && state
                    .connections
                    .iter()
                    .all(|connection| connection.is_retired())
            {
                return Err(why.clone());
            }
            state.missing_for_waiting(clock::now())
        };
        (0..missing).for_each(|_| drop(pool.open()));
        // The pool is there, so its changes go on.
        self.changes.changed().await.ok();
        Ok(())
    }
}

impl Drop for ConnectionWait<'_> {
    fn drop(&mut self) {
        lock(&self.pool.state).waiting -= 1;
    }
}
