//! A primary that dies, hangs, or is replaced while the limit is in use.

use std::time::Duration;

use secrecy::SecretString;
use sluiced_core::schedule::Grant;
use sluiced_provider::{Behaviour, Expect, Provider};
use sluiced_store::redis::{RedisStore, probe};

use super::{
    BOUND, connect, hauls, is_up, lease, limit, nothing_over, options, runs_at, sentinels, slots,
};
use crate::support::daemon::{Config, Daemon, Route, file};
use crate::support::redis::{Paused, RedisServer};
use crate::support::redis_sentinel::{SERVICE, SentinelGroup};
use crate::support::wait::{eventually, within};

/// The replica has become the primary, and scripts have run there.
async fn succeeds(group: &SentinelGroup, name: &str) {
    eventually(BOUND, "the replica succeeds", || {
        runs_at(&group.replica, name)
    })
    .await;
}

/// The first grant by `server`, and whether the schedule was guarded on the way.
async fn lease_at(server: &RedisServer, store: &RedisStore) -> (Grant, bool) {
    let limit = limit("order");
    let asking = async {
        let mut guarded = false;
        loop {
            let (grant, guard) = lease(store, &limit).await;
            guarded |= guard;
            if runs_at(server, "order") {
                return (grant, guarded);
            }
        }
    };
    within(BOUND, "a grant by the new primary", asking).await
}

fn is_primary(server: &RedisServer) -> bool {
    server.info().contains("role:master")
}

fn is_replica(server: &RedisServer) -> bool {
    server.info().contains("role:slave")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_is_killed_in_flow_is_succeeded_with_nothing_over() {
    let group = SentinelGroup::start(None);
    let options = options(sentinels(group.urls()));
    let (store, other) = (connect(&options).await, connect(&options).await);
    let limit = limit("flow");
    lease(&store, &limit).await;
    let haul = hauls([&store, &other], &limit, async |progress| {
        tokio::time::sleep(Duration::from_millis(700)).await;
        group.primary.kill();
        succeeds(&group, "flow").await;
        progress.both_go_on().await;
        tokio::time::sleep(Duration::from_millis(700)).await;
    })
    .await;
    assert_eq!(
        haul.guarded, 1,
        "the schedule starts again behind its guard, once"
    );
    assert!(haul.failed > 0 && haul.slots.len() > 400);
    nothing_over(&limit, haul.slots);
    is_up(&store).await;
}

/// The old primary starts again without knowing that it was replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_was_replaced_while_it_hung_is_left_alone() {
    let group = SentinelGroup::start(None);
    let options = options(sentinels(group.urls()));
    let (store, other) = (connect(&options).await, connect(&options).await);
    let limit = limit("hang");
    lease(&store, &limit).await;
    let haul = hauls([&store, &other], &limit, async |progress| {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let paused = Paused::new(group.primary.pid());
        succeeds(&group, "hang").await;
        progress.both_go_on().await;
        drop(paused);
        // The Sentinels make it a replica of its successor, after a while in which both say that
        // they are the primary.
        eventually(BOUND, "the old primary follows", || {
            is_replica(&group.primary)
        })
        .await;
        progress.both_go_on().await;
        assert!(runs_at(&group.replica, "hang"));
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
    eventually(BOUND, "the replica is promoted", || {
        is_primary(&group.replica)
    })
    .await;
    let (grant, guarded) = lease_at(&group.replica, &store).await;
    let end = slots(&limit, &last).pop().unwrap();
    assert!(guarded && grant.first.as_micros() > end);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_and_sentinels_have_passwords_of_their_own() {
    let group = SentinelGroup::start(Some("abc-secret"));
    let mut right = options(sentinels(group.urls()));
    right.sentinel_password = Some(SecretString::from("terces-cba").into());
    right.password = Some(SecretString::from("abc-secret").into());
    let store = connect(&right).await;
    lease(&store, &limit("passwords")).await;
    let report = probe(&right).await.unwrap();
    assert_eq!(report.servers, "the primary that the Sentinels name");

    let mut wrong = right.clone();
    wrong.password = Some(SecretString::from("other-secret").into());
    let said = super::down(&wrong).await;
    assert!(
        said.contains("user or the password is wrong") && !said.contains("-secret"),
        "{said}"
    );
    let mut wrong = right.clone();
    wrong.sentinel_password = Some(SecretString::from("abc-secret").into());
    let said = super::down(&wrong).await;
    assert!(
        said.contains("Sentinel")
            && said.contains("password is wrong")
            && !said.contains("-secret"),
        "{said}"
    );
}

/// Daemons whose messages a keyed limit counts: the primary dies in full flow. The limit waits for lost
/// units as long as they may count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keyed_limits_lose_and_exceed_nothing_when_their_primary_is_killed_in_flow() {
    const EACH: u64 = 150;
    let group = SentinelGroup::start(None);
    let behaviour = Behaviour::judging("50/1s".parse().unwrap());
    let provider = Provider::start("127.0.0.1:0".parse().unwrap(), behaviour).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let ids = |place: u64| (0..EACH).map(move |n| format!("m-{place}-{n}"));
    let mut daemons: Vec<Daemon> = (0..2)
        .map(|place| {
            let lines: String = ids(place).map(|id| format!("{{\"id\":\"{id}\"}}\n")).collect();
            let input = file(dir.path(), &format!("in-{place}"), &lines);
            let mut route = Route::new("list", provider.address());
            route.limits = vec!["account"];
            let config = Config {
                tables: format!(
                    "[limits.account]\nkind = \"sliding_log\"\nrate = \"50/1s\"\nheadroom = \"200ms\"\nlost_wait = \"forever\"\n\
                     [embedded]\ninput = {input:?}\nleftover = {:?}\n\
                     [redis]\nmode = \"sentinel\"\nurls = {:?}\nsentinel_service = {SERVICE:?}\n",
                    dir.path().join(format!("leftover-{place}")),
                    group.urls()
                ),
                ..Config::embedded("", vec![route])
            };
            Daemon::start_with(&config.text().replace("\"memory\"", "\"redis\""), |_| {})
        })
        .collect();
    eventually(BOUND, "the flow", || provider.live().unique >= 80).await;
    group.primary.kill();
    for daemon in &mut daemons {
        daemon
            .stopped(&[
                "nothing is kept on disk",
                "Redis",
                "the limit's store is out of reach",
                "the store lost its state",
            ])
            .await;
    }
    let all = ids(0).chain(ids(1)).collect();
    let report = provider.report(&Expect::Ids(all));
    assert_eq!((report.over, report.lost), (0, Some(0)), "{report:?}");
    assert_eq!((report.repeated, report.unexpected), (0, 0), "{report:?}");
}
