//! Budgets: limits that are decided message by message, most of them per key.
//!
//! Problem: beside the one pace of an account, providers limit senders, recipients, templates and
//! pairs of them, in bursts, windows, calendars or calls under way. Each kind here is one pure
//! decision on a small state: *when* do so many units fit, and *book* them at that time. Bookings
//! only move forward: nothing is ever booked before what was booked last, so the state stays small and a
//! place that was promised to a waiting message stays its own.
//!
//! `lua/budget/*.lua` are the same decisions inside Redis; a property test holds the two together.
//! All numbers are whole microseconds or units and stay below 2^53, so that a double is exact.

pub mod concurrency;
pub mod fixed_window;
pub mod gcra;
pub mod sliding_log;
pub mod token_bucket;

use std::time::Duration;

use self::concurrency::Concurrency;
use self::fixed_window::FixedWindow;
use self::gcra::Gcra;
use self::sliding_log::SlidingLog;
use self::token_bucket::TokenBucket;

/// The rule of a limit, in the integers that decisions work with.
#[derive(Clone, Debug, PartialEq)]
pub enum Rule {
    Gcra(Gcra),
    TokenBucket(TokenBucket),
    FixedWindow(FixedWindow),
    SlidingLog(SlidingLog),
    Concurrency(Concurrency),
}

/// How a budget stands: the four values that every reply carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The most units that it can hold.
    pub limit: u64,
    /// Units that could be taken now.
    pub remaining: u64,
    /// How long until what was asked for fits; zero if it was granted.
    pub retry_after: Duration,
    /// How long until it is whole again, if nobody takes anything.
    pub reset_after: Duration,
}

impl Rule {
    /// How late a call may arrive after it was granted.
    #[must_use]
    pub const fn headroom(&self) -> Duration {
        match self {
            Self::Gcra(rule) => rule.headroom(),
            Self::TokenBucket(rule) => rule.headroom(),
            Self::FixedWindow(rule) => rule.headroom(),
            Self::SlidingLog(rule) => rule.headroom(),
            Self::Concurrency(rule) => rule.headroom(),
        }
    }
}
