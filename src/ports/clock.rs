//! The one place that reads the local monotonic clock.

use std::time::{Duration, Instant};

use crate::core::time::Mono;

/// The process's monotonic clock. Copies share one zero.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    zero: Instant,
}

impl Clock {
    /// A clock whose zero is an hour ago, so that subtracting a wait from "now" never saturates.
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "this is the outermost layer")]
    pub fn start() -> Self {
        let now = Instant::now();
        Self {
            zero: now.checked_sub(Duration::from_secs(3600)).unwrap_or(now),
        }
    }

    /// Now.
    #[must_use]
    pub fn now(&self) -> Mono {
        Mono::from_micros(u64::try_from(self.zero.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// The instant at a point of this clock, for timers that want one.
    #[must_use]
    pub fn instant(&self, at: Mono) -> Instant {
        self.zero + Duration::from_micros(at.as_micros())
    }
}
