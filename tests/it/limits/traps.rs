//! Each trap that others fell into, at its exact boundary, in Redis and in this process.
//!
//! Redis' clock cannot be set: where a test needs the exact microsecond it moves the times in the
//! state, and the decisions themselves are tested to the microsecond with a clock of the test.

use std::sync::Arc;
use std::time::Duration;

use sluiced::core::budget::admit::{Cell, Mode, Want, admit};
use sluiced::core::budget::epoch::Era;
use sluiced::core::budget::limit::Limit;
use sluiced::core::budget::{Rule, State, record};
use sluiced::core::time::StoreTime;
use sluiced::limiter::memory::MemoryBudgetStore;
use sluiced::limiter::redis::RedisPaceStore;
use sluiced::ports::budget::{BudgetLimit, BudgetStore, Lost, Ruling, Ticket};
use sluiced::ports::clock::Clock;

use super::rules::*;
use crate::support::redis::RedisServer;
use crate::support::wait::{eventually, within};

const PREFIX: &str = "traps";
const HOUR: Duration = Duration::from_secs(3600);
/// A time of Redis with few microseconds: `{1795228193, 12}`.
const START: StoreTime = StoreTime::from_micros(1_795_228_193_000_012);

/// Every kind with a limit of `n` in `span`, whatever that means to it.
fn kinds(n: u32, span: &str) -> Vec<(&'static str, Rule)> {
    let length = sluiced::core::rate::parse_duration(span).unwrap();
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

/// A budget on a clock that the test moves: the decision alone.
struct Desk {
    rule: Rule,
    cells: [Cell; 1],
    now: StoreTime,
    asked: u128,
}

impl Desk {
    fn new(rule: Rule) -> Self {
        Self {
            rule,
            cells: [Cell::default()],
            now: START,
            asked: 0,
        }
    }

    fn ask(&mut self, cost: u64) -> Ruling {
        let limit = Limit::new(&self.rule, Lost::Closed, self.now);
        let want = Want {
            limit: &limit,
            cell: 0,
            cost,
            held: None,
        };
        self.asked += 1;
        let (ticket, era) = (Ticket(self.asked), Era::whole(START));
        admit(&[want], &mut self.cells, Mode::Take, ticket, &era, self.now)
    }

    /// Whether it is granted; then the call is made at once, and told.
    fn takes(&mut self, cost: u64) -> bool {
        let is_granted = is_granted(&self.ask(cost));
        if is_granted {
            let limit = Limit::new(&self.rule, Lost::Closed, self.now);
            let cell = &mut self.cells[0];
            let state = cell.state.as_ref();
            let told = state.and_then(|state| limit.made(state, self.now, self.now));
            cell.state = told.or_else(|| cell.state.take());
        }
        is_granted
    }
}

struct Redis {
    store: RedisPaceStore,
    redis: redis::Connection,
}

impl Redis {
    async fn new() -> Self {
        Self {
            store: connect(RedisServer::shared(), PREFIX).await,
            redis: RedisServer::shared().connection(),
        }
    }

    async fn takes(&self, limit: &Arc<BudgetLimit>) -> bool {
        is_granted(&self.ask(limit).await.1)
    }

    async fn ask(&self, limit: &Arc<BudgetLimit>) -> (StoreTime, Ruling) {
        let petition = take(vec![claim(limit, "a", 1)]);
        let mut answer = self.store.admit(&[petition], None).await.unwrap();
        (answer.now, answer.rulings.remove(0))
    }

    fn raw(&mut self, name: &str) -> Option<String> {
        let key = redis_key(PREFIX, name, key("a"));
        redis::cmd("GET").arg(key).query(&mut self.redis).unwrap()
    }

    fn ttl(&mut self, name: &str) -> i64 {
        let key = redis_key(PREFIX, name, key("a"));
        redis::cmd("PTTL").arg(key).query(&mut self.redis).unwrap()
    }
}

fn named(name: &str, rule: Rule) -> Arc<BudgetLimit> {
    limit(name, rule, Lost::Open)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_key_starts_full_and_has_a_time_to_live() {
    let mut redis = Redis::new().await;
    for (kind, rule) in kinds(2, "40ms") {
        let name = format!("expired-{kind}");
        let limit = named(&name, rule);
        // Until both were taken of one budget: at the edge of an aligned window they need not be.
        while redis.takes(&limit).await {}
        eventually(BOUND, "the state's end", || redis.raw(&name).is_none()).await;
        let (_, ruling) = redis.ask(&limit).await;
        let Ruling::Granted { passes } = ruling else {
            panic!("{kind}: {ruling:?}");
        };
        assert_eq!(passes[0].usage.remaining, 1, "{kind}");
        // -2: a machine that stood still let it end again. Never -1: no time to live.
        let ttl = redis.ttl(&name);
        assert!(ttl > 0 || ttl == -2, "{kind} {ttl}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_a_hundred_in_parallel_at_a_limit_of_one_one_passes() {
    let (one, two) = (Redis::new().await, Redis::new().await);
    for (kind, rule) in kinds(1, "366d") {
        let limit = named(&format!("parallel-{kind}"), rule);
        let asks = (0..100).map(|i| if i % 2 == 0 { &one } else { &two }.takes(&limit));
        let granted = futures::future::join_all(asks).await;
        assert_eq!(
            granted.iter().filter(|granted| **granted).count(),
            1,
            "{kind}"
        );
        let memory = MemoryBudgetStore::new(Clock::start());
        let petitions: Vec<_> = (0..100)
            .map(|_| take(vec![claim(&limit, "a", 1)]))
            .collect();
        let asks = petitions
            .iter()
            .map(|p| memory.admit(std::slice::from_ref(p), None));
        let answers = futures::future::join_all(asks).await;
        let granted = answers
            .into_iter()
            .filter(|a| is_granted(&a.as_ref().unwrap().rulings[0]));
        assert_eq!(granted.count(), 1, "{kind} in memory");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_key_is_without_a_time_to_live() {
    let server = RedisServer::start();
    let store = connect(&server, PREFIX).await;
    for (kind, rule) in kinds(2, "1h") {
        let limit = named(&format!("alive-{kind}"), rule);
        let petitions: Vec<_> = (0..5)
            .map(|_| reserve(vec![claim(&limit, "a", 1)]))
            .collect();
        store.admit(&petitions, None).await.unwrap();
    }
    let mut redis = server.connection();
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut redis).unwrap();
    assert_eq!(keys.len(), 7, "six states and the era: {keys:?}");
    for key in keys {
        let ttl: i64 = redis::cmd("PTTL").arg(&key).query(&mut redis).unwrap();
        assert!(ttl > 0, "{key} {ttl}");
    }
}

#[test]
fn a_hit_every_half_window_lets_the_window_reset() {
    let none = Duration::ZERO;
    for rule in [
        first_call("2/10s", none),
        aligned("2/10s", none),
        log("2/10s", none),
        gcra("2/10s", 1, none),
        full(2, 2, Duration::from_secs(10)),
    ] {
        let mut desk = Desk::new(rule);
        for _ in 0..1000 {
            assert!(desk.takes(1), "{:?}", desk.rule);
            desk.now = desk.now + Duration::from_secs(5);
        }
    }
}

#[test]
fn a_fixed_window_lets_twice_the_limit_through_at_its_edge_and_a_log_does_not() {
    let around_the_edge = |rule: Rule| {
        let mut desk = Desk::new(rule);
        // The last millisecond of a window, and the first of the next.
        let edge = StoreTime::from_micros(START.as_micros() / 1_000_000 * 1_000_000 + 1_000_000);
        desk.now = edge - MS;
        let before = (0..5).filter(|_| desk.takes(1)).count();
        desk.now = edge + MS;
        before + (0..5).filter(|_| desk.takes(1)).count()
    };
    assert_eq!(around_the_edge(aligned("5/1s", Duration::ZERO)), 10);
    assert_eq!(around_the_edge(log("5/1s", Duration::ZERO)), 5);
    // With a headroom the end of a window is closed: nothing can arrive in the next one.
    assert_eq!(around_the_edge(aligned("5/1s", 2 * MS)), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_denials_leave_the_state_byte_for_byte_as_it_was() {
    let mut redis = Redis::new().await;
    for (kind, rule) in kinds(3, "366d") {
        let name = format!("denials-{kind}");
        let limit = named(&name, rule);
        for _ in 0..3 {
            assert!(redis.takes(&limit).await);
        }
        let (state, ttl) = (redis.raw(&name).unwrap(), redis.ttl(&name));
        let petitions: Vec<_> = (0..250)
            .map(|_| take(vec![claim(&limit, "a", 1)]))
            .collect();
        for _ in 0..4 {
            let answer = redis.store.admit(&petitions, None).await.unwrap();
            assert!(!answer.rulings.iter().any(is_granted));
        }
        assert_eq!(redis.raw(&name).unwrap(), state, "{kind}");
        assert!(redis.ttl(&name) <= ttl, "{kind}");

        let mut desk = Desk::new(limit.terms().rule.clone());
        while desk.takes(1) {}
        let state = desk.cells[0].state.clone();
        for _ in 0..1000 {
            desk.now = desk.now + Duration::from_micros(1);
            assert!(!desk.takes(1));
        }
        assert_eq!(desk.cells[0].state, state, "{kind}");
    }
}

#[test]
fn asking_every_third_of_an_interval_a_thousand_times_grants_a_thousand() {
    let interval = Duration::from_millis(300);
    for rule in [
        gcra("1/300ms", 0, Duration::ZERO),
        log("1/300ms", Duration::ZERO),
        first_call("1/300ms", Duration::ZERO),
        full(1, 1, interval),
        full(3, 1, interval),
    ] {
        let capacity = rule.most() as usize;
        let mut desk = Desk::new(rule);
        let granted = (0..3_000)
            .filter(|_| {
                let granted = desk.takes(1);
                desk.now = desk.now + interval / 3;
                granted
            })
            .count();
        assert_eq!(granted, 1_000 + capacity - 1, "{:?}", desk.rule);
    }
}

#[test]
fn the_nth_passes_and_the_next_does_not() {
    for n in [1, 2, 7] {
        for (kind, rule) in kinds(n, "1h") {
            let mut desk = Desk::new(rule);
            let granted = (0..n + 3).filter(|_| desk.takes(1)).count();
            assert_eq!(granted, n as usize, "{kind}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_that_lost_a_field_gives_its_capacity_at_most() {
    let mut redis = Redis::new().await;
    for (kind, rule) in kinds(3, "1h") {
        let name = format!("spoilt-{kind}");
        let limit = named(&name, rule);
        assert!(redis.takes(&limit).await);
        let whole = redis.raw(&name).unwrap();
        let words: Vec<&str> = whole.split(' ').collect();
        for gone in 0..words.len() {
            let mut rest = words.clone();
            rest.remove(gone);
            for spoilt in [
                rest.join(" "),
                whole.replace(words[gone], "nan"),
                String::new(),
            ] {
                let key = redis_key(PREFIX, &name, key("a"));
                () = redis::cmd("SET")
                    .arg(key)
                    .arg(spoilt)
                    .arg("EX")
                    .arg(1000)
                    .query(&mut redis.redis)
                    .unwrap();
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
        let limit = named(&name, rule);
        let mut answer = redis.ask(&limit).await;
        // An aligned window may be about to end.
        if kind == "aligned" && redis.ttl(&name) < 1000 {
            eventually(BOUND, "the window's end", || redis.raw(&name).is_none()).await;
            answer = redis.ask(&limit).await;
        }
        assert!(is_granted(&answer.1), "{kind}");
        let ttl = redis.ttl(&name);
        assert!((0..=2002).contains(&ttl), "{kind} {ttl}");
        let (at, denied) = redis.ask(&limit).await;
        let Ruling::Denied { until, usage, .. } = denied else {
            continue;
        };
        assert_eq!(usage.retry_after, until.since(at), "{kind}");
        if kind != "concurrency" && kind != "aligned" {
            // To the microsecond: a whole period after the grant.
            assert_eq!(until, answer.0 + Duration::from_secs(2), "{kind}");
        }
    }
    // A time of few microseconds is not mistaken for another: `{…193, 12}` is 193.000012 s.
    let mut desk = Desk::new(log("1/2s", Duration::ZERO));
    assert!(desk.takes(1));
    let Ruling::Denied { until, .. } = desk.ask(1) else {
        panic!("one was granted");
    };
    assert_eq!(until.as_micros(), 1_795_228_195_000_012);
}

#[test]
fn denied_a_microsecond_before_retry_after_and_allowed_at_it() {
    for (kind, rule) in kinds(3, "7s") {
        if kind == "concurrency" {
            // Nobody knows when a call ends; asking is how to find out.
            continue;
        }
        for cost in [1, 2, 3] {
            let mut desk = Desk::new(rule.clone());
            while desk.takes(1) {}
            let Ruling::Denied { until, usage, .. } = desk.ask(cost) else {
                panic!("{kind}: all was taken");
            };
            assert_eq!(usage.retry_after, until.since(desk.now));
            desk.now = until - Duration::from_micros(1);
            assert!(!desk.takes(cost), "{kind} {cost}");
            desk.now = until;
            assert!(desk.takes(cost), "{kind} {cost}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cost_larger_than_the_burst_is_never_and_spends_nothing() {
    let mut redis = Redis::new().await;
    for (kind, rule) in kinds(3, "1h") {
        let name = format!("never-{kind}");
        let limit = named(&name, rule);
        let petition = reserve(vec![claim(&limit, "a", 4)]);
        let answer = redis.store.admit(&[petition], None).await.unwrap();
        assert!(
            matches!(answer.rulings[0], Ruling::Never { by: 0, usage } if usage.limit == 3),
            "{kind}"
        );
        assert_eq!(redis.raw(&name), None, "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_that_is_lowered_grants_nothing_and_rewinds_nothing() {
    let mut redis = Redis::new().await;
    for ((kind, large), (_, small)) in kinds(9, "366d").into_iter().zip(kinds(3, "366d")) {
        let name = format!("lowered-{kind}");
        let (large, small) = (named(&name, large), named(&name, small));
        for _ in 0..6 {
            assert!(redis.takes(&large).await, "{kind}");
        }
        let before = redis.raw(&name);
        let (_, ruling) = redis.ask(&small).await;
        match ruling {
            Ruling::Denied { usage, .. } => {
                assert_eq!((usage.limit, usage.remaining), (3, 0), "{kind}");
                assert_eq!(redis.raw(&name), before, "{kind}");
                // Raised again: what was left is there at once.
                let mut left = 0;
                while redis.takes(&large).await {
                    left += 1;
                }
                assert_eq!(left, 3, "{kind}");
            }
            Ruling::Granted { passes } => {
                // A bucket holds what it can at most; a debt of gcra is one of time, and smaller units
                // of it are left.
                assert!(matches!(kind, "token_bucket" | "gcra"), "{kind}");
                assert!(passes[0].usage.remaining < 3, "{kind}");
            }
            other => panic!("{kind}: {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_keys_of_a_call_lie_in_one_slot_of_a_cluster() {
    let server = RedisServer::start();
    let store = connect(&server, PREFIX).await;
    let limits: Vec<_> = kinds(2, "1h")
        .into_iter()
        .map(|(kind, rule)| named(kind, rule))
        .collect();
    let claims = limits.iter().map(|limit| claim(limit, "a", 1)).collect();
    assert!(is_granted(
        &store.admit(&[take(claims)], None).await.unwrap().rulings[0]
    ));
    let mut redis = server.connection();
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut redis).unwrap();
    assert_eq!(keys.len(), 7);
    // Only a server with a cluster tells the slot of a key.
    let cluster = RedisServer::start_with("--cluster-enabled yes", None);
    let mut cluster = cluster.connection();
    let mut slot = |key: &String| -> u16 {
        let keyslot = redis::cmd("CLUSTER").arg("KEYSLOT").arg(key).clone();
        keyslot.query(&mut cluster).unwrap()
    };
    let first = slot(&keys[0]);
    assert!(keys.iter().all(|key| slot(key) == first), "{keys:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_died_is_swept_out_of_memory() {
    let store = MemoryBudgetStore::new(Clock::start());
    let limit = named("sweep", gcra("1/1ms", 0, Duration::ZERO));
    let sweeping = async {
        for i in 0..20_000 {
            let petition = take(vec![claim(&limit, &i.to_string(), 1)]);
            store.admit(&[petition], None).await.unwrap();
            if i % 500 == 0 {
                tokio::time::sleep(2 * MS).await;
            }
        }
    };
    within(BOUND, "20,000 keys", sweeping).await;
    assert!(store.len() <= 4_096, "{}", store.len());
}

#[test]
fn a_state_says_which_epoch_it_belongs_to() {
    let mut desk = Desk::new(gcra("1/1h", 0, HOUR / 4));
    desk.takes(1);
    let state: State = desk.cells[0].state.clone().unwrap();
    let era = Era::whole(START);
    let text = record::write(&state, era.epoch);
    assert_eq!(text, format!("g1 {} 0", START.as_micros() + 4_500_000_000));
}
