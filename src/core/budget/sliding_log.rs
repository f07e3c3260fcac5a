//! Exactly so many in any window.

use std::time::Duration;

/// The rule of a `sliding_log` limit.
#[derive(Clone, Debug, PartialEq)]
pub struct SlidingLog {
    pub(crate) headroom: Duration,
}

impl SlidingLog {
    /// How late a call may arrive after it was granted.
    #[must_use]
    pub const fn headroom(&self) -> Duration {
        self.headroom
    }
}
