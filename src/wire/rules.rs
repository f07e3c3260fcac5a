//! From the limits of the configuration to the rules of the core.

use crate::core::headroom::Headroom;
use crate::core::limits::concurrency::Concurrency;
use crate::core::limits::fixed_window::FixedWindow;
use crate::core::limits::gcra::Gcra;
use crate::core::limits::sliding_log::SlidingLog;
use crate::core::limits::token_bucket::{self, Bucket, Refill, TokenBucket};
use crate::core::limits::{Rule, RuleError};
use crate::settings::types::{self, Limit, OfKind, Start, WindowStart};
use crate::settings::window::WindowRate;

/// The rule of a keyed limit; `None` if it is paced.
///
/// # Errors
/// When its numbers are too large to be counted exactly.
pub(super) fn rule(limit: &Limit) -> Result<Option<Rule>, RuleError> {
    let headroom = limit.headroom();
    Ok(Some(match limit {
        Limit::Paced(_) => return Ok(None),
        Limit::Gcra(limit) => Rule::Gcra(Gcra::new(limit.own.rate.0, limit.own.burst, headroom)?),
        Limit::TokenBucket(OfKind { own: limit, .. }) => {
            Rule::TokenBucket(TokenBucket::new(Bucket {
                capacity: limit.capacity,
                amount: limit.refill,
                interval: limit.interval.get(),
                refill: match limit.continuous {
                    true => Refill::Continuous,
                    false => Refill::Stepped,
                },
                start: match limit.start {
                    Start::Full => token_bucket::Start::Full,
                    Start::Empty => token_bucket::Start::Empty,
                },
                borrow: limit.borrow,
                headroom,
            })?)
        }
        Limit::FixedWindow(limit) => Rule::FixedWindow(fixed_window(&limit.own, headroom)?),
        Limit::SlidingLog(limit) => Rule::SlidingLog(SlidingLog::new(limit.own.rate.0, headroom)?),
        Limit::Concurrency(OfKind { own: limit, .. }) => {
            let lease = limit.lease.get();
            Rule::Concurrency(Concurrency::new(limit.limit, lease, headroom)?)
        }
    }))
}

fn fixed_window(limit: &types::FixedWindow, headroom: Headroom) -> Result<FixedWindow, RuleError> {
    match (limit.starts(), limit.rate) {
        (WindowStart::Calendar(calendar), rate) => {
            FixedWindow::calendar(rate.units(), calendar, headroom)
        }
        (WindowStart::Epoch, WindowRate::Every(rate)) => FixedWindow::aligned(rate, headroom),
        (_, WindowRate::Every(rate)) => FixedWindow::from_first_call(rate, headroom),
        // A rate by the calendar starts by the calendar.
        (_, WindowRate::Calendar { .. }) => Err(RuleError::Zero("the window")),
    }
}
