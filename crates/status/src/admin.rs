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
mod pages;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;
use std::{fmt, io};

use axum::Router;
use axum::middleware;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::host::HostNames;
use self::pages::router;
use crate::Board;
use sluiced_telemetry::Metrics;

pub use sluiced_telemetry::health::Health;

/// Connections at a time. One more ends the oldest: silent clients cannot block a probe.
const MAX_CONNECTIONS: usize = 32;
/// How long a client may take to send its request's head.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long one connection may take in all, a slow reader included.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// How long answers that are in flight may take once the listener stops.
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
    hosts: HostNames,
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
    let hosts = HostNames::new(listen, hosts);
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
        let host_check = middleware::from_fn_with_state(self.hosts, host::only_known);
        let router = router(metrics, health, board).layer(host_check);
        let tasks = TaskTracker::new();
        let mut open: VecDeque<AbortHandle> = VecDeque::new();
        while let Some(accepted) = stop.run_until_cancelled(self.listener.accept()).await {
            match accepted {
                Ok((stream, _)) => {
                    make_room(&mut open);
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

/// Ends the oldest connection if there are too many.
fn make_room(open: &mut VecDeque<AbortHandle>) {
    open.retain(|connection| !connection.is_finished());
    if open.len() >= MAX_CONNECTIONS
        && let Some(oldest) = open.pop_front()
    {
        oldest.abort();
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
