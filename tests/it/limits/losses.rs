//! What happens when Redis loses its state, restarts, or its clock steps.

mod noticed;

use std::sync::Arc;
use std::time::Duration;

use sluiced_core::limits::Rule;
use sluiced_core::limits::admission::Decision;
use sluiced_core::limits::generation::{ClosedReason, GUARD, LostWait};
use sluiced_core::time::StoreTime;
use sluiced_ports::limits::{KeyedLimit, LimitStore};
use sluiced_ports::policies::PolicyOf;
use sluiced_ports::store::{Family, PolicyStore as _, Store as _};
use sluiced_store::redis::RedisStore;

use super::rules::*;
use crate::support::redis::RedisServer;
use crate::support::wait::eventually_async;

const PREFIX: &str = "losses";
const HOUR: Duration = Duration::from_secs(3600);

fn rule() -> Rule {
    log("3/1h", MS)
}

fn forever(name: &str) -> Arc<KeyedLimit> {
    waiting(name, rule(), LostWait::Forever)
}

fn waiting_for(name: &str, length: Duration) -> Arc<KeyedLimit> {
    waiting(name, rule(), LostWait::For(length))
}

async fn ask(store: &RedisStore, limit: &Arc<KeyedLimit>, key: &str) -> (StoreTime, Decision) {
    let candidate = new(vec![charge(limit, key, 1)]);
    let mut answer = store.admit(&[candidate], 1).await.unwrap();
    (answer.now, answer.decisions.remove(0))
}

/// Until when the limit is closed, and when it was asked.
async fn closed(
    store: &RedisStore,
    limit: &Arc<KeyedLimit>,
    key: &str,
    because: ClosedReason,
) -> (StoreTime, StoreTime) {
    match ask(store, limit, key).await {
        (now, Decision::Closed { by: 0, until, why }) if why == because => (now, until),
        other => panic!("not closed because of {because:?}: {other:?}"),
    }
}

async fn opens(store: &RedisStore, limit: &Arc<KeyedLimit>, key: &str) -> StoreTime {
    let opened = async || is_granted(&ask(store, limit, key).await.1);
    eventually_async(BOUND, "an open limit", opened).await;
    ask(store, limit, key).await.0
}

fn number(server: &RedisServer) -> u64 {
    let record = generation(&mut server.connection(), PREFIX);
    record.map_or(0, |record| record.number)
}

fn flush(server: &RedisServer) {
    () = redis::cmd("FLUSHALL")
        .query(&mut server.connection())
        .unwrap();
}

async fn reconnected(store: &RedisStore) {
    eventually_async(BOUND, "a connection", async || {
        store.link().borrow().is_up() && store.admit(&[], 0).await.is_ok()
    })
    .await;
}

/// A server that writes everything to disk at once.
fn durable() -> RedisServer {
    RedisServer::start_with("--appendonly yes --appendfsync always", None)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_installation_waits_for_a_moment_and_is_then_open() {
    let server = RedisServer::start();
    let store = connect(&server, PREFIX).await;
    let limit = forever("new");
    let (now, until) = closed(&store, &limit, "a", ClosedReason::Guard).await;
    assert!(until <= now + GUARD);
    let first = number(&server);
    assert!(opens(&store, &limit, "a").await >= until);
    assert_eq!(number(&server), first);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_that_lost_nothing_costs_the_guard() {
    let server = durable();
    let store = established(&server, PREFIX).await;
    let limit = forever("kept");
    assert!(is_granted(&ask(&store, &limit, "a").await.1));
    let before = number(&server);
    server.kill();
    server.boot();
    reconnected(&store).await;
    let (now, until) = closed(&store, &limit, "a", ClosedReason::Guard).await;
    assert!(until <= now + GUARD);
    eventually_async(BOUND, "the end of the guard", async || {
        store.admit(&[], 0).await.unwrap().now > until
    })
    .await;
    assert_eq!(number(&server), before, "the generation goes on");
    let look = store.look(&limit, key("a")).await.unwrap();
    assert_eq!((look.closed, look.room.remaining), (None, 2));
    assert!(is_granted(&ask(&store, &limit, "a").await.1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_that_lost_grants_closes_for_as_long_as_they_count_or_is_waited() {
    let server = durable();
    let store = established(&server, PREFIX).await;
    let (long, short) = (forever("long"), waiting_for("short", 3 * GUARD));
    let none = waiting_for("none", Duration::ZERO);
    assert!(is_granted(&ask(&store, &long, "a").await.1));
    // Later writes are lost: the server restarts with a snapshot of this moment.
    let mut redis = server.connection();
    let saved = redis::cmd("DUMP").arg(generation_key(PREFIX)).clone();
    let saved: Vec<u8> = saved.query(&mut redis).unwrap();
    let kept = redis_key(PREFIX, "long", key("a"));
    let state: String = redis::cmd("GET").arg(&kept).query(&mut redis).unwrap();
    assert!(is_granted(&ask(&store, &long, "a").await.1));
    assert!(is_granted(&ask(&store, &none, "a").await.1));
    let before = number(&server);
    server.kill();
    server.boot();
    let mut redis = server.connection();
    () = redis::cmd("RESTORE")
        .arg(generation_key(PREFIX))
        .arg(0)
        .arg(saved)
        .arg("REPLACE")
        .query(&mut redis)
        .unwrap();
    () = redis::cmd("SET")
        .arg(kept)
        .arg(state)
        .arg("EX")
        .arg(5000)
        .query(&mut redis)
        .unwrap();
    reconnected(&store).await;
    let (now, until) = closed(&store, &long, "a", ClosedReason::Lost).await;
    assert!(number(&server) > before);
    let lost_at = generation(&mut redis, PREFIX).unwrap().lost_at;
    assert!(lost_at <= now);
    assert_eq!(until, lost_at + HOUR + MS, "until nothing of it counts");
    // Keys that were never seen are closed as well: their states may have been lost.
    let opens_at = lost_at + 3 * GUARD;
    match ask(&store, &short, "new").await {
        (_, Decision::Closed { until, .. }) => {
            assert_eq!(until, opens_at, "no longer than it waits")
        }
        // A busy machine took so long that it is open again.
        (now, decision) => assert!(is_granted(&decision) && now >= opens_at, "{decision:?}"),
    }
    assert!(is_granted(&ask(&store, &none, "b").await.1));
    assert!(opens(&store, &short, "new").await >= opens_at);
    closed(&store, &long, "new", ClosedReason::Lost).await;
    assert!(number(&server) > before);
}

/// Back: units that were taken count for longer, and nothing is lost, but windows come again. Forward:
/// everything is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_goes_back_closes_windows_and_one_that_goes_forward_all() {
    let server = RedisServer::start_clocked();
    let store = established(&server, PREFIX).await;
    let log = forever("log");
    let windows = waiting("windows", first_call("3/1h", MS), LostWait::Forever);
    for limit in [&log, &windows] {
        assert!(is_granted(&ask(&store, limit, "a").await.1));
    }
    let step_to = async |seconds| {
        let before = number(&server);
        server.step_to(seconds);
        // The heartbeat notices the step and reports it.
        let told = async || number(&server) > before && store.admit(&[], 0).await.is_ok();
        eventually_async(BOUND, "a step that was told", told).await;
    };
    step_to(-5.0).await;
    assert!(is_granted(&ask(&store, &log, "a").await.1));
    let look = store.look(&log, key("a")).await.unwrap();
    assert_eq!(look.room.remaining, 1, "what was taken counts");
    closed(&store, &windows, "a", ClosedReason::Lost).await;
    step_to(5.0).await;
    for limit in [&log, &windows] {
        closed(&store, limit, "a", ClosedReason::Lost).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_opens_a_limit_that_waits() {
    let server = RedisServer::start();
    let store = Arc::new(established(&server, PREFIX).await);
    let (opened, other) = (forever("opened"), forever("other"));
    assert!(is_granted(&ask(&store, &opened, "a").await.1));
    flush(&server);
    closed(&store, &opened, "a", ClosedReason::Lost).await;
    // It is declared, like any limit in use.
    let declaration = sluiced_core::policy::Declaration {
        replica: "replica".to_owned(),
        file: "any".to_owned(),
        known: None,
    };
    let policy = PolicyOf::new(&*store, Family::Keyed, "opened");
    let policy = policy.declare(&declaration).await.unwrap();
    opened.adopt(sluiced_ports::limits::RuleInForce {
        rule: rule(),
        version: policy.version,
    });
    assert!(store.open(Family::Keyed, "opened").await.unwrap().is_some());
    assert!(is_granted(&ask(&store, &opened, "a").await.1));
    closed(&store, &other, "a", ClosedReason::Lost).await;
    // The next loss closes it again.
    flush(&server);
    opened.adopt(sluiced_ports::limits::RuleInForce {
        rule: rule(),
        version: sluiced_core::version::PolicyVersion::NONE,
    });
    closed(&store, &opened, "a", ClosedReason::Lost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_granted_before_a_loss_is_not_taken_back() {
    let server = RedisServer::start();
    let store = established(&server, PREFIX).await;
    let limit = waiting_for("refund", Duration::ZERO);
    let (at, decision) = ask(&store, &limit, "a").await;
    assert!(is_granted(&decision));
    let saved: Option<String> = redis::cmd("GET")
        .arg(redis_key(PREFIX, "refund", key("a")))
        .query(&mut server.connection())
        .unwrap();
    flush(&server);
    () = redis::cmd("SET")
        .arg(redis_key(PREFIX, "refund", key("a")))
        .arg(saved)
        .arg("EX")
        .arg(1000)
        .query(&mut server.connection())
        .unwrap();
    let refund = sluiced_ports::limits::GrantedCharge::Units {
        charge: charge(&limit, "a", 1),
        at: just_asked(at),
    };
    // The refund itself reports the loss.
    assert_eq!(store.release(&[refund]).await.unwrap(), 0);
    let look = store.look(&limit, key("a")).await.unwrap();
    assert_eq!(look.room.remaining, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_from_the_future_counts_as_taken_now() {
    let server = RedisServer::start();
    let store = established(&server, PREFIX).await;
    let limit = forever("future");
    let (now, _) = ask(&store, &limit, "b").await;
    let ahead = now + HOUR;
    () = redis::cmd("SET")
        .arg(redis_key(PREFIX, "future", key("a")))
        .arg(format!("l {} 3", ahead.as_micros()))
        .arg("EX")
        .arg(1000)
        .query(&mut server.connection())
        .unwrap();
    let (now, decision) = ask(&store, &limit, "a").await;
    let Decision::Denied { until, .. } = decision else {
        panic!("{decision:?}");
    };
    assert_eq!(until, now + HOUR + MS);
    // It is as full as before, and asking again does not make it open later.
    let candidate = was_denied(vec![charge(&limit, "a", 1)]);
    let answer = store.admit(&[candidate], 1).await.unwrap();
    assert!(matches!(answer.decisions[0], Decision::Denied { until: same, .. } if same == until));
}
