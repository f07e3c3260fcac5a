//! What several benchmarks share: private servers, child processes that end with the benchmark, tables, and a
//! limit of each kind.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "every benchmark uses its own part of it, prints, and may panic"
)]

pub mod bare;
pub mod daemon;
pub mod drain;
pub mod table;
pub mod watched;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use sluiced_core::limits::Rule;
use sluiced_core::limits::concurrency::Concurrency;
use sluiced_core::limits::fixed_window::FixedWindow;
use sluiced_core::limits::gcra::Gcra;
use sluiced_core::limits::generation::LostWait;
use sluiced_core::limits::sliding_log::SlidingLog;
use sluiced_core::limits::token_bucket::{Bucket, Refill, Start, TokenBucket};
use sluiced_ports::limits::KeyedLimit;

const HEADROOM: Duration = Duration::from_millis(10);

/// Each kind with `units` an hour, or under way.
pub fn kinds(units: u32) -> Vec<(&'static str, Rule)> {
    let many = NonZeroU32::new(units).unwrap();
    let hour = Duration::from_secs(3600);
    let rate = sluiced_core::rate::Rate::new(many, hour).unwrap();
    let bucket = Bucket {
        capacity: many,
        amount: many,
        interval: hour,
        refill: Refill::Continuous,
        start: Start::Full,
        borrow: 0,
        headroom: HEADROOM.into(),
    };
    vec![
        (
            "gcra",
            Rule::Gcra(Gcra::new(rate, units - 1, HEADROOM).unwrap()),
        ),
        (
            "token_bucket",
            Rule::TokenBucket(TokenBucket::new(bucket).unwrap()),
        ),
        (
            "fixed_window",
            Rule::FixedWindow(FixedWindow::from_first_call(rate, HEADROOM).unwrap()),
        ),
        (
            "sliding_log",
            Rule::SlidingLog(SlidingLog::new(rate, HEADROOM).unwrap()),
        ),
        (
            "concurrency",
            Rule::Concurrency(Concurrency::new(many, hour, HEADROOM).unwrap()),
        ),
    ]
}

/// A limit that waits for nothing after a loss.
pub fn limit(name: &str, rule: Rule) -> Arc<KeyedLimit> {
    Arc::new(KeyedLimit::new(name, rule, LostWait::For(Duration::ZERO)))
}
