//! The version of a policy.
//!
//! Apart from `policy`, because `schedule` names versions too, and `policy` decides with the help of `schedule`.

use super::time::StoreTime;

/// First versions are milliseconds and less than this, all others are microseconds and more.
const FIRST_END: u64 = 100_000_000_000_000;

/// Names one state of a policy: the store's time of the update, or one more than the version
/// before, if that is later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyVersion(u64);

impl PolicyVersion {
    /// No policy is known yet.
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

    /// When the update was made, on the store's clock.
    #[must_use]
    pub const fn since(self) -> StoreTime {
        let micros = if self.0 < FIRST_END {
            self.0 * 1_000
        } else {
            self.0
        };
        StoreTime::from_micros(micros)
    }

    /// The first version where the store has none. The store may have lost a policy that another
    /// replica still knows. That one must win, so a first version is lower than that of any update.
    pub(crate) fn first(now: StoreTime) -> Self {
        Self((now.as_micros() / 1_000).max(1))
    }

    pub(crate) fn next(self, now: StoreTime) -> Self {
        Self((self.0 + 1).max(now.as_micros()))
    }
}
