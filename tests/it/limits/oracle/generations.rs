//! The generation that a question falls into: the script's against the decision in Rust.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use redis::Script;
use sluiced_core::limits::generation::{Generation, Memory, enter};
use sluiced_core::time::{Direction, StoreTime};

use super::config;
use crate::limits::rules::*;
use crate::support::redis::RedisServer;

const PREFIX: &str = "generations";
/// Enters, and returns the time.
const ENTER: &str = concat!(
    include_str!("../../../../lua/limits/common.lua"),
    "enter(true) return now"
);

/// A record relative to now, or none; where it lies ahead, the clock went back.
#[derive(Clone, Debug)]
struct Written {
    number: u64,
    run: &'static str,
    writes: u64,
    guard: i64,
    lost: Option<i64>,
    back: Option<i64>,
    is_new: bool,
}

fn written() -> impl Strategy<Value = Written> {
    let run = prop::sample::select(vec!["one", "two", ""]);
    let time = || prop::option::of(-10_000_000..3_000_000_i64);
    (
        1..4_u64,
        run,
        0..4_u64,
        -5_000_000..5_000_000_i64,
        time(),
        time(),
        any::<bool>(),
    )
        .prop_map(|(number, run, writes, guard, lost, back, is_new)| Written {
            number,
            run,
            writes,
            guard,
            lost,
            back,
            is_new,
        })
}

fn memory() -> impl Strategy<Value = Memory> {
    let step = prop::sample::select(vec![None, Some(Direction::Forward), Some(Direction::Back)]);
    (0..4_u64, 0..4_u64, step).prop_map(|(number, writes, stepped)| Memory {
        number,
        writes,
        stepped,
    })
}

#[test]
fn lua_enters_the_generation_that_rust_does() {
    let server = RedisServer::shared();
    let redis = std::cell::RefCell::new(server.connection());
    let mut runner = TestRunner::new(config(2_000));
    let cases = (prop::option::of(written()), memory());
    let agreed = runner.run(&cases, |(written, memory)| {
        let redis = &mut *redis.borrow_mut();
        let record = write(redis, written);
        let script = Script::new(ENTER);
        let mut call = script.prepare_invoke();
        call.key(generation_key(PREFIX));
        for word in [
            "one",
            &memory.number.to_string(),
            &memory.writes.to_string(),
        ] {
            call.arg(word);
        }
        let stepped = match memory.stepped {
            None => 0,
            Some(Direction::Forward) => 1,
            Some(Direction::Back) => 2,
        };
        let now: u64 = call.arg(stepped).invoke(redis).unwrap();
        let entered = enter(record, "one", memory, StoreTime::from_micros(now));
        prop_assert_eq!(generation(redis, PREFIX), Some(entered));
        let key = generation_key(PREFIX);
        let ttl: i64 = redis::cmd("PTTL").arg(key).query(redis).unwrap();
        prop_assert!(ttl > 86_400_000, "{}", ttl);
        Ok(())
    });
    assert!(agreed.is_ok(), "{agreed:?}");
}

fn write(redis: &mut redis::Connection, written: Option<Written>) -> Option<Generation> {
    let key = generation_key(PREFIX);
    () = redis::cmd("DEL").arg(&key).query(redis).unwrap();
    let written = written?;
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(redis).unwrap();
    let now = seconds * 1_000_000 + micros;
    let at = |by: i64| now.saturating_add_signed(by);
    () = redis::cmd("HSET")
        .arg(&key)
        .arg(&[("number", written.number), ("writes", written.writes)])
        .arg(&[
            ("guard_until", at(written.guard)),
            ("lost_at", written.lost.map_or(0, at)),
            ("back_at", written.back.map_or(0, at)),
        ])
        .arg(&[("run", written.run)])
        .arg(&[("is_new", u8::from(written.is_new))])
        .query(redis)
        .unwrap();
    generation(redis, PREFIX)
}
