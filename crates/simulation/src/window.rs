//! Judges by the times of arrival whether calls kept a rate.
//!
//! Problem: a fixed window can let twice the limit through at its edge. So the judge looks at every
//! half-open sliding window `[t, t + W)`. A window is fullest when it begins at a call, so only the
//! windows that begin at a call matter. [`Tally`] does that as calls come, in constant time for
//! each; the provider that judges `sluiced demo` and the fleet tests uses it.

use std::collections::VecDeque;
use std::time::Duration;

use sluiced_core::rate::Rate;
use sluiced_core::time::{Mono, micros};

/// Judges calls one after the other. Remembers only the calls of the last window.
#[derive(Clone, Debug)]
pub struct Tally {
    limit: u64,
    window: Duration,
    /// Arrivals with their units.
    recent: VecDeque<(Mono, u32)>,
    /// The units of all of `recent`.
    filled: u64,
    calls: u64,
    units: u64,
    worst: u64,
    over: u64,
    first: Mono,
    last: Mono,
}

/// The counts of a run of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// All calls.
    pub calls: u64,
    /// The calls' units; one for each call, unless the call gave another number.
    pub units: u64,
    /// The most units in any half-open window.
    pub worst: u64,
    /// Calls that came too early: each of these and the `N`th before it are less than a window
    /// apart.
    pub over: u64,
    /// The first and the last arrival; `None` without calls.
    pub span: Option<(Mono, Mono)>,
    limit: u64,
    window: Duration,
}

impl Tally {
    /// Nothing has arrived yet.
    #[must_use]
    pub fn new(rate: Rate) -> Self {
        Self {
            limit: u64::from(rate.units().get()),
            window: rate.window(),
            recent: VecDeque::new(),
            filled: 0,
            calls: 0,
            units: 0,
            worst: 0,
            over: 0,
            first: Mono::default(),
            last: Mono::default(),
        }
    }

    /// Counts a call of one unit. Arrivals must not go back in time; one that does counts as now.
    pub fn record(&mut self, at: Mono) {
        self.record_units(at, 1);
    }

    /// Counts a call that takes `units` of the limit.
    pub fn record_units(&mut self, at: Mono, units: u32) {
        let at = at.max(self.last);
        self.expire(at);
        if self.calls == 0 {
            self.first = at;
        }
        self.recent.push_back((at, units));
        self.filled += u64::from(units);
        self.calls += 1;
        self.units += u64::from(units);
        self.last = at;
        self.worst = self.worst.max(self.filled);
        // More than `limit` in the window that ends with this call: it came too early.
        self.over += u64::from(self.filled > self.limit);
    }

    /// How long a call at `at` must wait so as not to be over; zero if it may come.
    #[must_use]
    pub fn wait(&self, at: Mono) -> Duration {
        self.wait_for(at, 1)
    }

    /// How long after `at` a call of this many units would fit.
    #[must_use]
    pub fn wait_for(&self, at: Mono, units: u32) -> Duration {
        let mut filled = self.filled;
        let mut wait = Duration::ZERO;
        let most = self.limit.saturating_sub(u64::from(units.max(1) - 1));
        for (oldest, units) in &self.recent {
            if filled < most {
                break;
            }
            filled -= u64::from(*units);
            wait = (*oldest + self.window).since(at);
        }
        wait
    }

    /// The counts so far.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage {
            calls: self.calls,
            units: self.units,
            worst: self.worst,
            over: self.over,
            span: (self.calls > 0).then_some((self.first, self.last)),
            limit: self.limit,
            window: self.window,
        }
    }

    fn expire(&mut self, at: Mono) {
        while let Some((oldest, units)) = self.recent.front()
            && at.since(*oldest) >= self.window
        {
            self.filled -= u64::from(*units);
            self.recent.pop_front();
        }
    }
}

impl Usage {
    /// From the first arrival to the last.
    #[must_use]
    pub fn duration(&self) -> Duration {
        self.span
            .map_or(Duration::ZERO, |(first, last)| last.since(first))
    }

    /// The share of the limit in use between the first call and the last: `n` units make `n - 1`
    /// steps, and at the limit each takes `W / N`. `None` for fewer than two points in time.
    #[must_use]
    pub fn used(&self) -> Option<f64> {
        self.share(self.units.saturating_sub(1), self.duration())
    }

    #[allow(
        clippy::cast_precision_loss,
        reason = "call counts and microseconds stay far below 2^53"
    )]
    fn share(&self, steps: u64, span: Duration) -> Option<f64> {
        let window = micros(self.window) as f64;
        (!span.is_zero()).then(|| steps as f64 * window / (micros(span) as f64 * self.limit as f64))
    }
}

/// The distances of neighbouring arrivals, shortest first.
#[must_use]
pub fn gaps(arrivals: &[Mono]) -> Vec<Duration> {
    let mut gaps: Vec<Duration> = arrivals
        .windows(2)
        .map(|pair| pair[1].since(pair[0]))
        .collect();
    gaps.sort_unstable();
    gaps
}

/// The value at a percentile (0 to 100, nearest rank) of sorted values; `None` without values.
#[must_use]
pub fn percentile<T: Copy>(sorted: &[T], percent: u8) -> Option<T> {
    let rank = (sorted.len() * usize::from(percent.min(100))).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rate(text: &str) -> Rate {
        text.parse().expect(text)
    }

    /// Judges arrivals that are sorted by time.
    fn judge(arrivals: &[Mono], rate: Rate) -> Usage {
        let mut tally = Tally::new(rate);
        for at in arrivals {
            tally.record(*at);
        }
        tally.usage()
    }

    fn at(micros: impl IntoIterator<Item = u64>) -> Vec<Mono> {
        micros.into_iter().map(Mono::from_micros).collect()
    }

    #[test]
    fn calls_a_limit_apart_are_never_over() {
        let arrivals = at((0..2_000).map(|i| 7 + i * 2_500));
        let usage = judge(&arrivals, rate("400/1s"));
        assert_eq!((usage.calls, usage.worst, usage.over), (2_000, 400, 0));
        let used = usage.used().expect("two points");
        assert!((used - 1.0).abs() < 1e-12, "{used}");
    }

    #[test]
    fn one_microsecond_too_early_is_over() {
        let rate = rate("2/1s");
        assert_eq!(judge(&at([0, 5, 1_000_000]), rate).over, 0);
        let usage = judge(&at([0, 5, 999_999]), rate);
        assert_eq!((usage.worst, usage.over), (3, 1));
    }

    #[test]
    fn twice_the_limit_at_the_edge_of_a_fixed_window_is_seen() {
        let burst = (999_000..999_400).chain(1_000_000..1_000_400);
        let usage = judge(&at(burst), rate("400/1s"));
        assert_eq!((usage.worst, usage.over), (800, 400));
    }

    #[test]
    fn idle_time_before_the_first_call_does_not_count() {
        let usage = judge(&at([500_000, 1_000_000]), rate("2/1s"));
        assert_eq!(usage.used(), Some(1.0));
    }

    #[test]
    fn no_calls_and_one_call_are_no_division_by_zero() {
        let none = judge(&[], rate("1/1s"));
        assert_eq!((none.calls, none.used(), none.span), (0, None, None));
        let one = judge(&at([9]), rate("1/1s"));
        assert_eq!((one.worst, one.over, one.used()), (1, 0, None));
        assert_eq!(percentile::<u64>(&[], 50), None);
    }

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let values: Vec<u64> = (1..=100).collect();
        assert_eq!(percentile(&values, 0), Some(1));
        assert_eq!(percentile(&values, 50), Some(50));
        assert_eq!(percentile(&values, 99), Some(99));
        assert_eq!(percentile(&values, 100), Some(100));
        assert_eq!(percentile(&[3], 99), Some(3));
    }

    /// The definition, literally: every window that begins at a call, every run of N + 1 calls.
    fn by_definition(arrivals: &[Mono], limit: usize, window: Duration) -> (u64, u64) {
        let worst = arrivals
            .iter()
            .map(|from| {
                arrivals
                    .iter()
                    .filter(|call| **call >= *from && call.since(*from) < window)
                    .count()
            })
            .max()
            .unwrap_or(0);
        let over = (limit..arrivals.len())
            .filter(|last| arrivals[*last].since(arrivals[*last - limit]) < window)
            .count();
        (worst as u64, over as u64)
    }

    proptest! {
        #[test]
        fn the_tally_agrees_with_the_definition(
            steps in prop::collection::vec(0_u64..700, 0..200),
            limit in 1_u32..12,
        ) {
            let arrivals: Vec<Mono> = steps
                .iter()
                .scan(0, |now, step| { *now += step; Some(Mono::from_micros(*now)) })
                .collect();
            let rate = rate(&format!("{limit}/2ms"));
            let usage = judge(&arrivals, rate);
            let (worst, over) = by_definition(&arrivals, limit as usize, rate.window());
            prop_assert_eq!((usage.worst, usage.over), (worst, over));
            prop_assert_eq!(over > 0, worst > u64::from(limit));
        }

        #[test]
        fn a_caller_that_waits_as_told_is_never_over_nor_longer_than_needed(
            steps in prop::collection::vec(0_u64..300, 1..200),
            limit in 1_u32..8,
        ) {
            let mut tally = Tally::new(rate(&format!("{limit}/1ms")));
            let mut now = Mono::default();
            for step in steps {
                now = now + Duration::from_micros(step);
                let wait = tally.wait(now);
                if !wait.is_zero() {
                    let mut early = tally.clone();
                    early.record(now + wait - Duration::from_micros(1));
                    prop_assert_eq!(early.usage().over, 1);
                }
                now = now + wait;
                tally.record(now);
            }
            prop_assert_eq!(tally.usage().over, 0);
        }
    }
}
