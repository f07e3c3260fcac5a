//! Which replica notices a loss that no restart tells: a failover there and back, or a store that was emptied.

use sluiced_core::limits::admission::Decision;
use sluiced_core::limits::generation::{ClosedReason, GUARD};

use super::{HOUR, PREFIX, ask, closed, flush, forever, number, opens, reconnected};
use crate::limits::rules::*;
use crate::support::proxy::{Mode, Proxy};
use crate::support::redis::RedisServer;
use crate::support::wait::eventually_async;

/// The second server lacks the last grants. It serves, or no replica reaches it meanwhile; then the first
/// one, still the same process, serves again with the second one's data. No message asked for the limit in
/// between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_there_and_back_is_noticed_by_a_limit_that_nothing_asked_meanwhile() {
    for second_is_reached in [true, false] {
        let first = RedisServer::start();
        let link = Proxy::to(first.port()).await;
        let follow = format!("--replicaof 127.0.0.1 {}", link.port());
        let second = RedisServer::start_with(&follow, None);
        for server in [&first, &second] {
            tell(server, &["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
        }
        follows(&second).await;
        let clients = Proxy::to(first.port()).await;
        let url = format!("redis://127.0.0.1:{}/0", clients.port());
        let store = connect_to(url, PREFIX).await;
        let limit = forever("there-and-back");
        opens(&store, &limit, "other").await;
        assert!(is_granted(&ask(&store, &limit, "a").await.1));
        let writes = |server: &RedisServer| {
            let record = generation(&mut server.connection(), PREFIX);
            record.map(|record| record.writes)
        };
        eventually_async(BOUND, "it has all of it", async || {
            writes(&second) == writes(&first)
        })
        .await;

        link.set(Mode::Silent);
        for _ in 0..2 {
            assert!(is_granted(&ask(&store, &limit, "a").await.1));
        }
        clients.set(Mode::Refuse);
        link.cut();
        tell(&second, &["REPLICAOF", "NO", "ONE"]);
        if second_is_reached {
            clients.retarget(second.port());
            clients.set(Mode::Pass);
            reconnected(&store).await;
            clients.set(Mode::Refuse);
        }
        tell(
            &first,
            &["REPLICAOF", "127.0.0.1", &second.port().to_string()],
        );
        follows(&first).await;
        tell(&first, &["REPLICAOF", "NO", "ONE"]);
        clients.retarget(first.port());
        clients.set(Mode::Pass);
        reconnected(&store).await;

        // Three of three were granted, of which one is known here.
        let decision = ask(&store, &limit, "a").await.1;
        assert!(matches!(decision, Decision::Closed { .. }), "{decision:?}");
        eventually_async(BOUND, "the end of the guard", async || {
            let closed = ask(&store, &limit, "a").await.1;
            matches!(
                closed,
                Decision::Closed {
                    why: ClosedReason::Lost,
                    ..
                }
            )
        })
        .await;
    }
}

fn tell(server: &RedisServer, words: &[&str]) {
    let mut question = redis::Cmd::new();
    for word in words {
        question.arg(word);
    }
    question
        .query::<redis::Value>(&mut server.connection())
        .unwrap();
}

async fn follows(server: &RedisServer) {
    let up = || async { server.info().contains("master_link_status:up") };
    eventually_async(BOUND, "it follows", up).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_flush_the_replica_that_remembers_closes_the_limits() {
    let server = RedisServer::start();
    let store = established(&server, PREFIX).await;
    let limit = forever("flushed");
    assert!(is_granted(&ask(&store, &limit, "a").await.1));
    let before = number(&server);
    flush(&server);
    // A replica that knows nothing may be the first to ask, and assumes that the store is new.
    let third = connect(&server, PREFIX).await;
    let decision = ask(&third, &limit, "b").await.1;
    assert!(matches!(decision, Decision::Closed { .. }), "{decision:?}");
    closed(&store, &limit, "b", ClosedReason::Lost).await;
    assert!(number(&server) > before);
    // The other one learns it.
    let (_, until) = closed(&third, &limit, "b", ClosedReason::Lost).await;
    let lost_at = generation(&mut server.connection(), PREFIX)
        .unwrap()
        .lost_at;
    assert_eq!(until, lost_at + HOUR + MS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_tells_without_being_asked() {
    let server = RedisServer::start();
    let store = established(&server, PREFIX).await;
    let before = number(&server);
    flush(&server);
    eventually_async(BOUND, "a new generation", async || number(&server) > before).await;
    drop(store);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_that_remember_the_same_loss_begin_one_generation() {
    let server = RedisServer::start();
    let first = established(&server, PREFIX).await;
    let second = connect(&server, PREFIX).await;
    let limit = forever("once");
    for store in [&first, &second] {
        assert!(is_granted(&ask(store, &limit, "a").await.1));
    }
    flush(&server);
    closed(&first, &limit, "a", ClosedReason::Lost).await;
    let begun = number(&server);
    closed(&second, &limit, "a", ClosedReason::Lost).await;
    tokio::time::sleep(GUARD).await;
    closed(&first, &limit, "a", ClosedReason::Lost).await;
    assert_eq!(number(&server), begun);
}
