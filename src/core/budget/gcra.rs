//! Emission intervals with a burst.

use std::time::Duration;

/// The rule of a `gcra` limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Gcra {
    pub(crate) headroom: Duration,
}

impl Gcra {
    /// How late a call may arrive after it was granted.
    #[must_use]
    pub const fn headroom(&self) -> Duration {
        self.headroom
    }
}
