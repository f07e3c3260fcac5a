//! What the pipeline needs of the store that keeps paced limits.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::watch;

use super::link::Link;
use super::notice::Notices;
use crate::core::policy::PolicyVersion;
use crate::core::schedule::{Answer, Ask, Freeze, Grant, Pace};

/// A row of a paced limit, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacedLimit {
    /// The limit, as in the configuration (letters, digits, `_`, `-` and `.`), or what its second
    /// row is called.
    pub name: Arc<str>,
    /// The limit that it is a row of.
    pub of: Arc<str>,
    pub pace: Pace,
    /// The policy that the pace was taken from.
    pub known: PolicyVersion,
}

impl PacedLimit {
    /// The row of a limit that has only one, at the pace of the configuration.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>, pace: Pace) -> Self {
        let name = name.into();
        Self {
            of: Arc::clone(&name),
            name,
            pace,
            known: PolicyVersion::NONE,
        }
    }
}

/// Why the store did not answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// Not connected, or the connection broke. A script that was under way may have run.
    #[error("{store} cannot be reached: {reason}")]
    Unreachable { store: &'static str, reason: String },
    /// No answer in time. The script may have run: what it granted is burnt.
    #[error("{store} did not answer within {waited:?}")]
    Timeout {
        store: &'static str,
        waited: Duration,
    },
    /// It answered with an error that will not go away by itself (wrong password, a key of
    /// another type, scripts forbidden).
    #[error("{store} refused: {reason}")]
    Refused { store: &'static str, reason: String },
}

impl StoreError {
    /// Whether it helps to ask again later, without a change by an operator.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Timeout { .. })
    }
}

/// A question to a store, under way.
pub type StoreFuture<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// The store of paced limits. Every call ends within the store's own timeout.
pub trait PaceStore: Notices + Send + Sync + fmt::Debug {
    /// Leases slots (`core::schedule::lease`).
    fn lease<'a>(&'a self, limit: &'a PacedLimit, ask: Ask) -> StoreFuture<'a, Answer>;

    /// Freezes the limit for every replica for `length` from now and sends a notice. A later end
    /// that is already set stays.
    fn freeze<'a>(&'a self, limit: &'a PacedLimit, length: Duration) -> StoreFuture<'a, Freeze>;

    /// Takes back the unused tail of a lease, if no slot was leased after it.
    fn give_back<'a>(&'a self, limit: &'a PacedLimit, tail: Grant) -> StoreFuture<'a, bool>;

    /// Whether the store can be reached at present.
    fn link(&self) -> watch::Receiver<Link>;
}
