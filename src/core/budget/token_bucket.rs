//! A bucket that is refilled.

use std::time::Duration;

/// The rule of a `token_bucket` limit.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenBucket {
    pub(crate) headroom: Duration,
}

impl TokenBucket {
    /// How late a call may arrive after it was granted.
    #[must_use]
    pub const fn headroom(&self) -> Duration {
        self.headroom
    }
}
