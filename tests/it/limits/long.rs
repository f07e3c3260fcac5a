//! States of ten thousand entries: a batch about them is little more work for Redis than one question, and many
//! of them do not go into one script, because all other requests wait while it runs.

use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use redis::{Commands as _, Connection, Value};
use sluiced_core::limits::Ticket;
use sluiced_core::scheduler::BATCH_MAX;
use sluiced_core::time::StoreTime;
use sluiced_ports::limits::{GrantedCharge, KeyedLimit, LimitStore as _};
use sluiced_store::redis::RedisStore;

use super::rules::*;
use crate::support::redis::RedisServer;
use crate::support::soak::at_length;

const ENTRIES: usize = 10_000;
const LEASE: u64 = 3_600_000_000;
/// A batch may take as long as this many requests.
const FACTOR: u64 = 6;

fn keep(redis: &mut Connection, limit: &KeyedLimit, name: &str, text: &str) {
    () = redis
        .set(redis_key("long", &limit.name, key(name)), text)
        .unwrap();
}

fn now(redis: &mut Connection) -> u64 {
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(redis).unwrap();
    seconds * 1_000_000 + micros
}

/// A full log, one unit every hundred microseconds. Returns what can be refunded, the oldest first.
fn full_log(redis: &mut Connection, limit: &Arc<KeyedLimit>, name: &str) -> Vec<GrantedCharge> {
    let first = now(redis) - 100 * ENTRIES as u64;
    let last = first + 100 * (ENTRIES as u64 - 1);
    let others = " 100 1".repeat(ENTRIES - 1);
    let text = format!("l {last} {ENTRIES} {first} 1{others}");
    keep(redis, limit, name, &text);
    let refund = |i| GrantedCharge::Units {
        charge: charge(limit, name, 1),
        at: just_asked(StoreTime::from_micros(first + 100 * i)),
    };
    (0..ENTRIES as u64).map(refund).collect()
}

/// Ten thousand calls in flight.
fn all_busy(redis: &mut Connection, limit: &Arc<KeyedLimit>, name: &str) -> Vec<GrantedCharge> {
    let ends = now(redis) + LEASE - 1_000_000;
    let tickets: Vec<_> = (0..ENTRIES as u128).map(|i| Ticket(i << 64 | 1)).collect();
    let mut text = "c".to_owned();
    for (i, ticket) in tickets.iter().enumerate() {
        write!(text, " {} 1 {:x}", ends + i as u64, ticket.0).unwrap();
    }
    let calls = tickets
        .iter()
        .map(|ticket| GrantedCharge::call(&charge(limit, name, 1), *ticket));
    let calls: Vec<GrantedCharge> = calls.collect();
    keep(redis, limit, name, &text);
    calls
}

/// The scripts about states since this was asked last: of how many states, and how long Redis was busy, in
/// microseconds.
fn scripts(redis: &mut Connection) -> Vec<(usize, u64)> {
    let entries: Vec<Vec<Value>> = redis::cmd("SLOWLOG")
        .arg("GET")
        .arg(-1)
        .query(redis)
        .unwrap();
    () = redis::cmd("SLOWLOG").arg("RESET").query(redis).unwrap();
    let ran = |entry: &Vec<Value>| {
        let words: Vec<String> = redis::from_redis_value(entry[3].clone()).unwrap();
        let keys = || words[2].parse::<usize>().unwrap();
        // Besides the generation and the policy of a limit. The store's heartbeat names no states.
        let states = (words[0] == "EVALSHA").then(keys)?.checked_sub(2)?;
        let micros: u64 = redis::from_redis_value(entry[2].clone()).unwrap();
        Some((states, micros))
    };
    entries.iter().filter_map(ran).collect()
}

/// The least of several tries: other processes use the processor, too.
async fn least(mut busy: impl AsyncFnMut() -> u64) -> u64 {
    let mut least = u64::MAX;
    for _ in 0..at_length(3, 5) {
        least = least.min(busy().await);
    }
    least
}

struct Bench {
    server: RedisServer,
    store: RedisStore,
}

impl Bench {
    async fn new() -> Self {
        let every = "--slowlog-log-slower-than 0 --slowlog-max-len 4096";
        let server = RedisServer::start_with(every, None);
        let store = established(&server, "long").await;
        Self { server, store }
    }

    /// How long Redis is busy with these refunds of a full log.
    async fn refunds(&self, limit: &Arc<KeyedLimit>, which: &Range<usize>) -> u64 {
        let redis = &mut self.server.connection();
        let refunds = full_log(redis, limit, "a");
        scripts(redis);
        let taken = self.store.release(&refunds[which.clone()]).await.unwrap();
        assert_eq!(taken, which.len());
        scripts(redis).into_iter().map(|(_, micros)| micros).sum()
    }

    /// How long Redis is busy with the end or the renewal of these calls.
    async fn calls(&self, limit: &Arc<KeyedLimit>, which: &Range<usize>, end: bool) -> u64 {
        let redis = &mut self.server.connection();
        let calls = &all_busy(redis, limit, "a")[which.clone()];
        scripts(redis);
        if end {
            self.store.release(calls).await.unwrap();
        } else {
            assert!(self.store.renew(calls).await.unwrap().is_empty());
        }
        scripts(redis).into_iter().map(|(_, micros)| micros).sum()
    }

    /// How many states each script was about.
    fn states(&self) -> Vec<usize> {
        let scripts = scripts(&mut self.server.connection());
        scripts.into_iter().map(|(states, _)| states).collect()
    }
}

#[tokio::test]
async fn a_batch_about_one_key_is_one_pass() {
    let bench = Bench::new().await;
    let log = limit("log", log("10000/1h", MS));
    let busy = limit("busy", concurrency(10_000, Duration::from_micros(LEASE)));
    for from in [ENTRIES - BATCH_MAX, ENTRIES / 2] {
        let [one, all] = [1, BATCH_MAX].map(|count| from..from + count);
        let once = least(async || bench.refunds(&log, &one).await).await;
        let batch = least(async || bench.refunds(&log, &all).await).await;
        println!("refunds from {from} on: {once} µs and {batch} µs");
        assert!(batch < FACTOR * once, "{batch} {once}");
        for end in [true, false] {
            let once = least(async || bench.calls(&busy, &one, end).await).await;
            let batch = least(async || bench.calls(&busy, &all, end).await).await;
            println!("calls from {from} on: {once} µs and {batch} µs");
            assert!(batch < FACTOR * once, "{batch} {once}");
        }
    }
}

#[tokio::test]
async fn long_states_do_not_all_go_into_one_script() {
    let bench = Bench::new().await;
    let log = limit("log", log("10000/1h", MS));
    let refund = |i: usize| GrantedCharge::Units {
        charge: charge(&log, &i.to_string(), 1),
        at: just_asked(StoreTime::default()),
    };
    let refunds: Vec<GrantedCharge> = (0..BATCH_MAX).map(refund).collect();
    // Each script is loaded first.
    bench.store.release(&refunds[..1]).await.unwrap();
    bench.states();
    bench.store.release(&refunds).await.unwrap();
    let states = bench.states();
    assert_eq!(states.iter().sum::<usize>(), BATCH_MAX, "{states:?}");
    assert!(states.iter().all(|states| *states <= 16), "{states:?}");

    let busy = limit("busy", concurrency(10_000, Duration::from_micros(LEASE)));
    let call = |i: usize| GrantedCharge::call(&charge(&busy, &i.to_string(), 1), Ticket(i as u128));
    let calls: Vec<GrantedCharge> = (0..16).map(call).collect();
    bench.store.release(&calls[..1]).await.unwrap();
    bench.store.renew(&calls[..1]).await.unwrap();
    bench.states();
    bench.store.release(&calls).await.unwrap();
    assert_eq!(bench.states(), [1; 16]);
    let gone = bench.store.renew(&calls).await.unwrap();
    let all: Vec<Ticket> = (0..16).map(Ticket).collect();
    assert_eq!(tickets(&gone), all);
    assert_eq!(bench.states(), [1; 16]);
}
