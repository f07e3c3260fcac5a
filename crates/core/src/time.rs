//! The two clocks: shared time, which is the clock of the store that all replicas ask (Redis `TIME`), and the local
//! monotonic clock, on which this process waits. They must never be mixed, so each has a type of its own. Wall clocks of
//! replicas are never compared.
//!
//! [`ClockMap`] maps the store's clock to the local one, and notices when the store's clock steps. Slots are
//! points on the store's clock, but a thread can only wait on its own clock. Each round trip bounds the
//! offset between the two: the store read its clock at some time between sending and receiving. The bounds of
//! several round trips are intersected, so the fastest ones count most, and are widened as time passes,
//! because clocks drift. An answer whose bounds do not overlap with the known ones shows that a clock
//! stepped.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

use jiff::Timestamp;

/// A point on the clock of the shared store, in microseconds since the Unix epoch.
///
/// It stays below 2^53, so that a Lua number (a double) holds it exactly.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct StoreTime(u64);

/// A point on the local monotonic clock, in microseconds since an arbitrary start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mono(u64);

impl Mono {
    /// A time that never comes.
    pub const NEVER: Self = Self(u64::MAX);
}

macro_rules! time_point {
    ($name:ident, $label:literal) => {
        impl $name {
            /// The point `micros` microseconds after the clock's zero.
            #[must_use]
            pub const fn from_micros(micros: u64) -> Self {
                Self(micros)
            }

            /// Microseconds since the clock's zero.
            #[must_use]
            pub const fn as_micros(self) -> u64 {
                self.0
            }

            /// How long after `earlier` this point lies; zero if it does not.
            #[must_use]
            pub const fn since(self, earlier: Self) -> Duration {
                Duration::from_micros(self.0.saturating_sub(earlier.0))
            }
        }

        impl Add<Duration> for $name {
            type Output = Self;

            /// Saturates instead of wrapping: "never" stays never.
            fn add(self, by: Duration) -> Self {
                Self(self.0.saturating_add(micros(by)))
            }
        }

        impl Sub<Duration> for $name {
            type Output = Self;

            /// Saturates at the clock's zero.
            fn sub(self, by: Duration) -> Self {
                Self(self.0.saturating_sub(micros(by)))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($label, "({}us)"), self.0)
            }
        }
    };
}

/// RFC 3339 in UTC, as exact as it is; `{:.0}` is in whole seconds.
impl fmt::Display for StoreTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = i64::try_from(self.0).ok();
        let at = at.and_then(|micros| Timestamp::from_microsecond(micros).ok());
        // What has no end stays beyond every year that is used.
        at.unwrap_or(Timestamp::MAX).fmt(f)
    }
}

time_point!(StoreTime, "store");
time_point!(Mono, "mono");

/// One moment, on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    pub local: Mono,
    pub store: StoreTime,
}

/// A duration in whole microseconds, saturating.
#[must_use]
pub const fn micros(duration: Duration) -> u64 {
    let micros = duration.as_micros();
    if micros > u64::MAX as u128 {
        u64::MAX
    } else {
        micros as u64
    }
}

/// How far two undisciplined clocks may drift apart: 200 µs a second. Quartz is within 100 ppm and
/// NTP slews at up to 500 ppm only for moments.
const DRIFT_PER_SECOND: u64 = 200;
/// Bounds that miss each other by less than this are drift or rounding, not a step.
const STEP_MIN: u64 = 1_000;

/// What an answer showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// The first one.
    First,
    /// It fits the known bounds.
    Agrees,
    /// The store's clock is not where it should be, even allowing for the whole round trip. The
    /// mapping stays as it was.
    Stepped,
}

/// In which direction the store's clock stepped; the worse one is the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    Back,
    Forward,
}

/// A step of the store's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockStep {
    pub way: Direction,
    pub by: Duration,
}

/// The mean round trip after another one took `trip`: it moves by an eighth of the difference, and an
/// outlier counts as at most four times the mean. Zero: there was none yet.
#[must_use]
pub(crate) fn smoothed(mean: Duration, trip: Duration) -> Duration {
    if mean.is_zero() {
        return trip;
    }
    let (old, new) = (micros(mean), micros(trip));
    Duration::from_micros((old * 7 + new.min(old * 4)) / 8)
}

/// The mapping. Starts empty.
#[derive(Clone, Debug, Default)]
pub struct ClockMap {
    known: Option<Known>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
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

impl Known {
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
    ) -> Reading {
        let low = signed(store.as_micros()) - signed(received.as_micros());
        let high = signed(store.as_micros()) - signed(sent.as_micros());
        let fresh = Known {
            low,
            high,
            at: received,
            since: received,
            readings: 1,
        };
        let Some(known) = self.known else {
            self.known = Some(fresh);
            return Reading::First;
        };
        let (known_low, known_high) = known.bounds(received);
        let apart = (low - known_high).max(known_low - high);
        if apart > signed(STEP_MIN) {
            return Reading::Stepped;
        }
        let (low, high) = if apart > 0 {
            (low, high)
        } else {
            (low.max(known_low), high.min(known_high))
        };
        // Without the drift since.
        let width = known.high - known.low;
        let narrowed = width > 2 * (high - low).max(signed(micros(fine)));
        self.known = Some(Known {
            low,
            high,
            at: received,
            since: if narrowed { received } else { known.since },
            readings: known.readings.saturating_add(1),
        });
        Reading::Agrees
    }

    /// As [`ClockMap::learn`], but after a step the mapping starts again: times by the old one would be wrong
    /// by the step. Returns the step.
    pub fn follow(
        &mut self,
        sent: Mono,
        store: StoreTime,
        received: Mono,
        fine: Duration,
    ) -> Option<ClockStep> {
        let expected = self.to_store(received).unwrap_or_default();
        if self.learn(sent, store, received, fine) != Reading::Stepped {
            return None;
        }
        *self = Self::default();
        self.learn(sent, store, received, fine);
        Some(if store < expected {
            ClockStep {
                way: Direction::Back,
                by: expected.since(store),
            }
        } else {
            ClockStep {
                way: Direction::Forward,
                by: store.since(expected),
            }
        })
    }

    /// Whether there is a mapping at all.
    #[must_use]
    pub const fn is_known(&self) -> bool {
        self.known.is_some()
    }

    /// Whether the mapping has held for `length`: only then would a step have been noticed.
    #[must_use]
    pub fn held_for(&self, length: Duration, now: Mono) -> bool {
        self.known
            .is_some_and(|known| now.since(known.since) >= length)
    }

    /// From when on [`ClockMap::held_for`] holds; the clock's zero if nothing is known.
    #[must_use]
    pub fn trusted_from(&self, length: Duration) -> Mono {
        self.known
            .map_or(Mono::default(), |known| known.since + length)
    }

    /// How many answers the mapping rests on.
    #[must_use]
    pub fn readings(&self) -> u32 {
        self.known.map_or(0, |known| known.readings)
    }

    /// When the mapping was last checked against the store.
    #[must_use]
    pub fn checked_at(&self) -> Option<Mono> {
        self.known.map(|known| known.at)
    }

    /// The store's time at a local time.
    #[must_use]
    pub fn to_store(&self, at: Mono) -> Option<StoreTime> {
        let offset = self.known?.middle();
        let micros = signed(at.as_micros()).saturating_add(offset).max(0);
        Some(StoreTime::from_micros(micros.unsigned_abs()))
    }

    /// The local time at a time of the store; zero for what lies before the local clock's zero.
    #[must_use]
    pub fn to_mono(&self, at: StoreTime) -> Option<Mono> {
        let offset = self.known?.middle();
        let micros = signed(at.as_micros()).saturating_sub(offset).max(0);
        Some(Mono::from_micros(micros.unsigned_abs()))
    }

    /// The most that the mapping can be wrong at `now`, in either direction.
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
mod tests;
