//! Limits, keys and questions for the tests.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use sluiced::core::budget::Rule;
use sluiced::core::budget::concurrency::Concurrency;
use sluiced::core::budget::fixed_window::FixedWindow;
use sluiced::core::budget::gcra::Gcra;
use sluiced::core::budget::sliding_log::SlidingLog;
use sluiced::core::budget::token_bucket::{Bucket, Refill, Start, TokenBucket};
use sluiced::core::calendar::{Calendar, CalendarUnit};
use sluiced::core::rate::Cost;
use sluiced::core::zone::Zone;
use sluiced::limiter::key::budget_key;
use sluiced::limiter::redis::{RedisOptions, RedisPaceStore};
use sluiced::ports::budget::{
    Booking, BudgetKey, BudgetLimit, Claim, IfLate, Lost, Petition, Ruling, Ticket,
};
use sluiced::ports::pace::PaceStore;

use crate::support::redis::RedisServer;
use crate::support::wait::eventually;

pub(crate) const BOUND: Duration = Duration::from_secs(20);
pub(crate) const MS: Duration = Duration::from_millis(1);

pub(crate) fn limit(name: &str, rule: Rule, lost: Lost) -> Arc<BudgetLimit> {
    Arc::new(BudgetLimit::new(name, rule, lost))
}

pub(crate) fn log(rate: &str, headroom: Duration) -> Rule {
    Rule::SlidingLog(SlidingLog::new(rate.parse().unwrap(), headroom).unwrap())
}

pub(crate) fn gcra(rate: &str, burst: u32, headroom: Duration) -> Rule {
    Rule::Gcra(Gcra::new(rate.parse().unwrap(), burst, headroom).unwrap())
}

pub(crate) fn first_call(rate: &str, headroom: Duration) -> Rule {
    Rule::FixedWindow(FixedWindow::from_first_call(rate.parse().unwrap(), headroom).unwrap())
}

pub(crate) fn aligned(rate: &str, headroom: Duration) -> Rule {
    Rule::FixedWindow(FixedWindow::aligned(rate.parse().unwrap(), headroom).unwrap())
}

pub(crate) fn calendar(units: u32, unit: CalendarUnit, headroom: Duration) -> Rule {
    let calendar = Calendar::new(unit, Zone::utc());
    let units = NonZeroU32::new(units).unwrap();
    Rule::FixedWindow(FixedWindow::calendar(units, calendar, headroom).unwrap())
}

pub(crate) fn bucket(numbers: [u32; 3], interval: Duration, refill: Refill, start: Start) -> Rule {
    let [capacity, amount, borrow] = numbers;
    Rule::TokenBucket(
        TokenBucket::new(Bucket {
            capacity: NonZeroU32::new(capacity).unwrap(),
            amount: NonZeroU32::new(amount).unwrap(),
            interval,
            refill,
            start,
            borrow,
            headroom: Duration::ZERO,
        })
        .unwrap(),
    )
}

pub(crate) fn full(capacity: u32, amount: u32, interval: Duration) -> Rule {
    bucket(
        [capacity, amount, 0],
        interval,
        Refill::Continuous,
        Start::Full,
    )
}

pub(crate) fn concurrency(units: u32, lease: Duration) -> Rule {
    let units = NonZeroU32::new(units).unwrap();
    Rule::Concurrency(Concurrency::new(units, lease, MS).unwrap())
}

pub(crate) fn cost(units: u32) -> Cost {
    Cost::new(NonZeroU32::new(units).unwrap())
}

/// A ticket that nobody else has.
pub(crate) fn ticket() -> Ticket {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    Ticket((7 << 100) | u128::from(NEXT.fetch_add(1, Ordering::Relaxed)))
}

pub(crate) fn key(text: &str) -> BudgetKey {
    budget_key(&[text])
}

pub(crate) fn claim(limit: &Arc<BudgetLimit>, text: &str, units: u32) -> Claim {
    Claim {
        limit: Arc::clone(limit),
        key: key(text),
        cost: cost(units),
        held: None,
    }
}

pub(crate) fn take(claims: Vec<Claim>) -> Petition {
    Petition {
        claims,
        reserve: None,
        ticket: ticket(),
    }
}

pub(crate) fn reserve(claims: Vec<Claim>) -> Petition {
    Petition {
        reserve: Some(IfLate::Grant),
        ..take(claims)
    }
}

pub(crate) fn is_granted(ruling: &Ruling) -> bool {
    matches!(ruling, Ruling::Granted { .. })
}

/// The places that a denial booked.
pub(crate) fn booked(ruling: &Ruling) -> Vec<(usize, Booking)> {
    match ruling {
        Ruling::Denied { booked, .. } => booked.clone(),
        other => panic!("not denied: {other:?}"),
    }
}

/// Where a budget lies in Redis.
pub(crate) fn redis_key(prefix: &str, limit: &str, key: BudgetKey) -> String {
    let digest = BASE64_URL_SAFE_NO_PAD.encode(key.digest());
    format!("{prefix}:{{budgets}}:{limit}:{digest}")
}

pub(crate) fn era_key(prefix: &str) -> String {
    format!("{prefix}:{{budgets}}:epoch")
}

/// A replica's store, connected.
pub(crate) async fn connect(server: &RedisServer, prefix: &str) -> RedisPaceStore {
    let options = RedisOptions {
        connect_timeout: Duration::from_secs(5),
        response_timeout: Duration::from_secs(5),
        keyed: true,
        ..RedisOptions::single(server.url(), prefix)
    };
    let store = RedisPaceStore::connect(&options, Arc::new(())).unwrap();
    let link = store.link();
    eventually(BOUND, "a connection", || link.borrow().is_up()).await;
    store
}
