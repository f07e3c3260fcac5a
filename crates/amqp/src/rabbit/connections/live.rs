//! A connection that is up, and what all of its channels publish together.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lapin::Connection;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::AbortOnDropHandle;

use crate::rabbit::RabbitError;

/// A connection that was up when it was handed out.
#[derive(Debug)]
pub(in crate::rabbit) struct LiveConnection {
    pub(in crate::rabbit) connection: Connection,
    /// For each synchronous operation.
    pub(in crate::rabbit) bound: Duration,
    /// The broker has queues without a limit of returns.
    pub(in crate::rabbit) knows_unlimited: bool,
    /// Copies that are published on it.
    pub(in crate::rabbit) copies: Copies,
    pub(super) fault: Arc<OnceLock<String>>,
    pub(super) _listener: AbortOnDropHandle<()>,
    pub(super) cut: CancellationToken,
    /// Ends the stream, and with it lapin's thread, whatever state the connection is in.
    pub(super) _end: DropGuard,
}

/// What all channels of a connection publish.
#[derive(Debug, Default)]
pub(in crate::rabbit) struct Copies {
    bytes: AtomicUsize,
    written: AtomicUsize,
}

impl Copies {
    /// This many bytes more are under way, until their copy is decided or given up.
    pub(in crate::rabbit) fn begin(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(in crate::rabbit) fn end(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// One more copy is written.
    pub(in crate::rabbit) fn count_written(&self) {
        self.written.fetch_add(1, Ordering::Relaxed);
    }

    pub(in crate::rabbit) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(in crate::rabbit) fn written(&self) -> usize {
        self.written.load(Ordering::Relaxed)
    }
}

impl LiveConnection {
    pub(in crate::rabbit) fn is_up(&self) -> bool {
        self.connection.status().connected()
    }

    /// Whether an alarm of the broker stops writes.
    pub(in crate::rabbit) fn is_blocked(&self) -> bool {
        self.connection.status().blocked()
    }

    /// Ends it for all its users.
    pub(in crate::rabbit) fn cut(&self) {
        self.cut.cancel();
    }

    /// Why it is not up any more.
    pub(in crate::rabbit) fn fault(&self) -> RabbitError {
        RabbitError::Lost {
            reason: self
                .fault
                .get()
                .map_or("the connection ended", String::as_str)
                .to_owned(),
        }
    }
}
