//! A stand-in for the rate-limited service downstream, which judges its callers.
//!
//! Problem: whether a fleet keeps a limit can only be said where the calls arrive. This provider
//! stamps every request as soon as its head has been read from the socket, on a thread of its own
//! that does nothing else, and says afterwards how full the worst sliding window was, what came
//! too early, and which messages were lost or taken twice. Like most real providers it answers
//! 202 to everything; it can be told to enforce its limit, to be slow, to fail, or to hang. It speaks TLS where a
//! test says so, and is what is wrong with the way to it (`way`): nothing stands between it and its callers.
//!
//! `sluiced demo`, the fleet tests and the benchmarks use it, in their own process ([`Provider`])
//! or as a process of its own (`sluiced provider`).

mod ledger;
mod script;
mod serve;
pub mod stamp;
mod way;

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;

use nix::sys::socket::Backlog;
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;

pub use ledger::{Expect, Live, Report};
pub use script::{Act, Behaviour, Failure, FailureError, ScriptFull, Step};

use crate::core::time::Mono;
use crate::ports::clock::Clock;
use ledger::Ledger;
use serve::Endpoint;
pub use way::Way;

/// Why the provider did not start.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        address: SocketAddr,
        source: io::Error,
    },
    /// No thread or no event loop could be had.
    #[error("cannot start the provider's thread: {0}")]
    Thread(io::Error),
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
    /// When the address is taken, or no thread can be had.
    pub fn start(address: SocketAddr, behaviour: Behaviour) -> Result<Self, ProviderError> {
        let (listener, bound) =
            listen(address).map_err(|source| ProviderError::Listen { address, source })?;
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(ProviderError::Thread)?;
        let endpoint = Arc::new(Endpoint::new(Clock::start(), behaviour));
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
    pub fn live(&self) -> Live {
        self.ledger().live()
    }

    /// The calls that named a key in `x-key`, in their order: when they arrived, on this provider's
    /// own clock, and their keys. The last half second may be missing, and so is what came after a
    /// million of them.
    #[must_use]
    pub fn keyed(&self) -> Vec<(Mono, Box<str>)> {
        self.ledger().keyed()
    }

    /// How often each message was taken.
    #[must_use]
    pub fn taken(&self) -> HashMap<Box<str>, u32> {
        self.ledger().taken()
    }

    /// The clock that calls are stamped with.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.endpoint.clock()
    }

    /// Forgets all calls so far.
    pub fn reset(&self) {
        self.ledger().reset();
    }

    /// Queues a step of scripted behaviour.
    ///
    /// # Errors
    /// When too many steps wait already.
    pub fn script(&self, step: Step) -> Result<(), ScriptFull> {
        self.endpoint.script(step)
    }

    /// Changes how connections are treated.
    pub fn way(&self, change: impl FnOnce(&mut Way)) {
        self.endpoint.way.send_modify(change);
    }

    /// Closes all connections.
    pub fn cut(&self) {
        self.endpoint.cut();
    }

    /// Stops serving: its connections are closed, and new ones refused. What it knows can still be asked.
    pub fn close(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // A panic over there has been printed there; there is nothing to add to it here.
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
    // that the kernel drops what comes, and the caller's kernel sends it again later: calls would
    // arrive in bunches that no caller made, and be counted as too early.
    nix::sys::socket::listen(&listener, Backlog::MAXALLOWABLE)?;
    listener.set_nonblocking(true)?;
    stamp::ask_for_stamps(&listener)?;
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
