//! So many in each window.

use std::time::Duration;

/// The rule of a `fixed_window` limit.
#[derive(Clone, Debug, PartialEq)]
pub struct FixedWindow {
    pub(crate) headroom: Duration,
}

impl FixedWindow {
    /// How late a call may arrive after it was granted.
    #[must_use]
    pub const fn headroom(&self) -> Duration {
        self.headroom
    }
}
