//! How long a message waits after a failed call: exponential backoff with full jitter.
//!
//! The n-th failure waits a random time between zero and `base * 2^(n-1)`, at most `max`. Full
//! jitter spreads messages that failed together over the whole span, so that they do not come
//! back together. The random fraction is an argument: nothing here is random.

use std::time::Duration;

/// The shape of the backoff.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The longest wait after the first failure.
    pub base: Duration,
    /// The longest wait after any failure. Beats `base`.
    pub max: Duration,
}

impl Backoff {
    /// The longest wait after `failures` failed calls: `base * 2^(failures-1)`, at most `max`.
    /// No failure needs no wait.
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

    /// The wait after `failures` failed calls, for a `fraction` drawn evenly from 0 to 1. Values
    /// outside count as the nearer end; what is no number counts as 1, the longest wait.
    #[must_use]
    pub fn wait(&self, failures: u32, fraction: f64) -> Duration {
        let ceiling = self.ceiling(failures);
        let fraction = if fraction.is_nan() {
            1.0
        } else {
            fraction.clamp(0.0, 1.0)
        };
        Duration::try_from_secs_f64(ceiling.as_secs_f64() * fraction)
            .unwrap_or(ceiling)
            .min(ceiling)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BACKOFF: Backoff = Backoff {
        base: Duration::from_secs(1),
        max: Duration::from_secs(300),
    };

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
        assert_eq!(BACKOFF.wait(1, f64::NAN), Duration::from_secs(1));
        assert_eq!(BACKOFF.wait(1, f64::INFINITY), Duration::from_secs(1));
        assert_eq!(BACKOFF.wait(1, -3.0), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn never_beyond_the_ceiling(
            base in 0_u64..=u64::MAX, max in 0_u64..=u64::MAX,
            failures in any::<u32>(), fraction in any::<f64>(),
        ) {
            let backoff = Backoff { base: Duration::from_micros(base), max: Duration::from_micros(max) };
            let wait = backoff.wait(failures, fraction);
            prop_assert!(wait <= backoff.ceiling(failures));
            prop_assert!(wait <= backoff.max);
        }

        #[test]
        fn ceilings_never_shrink(base in 0_u64..10_000_000, failures in 0_u32..100) {
            let backoff = Backoff { base: Duration::from_micros(base), ..BACKOFF };
            prop_assert!(backoff.ceiling(failures) <= backoff.ceiling(failures + 1));
        }

        #[test]
        fn the_fraction_covers_the_whole_span(failures in 1_u32..20, fraction in 0.0_f64..1.0) {
            let wait = BACKOFF.wait(failures, fraction).as_secs_f64();
            let wanted = BACKOFF.ceiling(failures).as_secs_f64() * fraction;
            prop_assert!((wait - wanted).abs() < 1e-6);
        }
    }
}
