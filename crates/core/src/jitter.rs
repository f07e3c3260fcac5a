//! A number that differs between the replicas of a fleet.
//!
//! Problem: replicas that start together, or hear of the same change, would all act at the same moment. So each draws a
//! number once, when it starts, and waits for a part of a length that follows from it. The seed is an argument: nothing
//! here is random.

use std::time::Duration;

/// A number from 0 to 999 that differs between replicas, so that they do not all act at the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jitter(u16);

impl Jitter {
    /// From any number.
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
