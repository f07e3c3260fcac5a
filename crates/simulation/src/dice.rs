//! The only source of chance in a simulation: everything follows from one number.
//!
//! The generator is SplitMix64, with its published constants. It is not that of a crate, so that a seed
//! that failed once fails in the same way after any update.

use std::time::Duration;

use sluiced_core::time::micros;

/// A seeded generator.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice that always fall the same way for the same seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed ^ 0x5EED_0F5A_1CED_0001)
    }

    /// Any number.
    pub const fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// A number from zero to `end`, without `end`; zero if `end` is zero.
    pub fn below(&mut self, end: u64) -> u64 {
        let product = u128::from(self.any()) * u128::from(end);
        u64::try_from(product >> 64).unwrap_or_default()
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True in `per_million` of a million cases.
    pub fn chance(&mut self, per_million: u64) -> bool {
        self.below(1_000_000) < per_million
    }

    /// Picks one of the values in `from`.
    ///
    /// # Panics
    /// When there is none.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).unwrap_or_default()]
    }

    /// A waiting time as machines show it: never below 0.6 of `median`, half of the time above it,
    /// with a tail that halves with every further 0.4 of it.
    pub fn spread(&mut self, median: Duration) -> Duration {
        let median = micros(median);
        let bits = self.any();
        let halvings = u64::from(bits.trailing_ones().min(12));
        let fine = (bits >> 32) % 1024;
        Duration::from_micros(median * 6 / 10 + median * 4 * (halvings * 1024 + fine) / 10_240)
    }
}

/// Mixes a number so that every bit of it affects every bit of the result.
#[must_use]
pub const fn mix(number: u64) -> u64 {
    let mut z = number;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
