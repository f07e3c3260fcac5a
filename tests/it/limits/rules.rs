//! Limits, keys and requests for the tests.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use redis::Commands as _;
use sluiced_core::calendar::{Calendar, CalendarUnit};
use sluiced_core::limits::admission::Decision;
use sluiced_core::limits::concurrency::Concurrency;
use sluiced_core::limits::fixed_window::FixedWindow;
use sluiced_core::limits::gcra::Gcra;
use sluiced_core::limits::generation::{Generation, LostWait};
use sluiced_core::limits::once::{OnUnknown, Once};
use sluiced_core::limits::sliding_log::SlidingLog;
use sluiced_core::limits::token_bucket::{Bucket, Refill, Start, TokenBucket};
use sluiced_core::limits::{Rule, Ticket};
use sluiced_core::rate::Cost;
use sluiced_core::time::StoreTime;
use sluiced_core::zone::Zone;
use sluiced_ports::clock;
use sluiced_ports::limits::{
    Candidate, Charge, GrantedAt, GrantedCharge, KeyedLimit, LimitKey, LimitStore, limit_key,
};
use sluiced_ports::store::Store;
use sluiced_settings::text::Length;
use sluiced_store::redis::{RedisOptions, RedisStore};

use crate::support::redis::RedisServer;
use crate::support::wait::eventually;

pub(crate) const BOUND: Duration = Duration::from_secs(20);
pub(crate) const MS: Duration = Duration::from_millis(1);

pub(crate) fn limit(name: &str, rule: Rule) -> Arc<KeyedLimit> {
    waiting(name, rule, LostWait::For(Duration::from_secs(60)))
}

pub(crate) fn waiting(name: &str, rule: Rule, lost_wait: LostWait) -> Arc<KeyedLimit> {
    Arc::new(KeyedLimit::new(name, rule, lost_wait))
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
            headroom: Duration::ZERO.into(),
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

pub(crate) fn once(ttl: Duration, lease: Duration, on_unknown: OnUnknown) -> Rule {
    Rule::Once(Once::new(ttl, lease, on_unknown, MS).unwrap())
}

pub(crate) fn cost(units: u32) -> Cost {
    Cost::new(NonZeroU32::new(units).unwrap())
}

/// A ticket that no other call has.
pub(crate) fn ticket() -> Ticket {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    Ticket((7 << 100) | u128::from(NEXT.fetch_add(1, Ordering::Relaxed)) << Ticket::QUESTION_BITS)
}

/// Granted at this time of the store, and asked for a moment ago.
pub(crate) fn just_asked(at: StoreTime) -> GrantedAt {
    let asked = clock::now();
    GrantedAt { at, asked }
}

pub(crate) fn key(text: &str) -> LimitKey {
    limit_key(&[text])
}

pub(crate) fn charge(limit: &Arc<KeyedLimit>, text: &str, units: u32) -> Charge {
    Charge {
        limit: Arc::clone(limit),
        key: key(text),
        cost: cost(units),
    }
}

/// A message that was not sent away before.
pub(crate) fn new(charges: Vec<Charge>) -> Candidate {
    Candidate {
        charges,
        was_denied: false,
        slots: Cost::ONE,
        ticket: ticket(),
        died: StoreTime::default(),
        others_wait: false,
    }
}

/// One that was.
pub(crate) fn was_denied(charges: Vec<Charge>) -> Candidate {
    Candidate {
        was_denied: true,
        ..new(charges)
    }
}

/// The names of calls and claims.
pub(crate) fn tickets(calls: &[GrantedCharge]) -> Vec<Ticket> {
    calls.iter().filter_map(GrantedCharge::ticket).collect()
}

pub(crate) fn is_granted(decision: &Decision) -> bool {
    matches!(decision, Decision::Granted { .. })
}

/// Asks for one message of one limit.
pub(crate) async fn takes(store: &dyn LimitStore, limit: &Arc<KeyedLimit>, text: &str) -> bool {
    let candidate = new(vec![charge(limit, text, 1)]);
    let answer = store.admit(&[candidate], 1).await.unwrap();
    is_granted(&answer.decisions[0])
}

/// The key of a state in Redis.
pub(crate) fn redis_key(prefix: &str, limit: &str, key: LimitKey) -> String {
    let digest = BASE64_URL_SAFE_NO_PAD.encode(key.digest());
    format!("{prefix}:{{limits}}:{limit}:{digest}")
}

pub(crate) fn generation_key(prefix: &str) -> String {
    format!("{prefix}:{{limits}}:generation")
}

/// The record of the generation, as stored in Redis.
pub(crate) fn generation(redis: &mut redis::Connection, prefix: &str) -> Option<Generation> {
    let fields: HashMap<String, String> = redis.hgetall(generation_key(prefix)).unwrap();
    let number = |name: &str| fields.get(name).map_or(Some(0), |text| text.parse().ok());
    let time = |name: &str| number(name).map(StoreTime::from_micros);
    Some(Generation {
        number: fields.get("number")?.parse().ok()?,
        run_id: fields.get("run").cloned().unwrap_or_default(),
        writes: number("writes")?,
        guard_until: time("guard_until")?,
        lost_at: time("lost_at")?,
        back_at: time("back_at")?,
        is_new: number("is_new") == Some(1),
    })
}

/// Writes a field of it.
pub(crate) fn set_generation(redis: &mut redis::Connection, prefix: &str, field: &str, to: u64) {
    () = redis::cmd("HSET")
        .arg(generation_key(prefix))
        .arg(field)
        .arg(to)
        .query(redis)
        .unwrap();
}

/// A replica's store, connected.
pub(crate) async fn connect(server: &RedisServer, prefix: &str) -> RedisStore {
    connect_to(server.url(), prefix).await
}

pub(crate) async fn connect_to(url: String, prefix: &str) -> RedisStore {
    let mut options = RedisOptions::single(url, prefix);
    options.settings.connect_timeout = Length(Duration::from_secs(5));
    options.settings.response_timeout = Length(Duration::from_secs(5));
    options.keyed = true;
    let store = RedisStore::connect(&options).unwrap();
    let link = store.link();
    eventually(BOUND, "a connection", || link.borrow().is_up()).await;
    store
}

/// The same, of an installation that is no longer new: nothing waits for the guard.
pub(crate) async fn established(server: &RedisServer, prefix: &str) -> RedisStore {
    let store = connect(server, prefix).await;
    store.admit(&[], 0).await.unwrap();
    set_generation(&mut server.connection(), prefix, "guard_until", 0);
    store
}
