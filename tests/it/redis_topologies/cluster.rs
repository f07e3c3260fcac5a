//! A cluster whose slots move, and whose nodes die and are replaced.

use std::sync::Arc;
use std::time::Duration;

use sluiced_core::limits::admission::Decision;
use sluiced_core::limits::gcra::Gcra;
use sluiced_core::limits::generation::LostWait;
use sluiced_core::limits::sliding_log::SlidingLog;
use sluiced_core::limits::{Rule, Ticket};
use sluiced_core::rate::Cost;
use sluiced_ports::limits::{Candidate, Charge, KeyedLimit, LimitStore, limit_key};
use sluiced_ports::link::Link;
use sluiced_ports::store::Store;
use sluiced_settings::types::Redis;
use sluiced_store::redis::{RedisStore, probe};

use super::{
    BOUND, cluster_of, connect, hauls, is_up, lease, limit, nothing_over, options, runs_at, slots,
    try_lease,
};
use crate::support::redis_cluster::RedisCluster;
use crate::support::wait::{eventually, eventually_async};

fn servers(cluster: &RedisCluster) -> Redis {
    cluster_of(cluster.urls())
}

/// A limit for each of the three masters.
fn one_for_each(cluster: &RedisCluster) -> [String; 3] {
    [0, 1, 2].map(|master| {
        let mut names = (0..1_000).map(|i| format!("limit-{i}"));
        names
            .find(|name| RedisCluster::owner(cluster.slot(name)) == master)
            .expect("names lie everywhere")
    })
}

fn key(name: &str) -> String {
    format!("sluiced:{{{name}}}:paced")
}

fn holds(cluster: &RedisCluster, node: usize, name: &str) -> bool {
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg("*")
        .query(&mut cluster.nodes[node].connection())
        .unwrap();
    keys.contains(&key(name))
}

async fn grants(store: &RedisStore, name: &str) -> bool {
    matches!(try_lease(store, &limit(name)).await, Ok((Some(_), _)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_lie_on_all_masters_and_one_that_dies_takes_only_its_own() {
    let cluster = RedisCluster::start(0);
    // One seed is enough.
    let mut urls = cluster.urls();
    urls.truncate(1);
    let store = connect(&options(cluster_of(urls))).await;
    let names = one_for_each(&cluster);
    let mut last = 0;
    for (master, name) in names.iter().enumerate() {
        let limit = limit(name);
        let (grant, _) = lease(&store, &limit).await;
        assert!(holds(&cluster, master, name));
        last = slots(&limit, &grant).pop().unwrap();
    }
    let mut keyed = options(servers(&cluster));
    assert_eq!(probe(&keyed).await.unwrap().warnings, Vec::<String>::new());
    keyed.keyed = true;
    let report = probe(&keyed).await.unwrap();
    assert_eq!(report.servers, "a cluster of 3 masters");
    // Once for all of them.
    assert_eq!(report.warnings.len(), 1);
    assert!(report.warnings[0].contains("nothing is kept on disk"));

    cluster.nodes[2].kill();
    let link = store.link();
    eventually(
        BOUND,
        "the loss is seen",
        || matches!(&*link.borrow(), Link::Down(reason) if reason.contains("127.0.0.1")),
    )
    .await;
    let error = try_lease(&store, &limit(&names[2])).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    for name in &names[..2] {
        eventually_async(BOUND, "the others go on", async || {
            grants(&store, name).await
        })
        .await;
    }
    cluster.nodes[2].boot();
    is_up(&store).await;
    // It lost everything, and its slots begin behind the earlier ones.
    let limit = limit(&names[2]);
    let (grant, guarded) = lease(&store, &limit).await;
    assert!(guarded && grant.first.as_micros() > last);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_is_followed_with_nothing_over() {
    let cluster = RedisCluster::start(0);
    let options = options(servers(&cluster));
    let (store, other) = (connect(&options).await, connect(&options).await);
    let [name, ..] = one_for_each(&cluster);
    let limit = limit(&name);
    lease(&store, &limit).await;
    let haul = hauls([&store, &other], &limit, async |progress| {
        for (from, to) in [(0, 1), (1, 2)] {
            tokio::time::sleep(Duration::from_millis(500)).await;
            cluster.migrate(cluster.slot(&name), from, to);
            eventually(BOUND, "the new node runs the scripts", || {
                runs_at(&cluster.nodes[to], &name)
            })
            .await;
            progress.both_go_on().await;
        }
    })
    .await;
    // Each new node runs the script under another run_id.
    assert!(haul.guarded >= 2);
    nothing_over(&limit, haul.slots);
    // A redirection is no loss: no connection was given up.
    assert!(store.link().borrow().is_up());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_dies_is_succeeded_by_its_replica_with_nothing_over() {
    let cluster = RedisCluster::start(1);
    let options = options(servers(&cluster));
    let (store, other) = (connect(&options).await, connect(&options).await);
    let [name, ..] = one_for_each(&cluster);
    let limit = limit(&name);
    lease(&store, &limit).await;
    let haul = hauls([&store, &other], &limit, async |progress| {
        tokio::time::sleep(Duration::from_millis(500)).await;
        cluster.nodes[0].kill();
        eventually(BOUND, "the replica succeeds", || {
            runs_at(&cluster.nodes[3], &name)
        })
        .await;
        progress.both_go_on().await;
        tokio::time::sleep(Duration::from_millis(500)).await;
    })
    .await;
    assert!(haul.guarded >= 1 && haul.failed > 0 && haul.slots.len() > 300);
    nothing_over(&limit, haul.slots);
    // The dead node is no longer in use.
    is_up(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_keyed_limits_are_decided_in_one_slot() {
    let cluster = RedisCluster::start(0);
    let store = connect(&options(servers(&cluster))).await;
    let rate = "2/1h".parse().expect("a rate");
    let rules = [
        Rule::SlidingLog(SlidingLog::new(rate, Duration::ZERO).expect("a log")),
        Rule::Gcra(Gcra::new(rate, 1, Duration::ZERO).expect("a small burst")),
    ];
    let limits = rules.map(|rule| {
        let name = format!("keyed-{}", rule.entries());
        Arc::new(KeyedLimit::new(&name, rule, LostWait::For(Duration::ZERO)))
    });
    let candidates: Vec<Candidate> = (0..30)
        .map(|i| Candidate {
            charges: limits
                .iter()
                .map(|limit| Charge {
                    limit: Arc::clone(limit),
                    key: limit_key(&[&(i % 10).to_string()]),
                    cost: Cost::ONE,
                })
                .collect(),
            was_denied: false,
            slots: Cost::ONE,
            ticket: Ticket(i),
            died: sluiced_core::time::StoreTime::default(),
            others_wait: false,
        })
        .collect();
    let answer = store.admit(&candidates, 30).await.expect("an answer");
    let granted = answer
        .decisions
        .iter()
        .filter(|decision| matches!(decision, Decision::Granted { .. }));
    assert_eq!(granted.count(), 20);
}
