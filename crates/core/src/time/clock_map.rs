//! The mapping of the store's clock to the local one.
//!
//! [`ClockMap`] notices when the store's clock steps. Slots are points on the store's clock, but a thread can only wait
//! on its own clock. Each round trip bounds the offset between the two: the store read its clock at some time between
//! sending and receiving. The bounds of several round trips are intersected, so the fastest ones count most, and are
//! widened as time passes, because clocks drift. An answer whose bounds do not overlap with the known ones shows that a
//! clock stepped.

use std::time::Duration;

use super::{Mono, StoreTime, micros};

/// How far two undisciplined clocks may drift apart: 200 µs a second. Quartz is within 100 ppm and
/// NTP slews at up to 500 ppm only for moments.
const DRIFT_PER_SECOND: u64 = 200;
/// Bounds that miss each other by less than this are drift or rounding, not a step.
const STEP_MIN: u64 = 1_000;

/// What an answer showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockReading {
    /// The first one.
    First,
    /// The answer fits the known bounds.
    Agrees,
    /// The store's clock is not where it should be, even allowing for the whole round trip. The
    /// mapping stays as it was.
    Stepped,
}

/// In which direction the store's clock stepped; the worse one is the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// The clock shows less than it should.
    Back,
    /// The clock shows more than it should.
    Forward,
}

/// A step of the store's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockStep {
    /// Whether the clock went back or forward.
    pub direction: Direction,
    /// By how much, judged when the answer came: wrong by up to a round trip and the error of the mapping.
    pub by: Duration,
}

/// The mapping. Starts empty.
#[derive(Clone, Debug, Default)]
pub struct ClockMap {
    known: Option<OffsetBounds>,
}

#[derive(Clone, Copy, Debug)]
struct OffsetBounds {
    /// Store time minus local time lies in `low..=high`, as of `at`.
    low: i64,
    high: i64,
    at: Mono,
    /// From when on a step would have shown: the first answer, or a later one that narrowed bounds
    /// too wide to be of use by more than half (a step could have hidden in them).
    since: Mono,
    /// How many answers it rests on.
    readings: u32,
}

impl OffsetBounds {
    /// The bounds as they are at `now`, widened by drift.
    fn bounds(&self, now: Mono) -> (i64, i64) {
        let age = micros(now.since(self.at));
        let drift = signed(age.saturating_mul(DRIFT_PER_SECOND) / 1_000_000);
        (
            self.low.saturating_sub(drift),
            self.high.saturating_add(drift),
        )
    }

    const fn middle(&self) -> i64 {
        self.low.midpoint(self.high)
    }
}

impl ClockMap {
    /// Takes in a round trip: sent and received on the local clock, `store` from the answer. A
    /// mapping that is wrong by no more than `fine` is not improved any further.
    pub fn learn(
        &mut self,
        sent: Mono,
        store: StoreTime,
        received: Mono,
        fine: Duration,
    ) -> ClockReading {
        let low = signed(store.as_micros()) - signed(received.as_micros());
        let high = signed(store.as_micros()) - signed(sent.as_micros());
        let fresh = OffsetBounds {
            low,
            high,
            at: received,
            since: received,
            readings: 1,
        };
        let Some(earlier) = self.known else {
            self.known = Some(fresh);
            return ClockReading::First;
        };
        let (known_low, known_high) = earlier.bounds(received);
        let apart = (low - known_high).max(known_low - high);
        if apart > signed(STEP_MIN) {
            return ClockReading::Stepped;
        }
        let (low, high) = if apart > 0 {
            (low, high)
        } else {
            (low.max(known_low), high.min(known_high))
        };
        // Without the drift since.
        let width = earlier.high - earlier.low;
        let narrowed = width > 2 * (high - low).max(signed(micros(fine)));
        self.known = Some(OffsetBounds {
            low,
            high,
            at: received,
            since: if narrowed { received } else { earlier.since },
            readings: earlier.readings.saturating_add(1),
        });
        ClockReading::Agrees
    }

    /// As [`ClockMap::learn`], but after a step the mapping starts again: times by the old one would be wrong
    /// by the step. Returns the step; `None`: the answer fits the mapping, or is the first.
    pub fn learn_or_restart(
        &mut self,
        sent: Mono,
        store: StoreTime,
        received: Mono,
        fine: Duration,
    ) -> Option<ClockStep> {
        let expected = self.to_store(received).unwrap_or_default();
        if self.learn(sent, store, received, fine) != ClockReading::Stepped {
            return None;
        }
        *self = Self::default();
        self.learn(sent, store, received, fine);
        Some(if store < expected {
            ClockStep {
                direction: Direction::Back,
                by: expected.since(store),
            }
        } else {
            ClockStep {
                direction: Direction::Forward,
                by: store.since(expected),
            }
        })
    }

    /// Whether there is a mapping at all: there is none before the first answer.
    #[must_use]
    pub const fn is_known(&self) -> bool {
        self.known.is_some()
    }

    /// Whether the mapping has held for `length`: only then would a step have been noticed.
    #[must_use]
    pub fn held_for(&self, length: Duration, now: Mono) -> bool {
        self.known
            .is_some_and(|bounds| now.since(bounds.since) >= length)
    }

    /// From when on [`ClockMap::held_for`] holds; the clock's zero if nothing is known.
    #[must_use]
    pub fn trusted_from(&self, length: Duration) -> Mono {
        self.known
            .map_or(Mono::default(), |bounds| bounds.since + length)
    }

    /// How many answers the mapping rests on.
    #[must_use]
    pub fn readings(&self) -> u32 {
        self.known.map_or(0, |bounds| bounds.readings)
    }

    /// When the mapping was last checked against the store; `None`: no answer yet.
    #[must_use]
    pub fn checked_at(&self) -> Option<Mono> {
        self.known.map(|bounds| bounds.at)
    }

    /// The store's time at a local time; `None`: no answer yet.
    #[must_use]
    pub fn to_store(&self, at: Mono) -> Option<StoreTime> {
        let offset = self.known?.middle();
        let micros = signed(at.as_micros()).saturating_add(offset).max(0);
        Some(StoreTime::from_micros(micros.unsigned_abs()))
    }

    /// The local time at a time of the store; zero for what lies before the local clock's zero. `None`: no answer yet.
    #[must_use]
    pub fn to_mono(&self, at: StoreTime) -> Option<Mono> {
        let offset = self.known?.middle();
        let micros = signed(at.as_micros()).saturating_sub(offset).max(0);
        Some(Mono::from_micros(micros.unsigned_abs()))
    }

    /// The most that the mapping can be wrong at `now`, in either direction; `None`: no answer yet.
    #[must_use]
    pub fn error(&self, now: Mono) -> Option<Duration> {
        let (low, high) = self.known?.bounds(now);
        Some(Duration::from_micros(
            (high - low).unsigned_abs().div_ceil(2),
        ))
    }
}

/// Both clocks stay far below 2^63 µs (292,000 years).
fn signed(micros: u64) -> i64 {
    i64::try_from(micros).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOCH: u64 = 1_700_000_000_000_000;
    const FINE: Duration = Duration::from_millis(1);

    fn mono(us: u64) -> Mono {
        Mono::from_micros(us)
    }

    fn store(us: u64) -> StoreTime {
        StoreTime::from_micros(EPOCH + us)
    }

    #[test]
    fn the_error_is_at_most_half_of_the_best_round_trip() {
        let mut map = ClockMap::default();
        // The truth: store = local + EPOCH. A slow, lopsided round trip first.
        assert_eq!(
            map.learn(mono(1_000), store(1_100), mono(5_000), FINE),
            ClockReading::First
        );
        assert_eq!(map.error(mono(5_000)), Some(Duration::from_micros(2_000)));
        // A quick one narrows it, a slow one after that does not widen it.
        assert_eq!(
            map.learn(mono(6_000), store(6_050), mono(6_200), FINE),
            ClockReading::Agrees
        );
        assert!(map.error(mono(6_200)) <= Some(Duration::from_micros(101)));
        map.learn(mono(7_000), store(7_900), mono(9_000), FINE);
        assert!(map.error(mono(9_000)) <= Some(Duration::from_micros(102)));
        let mapped = map.to_mono(store(20_000)).expect("known");
        assert!(mapped.as_micros().abs_diff(20_000) <= 102, "{mapped:?}");
    }

    #[test]
    fn a_step_shows_even_when_it_is_smaller_than_a_slow_round_trip_would_hide() {
        for by in [-3_000_i64, 3_000] {
            let mut map = ClockMap::default();
            map.learn(mono(1_000), store(1_050), mono(1_100), FINE);
            let stepped = StoreTime::from_micros((EPOCH + 2_050).saturating_add_signed(by));
            assert_eq!(
                map.learn(mono(2_000), stepped, mono(2_100), FINE),
                ClockReading::Stepped
            );
            // A replica that saw the step knows its size from the old mapping.
            assert_eq!(map.to_store(mono(2_050)), Some(store(2_050)));
        }
    }

    #[test]
    fn bounds_that_a_step_could_hide_in_do_not_count_as_held() {
        let mut map = ClockMap::default();
        map.learn(mono(0), store(100_000), mono(200_000), FINE);
        // 60 ms later than before: within the first bounds.
        map.learn(mono(300_000), store(360_100), mono(300_200), FINE);
        assert_eq!(map.trusted_from(FINE), mono(300_200) + FINE);
        map.learn(mono(400_000), store(460_040), mono(400_080), FINE);
        assert_eq!(map.trusted_from(FINE), mono(300_200) + FINE, "fine already");
    }

    #[test]
    fn drift_within_the_allowance_is_no_step() {
        let mut map = ClockMap::default();
        for second in 0..100_u64 {
            let at = second * 1_000_000;
            // 100 ppm fast.
            let reading = map.learn(
                mono(at),
                store(at + 50 + second * 100),
                mono(at + 100),
                FINE,
            );
            assert_ne!(reading, ClockReading::Stepped, "second {second}");
        }
        let mapped = map.to_store(mono(99_000_050)).expect("known");
        assert!(mapped.as_micros().abs_diff(EPOCH + 99_000_050 + 9_900) <= 150);
    }
}
