//! What the pipeline needs of the store that keeps how downstreams stand, for the whole fleet.

use std::fmt;

use super::pace::StoreFuture;
use crate::core::breaker::{BreakerReport, BreakerRule, BreakerStatus};

/// Why a breaker is open, to a replica that made no call which failed.
pub const ELSEWHERE: &str = "another replica says so";

/// The store of breakers. Every call ends within the store's own timeout.
pub trait BreakerStore: Send + Sync + fmt::Debug {
    /// A replica that knows version `known` tells or asks how the downstream of `route` stands
    /// (`core::breaker::report`).
    fn report<'a>(
        &'a self,
        route: &'a str,
        report: BreakerReport,
        known: u64,
        rule: &'a BreakerRule,
    ) -> StoreFuture<'a, BreakerStatus>;
}
