//! Decisions of keyed limits in Redis, one a call and in batches, beside a bare `INCR` in the same run,
//! and the bytes of Redis memory that a key of each kind takes.
//!
//! Every ratio is to the `INCR` of the same run, which is measured before and after.
//!
//! `--keys N` sets how many keys the memory is measured with (100,000 unless given; 1,000,000 takes
//! a few minutes), `--quick` shortens the rest.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "results are its output"
)]

#[path = "../tests/it/support/mod.rs"]
mod support;

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::table::{Table, headline};
use common::{kinds, limit};
use futures::{StreamExt as _, stream};
use sluiced_core::limits::Ticket;
use sluiced_core::rate::Cost;
use sluiced_core::scheduler::BATCH_MAX;
use sluiced_ports::clock;
use sluiced_ports::limits::{Candidate, Charge, KeyedLimit, LimitStore, limit_key};
use sluiced_ports::store::Store;
use sluiced_settings::text::Length;
use sluiced_store::redis::{RedisOptions, RedisStore};
use support::redis::RedisServer;
use support::wait::eventually;

/// Calls in flight at once on one connection: they are pipelined.
const PIPELINED: usize = 64;
/// Keys that the decisions are spread over.
const SPREAD: usize = 10_000;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let keys = arguments
        .iter()
        .position(|argument| argument == "--keys")
        .and_then(|at| arguments.get(at + 1)?.parse().ok())
        .unwrap_or(100_000);
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let questions = if quick { 20_000 } else { 200_000 };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(run(keys, questions));
}

async fn run(keys: usize, questions: usize) {
    let server = RedisServer::start();
    let store = connect(&server).await;
    speed(&server, &store, questions).await;
    memory(&server, &store, keys).await;
}

/// How many decisions a second, and what they cost inside of Redis.
async fn speed(server: &RedisServer, store: &RedisStore, questions: usize) {
    headline(&format!(
        "{questions} candidates over {SPREAD} keys; one connection, {PIPELINED} calls under way"
    ));
    let mut table = Table::new(&[
        "",
        "one a call",
        "to an INCR",
        "in Redis",
        "to an INCR",
        "256 a call",
        "to an INCR",
        "in Redis",
        "to an INCR",
    ]);
    let mut redis = server.connection();
    let bare = incr(server, questions).await;
    let inside = time_in_redis(&mut redis, "incr");
    let row = |name: &str, [one, one_inside, batched, batched_inside]: [f64; 4]| {
        let ratio = |micros: f64, of: f64| format!("{:.2}", micros / of);
        [
            name.to_owned(),
            each(one),
            ratio(one, bare),
            micros(one_inside),
            ratio(one_inside, inside),
            each(batched),
            ratio(batched, bare),
            micros(batched_inside),
            ratio(batched_inside, inside),
        ]
    };
    let blank = || vec![String::new(); 4];
    let plain = |name: &str, outside: f64, inside: f64| {
        let told = vec![name.to_owned(), each(outside), "1.00".to_owned()];
        [told, vec![micros(inside), "1.00".to_owned()], blank()].concat()
    };
    table.row(&plain("bare INCR", bare, inside));
    for (kind, rule) in kinds(10) {
        let limit = limit(kind, rule);
        let start = clock::now();
        stream::iter(0..questions)
            .map(|i| ask(store, &limit, i..i + 1))
            .buffer_unordered(PIPELINED)
            .count()
            .await;
        let one = per(clock::now().since(start), questions);
        let one_inside = time_in_redis(&mut redis, "evalsha");
        let start = clock::now();
        for first in (0..questions).step_by(BATCH_MAX) {
            ask(store, &limit, first..first + BATCH_MAX).await;
        }
        let batched = per(clock::now().since(start), questions);
        let batched_inside = time_in_redis(&mut redis, "evalsha") / BATCH_MAX as f64;
        table.row(&row(kind, [one, one_inside, batched, batched_inside]));
    }
    let again = incr(server, questions).await;
    let inside = time_in_redis(&mut redis, "incr");
    table.row(&plain("bare INCR, again", again, inside));
    table.print();
}

/// The memory of a key in Redis.
async fn memory(server: &RedisServer, store: &RedisStore, keys: usize) {
    let mut redis = server.connection();
    headline(&format!("{keys} keys of each kind, one unit taken of each"));
    let mut table = Table::new(&["", "bytes a key", "MEMORY USAGE", "1,000,000 keys"]);
    for (kind, rule) in kinds(10) {
        () = redis::cmd("FLUSHALL").query(&mut redis).unwrap();
        let before = used(&mut redis);
        let limit = limit(kind, rule);
        for first in (0..keys).step_by(BATCH_MAX) {
            let last = (first + BATCH_MAX).min(keys);
            let candidates: Vec<_> = (first..last).map(|i| candidate(&limit, i, i)).collect();
            store.admit(&candidates, BATCH_MAX as u64).await.unwrap();
        }
        let bytes = (used(&mut redis) - before) as f64 / keys as f64;
        let name: String = redis::cmd("RANDOMKEY").query(&mut redis).unwrap();
        let one: u64 = redis::cmd("MEMORY")
            .arg("USAGE")
            .arg(name)
            .query(&mut redis)
            .unwrap();
        let million = format!("{:.0} MiB", bytes * 1e6 / 1024.0 / 1024.0);
        table.row(&[kind, &format!("{bytes:.0}"), &one.to_string(), &million]);
    }
    table.print();
}

/// Microseconds for each of this many.
fn per(time: Duration, questions: usize) -> f64 {
    time.as_secs_f64() * 1e6 / questions as f64
}

fn each(one: f64) -> String {
    format!("{} ({:.0}/s)", micros(one), 1e6 / one)
}

fn micros(one: f64) -> String {
    format!("{one:.2} us")
}

fn candidate(limit: &Arc<KeyedLimit>, key: usize, number: usize) -> Candidate {
    Candidate {
        charges: vec![Charge {
            limit: Arc::clone(limit),
            key: limit_key(&[&key.to_string()]),
            cost: Cost::ONE,
        }],
        was_denied: false,
        slots: Cost::ONE,
        ticket: Ticket((1 << 100) + number as u128),
        died: sluiced_core::time::StoreTime::default(),
        others_wait: false,
    }
}

/// As many grants are wanted as there are candidates: all of them are decided.
async fn ask(store: &RedisStore, limit: &Arc<KeyedLimit>, numbers: std::ops::Range<usize>) {
    let candidates: Vec<_> = numbers.map(|i| candidate(limit, i % SPREAD, i)).collect();
    let wanted = candidates.len() as u64;
    store.admit(&candidates, wanted).await.unwrap();
}

/// Microseconds for each bare `INCR`, over as many keys and as many under way.
async fn incr(server: &RedisServer, questions: usize) -> f64 {
    let client = redis::Client::open(server.url()).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    let start = clock::now();
    stream::iter(0..questions)
        .map(|i| {
            let mut connection = connection.clone();
            async move {
                let mut incr = redis::cmd("INCR");
                incr.arg(format!("bare:{}", i % SPREAD));
                incr.query_async::<u64>(&mut connection).await.unwrap()
            }
        })
        .buffer_unordered(PIPELINED)
        .count()
        .await;
    per(clock::now().since(start), questions)
}

/// Microseconds of a call of `command` inside Redis since the last look, as Redis itself measured.
fn time_in_redis(redis: &mut redis::Connection, command: &str) -> f64 {
    let stats: String = redis::cmd("INFO").arg("commandstats").query(redis).unwrap();
    () = redis::cmd("CONFIG").arg("RESETSTAT").query(redis).unwrap();
    let line = stats
        .lines()
        .find(|line| line.starts_with(&format!("cmdstat_{command}:")));
    let each = line.and_then(|line| line.split("usec_per_call=").nth(1)?.split(',').next());
    each.map_or(f64::NAN, |micros| micros.parse().unwrap())
}

fn used(redis: &mut redis::Connection) -> u64 {
    let info: redis::InfoDict = redis::cmd("INFO").arg("memory").query(redis).unwrap();
    info.get("used_memory").unwrap()
}

async fn connect(server: &RedisServer) -> RedisStore {
    let mut options = RedisOptions::single(server.url(), "sluiced");
    options.settings.connect_timeout = Length(Duration::from_secs(5));
    options.settings.response_timeout = Length(Duration::from_secs(5));
    options.keyed = true;
    let store = RedisStore::connect(&options).unwrap();
    let link = store.link();
    let up = || link.borrow().is_up();
    eventually(Duration::from_secs(10), "a connection", up).await;
    store
}
