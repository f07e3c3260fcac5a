//! The two clocks: shared time, which is the clock of the store that all replicas ask (Redis `TIME`), and the local
//! monotonic clock, on which this process waits. They must never be mixed, so each has a type of its own. Wall clocks
//! of replicas are never compared.
//!
//! [`ClockMap`] maps the store's clock to the local one, and notices when the store's clock steps.

mod clock_map;

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

use jiff::Timestamp;

pub use clock_map::{ClockMap, ClockReading, ClockStep, Direction};

/// A point on the clock of the shared store, in microseconds since the Unix epoch.
///
/// A time that a store keeps is below 2^53, so that a Lua number (a double) holds it exactly.
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

impl StoreTime {
    /// As a point of the calendar. What has no end is the last one there is, beyond every year that is used.
    #[must_use]
    pub fn timestamp(self) -> Timestamp {
        let micros = i64::try_from(self.0).ok();
        micros
            .and_then(|micros| Timestamp::from_microsecond(micros).ok())
            .unwrap_or(Timestamp::MAX)
    }
}

/// RFC 3339 in UTC, as exact as it is; `{:.0}` is in whole seconds.
impl fmt::Display for StoreTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.timestamp().fmt(f)
    }
}

time_point!(StoreTime, "store");
time_point!(Mono, "mono");

/// One moment, on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// On the local clock.
    pub local: Mono,
    /// On the store's clock, as an answer or the mapping says it.
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

/// A length as an operator reads it: milliseconds, to a tenth.
#[must_use]
pub fn millis(length: Duration) -> String {
    let tenths = micros(length).div_ceil(100);
    if tenths.is_multiple_of(10) {
        format!("{} ms", tenths / 10)
    } else {
        format!("{}.{} ms", tenths / 10, tenths % 10)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_never_go_below_zero() {
        let early = Mono::from_micros(10);
        let late = Mono::from_micros(25);
        assert_eq!(late.since(early), Duration::from_micros(15));
        assert_eq!(early.since(late), Duration::ZERO);
        assert_eq!(early - Duration::from_secs(1), Mono::from_micros(0));
    }
}
