//! How late calls leave after their slots.
//!
//! A slot that comes up later than the headroom allows is lost, and a longer headroom costs a share of the rate. The
//! lateness to allow is the one at which both together cost least.

use std::time::Duration;

use crate::time::{Mono, micros};

/// The upper bound of the first bucket of the histogram, in microseconds; each further bound is a fifth higher.
const FIRST: u64 = 200;
const BUCKETS: usize = 32;
/// After this long a recorded call counts half.
const HALF_LIFE: Duration = Duration::from_secs(30);
/// Fewer calls are not enough.
const FEWEST_CALLS: u64 = 20;
/// The first calls leave late because connections and replicas are starting, which says nothing of those that follow.
const STARTUP: Duration = Duration::from_secs(1);

/// The latenesses of the last calls.
#[derive(Clone, Debug, Default)]
pub struct Lateness {
    counts: [u64; BUCKETS],
    began: Option<Mono>,
    faded: Option<Mono>,
}

impl Lateness {
    /// A call left so late, or did not leave because it was too late. Those of the first second do not count.
    pub fn record(&mut self, late: Duration, now: Mono) {
        let began = *self.began.get_or_insert(now);
        if now.since(began) >= STARTUP {
            self.record_many(late, 1, now);
        }
    }

    fn record_many(&mut self, late: Duration, calls: u64, now: Mono) {
        self.fade(now);
        let bucket = ends().position(|end| late <= end).unwrap_or(BUCKETS - 1);
        self.counts[bucket] = self.counts[bucket].saturating_add(calls);
    }

    /// The lateness to allow in a window of this length: with a longer one, the headroom would cost more of the rate
    /// than the slots that it saves. From 0.2 ms to 57 ms, in buckets of a fifth. `None`: fewer than 20 calls; calls
    /// count half after each 30 seconds.
    #[must_use]
    pub fn allowed_lateness(&mut self, window: Duration, now: Mono) -> Option<Duration> {
        self.fade(now);
        let all: u64 = self.counts.iter().sum();
        if all < FEWEST_CALLS {
            return None;
        }
        let mut later = all;
        let losses = self.counts.iter().zip(ends()).map(|(count, end)| {
            later -= count;
            // The latest one alone may be chance.
            let lost = later.saturating_sub(1) as f64 / all as f64;
            (end, lost + end.as_secs_f64() / window.as_secs_f64())
        });
        let least = losses.min_by(|(_, one), (_, other)| one.total_cmp(other));
        least.map(|(end, _)| end)
    }

    fn fade(&mut self, now: Mono) {
        let last = *self.faded.get_or_insert(now);
        let halves = micros(now.since(last)) / micros(HALF_LIFE);
        if halves == 0 {
            return;
        }
        self.faded = Some(now);
        for count in &mut self.counts {
            *count = u32::try_from(halves)
                .ok()
                .and_then(|halves| count.checked_shr(halves))
                .unwrap_or(0);
        }
    }
}

/// Where the buckets end.
fn ends() -> impl ExactSizeIterator<Item = Duration> + DoubleEndedIterator {
    // 1.2^31 = 285: the last one ends at 57 ms.
    (0..BUCKETS)
        .map(|bucket| Duration::from_secs_f64(FIRST as f64 * 1e-6 * 1.2_f64.powi(bucket as i32)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Mono {
        Mono::from_micros(seconds * 1_000_000)
    }

    const SECOND: Duration = Duration::from_secs(1);
    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn it_allows_what_costs_less_than_the_slots_that_it_saves() {
        // One call in a hundred is 4 ms late: 0.4 % of a second, for 1 % of the slots.
        let mut seen = Lateness::default();
        assert_eq!(seen.allowed_lateness(SECOND, at(1)), None);
        seen.record_many(Duration::from_micros(300), 990, at(1));
        seen.record_many(Duration::from_millis(4), 10, at(1));
        let worth = seen.allowed_lateness(SECOND, at(1)).expect("many");
        assert!(worth >= Duration::from_millis(4), "{worth:?}");
        // One in a thousand is 20 ms late: 2 % of a second for 0.1 % of the slots, but little of a minute.
        let mut seen = Lateness::default();
        seen.record_many(Duration::from_micros(300), 9_990, at(1));
        seen.record_many(Duration::from_millis(20), 10, at(1));
        let worth = seen.allowed_lateness(SECOND, at(1)).expect("many");
        assert!(worth < Duration::from_millis(1), "{worth:?}");
        let worth = seen.allowed_lateness(MINUTE, at(1)).expect("many");
        assert!(worth >= Duration::from_millis(20), "{worth:?}");
    }

    /// A process that starts is busy, and what it does then says nothing of the next minute.
    #[test]
    fn calls_of_the_first_second_and_a_single_late_one_do_not_count() {
        let mut seen = Lateness::default();
        for n in 0..1_000 {
            seen.record(Duration::from_millis(20), Mono::from_micros(n * 999));
        }
        assert_eq!(seen.allowed_lateness(SECOND, at(1)), None);
        for n in 0..99 {
            seen.record(Duration::from_micros(300), at(1) + Duration::from_millis(n));
        }
        seen.record(Duration::from_millis(20), at(2));
        let worth = seen.allowed_lateness(SECOND, at(2)).expect("many");
        assert!(worth < Duration::from_millis(1), "{worth:?}");
        for _ in 0..9 {
            seen.record(Duration::from_millis(20), at(2));
        }
        let worth = seen.allowed_lateness(SECOND, at(2)).expect("many");
        assert!(worth >= Duration::from_millis(20), "{worth:?}");
    }

    #[test]
    fn what_was_long_ago_fades() {
        let mut seen = Lateness::default();
        seen.record_many(Duration::from_millis(20), 8, at(1));
        seen.record_many(Duration::from_micros(100), 1_000, at(200));
        assert!(
            seen.allowed_lateness(SECOND, at(200)).expect("many") <= Duration::from_micros(200)
        );
        assert_eq!(seen.allowed_lateness(SECOND, at(10_000)), None);
    }
}
