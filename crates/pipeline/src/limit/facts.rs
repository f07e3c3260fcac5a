//! A limit as this replica's file has it, and as plain values under its current policy. `wire` reads the text of a
//! policy as the configuration is read, and writes one with a changed value.

use std::fmt;
use std::time::Duration;

use sluiced_core::headroom::{Bounds, Headroom};

/// A limit as this replica's file has it.
pub trait FileLimit<T>: fmt::Debug + Send + Sync {
    /// The policy of the limit, on one line.
    fn policy(&self) -> String;

    /// The limit under another policy.
    ///
    /// # Errors
    /// When the policy cannot be used here: in words.
    fn under(&self, policy: &str) -> Result<CurrentLimit<T>, String>;
}

/// A limit under its current policy.
pub struct CurrentLimit<T> {
    /// What its pacers use.
    pub used: T,
    pub facts: LimitFacts,
}

/// What follows from the current policy of a limit.
pub struct LimitFacts {
    pub is_paced: bool,
    /// The time of which its headroom is a part.
    pub window: Duration,
    pub headroom: Headroom,
    /// The bounds within which its headroom follows what is measured; `None`: it is fixed.
    pub auto_bounds: Option<Bounds>,
    /// `None`: its rate is fixed.
    pub adapts: Option<RateBounds>,
    /// Units per second of a key, if it has such a rate.
    pub per_second: Option<f64>,
    /// Makes its policy with another value, on one line; `None`: that value is out of range.
    pub changed: Changed,
}

/// Makes the policy of a limit with another value.
pub type Changed = Box<dyn Fn(Change) -> Option<String> + Send + Sync>;

/// Another value for a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The headroom that the replicas measured.
    Headroom(Headroom),
    /// The units of its rate that the downstream accepts.
    Units(u32),
}

/// The bounds of a rate that follows what the downstream accepts, in units of its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateBounds {
    /// As configured.
    pub most: u32,
    pub least: u32,
    /// In force now.
    pub units: u32,
}

impl<T> fmt::Debug for CurrentLimit<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CurrentLimit")
            .field("facts", &self.facts)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for LimitFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitFacts")
            .field("headroom", &self.headroom)
            .finish_non_exhaustive()
    }
}
