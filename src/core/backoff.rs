//! How long to wait after a failure before the next attempt: exponential, with jitter.
//!
//! Problem: messages that failed together must not come back together, and neither must replicas
//! that lost the same server. So the wait doubles with each failure in a row, up to a bound, and a
//! part of it is random. The random fraction is an argument: nothing here is random.
//!
//! [`Backoff`] is the shape of the waits and serves everything that is tried again: calls,
//! connections, questions to the store. [`Failures`] keeps the count for something that fails in a
//! row, and says when to try again.

use std::time::Duration;

use super::time::Mono;

/// The shape of the waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The longest wait after the first failure.
    pub base: Duration,
    /// The longest wait after any failure. Beats `base`.
    pub max: Duration,
}

impl Backoff {
    /// Waits that begin with `base` and double up to `max`.
    #[must_use]
    pub const fn new(base: Duration, max: Duration) -> Self {
        Self { base, max }
    }

    /// The longest wait after `failures` in a row: `base * 2^(failures-1)`, at most `max`. No
    /// failure needs no wait.
    #[must_use]
    pub fn ceiling(&self, failures: u32) -> Duration {
        let Some(doublings) = failures.checked_sub(1) else {
            return Duration::ZERO;
        };
        2_u32
            .checked_pow(doublings)
            .and_then(|factor| self.base.checked_mul(factor))
            // What does not fit is beyond any `max`, unless there is nothing to double.
            .unwrap_or(if self.base.is_zero() {
                Duration::ZERO
            } else {
                Duration::MAX
            })
            .min(self.max)
    }

    /// A wait between zero and the ceiling, for a `fraction` drawn evenly from 0 to 1. For messages:
    /// it spreads those that failed together over the whole span. A fraction outside counts as the
    /// nearer end; what is no number counts as 1, the longest wait.
    #[must_use]
    pub fn full_jitter(&self, failures: u32, fraction: f64) -> Duration {
        part(self.ceiling(failures), fraction)
    }

    /// A wait in the upper half of what is possible, for a `fraction` as above. For connections and
    /// stores: a server that is down is not asked again at once.
    #[must_use]
    pub fn half_jitter(&self, failures: u32, fraction: f64) -> Duration {
        let half = self.ceiling(failures) / 2;
        half + part(half, fraction)
    }
}

/// A fraction of a wait.
fn part(whole: Duration, fraction: f64) -> Duration {
    let fraction = if fraction.is_nan() {
        1.0
    } else {
        fraction.clamp(0.0, 1.0)
    };
    Duration::try_from_secs_f64(whole.as_secs_f64() * fraction)
        .unwrap_or(whole)
        .min(whole)
}

/// Failures in a row of something that is tried again.
#[derive(Clone, Copy, Debug)]
pub struct Failures {
    backoff: Backoff,
    count: u32,
    since: Option<Mono>,
    retry_at: Mono,
}

impl Failures {
    /// None so far.
    #[must_use]
    pub const fn new(backoff: Backoff) -> Self {
        Self {
            backoff,
            count: 0,
            since: None,
            retry_at: Mono::from_micros(0),
        }
    }

    /// One more failure. The next attempt waits, with half jitter.
    pub fn failed(&mut self, now: Mono, fraction: f64) {
        self.count = self.count.saturating_add(1);
        self.since = self.since.or(Some(now));
        self.retry_at = now + self.backoff.half_jitter(self.count, fraction);
    }

    /// It worked.
    pub fn succeeded(&mut self) {
        *self = Self::new(self.backoff);
    }

    /// What made it fail may be over: no wait beyond this time.
    pub fn retry_at_latest(&mut self, at: Mono) {
        self.retry_at = self.retry_at.min(at);
    }

    /// When the first of the failures was; `None` if it worked last time.
    #[must_use]
    pub const fn since(&self) -> Option<Mono> {
        self.since
    }

    /// When to try again; any time if it worked last time.
    #[must_use]
    pub const fn retry_at(&self) -> Mono {
        self.retry_at
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));

    #[test]
    fn doubles_up_to_the_maximum() {
        let secs: Vec<u64> = (0..12).map(|n| BACKOFF.ceiling(n).as_secs()).collect();
        assert_eq!(secs, [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        assert_eq!(BACKOFF.ceiling(u32::MAX), Duration::from_secs(300));
    }

    #[test]
    fn a_maximum_below_the_base_wins_and_no_base_means_no_wait() {
        let short = Backoff {
            max: Duration::from_millis(10),
            ..BACKOFF
        };
        assert_eq!(short.ceiling(1), Duration::from_millis(10));
        let none = Backoff {
            base: Duration::ZERO,
            ..BACKOFF
        };
        assert_eq!(none.ceiling(100), Duration::ZERO);
    }

    #[test]
    fn odd_fractions_stay_in_bounds() {
        assert_eq!(BACKOFF.full_jitter(1, f64::NAN), Duration::from_secs(1));
        assert_eq!(
            BACKOFF.full_jitter(1, f64::INFINITY),
            Duration::from_secs(1)
        );
        assert_eq!(BACKOFF.full_jitter(1, -3.0), Duration::ZERO);
    }

    #[test]
    fn failures_in_a_row_are_counted_until_it_works() {
        let at = |seconds: u64| Mono::from_micros(seconds * 1_000_000);
        let mut failures = Failures::new(BACKOFF);
        assert_eq!((failures.since(), failures.retry_at()), (None, at(0)));
        failures.failed(at(10), 0.0);
        failures.failed(at(20), 1.0);
        assert_eq!(
            (failures.since(), failures.retry_at()),
            (Some(at(10)), at(22))
        );
        failures.succeeded();
        assert_eq!((failures.since(), failures.retry_at()), (None, at(0)));
        failures.failed(at(30), 1.0);
        assert_eq!(
            (failures.since(), failures.retry_at()),
            (Some(at(30)), at(31))
        );
    }

    proptest! {
        #[test]
        fn never_beyond_the_ceiling(
            base in 0_u64..=u64::MAX, max in 0_u64..=u64::MAX,
            failures in any::<u32>(), fraction in any::<f64>(),
        ) {
            let backoff = Backoff::new(Duration::from_micros(base), Duration::from_micros(max));
            let wait = backoff.full_jitter(failures, fraction);
            prop_assert!(wait <= backoff.ceiling(failures));
            prop_assert!(wait <= backoff.max);
            let wait = backoff.half_jitter(failures, fraction);
            prop_assert!(wait <= backoff.ceiling(failures));
            prop_assert!(wait >= backoff.ceiling(failures) / 2);
        }

        #[test]
        fn ceilings_never_shrink(base in 0_u64..10_000_000, failures in 0_u32..100) {
            let backoff = Backoff { base: Duration::from_micros(base), ..BACKOFF };
            prop_assert!(backoff.ceiling(failures) <= backoff.ceiling(failures + 1));
        }

        #[test]
        fn the_fraction_covers_the_whole_span(failures in 1_u32..20, fraction in 0.0_f64..1.0) {
            let wait = BACKOFF.full_jitter(failures, fraction).as_secs_f64();
            let wanted = BACKOFF.ceiling(failures).as_secs_f64() * fraction;
            prop_assert!((wait - wanted).abs() < 1e-6);
        }
    }
}
