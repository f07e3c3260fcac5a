//! In which wait queue a message waits for its next attempt.
//!
//! A message waits in a queue of the broker, which expires messages only at the head of a queue. So every delay would
//! need a queue of its own. The [`Ladder`] keeps them few, by powers of two: a message waits on the largest [`Rung`]
//! that is not longer than its delay (or longer by a few per cent), comes back, and goes round again for the rest. A
//! delay that the ladder reaches takes at most one round for each rung, and most of it passes in the first round.

use std::time::Duration;

/// The rungs of a ladder, in whole seconds: 1, 2, 4 … 4096.
const RUNGS: u32 = 13;

/// A rung may be longer than the delay by this share of it: that saves a round.
const TOLERANCE: f64 = 0.03;

/// One rung of the ladder: a power of two of seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rung {
    exponent: u32,
}

impl Rung {
    /// How long a message waits there.
    #[must_use]
    pub const fn length(self) -> Duration {
        Duration::from_secs(1 << self.exponent)
    }

    /// What its queue is called, after the work queue's name and `.wait.`: `4s`.
    #[must_use]
    pub fn label(self) -> String {
        format!("{}s", self.length().as_secs())
    }
}

/// The rungs that a route uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ladder {
    top: u32,
}

impl Ladder {
    /// The longest rung of any ladder: 68 minutes.
    pub const LONGEST: Duration = Duration::from_secs(1 << (RUNGS - 1));

    /// A ladder for waits of up to `longest`: it has the rung of one second, and those of two, four … seconds up to
    /// `longest`, [`Self::LONGEST`] at most. A longer wait takes several rounds.
    #[must_use]
    pub fn up_to(longest: Duration) -> Self {
        let seconds = longest.as_secs().max(1);
        Self {
            top: seconds.ilog2().min(RUNGS - 1),
        }
    }

    /// All rungs, the shortest first.
    pub fn rungs(self) -> impl Iterator<Item = Rung> {
        (0..=self.top).map(|exponent| Rung { exponent })
    }

    /// The rung for a message that has `remaining` to wait: the largest that does not exceed it,
    /// or one that is hardly longer; the smallest if all are longer.
    #[must_use]
    pub fn rung(self, remaining: Duration) -> Rung {
        let reach = remaining.as_secs_f64() * (1.0 + TOLERANCE);
        let exponent = (0..=self.top)
            .rev()
            .find(|&exponent| f64::from(1_u32 << exponent) <= reach)
            .unwrap_or(0);
        Rung { exponent }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rung(longest: u64, remaining_ms: u64) -> u64 {
        Ladder::up_to(Duration::from_secs(longest))
            .rung(Duration::from_millis(remaining_ms))
            .length()
            .as_secs()
    }

    #[test]
    fn the_longest_rung_within_the_delay() {
        assert_eq!(rung(3600, 1000), 1);
        assert_eq!(rung(3600, 3500), 2);
        assert_eq!(rung(3600, 4000), 4);
        assert_eq!(rung(3600, 3_600_000), 2048);
        assert_eq!(rung(86_400, 86_400_000), 4096);
    }

    #[test]
    fn a_rung_that_is_hardly_longer_saves_a_round() {
        assert_eq!(rung(3600, 3900), 4);
        assert_eq!(rung(3600, 3800), 2);
    }

    #[test]
    fn the_ends_of_the_ladder() {
        assert_eq!(rung(3600, 0), 1);
        assert_eq!(rung(3600, 20), 1);
        assert_eq!(rung(0, 10_000), 1);
        assert_eq!(rung(5, 60_000), 4);
    }

    proptest! {
        #[test]
        fn any_delay_is_over_after_a_round_per_rung(millis in 1_u64..4_096_000) {
            let ladder = Ladder::up_to(Duration::from_secs(4096));
            let mut remaining = Duration::from_millis(millis);
            let mut rounds = 0;
            while remaining > Duration::ZERO {
                let rung = ladder.rung(remaining).length();
                let allowed = remaining.mul_f64(1.031).max(Duration::from_secs(1));
                prop_assert!(rung <= allowed);
                remaining = remaining.saturating_sub(rung);
                rounds += 1;
            }
            prop_assert!(rounds <= RUNGS);
        }
    }
}
