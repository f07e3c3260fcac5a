//! Log lines for events that repeat.
//!
//! Problem: when a downstream fails 400 times a second, 400 log lines a second hide everything
//! else and fill the disk. So an event that can repeat is logged at most once per interval, with
//! the number of those in between; the metrics count every one.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::core::time::Mono;

/// Decides which of many equal events is logged. Pure: `now` is an argument.
#[derive(Clone, Debug)]
pub struct Repeated {
    every: Duration,
    last: Option<Mono>,
    suppressed: u64,
}

impl Repeated {
    /// At most one line per `every`.
    #[must_use]
    pub const fn new(every: Duration) -> Self {
        Self {
            every,
            last: None,
            suppressed: 0,
        }
    }

    /// An event happened: `Some` if it is to be logged, with what was kept quiet since the last
    /// line.
    pub fn event(&mut self, now: Mono) -> Option<Suppressed> {
        if self.last.is_some_and(|last| now.since(last) < self.every) {
            self.suppressed = self.suppressed.saturating_add(1);
            return None;
        }
        self.last = Some(now);
        Some(Suppressed(std::mem::take(&mut self.suppressed)))
    }
}

/// How many events were not logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suppressed(pub u64);

impl fmt::Display for Suppressed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            n => write!(f, " ({n} more like this were not logged)"),
        }
    }
}

/// The same for events that come from several tasks.
#[derive(Debug)]
pub struct Notice(Mutex<Repeated>);

impl Notice {
    /// At most one line per `every`. Can be a `static`.
    #[must_use]
    pub const fn new(every: Duration) -> Self {
        Self(Mutex::new(Repeated::new(every)))
    }

    /// An event happened; see [`Repeated::event`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use sluiced::{ports::clock::Clock, telemetry::Notice};
    /// static LATE: Notice = Notice::new(Duration::from_secs(10));
    /// let clock = Clock::start();
    /// if let Some(more) = LATE.event(clock.now()) {
    ///     tracing::warn!("a slot came up too late{more}");
    /// }
    /// ```
    pub fn event(&self, now: Mono) -> Option<Suppressed> {
        let mut repeated = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        repeated.event(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Mono {
        Mono::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn the_first_is_logged_and_then_one_per_interval_with_the_count() {
        let mut repeated = Repeated::new(Duration::from_secs(10));
        assert_eq!(repeated.event(at(0)), Some(Suppressed(0)));
        for second in 1..10 {
            assert_eq!(repeated.event(at(second)), None);
        }
        assert_eq!(repeated.event(at(10)), Some(Suppressed(9)));
        assert_eq!(repeated.event(at(30)), Some(Suppressed(0)));
    }

    #[test]
    fn a_clock_that_seems_to_go_back_only_keeps_quiet() {
        let notice = Notice::new(Duration::from_secs(10));
        assert_eq!(notice.event(at(100)), Some(Suppressed(0)));
        assert_eq!(notice.event(at(90)), None);
        assert_eq!(notice.event(at(110)), Some(Suppressed(1)));
    }

    #[test]
    fn the_count_reads_like_a_sentence() {
        assert_eq!(Suppressed(0).to_string(), "");
        assert_eq!(
            Suppressed(3).to_string(),
            " (3 more like this were not logged)"
        );
    }
}
