//! The connections of callers, and how many there may be.
//!
//! Problem: ten thousand callers may wait at a time, each with a connection, and clients may be silent, slow or
//! hostile. So a listener has a largest number of connections. One more than that ends the oldest connection without a
//! request in flight; if all have one, the new connection is closed. A connection that is silent for [`IDLE`] is
//! closed, too. A request has a largest head, a largest body and a longest time (`service`).

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tracing::debug;

use super::meters::CallersMeters;
use super::tls::Identity;

/// A connection without a request is closed after this.
const IDLE: Duration = Duration::from_secs(60);
/// The longest TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The largest head of a request.
const MAX_HEAD: usize = 16 * 1024;
/// Connections beyond those of requests that wait.
const MORE_CONNECTIONS: u64 = 1_000;
/// However few files a process may open, this many connections are accepted.
const FEWEST: usize = 16;
/// The list may hold this many ended connections beyond twice the open ones; then the ended ones are removed.
const FEW: usize = 64;
/// A pause after an accept that failed because of missing file descriptors, instead of a hot loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Files that everything else may open: a connection for each call in flight, and a few others.
const OTHER_FILES: u64 = 4_000;

/// How many connections each listener has at a time, by how many requests may wait at each, as far as this process may
/// open files. It asks for as many files as it is allowed. The connections to the broker, the store and the downstream
/// need files, too: listeners together leave 4,000 to them, or half of what there is.
#[must_use]
pub fn connections(waiting: &[u16]) -> Vec<usize> {
    if waiting.is_empty() {
        return Vec::new();
    }
    let wanted = |waiting: &u16| u64::from(*waiting) + MORE_CONNECTIONS;
    let all: u64 = waiting.iter().map(wanted).sum();
    let files = open_files(all + OTHER_FILES);
    let for_callers = files.saturating_sub(OTHER_FILES).max(files / 2);
    let share = |waiting| wanted(waiting) * for_callers.min(all) / all;
    let shares = waiting.iter().map(share);
    shares
        .map(|share| usize::try_from(share).unwrap_or(usize::MAX).max(FEWEST))
        .collect()
}

/// How many files this process may open, after it asked for this many.
fn open_files(needed: u64) -> u64 {
    let allowed = getrlimit(Resource::Nofile);
    let raised = allowed.maximum.map_or(needed, |most| most.min(needed));
    let current = allowed.current.unwrap_or(u64::MAX);
    if current >= raised {
        return current;
    }
    let asked = Rlimit {
        current: Some(raised),
        maximum: allowed.maximum,
    };
    match setrlimit(Resource::Nofile, asked) {
        Ok(()) => raised,
        Err(_) => current,
    }
}

/// The connections that are open.
pub(crate) struct Connections {
    /// The oldest first.
    open: VecDeque<(AbortHandle, Busy)>,
    tasks: JoinSet<()>,
    most: usize,
    meters: Arc<CallersMeters>,
}

/// How many requests of a connection are under way.
#[derive(Clone, Debug, Default)]
struct Busy(Arc<AtomicUsize>);

impl Connections {
    /// None yet, and no more than `most` at a time.
    pub(crate) fn new(most: usize, meters: Arc<CallersMeters>) -> Self {
        Self {
            open: VecDeque::new(),
            tasks: JoinSet::new(),
            most,
            meters,
        }
    }

    /// Answers the requests of a connection that was accepted, in a task.
    pub(crate) async fn take_accepted<T>(
        &mut self,
        accepted: io::Result<T>,
        router: &Router,
        identity: Option<&Arc<Identity>>,
    ) where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        match accepted {
            Ok(stream) => self.take(stream, router, identity).await,
            Err(error) => self.not_accepted(&error).await,
        }
    }

    /// A connection could not be accepted. Where this process may open no more files, one that is idle makes room.
    async fn not_accepted(&mut self, error: &io::Error) {
        debug!(%error, "a listener for callers could not accept");
        let no_files = [Errno::MFILE, Errno::NFILE];
        if Errno::from_io_error(error).is_some_and(|why| no_files.contains(&why)) {
            self.end_oldest_idle();
        }
        sleep(ACCEPT_PAUSE).await;
    }

    async fn take<T>(&mut self, stream: T, router: &Router, identity: Option<&Arc<Identity>>)
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        while self.tasks.try_join_next().is_some() {}
        if self.open.len() >= self.most || self.open.len() > 2 * self.tasks.len() + FEW {
            self.open.retain(|(task, _)| !task.is_finished());
        }
        if self.open.len() >= self.most && !self.end_oldest_idle() {
            return;
        }
        // A connection that was ended has its file until its task is gone. On a busy machine many are accepted before
        // that.
        while self.tasks.len() >= self.most && self.tasks.join_next().await.is_some() {}
        let (busy, identity) = (Busy::default(), identity.cloned());
        let service = CountingService {
            router: TowerToHyperService::new(router.clone()),
            busy: busy.clone(),
            _open: OpenConnection::begin(&self.meters),
        };
        let task = self.tasks.spawn(async move {
            let Some(identity) = identity else {
                return answer(stream, service).await;
            };
            match timeout(HANDSHAKE, identity.accept(stream)).await {
                Ok(Ok(stream)) => answer(stream, service).await,
                Ok(Err(error)) => debug!(%error, "a caller's TLS handshake failed"),
                Err(_) => debug!("a caller's TLS handshake took too long"),
            }
        });
        self.open.push_back((task, busy));
    }

    /// Ends the oldest connection without a request. Returns whether there was one.
    fn end_oldest_idle(&mut self) -> bool {
        let idle = |(_, busy): &(AbortHandle, Busy)| busy.0.load(Ordering::Relaxed) == 0;
        let Some(oldest) = self.open.iter().position(idle) else {
            return false;
        };
        if let Some((task, _)) = self.open.remove(oldest) {
            task.abort();
        }
        true
    }

    /// Whether a request is in flight.
    pub(crate) fn is_busy(&self) -> bool {
        let mut open = self.open.iter();
        open.any(|(task, busy)| !task.is_finished() && busy.0.load(Ordering::Relaxed) > 0)
    }
}

async fn answer<T>(stream: T, service: CountingService)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        debug!(%error, "a caller's connection ended");
    }
}

/// The router, and a count of the requests in flight.
struct CountingService {
    router: TowerToHyperService<Router>,
    busy: Busy,
    _open: OpenConnection,
}

/// A connection that is counted until this is dropped.
struct OpenConnection(Arc<CallersMeters>);

impl OpenConnection {
    fn begin(meters: &Arc<CallersMeters>) -> Self {
        meters.connections.increment(1.0);
        Self(Arc::clone(meters))
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connections.decrement(1.0);
    }
}

impl Service<http::Request<hyper::body::Incoming>> for CountingService {
    type Response = axum::response::Response;
    type Error = std::convert::Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn call(&self, request: http::Request<hyper::body::Incoming>) -> Self::Future {
        let in_flight = RequestInFlight::begin(&self.busy);
        let answering = self.router.call(request);
        async move {
            let answer = answering.await;
            drop(in_flight);
            answer
        }
        .boxed()
    }
}

/// Ends the request when it is dropped: the caller may have hung up.
struct RequestInFlight(Busy);

impl RequestInFlight {
    fn begin(busy: &Busy) -> Self {
        busy.0.fetch_add(1, Ordering::Relaxed);
        Self(busy.clone())
    }
}

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::io::{ReadBuf, join, sink};

    use super::*;

    /// A client that says nothing. Its connection is open for as long as this lives.
    struct Silent {
        _open: Arc<()>,
    }

    impl AsyncRead for Silent {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    /// An ended connection kept its file until its task was polled again, and many were accepted before that.
    #[tokio::test]
    async fn a_crowd_has_no_more_files_than_may_be_open() {
        let meters = Arc::new(CallersMeters::new("test"));
        let mut connections = Connections::new(FEWEST, meters);
        let open = Arc::new(());
        for _ in 0..10 * FEWEST {
            let silent = Silent {
                _open: Arc::clone(&open),
            };
            let stream = join(silent, sink());
            let accepted = Ok(stream);
            connections
                .take_accepted(accepted, &Router::new(), None)
                .await;
            assert!(Arc::strong_count(&open) <= FEWEST + 1);
        }
    }

    /// Two listeners took what one of them needed, each for itself.
    #[test]
    fn listeners_share_the_files_that_a_process_may_open() {
        let each = connections(&[10_000, 1_000]);
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let all: usize = each.iter().sum();
        assert!(all as u64 <= files.saturating_sub(OTHER_FILES).max(files / 2));
        assert!(each[0] <= 11_000 && each[1] <= 2_000, "{each:?}");
        assert!(each[0] > each[1], "{each:?}");
    }
}
