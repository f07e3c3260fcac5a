//! What is around a fleet: the distances between its parts, the accuracy of its timers and clocks, and what can
//! fail.

use std::time::Duration;

use sluiced_core::rate::Rate;

/// The way of a call to the downstream: how long it takes, and by how much that varies in all. Each length in
/// between is as likely as any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    pub median: Duration,
    pub spread: Duration,
}

impl Way {
    /// Near, and always the same.
    #[must_use]
    pub const fn calm() -> Self {
        Self {
            median: Duration::from_millis(1),
            spread: Duration::ZERO,
        }
    }

    /// From `least` on.
    #[must_use]
    pub fn from(least: Duration, spread: Duration) -> Self {
        Self {
            median: least + spread / 2,
            spread,
        }
    }

    /// The shortest.
    #[must_use]
    pub fn least(self) -> Duration {
        self.median.saturating_sub(self.spread / 2)
    }

    /// The longest.
    #[must_use]
    pub fn most(self) -> Duration {
        self.least() + self.spread
    }
}

/// The distances between the parts and the accuracy of the machines' timers and clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Surroundings {
    /// One way to the store: the minimum, and the median of the additional time.
    pub distance: Duration,
    pub to_store: Duration,
    /// Some replicas are further away from it: up to this, each way.
    pub apart: Duration,
    /// By how much the ways of a replica to the store and back may differ, each drawn once: up to this.
    pub lopsided: Duration,
    /// Ways to the store that take up to 300 ms, per million.
    pub slow_ways: u64,
    /// Requests that fail, per million: half of them after they were executed.
    pub lost_asks: u64,
    /// Notices between replicas that are lost, per million.
    pub lost_notices: u64,
    /// Median lateness of a timer.
    pub lateness: Duration,
    /// Timers that are late by up to [`Surroundings::late_most`], per million.
    pub late_wakes: u64,
    pub late_most: Duration,
    /// Drift of each replica's clock: up to this many millionths, either way.
    pub drift: i64,
    /// The way to the downstream, until a [`Fault::Way`] changes it.
    pub way: Way,
    /// Calls that take four times as long as others, per million.
    pub long_calls: u64,
}

impl Surroundings {
    /// A quiet data centre.
    #[must_use]
    pub const fn calm() -> Self {
        Self {
            distance: Duration::ZERO,
            to_store: Duration::from_micros(150),
            apart: Duration::ZERO,
            lopsided: Duration::ZERO,
            slow_ways: 0,
            lost_asks: 0,
            lost_notices: 0,
            lateness: Duration::from_micros(100),
            late_wakes: 1_000,
            late_most: Duration::from_millis(3),
            drift: 50,
            way: Way::calm(),
            long_calls: 0,
        }
    }
}

/// A fault, or another event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A replica dies: its messages go back to the queue, its slots are lost.
    Crash,
    /// A replica stops in order.
    Leave,
    /// A new replica starts.
    Join,
    /// A replica stands still for this long, then does everything that was due at once.
    Pause(Duration),
    /// All of them do, as on one machine that stalls.
    PauseAll(Duration),
    /// The store forgets everything.
    Flush,
    /// The store's process is replaced by another one.
    Restart(StateLeft),
    /// The store does not answer for this long.
    Down(Duration),
    /// The store's clock jumps by this many microseconds.
    Step(i64),
    /// An operator sets another rate; some replicas get a notice at once.
    Rate(Rate),
    /// The way to the downstream is another one from now on.
    Way(Way),
    /// The downstream refuses all calls for this long; some replicas get a notice of the freeze at once.
    Throttle { wait: Duration, heard: bool },
    /// From now on requests arrive and timers are on time, as in a quiet data centre.
    Heal,
    /// A replica is broken for good, but never the last one.
    Break(Break),
}

/// How a replica is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// The replica dies, and none follows it.
    Dead,
    /// The replica stands still, and keeps what it has.
    Stuck,
    /// The replica does not reach the store, and gets no notices.
    Deaf,
}

/// What a new process of the store has of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateLeft {
    Nothing,
    /// A copy that lags behind.
    Older,
    All,
}
