//! The version of a policy: which of its states a replica knows.

use crate::core::time::StoreTime;

/// First versions are milliseconds and less than this, all others are microseconds and more.
const FIRST_END: u64 = 100_000_000_000_000;

/// Names one state of a policy: the store's time when the word was said, or more if that would not
/// be new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyVersion(u64);

impl PolicyVersion {
    /// Nothing was heard yet.
    pub const NONE: Self = Self(0);

    /// From the number that the store keeps.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number that the store keeps.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }

    /// When the word was said, on the store's clock.
    #[must_use]
    pub const fn since(self) -> StoreTime {
        let micros = if self.0 < FIRST_END {
            self.0 * 1_000
        } else {
            self.0
        };
        StoreTime::from_micros(micros)
    }

    /// Of a policy where there was none. It may have been lost, and then whoever remembers it must
    /// be able to say so after the first who does not. So it is less than that of any later word.
    pub(super) fn first(now: StoreTime) -> Self {
        Self((now.as_micros() / 1_000).max(1))
    }

    pub(super) fn next(self, now: StoreTime) -> Self {
        Self((self.0 + 1).max(now.as_micros()))
    }
}
