//! Spreads over time what all replicas would otherwise do in the same moment.

use std::time::Duration;

/// A number from 0 to 999 that differs between replicas and spreads what they would otherwise all
/// do in the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase(u16);

impl Phase {
    /// A phase from any number.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self((seed % 1000) as u16)
    }

    /// From 0 to nearly 1.
    #[must_use]
    pub fn fraction(self) -> f64 {
        f64::from(self.0) / 1000.0
    }

    /// `length` scaled to a part between zero and nearly all of it.
    #[must_use]
    pub fn of(self, length: Duration) -> Duration {
        length * u32::from(self.0) / 1000
    }
}
