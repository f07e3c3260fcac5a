//! Which replicas ask: the script's against the decision in Rust.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use redis::{Commands as _, Script};
use sluiced_core::limits::askers::Askers;
use sluiced_core::time::StoreTime;

use super::config;
use super::later::moved;
use crate::limits::rules::*;
use crate::support::redis::RedisServer;

const PREFIX: &str = "askers";
const REPLICAS: [&str; 4] = ["a", "b", "c", "d"];
/// Asks for no candidates.
const ASK: &str = concat!(
    include_str!("../../../../lua/limits/common.lua"),
    include_str!("../../../../lua/admit.lua")
);
const LEAVE: &str = include_str!("../../../../lua/leave.lua");

#[derive(Clone, Debug)]
enum Event {
    /// A replica asks, and remembers an answer or does not.
    Ask(usize, bool),
    Leave(usize),
    /// Time passes, or the clock goes back.
    Shift(i64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0..REPLICAS.len(), any::<bool>()).prop_map(|(replica, knows)| Event::Ask(replica, knows)),
        1 => (0..REPLICAS.len()).prop_map(Event::Leave),
        2 => prop_oneof![-4_900_000..4_900_000_i64, -90_000_000_000..90_000_000_000_i64]
            .prop_map(Event::Shift),
    ]
}

fn seen(redis: &mut redis::Connection) -> BTreeMap<String, StoreTime> {
    let found: BTreeMap<String, u64> = redis.hgetall(key()).unwrap();
    let times = found.into_iter();
    times
        .map(|(name, at)| (name, StoreTime::from_micros(at)))
        .collect()
}

fn key() -> String {
    format!("{}:askers", generation_key(PREFIX))
}

#[test]
fn lua_notes_the_askers_as_rust_does() {
    let redis = std::cell::RefCell::new(RedisServer::shared().connection());
    let (ask, leave) = (Script::new(ASK), Script::new(LEAVE));
    let mut runner = TestRunner::new(config(60));
    let agreed = runner.run(&prop::collection::vec(event(), 1..30), |events| {
        let redis = &mut *redis.borrow_mut();
        () = redis.del(key()).unwrap();
        let mut askers = Askers::default();
        for event in events {
            match event {
                Event::Ask(replica, remembers) => {
                    let mut call = ask.prepare_invoke();
                    call.key(generation_key(PREFIX)).arg("run");
                    // Generation, grants, no step; no limits, no grants wanted, no candidates.
                    call.arg(u8::from(remembers)).arg(0).arg(0).arg(0);
                    call.arg(0).arg(REPLICAS[replica]).arg(0);
                    let told: Vec<u64> = call.invoke(redis).unwrap();
                    let now = StoreTime::from_micros(told[0]);
                    let others = askers.ask(REPLICAS[replica], remembers, now);
                    prop_assert_eq!(told[3], others as u64);
                    let ttl: i64 = redis.pttl(key()).unwrap();
                    prop_assert!(ttl > 86_400_000, "{}", ttl);
                }
                Event::Leave(replica) => {
                    let left = leave.key(key()).arg(REPLICAS[replica]).invoke(redis);
                    () = left.unwrap();
                    askers.leave(REPLICAS[replica]);
                }
                Event::Shift(by) => {
                    for (name, at) in &mut askers.seen {
                        *at = moved(*at, -by);
                        () = redis.hset(key(), name, at.as_micros()).unwrap();
                    }
                }
            }
            prop_assert_eq!(&seen(redis), &askers.seen);
        }
        Ok(())
    });
    assert!(agreed.is_ok(), "{agreed:?}");
}
