//! A stand-in for the rate-limited service downstream, which judges its callers.
//!
//! Problem: whether a fleet keeps a limit can be decided only where the calls arrive. This provider takes the kernel's
//! stamp of each request's arrival (`connection`), and answers on a thread of its own. It reports afterwards how full
//! the worst sliding window was, which calls came too early, and which messages were lost or taken twice. Like most
//! real providers it answers 202 to everything; it can also enforce its limit, be slow, fail, or hang. It speaks TLS if
//! a test needs that, and causes the faults of the way to it ([`ConnectionFaults`]): there is nothing between it and
//! its callers. A connection that begins with an octet of zero speaks SMPP, at the same address (`smpp`). It can answer
//! as a named provider does ([`Double`]).
//!
//! `sluiced demo`, the fleet tests and the benchmarks use it, in their own process ([`Provider`])
//! or as a process of its own (`sluiced provider`).
//!
//! **Public API**: [`Provider`] in this process, or the command `sluiced provider`.
//!
//! **May know**: `core`, `pdu`, `ports`, `simulation` (the judge of windows), values of `settings`.

pub mod connection;
mod double;
mod endpoint;
mod http;
mod ledger;
mod script;
mod serve;
mod smpp;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;

use nix::sys::socket::Backlog;
use serde::Serialize;
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;

use self::endpoint::Endpoint;
use self::ledger::Ledger;
use sluiced_core::time::Mono;

pub use self::connection::ConnectionFaults;
pub use self::double::{Double, DoubleError, FleetTest};
pub use self::ledger::Expect;
pub use self::script::{Act, Behaviour, FailureError, FailureShare, ScriptFull, ScriptStep};

/// Why the provider did not start.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        address: SocketAddr,
        source: io::Error,
    },
    /// No thread or no event loop could be started.
    #[error("cannot start the provider's thread: {0}")]
    Thread(io::Error),
}

/// The result of a run. Times are on the provider's own monotonic clock.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// All calls that arrived.
    pub calls: u64,
    /// Calls without a time of arrival: their connection ended before they were read (their replica was killed), or one
    /// read had several messages of SMPP. No window counts them.
    pub undated: u64,
    /// Calls whose message the provider took (2xx, unless scripted otherwise).
    pub accepted: u64,
    /// Different messages among the accepted.
    pub unique: u64,
    /// Messages that were accepted more than once: their recipients got them twice.
    pub repeated: u64,
    /// A few of them.
    pub repeated_ids: Vec<String>,
    /// Calls without an id. They count as calls, and no two are known to be the same message.
    pub anonymous: u64,
    /// Calls by their `x-caller`; those without it are not included.
    pub callers: BTreeMap<Box<str>, u64>,
    /// Expected messages that were never accepted; absent if nothing was expected.
    pub lost: Option<u64>,
    /// A few of them, if the ids were given.
    pub lost_ids: Vec<String>,
    /// Accepted messages that were not expected.
    pub unexpected: u64,
    /// The limit that was judged by.
    pub limit: u32,
    /// The limit's window.
    pub window_us: u64,
    /// The most calls in any half-open sliding window.
    pub worst: u64,
    /// Calls that came too early.
    pub over: u64,
    /// Units of all calls: one for each call without an `x-cost`.
    pub units: u64,
    /// Keys that calls named in `x-key`.
    pub keys: u64,
    /// The fullest window of any key, in units; zero unless keys have a limit of their own.
    pub key_worst: u64,
    /// Calls that came too early for the limit of their key.
    pub key_over: u64,
    /// When the first few calls of `over` came, in microseconds from the first arrival.
    pub over_at_us: Vec<u64>,
    /// The share of the limit in use from the first call to the last.
    pub used: Option<f64>,
    /// The first arrival.
    pub first_us: Option<u64>,
    /// The last arrival.
    pub last_us: Option<u64>,
    /// From the first arrival to the last.
    pub duration_us: u64,
    /// The median time between neighbouring calls, in microseconds.
    pub gap_p50_us: Option<u64>,
    /// The 99th percentile of that time, in microseconds.
    pub gap_p99_us: Option<u64>,
    /// There were more calls than are kept: ids and gaps are from the first ones.
    pub truncated: bool,
}

/// The few numbers that a progress line shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveFigures {
    /// All calls.
    pub calls: u64,
    /// Different messages that were accepted.
    pub unique: u64,
    /// Calls in the last whole second before now.
    pub last_second: u64,
    /// The fullest window so far.
    pub worst: u64,
    /// Calls that came too early.
    pub over: u64,
}

/// A running provider. Dropping it closes its socket and ends its thread.
#[derive(Debug)]
pub struct Provider {
    address: SocketAddr,
    endpoint: Arc<Endpoint>,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Provider {
    /// Listens on `address` (port 0: any free port) and serves on a thread of its own.
    ///
    /// # Errors
    /// When the address is in use, or no thread can be started.
    pub fn start(address: SocketAddr, behaviour: Behaviour) -> Result<Self, ProviderError> {
        let (listener, bound) =
            listen(address).map_err(|source| ProviderError::Listen { address, source })?;
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(ProviderError::Thread)?;
        let endpoint = Arc::new(Endpoint::new(behaviour));
        let stop = CancellationToken::new();
        let thread = std::thread::Builder::new()
            .name("provider".to_owned())
            .spawn({
                let (endpoint, stop) = (Arc::clone(&endpoint), stop.clone());
                move || serve_until(&runtime, listener, endpoint, &stop)
            })
            .map_err(ProviderError::Thread)?;
        Ok(Self {
            address: bound,
            endpoint,
            stop,
            thread: Some(thread),
        })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What happened so far.
    #[must_use]
    pub fn report(&self, expect: &Expect) -> Report {
        self.ledger().report(expect)
    }

    /// The few numbers that a progress line shows. Cheap.
    #[must_use]
    pub fn live(&self) -> LiveFigures {
        self.ledger().live()
    }

    /// The calls that named a key in `x-key`, in their order: when they arrived, on this provider's
    /// own clock, and their keys. The last half second may be missing, and calls after the first
    /// million are.
    #[must_use]
    pub fn keyed(&self) -> Vec<(Mono, Box<str>)> {
        self.ledger().keyed()
    }

    /// How often each message was taken.
    #[must_use]
    pub fn taken(&self) -> HashMap<Box<str>, u32> {
        self.ledger().taken()
    }

    /// Forgets all calls so far.
    pub fn reset(&self) {
        self.ledger().reset();
    }

    /// Queues a step of scripted behaviour.
    ///
    /// # Errors
    /// When too many steps wait already.
    pub fn script(&self, step: ScriptStep) -> Result<(), ScriptFull> {
        self.endpoint.script(step)
    }

    /// Ends all steps.
    pub fn unscript(&self) {
        self.endpoint.clear_script();
    }

    /// Changes how connections are treated.
    pub fn way(&self, change: impl FnOnce(&mut ConnectionFaults)) {
        self.endpoint.way.send_modify(change);
    }

    /// Closes all connections.
    pub fn cut(&self) {
        self.endpoint.cut();
    }

    /// How many receipts were sent over SMPP, and the answers to them: sequence numbers and statuses.
    #[must_use]
    pub fn receipts(&self) -> (u32, Vec<(u32, u32)>) {
        let answered = self.endpoint.answered_receipts();
        (self.endpoint.sent_receipts(), answered)
    }

    /// Sends a PDU to every transceiver that is bound, behind what was sent before. [`Self::receipts`] has the answers
    /// to it, by its sequence number.
    pub fn deliver(&self, pdu: Vec<u8>) {
        // Without a transceiver it goes nowhere.
        drop(self.endpoint.deliveries.send(pdu));
    }

    /// Ends all SMPP sessions with an unbind.
    pub fn unbind(&self) {
        self.endpoint.unbind.send_modify(|times| *times += 1);
    }

    /// Stops serving: its connections are closed, and new ones refused. Its report can still be read.
    pub fn close(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // A panic of that thread was already printed.
            drop(thread.join());
        }
    }

    fn ledger(&self) -> &Ledger {
        self.endpoint.ledger()
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.close();
    }
}

fn listen(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address)?;
    // As many connections as the system allows may wait to be accepted, not the usual 128. Beyond
    // that the kernel drops connection attempts, and the caller's kernel repeats them later:
    // calls would arrive in groups that no caller made, and be counted as too early.
    nix::sys::socket::listen(&listener, Backlog::MAXALLOWABLE)?;
    listener.set_nonblocking(true)?;
    connection::ask_for_stamps(&listener)?;
    let bound = listener.local_addr()?;
    Ok((listener, bound))
}

fn serve_until(
    runtime: &Runtime,
    listener: TcpListener,
    endpoint: Arc<Endpoint>,
    stop: &CancellationToken,
) {
    let served = runtime.block_on(stop.run_until_cancelled(serve::serve(listener, endpoint)));
    if let Some(Err(error)) = served {
        tracing::error!(%error, "the provider stopped");
    }
}
