//! Calls under way.

use std::time::Duration;

/// The rule of a `concurrency` limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Concurrency {
    pub(crate) headroom: Duration,
}

impl Concurrency {
    /// How late a call may arrive after it was granted.
    #[must_use]
    pub const fn headroom(&self) -> Duration {
        self.headroom
    }
}
