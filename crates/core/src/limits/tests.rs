//! The kinds, one by one and all alike.

mod batches;
mod changes;
mod crowd;
mod exact;
mod never_over;
mod once;
mod owed;
mod records;

use std::num::NonZeroU32;
use std::time::Duration;

use super::concurrency::Concurrency;
use super::fixed_window::FixedWindow;
use super::gcra::Gcra;
use super::sliding_log::SlidingLog;
use super::token_bucket::{Bucket, Refill, Start, TokenBucket};
use super::{Rule, admission, cell};
use crate::calendar::{Calendar, CalendarUnit};
use crate::rate::Cost;
use crate::time::StoreTime;
use crate::zone::Zone;

/// A time of Redis with few microseconds: `{1795228193, 12}`.
const START: u64 = 1_795_228_193_000_012;
const MS: Duration = Duration::from_millis(1);

const fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

const fn at(micros: u64) -> StoreTime {
    StoreTime::from_micros(micros)
}

fn gcra(rate: &str, burst: u32, headroom: Duration) -> Rule {
    Rule::Gcra(Gcra::new(rate.parse().unwrap(), burst, headroom).unwrap())
}

fn log(rate: &str, headroom: Duration) -> Rule {
    Rule::SlidingLog(SlidingLog::new(rate.parse().unwrap(), headroom).unwrap())
}

fn first_call(rate: &str, headroom: Duration) -> Rule {
    Rule::FixedWindow(FixedWindow::from_first_call(rate.parse().unwrap(), headroom).unwrap())
}

fn aligned(rate: &str, headroom: Duration) -> Rule {
    Rule::FixedWindow(FixedWindow::aligned(rate.parse().unwrap(), headroom).unwrap())
}

fn calendar(units: u32, unit: CalendarUnit, headroom: Duration) -> Rule {
    let calendar = Calendar::new(unit, Zone::utc());
    let units = NonZeroU32::new(units).unwrap();
    Rule::FixedWindow(FixedWindow::calendar(units, calendar, headroom).unwrap())
}

/// Capacity, amount and borrow; interval and headroom.
fn bucket(
    [capacity, amount, borrow]: [u32; 3],
    [interval, headroom]: [Duration; 2],
    refill: Refill,
    start: Start,
) -> Rule {
    Rule::TokenBucket(
        TokenBucket::new(Bucket {
            capacity: NonZeroU32::new(capacity).unwrap(),
            amount: NonZeroU32::new(amount).unwrap(),
            interval,
            refill,
            start,
            borrow,
            headroom: headroom.into(),
        })
        .unwrap(),
    )
}

fn cost(units: u64) -> Cost {
    Cost::new(NonZeroU32::new(units.try_into().unwrap()).unwrap())
}

fn concurrency(units: u32, lease: Duration) -> Rule {
    let units = NonZeroU32::new(units).unwrap();
    Rule::Concurrency(Concurrency::new(units, lease, MS).unwrap())
}

/// Every kind with a limit of `n` in `span`, in its own sense.
fn kinds(n: u32, span: &str) -> Vec<Rule> {
    let rate = format!("{n}/{span}");
    let length = crate::rate::parse_duration(span).unwrap();
    let full = [n, n, 0];
    let intervals = [length, Duration::ZERO];
    vec![
        gcra(&rate, n - 1, Duration::ZERO),
        bucket(full, intervals, Refill::Continuous, Start::Full),
        bucket(full, intervals, Refill::Stepped, Start::Full),
        first_call(&rate, Duration::ZERO),
        aligned(&rate, Duration::ZERO),
        log(&rate, Duration::ZERO),
        concurrency(n, length),
    ]
}
