//! How the headroom of a limit is shared out.
//!
//! A limit holds at the downstream as long as every call arrives there within a headroom of the shortest way after it
//! was allowed. A part of that may pass before the call leaves (`late`), the rest is for how much the time of the
//! way varies (`way`). A headroom that is written down is shared three to one; one that follows what is measured is
//! shared as that says (`headroom::follow`).

use std::time::Duration;

/// This part of a headroom that is written down is for the way.
pub const WAY_PART: u32 = 4;

/// A headroom and its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headroom {
    /// How late a call may leave after it was allowed.
    pub late: Duration,
    /// By how much the time of its way may vary.
    pub way: Duration,
}

impl Headroom {
    /// One that is written down.
    #[must_use]
    pub fn of(all: Duration) -> Self {
        let way = all / WAY_PART;
        Self {
            late: all.saturating_sub(way),
            way,
        }
    }

    /// Both parts.
    #[must_use]
    pub const fn all(self) -> Duration {
        self.late.saturating_add(self.way)
    }
}

impl From<Duration> for Headroom {
    fn from(all: Duration) -> Self {
        Self::of(all)
    }
}
