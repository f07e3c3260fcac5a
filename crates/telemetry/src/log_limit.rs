//! Events that repeat.
//!
//! Problem: when a downstream fails 400 times a second, 400 log lines a second hide everything
//! else and fill the disk. So an event that can repeat is logged at most once per interval, with
//! the number of those in between; the metrics count every one. A fault that lasts is logged when
//! it begins, when its text changes, and then once per interval.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sluiced_core::time::Mono;
use sluiced_ports::lock;

/// Decides which of many events of one kind is logged. Can be a `static`.
///
/// ```
/// # use std::time::Duration;
/// # use sluiced_ports::clock;
/// # use sluiced_telemetry::LogLimit;
/// static LATE: LogLimit = LogLimit::new(Duration::from_secs(10));
/// if let Some(more) = LATE.event(clock::now()) {
///     tracing::warn!("a slot came up too late{more}");
/// }
/// ```
#[derive(Debug)]
pub struct LogLimit {
    every: Duration,
    state: Mutex<LastLogged>,
}

#[derive(Debug)]
struct LastLogged {
    /// When the last line was logged, and what fault it was about.
    last: Option<Mono>,
    fault: String,
    suppressed: u64,
}

impl LogLimit {
    /// At most one line per `every`.
    #[must_use]
    pub const fn new(every: Duration) -> Self {
        Self {
            every,
            state: Mutex::new(LastLogged {
                last: None,
                fault: String::new(),
                suppressed: 0,
            }),
        }
    }

    /// An event happened: `Some` if it should be logged, with the number of unlogged events since the last line.
    pub fn event(&self, now: Mono) -> Option<Suppressed> {
        self.fault("", now)
    }

    /// A lasting fault happened. One with another text than the last is always logged, and counts none of the last.
    pub fn fault(&self, text: &str, now: Mono) -> Option<Suppressed> {
        let mut state = lock(&self.state);
        let recent = state.last.is_some_and(|last| now.since(last) < self.every);
        if recent && state.fault == text {
            state.suppressed = state.suppressed.saturating_add(1);
            return None;
        }
        state.last = Some(now);
        if state.fault != text {
            text.clone_into(&mut state.fault);
            state.suppressed = 0;
        }
        Some(Suppressed(std::mem::take(&mut state.suppressed)))
    }

    /// The fault is over: the next one is logged at once. Returns whether there was one.
    pub fn end_fault(&self) -> bool {
        let mut state = lock(&self.state);
        state.suppressed = 0;
        state.last.take().is_some()
    }
}

/// A [`LogLimit`] for each route, pacer or limit, by its name: a busy one hides no line of another. Names are those of
/// the configuration, so there are few.
#[derive(Debug)]
pub struct LogLimits {
    every: Duration,
    each: Mutex<BTreeMap<Arc<str>, LogLimit>>,
}

impl LogLimits {
    /// At most one line per `every` for each name.
    #[must_use]
    pub const fn new(every: Duration) -> Self {
        Self {
            every,
            each: Mutex::new(BTreeMap::new()),
        }
    }

    /// See [`LogLimit::event`].
    pub fn event(&self, name: &Arc<str>, now: Mono) -> Option<Suppressed> {
        let mut limits = lock(&self.each);
        if !limits.contains_key(name) {
            limits.insert(Arc::clone(name), LogLimit::new(self.every));
        }
        limits.get(name)?.event(now)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Mono {
        Mono::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn each_name_has_its_own_lines() {
        let limits = LogLimits::new(Duration::from_secs(10));
        let (busy, quiet) = (Arc::from("busy"), Arc::from("quiet"));
        assert_eq!(limits.event(&busy, at(0)), Some(Suppressed(0)));
        assert_eq!(limits.event(&busy, at(1)), None);
        assert_eq!(limits.event(&quiet, at(1)), Some(Suppressed(0)));
        assert_eq!(limits.event(&busy, at(10)), Some(Suppressed(1)));
    }

    #[test]
    fn the_first_is_logged_and_then_one_per_interval_with_the_count() {
        let limit = LogLimit::new(Duration::from_secs(10));
        assert_eq!(limit.event(at(0)), Some(Suppressed(0)));
        for second in 1..10 {
            assert_eq!(limit.event(at(second)), None);
        }
        assert_eq!(limit.event(at(10)), Some(Suppressed(9)));
        assert_eq!(limit.event(at(30)), Some(Suppressed(0)));
    }

    /// As the documentation shows it.
    #[test]
    fn one_can_be_a_static() {
        static LATE: LogLimit = LogLimit::new(Duration::from_secs(10));
        let line = LATE.event(at(0)).map(|more| format!("too late{more}"));
        assert_eq!(line.as_deref(), Some("too late"));
    }

    #[test]
    fn a_clock_that_seems_to_go_back_only_keeps_quiet() {
        let limit = LogLimit::new(Duration::from_secs(10));
        assert_eq!(limit.event(at(100)), Some(Suppressed(0)));
        assert_eq!(limit.event(at(90)), None);
        assert_eq!(limit.event(at(110)), Some(Suppressed(1)));
    }

    #[test]
    fn a_fault_that_lasts_is_repeated_rarely_and_another_one_is_logged_at_once() {
        let limit = LogLimit::new(Duration::from_secs(60));
        assert_eq!(limit.fault("gone", at(1)), Some(Suppressed(0)));
        assert_eq!(limit.fault("gone", at(30)), None);
        assert_eq!(limit.fault("refused", at(31)), Some(Suppressed(0)));
        assert_eq!(limit.fault("refused", at(60)), None);
        assert_eq!(limit.fault("refused", at(91)), Some(Suppressed(1)));
        assert!(limit.end_fault());
        assert!(!limit.end_fault());
        assert_eq!(limit.fault("refused", at(92)), Some(Suppressed(0)));
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
