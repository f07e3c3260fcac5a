//! Each known fault of other limiters, in Redis and in this process.
//!
//! Redis' clock cannot be set: the decisions themselves are tested to the microsecond with a clock of
//! the test, in `core::limits`.

use std::sync::Arc;
use std::time::Duration;

use sluiced_core::limits::admission::Decision;
use sluiced_core::limits::{Fit, Rule};
use sluiced_core::time::StoreTime;
use sluiced_ports::limits::{KeyedLimit, LimitStore};
use sluiced_store::memory::MemoryStore;
use sluiced_store::redis::RedisStore;

use super::rules::*;
use crate::support::redis::RedisServer;
use crate::support::wait::eventually;

const PREFIX: &str = "traps";

/// Every kind with a limit of `n` in `span`, by its own definition.
fn kinds(n: u32, span: &str) -> Vec<(&'static str, Rule)> {
    let length = sluiced_core::rate::parse_duration(span).unwrap();
    let none = Duration::ZERO;
    vec![
        ("gcra", gcra(&format!("{n}/{span}"), n - 1, none)),
        ("token_bucket", full(n, n, length)),
        ("fixed_window", first_call(&format!("{n}/{span}"), none)),
        ("aligned", aligned(&format!("{n}/{span}"), none)),
        ("sliding_log", log(&format!("{n}/{span}"), none)),
        ("concurrency", concurrency(n, length)),
    ]
}

struct Redis {
    store: RedisStore,
    redis: redis::Connection,
}

impl Redis {
    async fn new() -> Self {
        Self {
            store: established(RedisServer::shared(), PREFIX).await,
            redis: RedisServer::shared().connection(),
        }
    }

    async fn takes(&self, limit: &Arc<KeyedLimit>) -> bool {
        takes(&self.store, limit, "a").await
    }

    /// Asks as a message that was sent away before: a denial changes nothing at all.
    async fn ask(&self, limit: &Arc<KeyedLimit>) -> (StoreTime, Decision) {
        let candidate = was_denied(vec![charge(limit, "a", 1)]);
        let mut answer = self.store.admit(&[candidate], 1).await.unwrap();
        (answer.now, answer.decisions.remove(0))
    }

    fn raw(&mut self, name: &str) -> Option<String> {
        let key = redis_key(PREFIX, name, key("a"));
        redis::cmd("GET").arg(key).query(&mut self.redis).unwrap()
    }

    fn put(&mut self, name: &str, text: &str) {
        let key = redis_key(PREFIX, name, key("a"));
        let set = redis::cmd("SET").arg(key).arg(text).clone();
        let set = set.clone().arg("EX").arg(1000).clone();
        () = set.query(&mut self.redis).unwrap();
    }

    fn ttl(&mut self, name: &str) -> i64 {
        let key = redis_key(PREFIX, name, key("a"));
        redis::cmd("PTTL").arg(key).query(&mut self.redis).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_key_starts_full_and_has_a_time_to_live() {
    let mut redis = Redis::new().await;
    for (kind, rule) in kinds(2, "40ms") {
        let name = format!("expired-{kind}");
        let limit = limit(&name, rule);
        // Until both were counted for one key: at the edge of an aligned window they need not be.
        while redis.takes(&limit).await {}
        eventually(BOUND, "the state's end", || redis.raw(&name).is_none()).await;
        let (_, decision) = redis.ask(&limit).await;
        let Decision::Granted { after } = decision else {
            panic!("{kind}: {decision:?}");
        };
        assert_eq!(after[0].room.remaining, 1, "{kind}");
        // Less than a millisecond, or -2: it ended again while the machine stood still. -1: no time to
        // live.
        let ttl = redis.ttl(&name);
        assert_ne!(ttl, -1, "{kind}");
    }
}

/// A counter beside a separate key for its end: one of them ends first, and the other is wrong from
/// then on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_is_one_key_that_ends_as_a_whole() {
    let server = RedisServer::start();
    let store = established(&server, PREFIX).await;
    let mut redis = server.connection();
    for (kind, rule) in kinds(3, "300ms") {
        let limit = limit(kind, rule);
        let keys = format!("{PREFIX}:{{limits}}:{kind}:*");
        let mut keys = || -> Vec<String> {
            let keys = redis::cmd("KEYS").arg(&keys).clone();
            keys.query(&mut redis).unwrap()
        };
        assert!(takes(&store, &limit, "a").await, "{kind}");
        let count = keys().len();
        // Or none, on a machine that stood still.
        assert!(count <= 1, "{kind}: {count}");
        eventually(BOUND, "the end of all of it", || keys().is_empty()).await;
        assert!(takes(&store, &limit, "a").await, "{kind}");
    }
}

/// An expiry that each hit renews keeps a busy window open for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hit_does_not_push_out_the_end_of_its_window() {
    let mut redis = Redis::new().await;
    let limit = limit("pushed", first_call("3/400ms", Duration::ZERO));
    let (first, decision) = redis.ask(&limit).await;
    assert!(is_granted(&decision));
    eventually(BOUND, "the second half of the window", || {
        redis.ttl("pushed") < 200
    })
    .await;
    let (mut last, mut granted) = (first, 1);
    let fits = loop {
        let (at, decision) = redis.ask(&limit).await;
        match decision {
            Decision::Granted { .. } => (last, granted) = (at, granted + 1),
            Decision::Denied { until, .. } => break until,
            other => panic!("{other:?}"),
        }
        assert!(granted < 20, "no limit at all");
    };
    // On a machine that stood still it is a later window, of a later first call.
    if granted == 3 {
        assert_eq!(fits, first + Duration::from_millis(400));
    }
    assert!(fits <= last + Duration::from_millis(400));
    assert!(redis.ttl("pushed") <= 400);
    eventually(BOUND, "the window's end", || redis.raw("pushed").is_none()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_a_hundred_in_parallel_at_a_limit_of_one_one_passes() {
    let (one, two) = (Redis::new().await, Redis::new().await);
    for (kind, rule) in kinds(1, "366d") {
        let limit = limit(&format!("parallel-{kind}"), rule);
        let asks = (0..100).map(|i| if i % 2 == 0 { &one } else { &two }.takes(&limit));
        let granted = futures::future::join_all(asks).await;
        let granted = granted.iter().filter(|granted| **granted).count();
        assert_eq!(granted, 1, "{kind}");
        let memory = MemoryStore::default();
        let asks = (0..100).map(|_| takes(&memory, &limit, "a"));
        let granted = futures::future::join_all(asks).await;
        let granted = granted.iter().filter(|granted| **granted).count();
        assert_eq!(granted, 1, "{kind} in memory");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_key_is_without_a_time_to_live() {
    let server = RedisServer::start();
    let store = established(&server, PREFIX).await;
    for (kind, rule) in kinds(2, "1h") {
        let limit = limit(&format!("alive-{kind}"), rule);
        let candidates: Vec<_> = (0..5).map(|_| new(vec![charge(&limit, "a", 1)])).collect();
        store.admit(&candidates, 5).await.unwrap();
    }
    let mut redis = server.connection();
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut redis).unwrap();
    let expected = "six states, the generation, those that ask and those that wait for calls";
    assert_eq!(keys.len(), 9, "{expected}: {keys:?}");
    for key in keys {
        let ttl: i64 = redis::cmd("PTTL").arg(&key).query(&mut redis).unwrap();
        assert!(ttl > 0, "{key} {ttl}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_denials_leave_the_state_byte_for_byte_as_it_was() {
    let mut redis = Redis::new().await;
    for (kind, rule) in kinds(3, "366d") {
        let name = format!("denials-{kind}");
        let limit = limit(&name, rule);
        for _ in 0..3 {
            assert!(redis.takes(&limit).await);
        }
        let (state, ttl) = (redis.raw(&name).unwrap(), redis.ttl(&name));
        let ask = async |candidate: fn(_) -> _| {
            let candidates: Vec<_> = (0..250)
                .map(|_| candidate(vec![charge(&limit, "a", 1)]))
                .collect();
            for _ in 0..4 {
                let answer = redis.store.admit(&candidates, 1).await.unwrap();
                assert!(!answer.decisions.iter().any(is_granted));
            }
        };
        ask(was_denied).await;
        let key = redis_key(PREFIX, &name, key("a"));
        let mut connection = RedisServer::shared().connection();
        let mut raw = || -> String { redis::cmd("GET").arg(&key).query(&mut connection).unwrap() };
        assert_eq!(raw(), state, "{kind}");
        // Messages that are denied for the first time move the next return, and nothing else.
        ask(new).await;
        let after = raw();
        assert_eq!(after.split('|').next(), Some(&*state), "{kind}");
        assert_eq!(after.contains('|'), kind != "concurrency", "{after}");
        assert!(redis.ttl(&name) <= ttl, "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_that_lost_a_field_gives_its_capacity_at_most() {
    let mut redis = Redis::new().await;
    for (kind, rule) in kinds(3, "1h") {
        let name = format!("spoilt-{kind}");
        let limit = limit(&name, rule);
        assert!(redis.takes(&limit).await);
        let whole = redis.raw(&name).unwrap();
        let words: Vec<&str> = whole.split(' ').collect();
        for gone in 0..words.len() {
            let mut rest = words.clone();
            rest.remove(gone);
            let without = rest.join(" ");
            for spoilt in [without, whole.replace(words[gone], "nan"), String::new()] {
                redis.put(&name, &spoilt);
                let mut granted = 0;
                for _ in 0..5 {
                    granted += u32::from(redis.takes(&limit).await);
                }
                assert!(
                    granted <= 3,
                    "{kind}: {granted} of {words:?} without {gone}"
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn times_to_live_are_milliseconds_and_waits_are_exact() {
    let mut redis = Redis::new().await;
    for (kind, rule) in kinds(1, "2s") {
        let name = format!("units-{kind}");
        let limit = limit(&name, rule);
        let mut answer = redis.ask(&limit).await;
        // An aligned window may be about to end.
        if kind == "aligned" && redis.ttl(&name) < 1000 {
            eventually(BOUND, "the window's end", || redis.raw(&name).is_none()).await;
            answer = redis.ask(&limit).await;
        }
        assert!(is_granted(&answer.1), "{kind}");
        let ttl = redis.ttl(&name);
        assert!((0..=2002).contains(&ttl), "{kind} {ttl}");
        let (_, denied) = redis.ask(&limit).await;
        let Decision::Denied { until, fits, .. } = denied else {
            continue;
        };
        if kind == "concurrency" {
            assert_eq!((fits, until), (Fit::Full, StoreTime::default()));
        } else {
            assert_eq!(fits, Fit::At(until), "{kind}");
            let whole = answer.0 + Duration::from_secs(2);
            // To the microsecond: a whole period after the grant.
            assert!(
                until == whole || kind == "aligned" && until < whole,
                "{kind}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cost_larger_than_the_burst_is_never_and_spends_nothing() {
    let mut redis = Redis::new().await;
    for (kind, rule) in kinds(3, "1h") {
        let name = format!("never-{kind}");
        let limit = limit(&name, rule);
        let candidate = new(vec![charge(&limit, "a", 4)]);
        let answer = redis.store.admit(&[candidate], 1).await.unwrap();
        let never = Decision::TooCostly { by: 0, most: 3 };
        assert_eq!(answer.decisions, [never], "{kind}");
        assert_eq!(redis.raw(&name), None, "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_that_is_lowered_grants_nothing_and_rewinds_nothing() {
    let mut redis = Redis::new().await;
    for ((kind, large), (_, small)) in kinds(9, "366d").into_iter().zip(kinds(3, "366d")) {
        let name = format!("lowered-{kind}");
        let (large, small) = (limit(&name, large), limit(&name, small));
        for _ in 0..6 {
            assert!(redis.takes(&large).await, "{kind}");
        }
        let before = redis.raw(&name);
        let (_, decision) = redis.ask(&small).await;
        match decision {
            Decision::Denied { room, .. } => {
                assert_eq!(room.remaining, 0, "{kind}");
                assert_eq!(redis.raw(&name), before, "{kind}");
                // Raised again: units that were left are there at once.
                let mut left = 0;
                while redis.takes(&large).await {
                    left += 1;
                }
                assert_eq!(left, 3, "{kind}");
            }
            Decision::Granted { after } => {
                // A bucket holds what it can at most.
                assert_eq!(kind, "token_bucket");
                assert!(after[0].room.remaining < 3, "{kind}");
            }
            other => panic!("{kind}: {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_keys_of_a_call_lie_in_one_slot_of_a_cluster() {
    let server = RedisServer::start();
    let store = established(&server, PREFIX).await;
    let limits: Vec<_> = kinds(2, "1h")
        .into_iter()
        .map(|(kind, rule)| limit(kind, rule))
        .collect();
    let mut candidate = new(limits.iter().map(|limit| charge(limit, "a", 1)).collect());
    candidate.others_wait = true;
    let answer = store.admit(&[candidate], 1).await.unwrap();
    assert!(is_granted(&answer.decisions[0]));
    let mut redis = server.connection();
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut redis).unwrap();
    assert_eq!(keys.len(), 9);
    // Only a server in cluster mode returns the slot of a key.
    let cluster = RedisServer::start_clustered();
    let mut cluster = cluster.connection();
    let mut slot = |key: &String| -> u16 {
        let keyslot = redis::cmd("CLUSTER").arg("KEYSLOT").arg(key).clone();
        keyslot.query(&mut cluster).unwrap()
    };
    let first = slot(&keys[0]);
    assert!(keys.iter().all(|key| slot(key) == first), "{keys:?}");
}
