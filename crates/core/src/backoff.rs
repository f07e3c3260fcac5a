//! How long to wait before the next attempt.
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
    /// The longest wait after any failure. Takes precedence over `base`.
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
            // A wait that does not fit is beyond any `max`, unless there is nothing to double.
            .unwrap_or(if self.base.is_zero() {
                Duration::ZERO
            } else {
                Duration::MAX
            })
            .min(self.max)
    }

    /// A wait between zero and the ceiling, for a `fraction` drawn evenly from 0 to 1. For messages:
    /// it spreads those that failed together over the whole span. A fraction outside that range
    /// counts as the nearer end; one that is no number counts as 1, the longest wait.
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

    /// One more failure. Returns how long the next attempt waits, with half jitter.
    pub fn failed(&mut self, now: Mono, fraction: f64) -> Duration {
        self.count = self.count.saturating_add(1);
        self.since = self.since.or(Some(now));
        let wait = self.backoff.half_jitter(self.count, fraction);
        self.retry_at = now + wait;
        wait
    }

    /// An attempt succeeded.
    pub fn succeeded(&mut self) {
        *self = Self::new(self.backoff);
    }

    /// The cause of the failure may be over: no wait beyond this time.
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
mod tests;
