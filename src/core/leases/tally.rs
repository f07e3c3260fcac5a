//! Counts of what happened to the slots of one replica, for metrics and for the simulation.

/// What happened to slots since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseTally {
    /// Asked of the store, including asks that only read the clock.
    pub asks: u64,
    /// Asks for slots that got none.
    pub denied: u64,
    /// Asks that failed or timed out.
    pub failed: u64,
    pub leased: u64,
    pub used: u64,
    /// Fell due more than the headroom ago.
    pub missed: u64,
    /// Dropped because of a freeze that came after they were leased.
    pub frozen: u64,
    /// Never used because the answer that granted them showed a stepped clock.
    pub burnt: u64,
    /// Answers for which the schedule started behind its guard.
    pub guarded: u64,
}

impl std::ops::Add for LeaseTally {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            asks: self.asks + other.asks,
            denied: self.denied + other.denied,
            failed: self.failed + other.failed,
            leased: self.leased + other.leased,
            used: self.used + other.used,
            missed: self.missed + other.missed,
            frozen: self.frozen + other.frozen,
            burnt: self.burnt + other.burnt,
            guarded: self.guarded + other.guarded,
        }
    }
}
