//! The only place that reads the local clocks: the monotonic one, and the wall clock once at the start.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::core::time::{Mono, StoreTime};

/// The process's monotonic clock. Copies share one zero.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    zero: Instant,
    /// The wall clock's time at its zero, since the Unix epoch.
    epoch: Duration,
}

impl Clock {
    /// A clock whose zero is an hour ago, so that subtracting a wait from "now" never saturates.
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "this is the outermost layer")]
    pub fn start() -> Self {
        let now = Instant::now();
        let zero = now.checked_sub(Duration::from_secs(3600)).unwrap_or(now);
        let wall = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            zero,
            epoch: wall.unwrap_or_default().saturating_sub(now - zero),
        }
    }

    /// Now.
    #[must_use]
    pub fn now(&self) -> Mono {
        Mono::from_micros(u64::try_from(self.zero.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// Now, as the time of a store in this process: what the wall clock showed at the start, and
    /// the monotonic clock since. It never steps; it may drift from the wall clock by seconds a day.
    #[must_use]
    pub fn store_time(&self) -> StoreTime {
        StoreTime::from_micros(self.now().as_micros()) + self.epoch
    }

    /// The instant at a point of this clock, for timers that want one.
    #[must_use]
    pub fn instant(&self, at: Mono) -> Instant {
        self.zero + Duration::from_micros(at.as_micros())
    }
}
