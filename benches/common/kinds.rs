//! One limit of each kind that counts in budgets.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use sluiced::core::budget::Rule;
use sluiced::core::budget::concurrency::Concurrency;
use sluiced::core::budget::fixed_window::FixedWindow;
use sluiced::core::budget::gcra::Gcra;
use sluiced::core::budget::sliding_log::SlidingLog;
use sluiced::core::budget::token_bucket::{Bucket, Refill, Start, TokenBucket};
use sluiced::ports::budget::{BudgetLimit, Lost};

const HEADROOM: Duration = Duration::from_millis(10);

/// Each kind with `units` an hour, or under way.
pub fn kinds(units: u32) -> Vec<(&'static str, Rule)> {
    let many = NonZeroU32::new(units).unwrap();
    let hour = Duration::from_secs(3600);
    let rate = sluiced::core::rate::Rate::new(many, hour).unwrap();
    let bucket = Bucket {
        capacity: many,
        amount: many,
        interval: hour,
        refill: Refill::Continuous,
        start: Start::Full,
        borrow: 0,
        headroom: HEADROOM,
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

/// A limit that is open after a loss.
pub fn limit(name: &str, rule: Rule) -> Arc<BudgetLimit> {
    Arc::new(BudgetLimit::new(name, rule, Lost::Open))
}
