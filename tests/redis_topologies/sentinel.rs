//! A primary that dies, hangs, or is replaced while the limit is in use.

use std::time::Duration;

use secrecy::SecretString;
use sluiced::limiter::redis::{RedisPaceStore, Servers, probe};

use crate::support::redis::{Paused, RedisServer};
use crate::support::redis_sentinel::{SERVICE, SentinelGroup};
use crate::support::wait::eventually_async;
use crate::{
    BOUND, connect, hauls, is_up, lease, limit, nothing_over, options, sentinels, slots, try_lease,
};

fn is_primary(server: &RedisServer) -> bool {
    let said: String = redis::cmd("INFO").query(&mut server.connection()).unwrap();
    said.contains("role:master")
}

/// The store grants again, and the grants come from `server`.
async fn granted_by(server: &RedisServer, store: &RedisPaceStore, name: &str) {
    let limit = limit(name);
    eventually_async(BOUND, "grants by the new primary", async || {
        is_primary(server)
            && matches!(try_lease(store, &limit).await, Ok((Some(_), _)))
            && redis::cmd("HGET")
                .arg(format!("sluiced:{{{name}}}:paced"))
                .arg("run")
                .query::<String>(&mut server.connection())
                .is_ok_and(|run| {
                    let said: String = redis::cmd("INFO").query(&mut server.connection()).unwrap();
                    said.contains(&run)
                })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_is_killed_in_flow_is_succeeded_with_nothing_over() {
    let group = SentinelGroup::start(None);
    let options = options(sentinels(group.urls()));
    let (store, other) = (connect(&options).await, connect(&options).await);
    let limit = limit("flow");
    lease(&store, &limit).await;
    let haul = hauls([&store, &other], &limit, async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        group.primary.kill();
        granted_by(&group.replica, &store, "flow").await;
        granted_by(&group.replica, &other, "flow").await;
        tokio::time::sleep(Duration::from_millis(700)).await;
    })
    .await;
    assert_eq!(
        haul.guarded, 1,
        "the schedule starts again behind its guard, once"
    );
    assert!(haul.failed > 0 && haul.slots.len() > 400, "{haul:?}");
    nothing_over(&limit, haul.slots);
    is_up(&store).await;
}

/// The old primary comes back to life without knowing that it was replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_was_replaced_while_it_hung_is_left_alone() {
    let group = SentinelGroup::start(None);
    let options = options(sentinels(group.urls()));
    let (store, other) = (connect(&options).await, connect(&options).await);
    let limit = limit("hang");
    lease(&store, &limit).await;
    let haul = hauls([&store, &other], &limit, async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let paused = Paused::new(group.primary.pid());
        granted_by(&group.replica, &store, "hang").await;
        granted_by(&group.replica, &other, "hang").await;
        drop(paused);
        // The Sentinels make it a replica of its successor.
        eventually_async(BOUND, "the old primary follows", async || {
            !is_primary(&group.primary)
        })
        .await;
        granted_by(&group.replica, &store, "hang").await;
    })
    .await;
    nothing_over(&limit, haul.slots);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_that_nothing_forced_is_followed() {
    let group = SentinelGroup::start(None);
    let options = options(sentinels(group.urls()));
    let store = connect(&options).await;
    let limit = limit("order");
    let (last, _) = lease(&store, &limit).await;
    let sentinel = group.urls()[1].clone();
    let mut connection = redis::Client::open(sentinel)
        .unwrap()
        .get_connection()
        .unwrap();
    () = redis::cmd("SENTINEL")
        .arg(&["FAILOVER", SERVICE])
        .query(&mut connection)
        .unwrap();
    granted_by(&group.replica, &store, "order").await;
    let (grant, _) = lease(&store, &limit).await;
    let end = slots(&limit, &last).pop().unwrap();
    assert!(grant.first.as_micros() > end);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_and_sentinels_have_passwords_of_their_own() {
    let group = SentinelGroup::start(Some("abc-secret"));
    let servers = |password: &str| Servers::Sentinel {
        urls: crate::secrets(group.urls()),
        service: SERVICE.to_owned(),
        user: None,
        password: Some(SecretString::from(password)),
    };
    let mut right = options(servers("terces-cba"));
    right.password = Some(SecretString::from("abc-secret"));
    let store = connect(&right).await;
    lease(&store, &limit("passwords")).await;
    let report = probe(&right).await.unwrap();
    assert_eq!(report.servers, "the primary that the Sentinels name");

    let mut wrong = right.clone();
    wrong.password = Some(SecretString::from("other-secret"));
    let said = crate::down(&wrong).await;
    assert!(
        said.contains("user or the password is wrong") && !said.contains("-secret"),
        "{said}"
    );
    let mut wrong = right.clone();
    wrong.servers = servers("abc-secret");
    let said = crate::down(&wrong).await;
    assert!(
        said.contains("Sentinel")
            && said.contains("password is wrong")
            && !said.contains("-secret"),
        "{said}"
    );
}
