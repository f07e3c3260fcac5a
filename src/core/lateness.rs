//! How late calls leave after their slots, but for a few.
//!
//! Problem: a slot that comes up later than the headroom allows is lost, and a longer headroom costs a share of the
//! rate. So what counts is the lateness that all but one call in a thousand keep: to cover the rest would cost more
//! than it saves. The latenesses are counted in steps of a fifth; old ones fade, by half every [`FADES`].

use std::time::Duration;

use super::time::{Mono, micros};

/// The first step ends here, in microseconds, and each of the others is a fifth longer than the one before.
const FIRST: u64 = 200;
const STEPS: usize = 32;
/// After so long each counts half.
const FADES: Duration = Duration::from_secs(30);
/// One in so many may be later. The latest one of fewer calls does not count either.
const STRAYS: u64 = 1_000;
/// Fewer calls say nothing.
const FEWEST: u64 = 20;

/// The latenesses of the last calls.
#[derive(Clone, Debug, Default)]
pub struct Lateness {
    counts: [u64; STEPS],
    faded: Option<Mono>,
}

impl Lateness {
    /// So many calls left so late.
    pub fn saw(&mut self, late: Duration, calls: u64, now: Mono) {
        self.fade(now);
        let step = ends().position(|end| late <= end).unwrap_or(STEPS - 1);
        self.counts[step] = self.counts[step].saturating_add(calls);
    }

    /// So many calls did not leave, because their slots were over: they were later than this.
    pub fn missed(&mut self, late: Duration, calls: u64, now: Mono) {
        self.saw(late + late / 4, calls, now);
    }

    /// How late all but one in a thousand leave at most; `None`: too few left.
    #[must_use]
    pub fn most(&mut self, now: Mono) -> Option<Duration> {
        self.fade(now);
        let all: u64 = self.counts.iter().sum();
        if all < FEWEST {
            return None;
        }
        let mut left = (all / STRAYS).max(1);
        let steps = self.counts.iter().zip(ends());
        for (count, end) in steps.rev() {
            if *count > left {
                return Some(end);
            }
            left -= count;
        }
        None
    }

    fn fade(&mut self, now: Mono) {
        let last = *self.faded.get_or_insert(now);
        let halves = micros(now.since(last)) / micros(FADES);
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

/// Where the steps end.
fn ends() -> impl ExactSizeIterator<Item = Duration> + DoubleEndedIterator {
    // 1.2^31 = 285: the last one ends at 57 ms.
    (0..STEPS).map(|step| Duration::from_secs_f64(FIRST as f64 * 1e-6 * 1.2_f64.powi(step as i32)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Mono {
        Mono::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn one_in_a_thousand_does_not_count_and_two_do() {
        let of = |strays: u64| {
            let mut seen = Lateness::default();
            seen.saw(Duration::from_micros(300), 2_000 - strays, at(1));
            seen.saw(Duration::from_millis(20), strays, at(1));
            seen.most(at(1)).expect("many")
        };
        assert!(of(2) < Duration::from_micros(400), "{:?}", of(2));
        assert!(of(4) >= Duration::from_millis(20), "{:?}", of(4));
    }

    #[test]
    fn the_latest_of_a_few_does_not_count() {
        let mut seen = Lateness::default();
        assert_eq!(seen.most(at(1)), None);
        seen.saw(Duration::from_millis(1), 30, at(1));
        seen.saw(Duration::from_millis(50), 1, at(1));
        let most = seen.most(at(1)).expect("thirty");
        assert!(most < Duration::from_micros(1_300), "{most:?}");
    }

    #[test]
    fn slots_that_were_missed_count_as_later_than_what_was_allowed() {
        let mut seen = Lateness::default();
        seen.saw(Duration::from_micros(100), 100, at(1));
        seen.missed(Duration::from_millis(4), 5, at(1));
        assert!(seen.most(at(1)).expect("many") > Duration::from_millis(4));
    }

    #[test]
    fn what_was_long_ago_fades() {
        let mut seen = Lateness::default();
        seen.saw(Duration::from_millis(20), 8, at(1));
        seen.saw(Duration::from_micros(100), 1_000, at(200));
        assert!(seen.most(at(200)).expect("many") <= Duration::from_micros(200));
        assert_eq!(seen.most(at(10_000)), None);
    }
}
