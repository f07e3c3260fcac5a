//! Whether the store is too far away for a limit.
//!
//! A permit of a keyed limit counts from the moment at which the store decided, and a replica knows only that this was
//! after its question had left. So three quarters of the limit's headroom must cover a slow round trip, and a little
//! for this process to act. A permit that is valid for less has run out when it arrives: it is refunded and asked for
//! again, and no call is ever made ([`TooFar`]). Slots of a paced limit are leased ahead, so there the horizon must
//! reach beyond the round trip ([`horizon_needed`]). `sluiced check --connect` measures the round trip and refuses such
//! a limit, and the daemon warns of it; both name the value to set.

use std::fmt;
use std::time::Duration;

use super::headroom::Headroom;
use super::time::{micros, millis};

/// Added to a round trip: the time that this process needs to act on an answer.
pub(crate) const MARGIN: Duration = Duration::from_millis(2);
/// A replica leases at most two thirds of the horizon at a time, so this part of it is left for fetching the next
/// lease (`core::schedule`).
const FETCH_PART: u32 = 3;

/// How long a permit must be valid, with a slow round trip of this length.
#[must_use]
pub const fn min_permit_validity(slow_trip: Duration) -> Duration {
    slow_trip.saturating_add(MARGIN)
}

/// A keyed limit whose permits run out before their calls can leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooFar {
    /// The headroom of the limit.
    pub headroom: Headroom,
    /// How long a slow round trip to the store takes, as measured.
    pub slow_trip: Duration,
}

impl TooFar {
    /// Whether the store is too far away for a limit of this headroom.
    #[must_use]
    pub fn find(headroom: impl Into<Headroom>, slow_trip: Duration) -> Option<Self> {
        let headroom = headroom.into();
        let is_near_enough = min_permit_validity(slow_trip) <= headroom.late;
        (!is_near_enough).then_some(Self {
            headroom,
            slow_trip,
        })
    }

    /// The headroom to set: the least that covers the round trip, in whole milliseconds.
    #[must_use]
    pub fn headroom_needed(&self) -> Duration {
        whole_millis(min_permit_validity(self.slow_trip) * 4 / 3)
    }
}

impl fmt::Display for TooFar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "with its headroom of {} a permit is good for {}, and a slow round trip to Redis takes {}: permits run out before their calls leave; write headroom = \"{}ms\" or more",
            millis(self.headroom.all()),
            millis(self.headroom.late),
            millis(self.slow_trip),
            self.headroom_needed().as_millis()
        )
    }
}

/// The horizon that covers a slow round trip of this length, in whole milliseconds.
#[must_use]
pub fn horizon_needed(slow_trip: Duration) -> Duration {
    whole_millis(min_permit_validity(slow_trip) * FETCH_PART)
}

fn whole_millis(length: Duration) -> Duration {
    Duration::from_millis(micros(length).div_ceil(1_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn three_quarters_of_the_headroom_cover_a_slow_round_trip_and_a_little() {
        assert_eq!(TooFar::find(ms(10), Duration::from_micros(5_500)), None);
        let far = TooFar::find(ms(10), Duration::from_micros(5_501)).expect("too far");
        assert_eq!(far.headroom_needed(), ms(11));
        let far = TooFar::find(ms(10), Duration::from_micros(16_200)).expect("too far");
        assert_eq!(far.headroom_needed(), ms(25));
        let said = far.to_string();
        for part in ["of 10 ms", "for 7.5 ms", "takes 16.2 ms", "\"25ms\""] {
            assert!(said.contains(part), "{said}");
        }
    }

    #[test]
    fn the_headroom_that_is_named_is_enough_and_a_millisecond_less_is_not() {
        for trip in (0..60_000).step_by(7).map(Duration::from_micros) {
            let Some(far) = TooFar::find(Duration::ZERO, trip) else {
                panic!("nothing is good for nothing");
            };
            let needed = far.headroom_needed();
            assert_eq!(TooFar::find(needed, trip), None, "{trip:?}");
            assert!(TooFar::find(needed - ms(1), trip).is_some(), "{trip:?}");
        }
    }

    #[test]
    fn a_third_of_the_horizon_covers_the_round_trip() {
        assert_eq!(horizon_needed(ms(20)), ms(66));
        assert_eq!(horizon_needed(Duration::from_micros(100)), ms(7));
    }
}
