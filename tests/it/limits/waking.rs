//! Messages that wait for calls to end: as many replicas are woken as units come free, and no others.

use std::sync::Arc;
use std::time::Duration;

use sluiced_core::limits::Fit;
use sluiced_core::limits::admission::Decision;
use sluiced_ports::limits::{Candidate, GrantedCharge, KeyedLimit, LimitStore};
use sluiced_ports::store::Notice;
use sluiced_store::redis::RedisStore;
use tokio::sync::broadcast::Receiver;

use super::rules::*;
use crate::support::redis::RedisServer;
use crate::support::wait::{eventually, eventually_async};

const HOUR: Duration = Duration::from_secs(3600);
/// No limit of a test has this name.
const MARK: &str = "mark";

/// A replica, and the notices that it gets.
struct Replica {
    store: RedisStore,
    notices: Receiver<Notice>,
}

impl Replica {
    async fn new(server: &RedisServer, prefix: &str) -> Self {
        let store = established(server, prefix).await;
        Self {
            notices: store.notices(),
            store,
        }
    }

    /// Asks for a message; `None`: it is granted, `Some`: the limit is full.
    async fn ask(&self, candidate: Candidate) -> bool {
        let answer = self.store.admit(&[candidate], 1).await.unwrap();
        match &answer.decisions[0] {
            Decision::Granted { .. } => true,
            Decision::Denied {
                fits: Fit::Full, ..
            } => false,
            other => panic!("{other:?}"),
        }
    }

    /// Units of its notices, up to the mark.
    async fn told(&mut self) -> u64 {
        let mut units = 0;
        loop {
            let notice = tokio::time::timeout(BOUND, self.notices.recv()).await;
            match notice.expect("the mark comes").unwrap() {
                Notice::Freed { units: freed, .. } => units += freed,
                Notice::Opened { limit } if *limit == *MARK => return units,
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Units of the notices of each replica since. Redis delivers what is published to a channel in its order: once a mark
/// has come, all has come that was published before.
async fn told(server: &RedisServer, prefix: &str, fleet: &mut [Replica]) -> Vec<u64> {
    let mut mark = redis::cmd("PUBLISH");
    mark.arg(format!("{prefix}:notices"))
        .arg(format!("opened {MARK}"));
    let reached: usize = mark.query(&mut server.connection()).unwrap();
    assert!(reached >= fleet.len(), "{reached}");
    let mut all = Vec::new();
    for replica in fleet {
        all.push(replica.told().await);
    }
    all
}

/// Replicas that share a store, in the order in which they wait.
async fn fleet(server: &RedisServer, prefix: &str, count: usize) -> Vec<Replica> {
    let mut fleet = Vec::new();
    for _ in 0..count {
        fleet.push(Replica::new(server, prefix).await);
    }
    let channel = format!("{prefix}:notices");
    eventually(BOUND, "all replicas to listen", || {
        let count = redis::cmd("PUBSUB").arg("NUMSUB").arg(&channel).clone();
        let found: (String, usize) = count.query(&mut server.connection()).unwrap();
        found.1 == fleet.len()
    })
    .await;
    fleet
}

async fn all_taken(replica: &Replica, limit: &Arc<KeyedLimit>, count: usize) -> Vec<GrantedCharge> {
    let mut calls = Vec::new();
    for _ in 0..count {
        let candidate = new(vec![charge(limit, "a", 1)]);
        calls.push(GrantedCharge::call(&candidate.charges[0], candidate.ticket));
        assert!(replica.ask(candidate).await);
    }
    calls
}

fn one(limit: &Arc<KeyedLimit>) -> Candidate {
    new(vec![charge(limit, "a", 1)])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_many_are_woken_as_units_come_free_and_those_that_wait_longest_first() {
    let server = RedisServer::start();
    let mut fleet = fleet(&server, "waking", 4).await;
    let limit = limit("calls", concurrency(3, HOUR));
    let calls = all_taken(&fleet[0], &limit, 3).await;
    for replica in &fleet[1..] {
        assert!(!replica.ask(one(&limit)).await);
    }
    // Asked twice is not woken twice.
    assert!(!fleet[1].ask(one(&limit)).await);
    fleet[0].store.release(&calls[..1]).await.unwrap();
    let units = told(&server, "waking", &mut fleet).await;
    assert_eq!(units, [0, 0, 1, 0], "the one that waited longest");
    // It asks and is granted, and reports that other messages of it wait.
    let candidate = Candidate {
        others_wait: true,
        ..one(&limit)
    };
    assert!(fleet[2].ask(candidate).await);
    fleet[0].store.release(&calls[1..]).await.unwrap();
    assert_eq!(told(&server, "waking", &mut fleet).await, [0, 1, 0, 1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_replica_is_told_of_all_units_if_it_alone_waits() {
    let server = RedisServer::start();
    let mut fleet = fleet(&server, "alone", 3).await;
    let limit = limit("calls", concurrency(5, HOUR));
    let calls = all_taken(&fleet[0], &limit, 5).await;
    assert!(!fleet[1].ask(one(&limit)).await);
    fleet[0].store.release(&calls).await.unwrap();
    assert_eq!(told(&server, "alone", &mut fleet).await, [0, 5, 0]);
    // It no longer waits until it reports so again.
    let calls = all_taken(&fleet[0], &limit, 1).await;
    fleet[0].store.release(&calls).await.unwrap();
    fleet[0].store.release(&calls).await.unwrap();
    assert_eq!(told(&server, "alone", &mut fleet).await, [0, 0, 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_that_was_lowered_wakes_for_the_room_that_it_has() {
    let server = RedisServer::start();
    let mut fleet = fleet(&server, "lowered", 2).await;
    let large = limit("calls", concurrency(4, HOUR));
    let small = limit("calls", concurrency(2, HOUR));
    let calls = all_taken(&fleet[0], &large, 4).await;
    assert!(!fleet[1].ask(one(&small)).await);
    let of_small = |call: &GrantedCharge| match call {
        GrantedCharge::Call { ticket, .. } => GrantedCharge::call(&charge(&small, "a", 1), *ticket),
        GrantedCharge::Units { .. } | GrantedCharge::Claim { .. } => panic!("{call:?} is no call"),
    };
    let calls: Vec<_> = calls.iter().map(of_small).collect();
    fleet[0].store.release(&calls[..2]).await.unwrap();
    let units = told(&server, "lowered", &mut fleet).await;
    assert_eq!(units, [0, 0], "two are under way of two");
    fleet[0].store.release(&calls[2..3]).await.unwrap();
    assert_eq!(told(&server, "lowered", &mut fleet).await, [0, 1]);
}

/// A dead replica does not use the room of which it got a notice: the others find it when they ask
/// after a while, and its registration ends with the lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_died_takes_no_room_with_it() {
    let server = RedisServer::start();
    let prefix = "dead";
    let mut fleet = fleet(&server, prefix, 3).await;
    let limit = limit("calls", concurrency(1, 2 * Duration::from_secs(1)));
    let calls = all_taken(&fleet[0], &limit, 1).await;
    assert!(!fleet[1].ask(one(&limit)).await);
    assert!(!fleet[2].ask(one(&limit)).await);
    drop(fleet.remove(1));
    fleet[0].store.release(&calls).await.unwrap();
    // The dead replica was woken. The other one asks by itself, and is granted.
    assert_eq!(told(&server, prefix, &mut fleet).await, [0, 0]);
    assert!(fleet[1].ask(one(&limit)).await);
    // Its call ends by itself if the replica dies, too; and so does the wait for it.
    let waiting = format!("{}:waiting", redis_key(prefix, "calls", key("a")));
    eventually_async(BOUND, "the end of the lease", async || {
        fleet[0].ask(one(&limit)).await
    })
    .await;
    let ttl = redis::cmd("PTTL").arg(waiting).clone();
    let ttl: i64 = ttl.query(&mut server.connection()).unwrap();
    assert!(ttl <= 2_000 && ttl != -1, "{ttl}");
}
