//! The reports of replicas, as a store keeps them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use sluiced_ports::store::{BARS, StatusReport, StatusStore, Store as _};
use sluiced_settings::text::Length;
use sluiced_store::memory::MemoryStore;
use sluiced_store::redis::{RedisOptions, RedisStore};

use crate::support::daemon::LONG;
use crate::support::redis::RedisServer;
use crate::support::wait::eventually;

/// Redis and the store of one process keep the same reports.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_used_is_shown_when_it_was_used() {
    let mut options = RedisOptions::single(RedisServer::shared().url(), "status-bars");
    options.settings.response_timeout = Length(Duration::from_secs(5));
    let redis = RedisStore::connect(&options).unwrap();
    let link = redis.link();
    eventually(LONG, "a connection", || link.borrow().is_up()).await;
    let redis: Arc<dyn StatusStore> = Arc::new(redis);
    for store in [redis, Arc::new(MemoryStore::default())] {
        let used = BTreeMap::from([("account".to_owned(), 300), ("sender".to_owned(), 30)]);
        let told = |replica, text| {
            let passed = Duration::from_secs(60);
            store.report_status(StatusReport {
                replica,
                text,
                used: &used,
                passed,
            })
        };
        told("a", "{}").await.unwrap();
        told("b", "{\"x\": 1}").await.unwrap();
        let heard = store.read_reports().await.unwrap();
        let mut texts: Vec<_> = heard
            .replicas
            .iter()
            .map(|(_, text)| text.as_str())
            .collect();
        texts.sort_unstable();
        assert_eq!(texts, ["{\"x\": 1}", "{}"]);
        assert!(
            heard
                .replicas
                .iter()
                .all(|(ago, _)| *ago < Duration::from_secs(60))
        );
        for (limit, per_second) in [("account", 10.0), ("sender", 1.0)] {
            let bars = &heard.bars[limit];
            assert_eq!(bars.len(), BARS);
            // The minute began within one bar, and the newest may not have ended.
            let minute: Vec<_> = bars.iter().copied().skip_while(|bar| *bar == 0.0).collect();
            assert!((5..=6).contains(&minute.len()), "{bars:?}");
            assert!(minute[0] <= per_second, "{bars:?}");
            assert!(minute[1..].iter().all(|bar| *bar == per_second), "{bars:?}");
        }
        told("a", "").await.unwrap();
        assert_eq!(store.read_reports().await.unwrap().replicas.len(), 1);
    }
}

/// Replicas that crash again and again, each time under another name, do not fill Redis.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_report_of_a_killed_replica_is_deleted_when_another_one_comes() {
    let options = RedisOptions::single(RedisServer::shared().url(), "status-swept");
    let store = RedisStore::connect(&options).unwrap();
    let link = store.link();
    eventually(LONG, "a connection", || link.borrow().is_up()).await;
    let key = "status-swept:{fleet}:status";
    let mut connection = RedisServer::shared().connection();
    let killed = redis::cmd("HSET")
        .arg(key)
        .arg("killed")
        .arg("1 {}")
        .query(&mut connection);
    () = killed.unwrap();
    for replica in ["a", "b"] {
        let report = StatusReport {
            replica,
            text: "{}",
            used: &BTreeMap::new(),
            passed: Duration::from_secs(1),
        };
        store.report_status(report).await.unwrap();
    }
    let known: BTreeSet<String> = redis::cmd("HKEYS").arg(key).query(&mut connection).unwrap();
    assert_eq!(known, ["a", "b"].map(str::to_owned).into());
}
