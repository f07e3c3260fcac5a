//! How long to wait before trying again: exponential, with jitter, so that replicas that lost the
//! same broker do not come back in step.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);

/// Failures in a row.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The wait after one more failure: 100 ms doubling to 10 s, of which the second half is random.
    pub(super) fn next(&mut self) -> Duration {
        let full = FIRST
            .saturating_mul(1_u32 << self.failures.min(16))
            .min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        full.mul_f64(rand::random_range(0.5..=1.0))
    }

    /// It worked.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_its_bound() {
        let mut backoff = Backoff::default();
        let first = backoff.next();
        assert!(first >= FIRST / 2 && first <= FIRST);
        for _ in 0..40 {
            assert!(backoff.next() <= LONGEST);
        }
        assert!(backoff.next() >= LONGEST / 2);
        backoff.reset();
        assert!(backoff.next() <= FIRST);
    }
}
