//! What replicas tell each other through the store, and the keys that it is about.

use std::fmt;
use std::sync::Arc;

use tokio::sync::broadcast;

use crate::core::policy::PolicyVersion;
use crate::core::schedule::Freeze;

/// A key of a limit: a digest of its text, so that no message can name the state of another limit, a
/// key has the same length whatever it says, and its text does not show in the store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LimitKey([u8; 16]);

impl LimitKey {
    /// From the first 16 bytes of a digest of the key's text (`limiter::limit_key` makes it).
    #[must_use]
    pub const fn from_digest(digest: [u8; 16]) -> Self {
        Self(digest)
    }

    /// The digest.
    #[must_use]
    pub const fn digest(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for LimitKey {
    /// Not even the digest of a phone number belongs into a log: there are few phone numbers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LimitKey(..)")
    }
}

/// A message from one replica to all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A limit is frozen.
    Frozen { limit: Arc<str>, freeze: Freeze },
    /// What is in force for a limit has changed.
    Changed { limit: Arc<str>, to: PolicyVersion },
    /// The breaker of a route has opened or closed.
    Breaker { route: Arc<str> },
    /// An operator opened a keyed limit that waited for what the store lost.
    Opened { limit: Arc<str> },
    /// Calls of a `concurrency` limit ended, and this replica, which waits for it, may ask for so many
    /// units.
    Freed {
        limit: Arc<str>,
        key: LimitKey,
        units: u64,
    },
}

/// Where notices come in. Whatever part of a store is asked: they are about all of it.
pub trait Notices {
    /// Notices of all replicas, this one included, and those for this replica. A receiver that lags may
    /// lose some: the next answer of the store tells the same, and what waits for a call to end asks again
    /// after a while.
    fn notices(&self) -> broadcast::Receiver<Notice>;
}
