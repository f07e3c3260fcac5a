//! What the stores of paced and of keyed limits return: answers, errors, notices.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;

use super::key::LimitKey;
use sluiced_core::schedule::Freeze;
use sluiced_core::version::PolicyVersion;

/// Why the store did not answer.
///
/// After [`Unreachable`](Self::Unreachable) and [`Timeout`](Self::Timeout) the call may have run, and the store does
/// not repeat it. After [`Refused`](Self::Refused) it has not run, except if the error came in the middle of a script,
/// or if the answer cannot be read. The store in memory never fails.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// Not connected, or the connection broke, or the server cannot answer now, or its clock stepped. A script that was
    /// under way may have run.
    #[error("{store} cannot be reached: {reason}")]
    Unreachable {
        /// The name of the store in texts, such as `Redis`.
        store: &'static str,
        /// For a person. Never a secret.
        reason: String,
    },
    /// No answer in time. The script may have run: its grants are not used.
    #[error("{store} did not answer within {waited:?}")]
    Timeout {
        /// The name of the store in texts, such as `Redis`.
        store: &'static str,
        /// The timeout that is over.
        waited: Duration,
    },
    /// The store answered with an error that will not go away by itself (wrong password, a key of
    /// another type, scripts forbidden).
    #[error("{store} refused: {reason}")]
    Refused {
        /// The name of the store in texts, such as `Redis`.
        store: &'static str,
        /// For a person. Never a secret.
        reason: String,
    },
}

impl StoreError {
    /// Whether it helps to ask again later, without a change by an operator.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Timeout { .. })
    }
}

/// A call to a store, under way.
pub type StoreFuture<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// What replicas, and commands of operators, tell the replicas through the store. All get it, the sender too; only
/// [`Notice::Freed`] goes to one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A row of a paced limit is frozen.
    Frozen {
        /// The name of the row ([`PacedRow::name`](super::store::PacedRow::name)).
        limit: Arc<str>,
        /// Until when, on the store's clock.
        freeze: Freeze,
    },
    /// The policy of a limit has changed.
    Changed {
        /// The name of the limit, or what stands for the pause of a route ([`pause_of`](super::policies::pause_of)).
        limit: Arc<str>,
        /// The version that is current now.
        to: PolicyVersion,
    },
    /// The breaker of a route has opened or closed.
    Breaker {
        /// The name of the route.
        route: Arc<str>,
    },
    /// An operator opened a keyed limit that waited because the store lost its state.
    Opened {
        /// The name of the limit.
        limit: Arc<str>,
    },
    /// Calls of a `concurrency` limit or claims of a `once` limit ended. This replica waits for that, and may ask for
    /// this many units.
    Freed {
        /// The name of the limit.
        limit: Arc<str>,
        /// The key whose units came free.
        key: LimitKey,
        /// How many units this replica may ask for, at least 1. Others that wait got notices of their own.
        units: u64,
    },
}
