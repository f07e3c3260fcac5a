//! The admin listener: `/metrics`, `/healthz`, `/readyz`, and the status page on `/`.
//!
//! Problem: it must answer while everything else fails, and must never cause a failure itself. So
//! it has bounds of its own: few connections at a time, one request for each connection (scrapes
//! and probes come seconds apart, and an idle connection would take up one of the few), and short
//! timeouts for headers and connections. It listens only on the configured address, and answers only to names
//! that no web page can have (`host`).
//!
//! The limits of `tower` count requests, so clients that connect and send nothing would keep a probe out. Here
//! connections count.

mod host;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use axum::Router;
use axum::extract::State;
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde::Serialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::host::Hosts;
use crate::Board;
use sluiced_telemetry::Metrics;
use sluiced_telemetry::health::Missing;
use sluiced_telemetry::waits::Wait;

pub use sluiced_telemetry::health::Health;

/// Connections at a time. One more ends the oldest: silent clients cannot block a probe.
const MAX_CONNECTIONS: usize = 32;
/// How long a client may take to send its request's head.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long one connection may take in all, a slow reader included.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// How long answers that are under way may take once the listener stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// The most that a request's head may hold.
const MAX_HEAD: usize = 16 * 1024;
/// A pause after an accept that failed because of missing file descriptors, instead of a hot
/// loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why there is no listener.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The address cannot be listened on. Exit code 1: another process may release it.
    #[error("admin.listen: cannot listen on `{listen}`: {reason}; {advice}")]
    Listen {
        listen: String,
        reason: io::Error,
        advice: &'static str,
    },
}

/// A listener that is bound and does not answer yet.
pub struct Admin {
    listener: TcpListener,
    address: SocketAddr,
    hosts: Hosts,
}

/// Binds `admin.listen`: `host:port`; port 0 takes a free one; empty means none. It answers to addresses, names of
/// loopback, `listen` and the names `hosts`.
///
/// # Errors
/// When the text is no address, or the address is in use or of another host.
pub async fn bind(listen: &str, hosts: &[String]) -> Result<Option<Admin>, AdminError> {
    if listen.is_empty() {
        return Ok(None);
    }
    let failed = |reason: io::Error| AdminError::Listen {
        advice: advice(reason.kind()),
        listen: listen.to_owned(),
        reason,
    };
    let listener = TcpListener::bind(listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let hosts = Hosts::new(listen, hosts);
    Ok(Some(Admin {
        listener,
        address,
        hosts,
    }))
}

const fn advice(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::AddrInUse => {
            "another process has it: choose another port, or \"\" for no listener"
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine does not have that address: choose one of its own, or 0.0.0.0 for all"
        }
        io::ErrorKind::PermissionDenied => "ports below 1024 need a privilege: choose a higher one",
        _ => "write host:port, such as \"127.0.0.1:9464\", or \"\" for no listener",
    }
}

impl Admin {
    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Replies to requests until `stop`, then lets replies that are under way finish.
    pub async fn serve(
        self,
        metrics: Metrics,
        health: Health,
        board: Board,
        stop: CancellationToken,
    ) {
        let known = middleware::from_fn_with_state(self.hosts, host::only_known);
        let router = router(metrics, health, board).layer(known);
        let tasks = TaskTracker::new();
        let mut open: VecDeque<AbortHandle> = VecDeque::new();
        while let Some(accepted) = stop.run_until_cancelled(self.listener.accept()).await {
            match accepted {
                Ok((stream, _)) => {
                    open.retain(|one| !one.is_finished());
                    if open.len() >= MAX_CONNECTIONS
                        && let Some(oldest) = open.pop_front()
                    {
                        oldest.abort();
                    }
                    let answered = answer(stream, router.clone());
                    open.push_back(tasks.spawn(answered).abort_handle());
                }
                Err(error) => {
                    tracing::debug!(%error, "the admin listener could not accept");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(self.listener);
        tasks.close();
        if tokio::time::timeout(STOP_TIMEOUT, tasks.wait())
            .await
            .is_err()
        {
            tracing::debug!("an answer of the admin listener was cut off");
        }
    }
}

/// One request, one answer, within [`CONNECTION_TIMEOUT`].
async fn answer(stream: TcpStream, router: Router) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .keep_alive(false)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    match tokio::time::timeout(CONNECTION_TIMEOUT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection of the admin listener broke"),
        Err(_) => tracing::debug!("a connection of the admin listener took too long"),
    }
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All answers of the listener; anything else is 404, and anything but GET and HEAD 405.
fn router(metrics: Metrics, health: Health, board: Board) -> Router {
    Router::new()
        .route("/", get(show_page))
        .route("/status.json", get(show_status).with_state(board))
        .route(
            "/metrics",
            get(show_metrics).with_state((metrics, health.clone())),
        )
        .route("/healthz", get(show_alive).with_state(health.clone()))
        .route("/readyz", get(show_ready).with_state(health))
}

/// The page requests `/status.json` itself, so it can stay open and updates by itself.
async fn show_page() -> Response {
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CACHE_CONTROL, "no-store"),
        // Nothing from other hosts: the page works offline, and text of a log line is never run.
        (
            CONTENT_SECURITY_POLICY,
            "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; frame-ancestors 'none'",
        ),
    ];
    (headers, include_str!("admin/status.html")).into_response()
}

async fn show_status(State(board): State<Board>) -> Response {
    json(StatusCode::OK, &board.fleet().await)
}

async fn show_metrics(State((metrics, health)): State<(Metrics, Health)>) -> Response {
    let text = metrics.render(health.missing().is_empty());
    ([(CONTENT_TYPE, METRICS_TYPE)], text).into_response()
}

/// 200 while every loop runs; otherwise 503 with the loops that are stuck.
async fn show_alive(State(health): State<Health>) -> Response {
    page("alive", "stuck", health.stuck(), Vec::new())
}

/// 200 while the work can be done; otherwise 503 with what is missing and since when. Limits that wait are named either
/// way.
async fn show_ready(State(health): State<Health>) -> Response {
    page("ready", "not ready", health.missing(), health.waits().all())
}

#[derive(Serialize)]
struct Page {
    status: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<MissingPart>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    waiting: Vec<WaitingLimit>,
}

#[derive(Serialize)]
struct WaitingLimit {
    limit: Arc<str>,
    reason: &'static str,
    /// For how much longer. Absent: until an operator ends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
}

#[derive(Serialize)]
struct MissingPart {
    name: Arc<str>,
    reason: Arc<str>,
    /// A point in time for a person (RFC 3339, by this machine's wall clock).
    since: String,
    /// How long ago that was, for scripts.
    seconds: f64,
}

fn page(
    good: &'static str,
    bad: &'static str,
    missing: Vec<Missing>,
    waits: Vec<Wait>,
) -> Response {
    let (code, status) = if missing.is_empty() {
        (StatusCode::OK, good)
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, bad)
    };
    let parts = missing.into_iter().map(|missing| MissingPart {
        name: missing.name,
        reason: missing.reason,
        since: since(missing.lasted),
        seconds: seconds(missing.lasted),
    });
    let missing = parts.collect();
    let waiting = waits.into_iter().map(|wait| WaitingLimit {
        reason: wait.reason(),
        limit: wait.limit,
        seconds: wait.left.map(seconds),
    });
    let page = Page {
        status,
        missing,
        waiting: waiting.collect(),
    };
    json(code, &page)
}

fn json(code: StatusCode, page: &impl Serialize) -> Response {
    let headers = [
        (CONTENT_TYPE, "application/json"),
        (CACHE_CONTROL, "no-store"),
    ];
    match serde_json::to_string(page) {
        Ok(text) => (code, headers, text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// The wall clock is only for people; the length comes from the monotonic clock.
fn since(lasted: Duration) -> String {
    let now = jiff::Timestamp::now();
    let start = now.checked_sub(lasted).unwrap_or(now);
    format!("{start:.0}")
}

fn seconds(length: Duration) -> f64 {
    (length.as_secs_f64() * 10.0).round() / 10.0
}
