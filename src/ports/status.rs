//! How all replicas tell each other how they are, for people to look at. No decision uses it.

use std::fmt;
use std::time::Duration;

use super::pace::StoreFuture;

/// How often a replica tells.
pub const TELL: Duration = Duration::from_secs(10);
/// For how long it is shown after that.
pub const SHOWN: Duration = TELL.saturating_mul(3);

/// Where replicas tell how they are.
pub trait StatusStore: Send + Sync + fmt::Debug {
    /// Puts down a text about this replica, and answers the texts of all replicas that told theirs within
    /// [`SHOWN`], this one's included.
    fn exchange<'a>(&'a self, replica: &'a str, text: &'a str) -> StoreFuture<'a, Vec<String>>;
}
