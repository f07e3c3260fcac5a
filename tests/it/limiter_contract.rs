//! What every store of paced limits must do, checked for all of them: Redis as one server,
//! under Sentinels and as a cluster, and this process.

use std::sync::Arc;
use std::time::Duration;

use crate::support::contract::contract;
use crate::support::redis::RedisServer;
use crate::support::redis_cluster::RedisCluster;
use crate::support::redis_sentinel::{SERVICE, SentinelGroup};
use crate::support::wait::{eventually, within};
use secrecy::SecretString;
use sluiced_core::schedule::{Ask, ClockView, Grant, LeaseAnswer, Pace, Turn};
use sluiced_core::time::{StoreTime, micros};
use sluiced_ports::store::{self, Notice, PacedRow, Store as _};
use sluiced_settings::text::Length;
use sluiced_settings::types::{Redis, RedisMode, Settings};
use sluiced_store::memory::MemoryStore;
use sluiced_store::redis::{RedisOptions, RedisStore};

const BOUND: Duration = Duration::from_secs(20);

type Store = Arc<dyn store::Store>;

async fn redis() -> (Store, Store) {
    let url = SecretString::from(RedisServer::shared().url());
    let single = Redis {
        url,
        ..Settings::default().redis
    };
    replicas(single).await
}

async fn sentinel() -> (Store, Store) {
    let sentinels = Redis {
        mode: RedisMode::Sentinel,
        urls: secret(SentinelGroup::shared().urls()),
        sentinel_service: Some(SERVICE.to_owned()),
        ..Settings::default().redis
    };
    replicas(sentinels).await
}

async fn cluster() -> (Store, Store) {
    let cluster = Redis {
        mode: RedisMode::Cluster,
        urls: secret(RedisCluster::shared().urls()),
        ..Settings::default().redis
    };
    replicas(cluster).await
}

fn secret(urls: Vec<String>) -> Vec<SecretString> {
    urls.into_iter().map(SecretString::from).collect()
}

async fn replicas(redis: Redis) -> (Store, Store) {
    let options = RedisOptions::from(Redis {
        prefix: "contract".to_owned(),
        connect_timeout: Length(Duration::from_secs(5)),
        response_timeout: Length(Duration::from_secs(5)),
        ..redis
    });
    let mut stores = Vec::new();
    for _ in 0..2 {
        let store = RedisStore::connect(&options).unwrap();
        let link = store.link();
        eventually(BOUND, "a connection", || link.borrow().is_up()).await;
        stores.push(Arc::new(store) as Store);
    }
    (stores.remove(0), stores.remove(0))
}

/// One store for both replicas: it is this process alone.
async fn memory() -> (Store, Store) {
    let store: Store = Arc::new(MemoryStore::default());
    std::future::ready((Arc::clone(&store), store)).await
}

fn limit(name: &str, rate: &str) -> PacedRow {
    PacedRow::new(
        name,
        Pace::new(
            rate.parse().unwrap(),
            Duration::from_millis(5),
            Duration::from_millis(60),
        ),
    )
}

const fn ask(want: u64, turn: Option<Turn>, clock_view: ClockView) -> Ask {
    Ask {
        want,
        sums: Vec::new(),
        turn,
        clock_view,
        lead: Duration::ZERO,
    }
}

/// Only reads the clock.
async fn look(store: &Store, limit: &PacedRow) -> LeaseAnswer {
    store
        .lease(limit, ask(0, None, ClockView::Unproven))
        .await
        .unwrap()
}

async fn now(store: &Store, limit: &PacedRow) -> StoreTime {
    look(store, limit).await.now
}

/// The knowledge of a replica that has read the clock for long enough.
async fn steady(store: &Store, limit: &PacedRow) -> ClockView {
    let answer = look(store, limit).await;
    ClockView::Steady {
        generation: answer.generation,
        predicted: answer.now,
    }
}

async fn reach(store: &Store, limit: &PacedRow, time: StoreTime) {
    let wait = async {
        while now(store, limit).await < time {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within(BOUND, "the store's time", wait).await;
}

/// Asks as a replica does, turn after turn, until slots are granted.
async fn lease(store: &Store, limit: &PacedRow, want: u64) -> Grant {
    let asking = async {
        let mut turn = None;
        loop {
            if let Some(Turn { at, .. }) = turn {
                reach(store, limit, at).await;
            }
            let clock_view = steady(store, limit).await;
            let answer = store
                .lease(limit, ask(want, turn, clock_view))
                .await
                .unwrap();
            if let Some(grant) = answer.grant {
                return grant;
            }
            turn = answer.turn;
        }
    };
    within(BOUND, "a grant", asking).await
}

fn slots(limit: &PacedRow, grant: &Grant) -> Vec<u64> {
    (0..u64::from(grant.count.get()))
        .map(|i| grant.slot(&limit.pace, i).as_micros())
        .collect()
}

async fn grants_follow_the_pace((store, other): (Store, Store)) {
    let limit = limit("pace", "20/100ms");
    let take = async |store: Store| {
        let mut all = Vec::new();
        for _ in 0..15 {
            all.extend(slots(&limit, &lease(&store, &limit, 30).await));
        }
        all
    };
    let (mine, theirs) = tokio::join!(take(store), take(other));
    assert!(
        mine.iter().all(|slot| !theirs.contains(slot)),
        "a shared slot"
    );
    let mut all = [mine, theirs].concat();
    all.sort_unstable();
    assert!(all.len() > 100, "{} slots", all.len());
    for run in all.windows(21) {
        assert!(run[20] - run[0] >= limit.pace.period(), "{run:?}");
    }
}

async fn a_turn_is_kept_until_it_comes((store, _): (Store, Store)) {
    let limit = limit("turn", "5/1s");
    lease(&store, &limit, 1).await;
    let clock_view = steady(&store, &limit).await;
    let denied: LeaseAnswer = store.lease(&limit, ask(1, None, clock_view)).await.unwrap();
    let turn = denied.turn.expect("a turn");
    assert!(turn.at > denied.now);
    for _ in 0..50 {
        let clock_view = steady(&store, &limit).await;
        let early = store
            .lease(&limit, ask(1, Some(turn), clock_view))
            .await
            .unwrap();
        if early.guarded || early.now >= turn.at {
            // The machine stood still for so long that this test cannot distinguish it from a stepped
            // clock.
            break;
        }
        assert_eq!((early.grant, early.turn), (None, Some(turn)));
    }
    let grant = lease(&store, &limit, 1).await;
    assert_eq!(grant.count.get(), 1);
}

async fn an_unknown_state_starts_behind_the_guard((store, _): (Store, Store)) {
    let limit = limit("unknown", "400/1s");
    let answer = look(&store, &limit).await;
    assert!(answer.guarded && answer.grant.is_none() && answer.turn.is_none());
    let grant = lease(&store, &limit, 1).await;
    assert!(grant.first >= answer.now + limit.pace.guard());
}

async fn a_young_clock_gets_a_turn_and_no_slots((store, _): (Store, Store)) {
    let limit = limit("young", "400/1s");
    lease(&store, &limit, 1).await;
    let young = ask(5, None, ClockView::Unproven);
    let answer = store.lease(&limit, young).await.unwrap();
    assert_eq!(answer.grant, None);
    assert!(answer.turn.expect("a turn").at > answer.now + limit.pace.distrust());
}

async fn a_witness_of_a_step_starts_a_generation_and_a_second_one_does_not(
    (store, other): (Store, Store),
) {
    let limit = limit("generation", "400/1s");
    lease(&store, &limit, 1).await;
    let LeaseAnswer {
        generation, now, ..
    } = look(&store, &limit).await;
    let predicted = now + Duration::from_millis(20);
    let witness = ask(
        0,
        None,
        ClockView::Stepped {
            generation,
            predicted,
        },
    );
    let first = store.lease(&limit, witness.clone()).await.unwrap();
    assert!(first.guarded && first.generation > generation);
    let second = other.lease(&limit, witness).await.unwrap();
    assert!(!second.guarded && second.generation == first.generation);
    // A replica that does not know the generation gets a turn, not slots.
    let predicted = second.now;
    let unaware = ask(
        3,
        None,
        ClockView::Steady {
            generation,
            predicted,
        },
    );
    let answer = other.lease(&limit, unaware).await.unwrap();
    assert_eq!((answer.grant, answer.generation), (None, first.generation));
    let grant = lease(&other, &limit, 1).await;
    assert!(grant.first >= first.now + limit.pace.guard());
}

async fn a_freeze_is_seen_by_all((store, other): (Store, Store)) {
    let limit = limit("freeze", "400/1s");
    lease(&store, &limit, 1).await;
    let mut notices = other.notices();
    let length = Duration::from_millis(400);
    // The subscription is made in the background, and a later freeze only moves the end.
    let heard = async {
        loop {
            let until = store.freeze(&limit, length).await.unwrap().until;
            let heard = tokio::time::timeout(Duration::from_millis(100), notices.recv()).await;
            if let Ok(Ok(Notice::Frozen { limit, freeze })) = heard
                && *limit == *"freeze"
            {
                return (limit, freeze, until);
            }
        }
    };
    let (name, told, until) = within(BOUND, "a notice", heard).await;
    assert_eq!(&*name, "freeze");
    assert!(told.now < told.until && told.until <= until);
    let answer = look(&other, &limit).await;
    assert_eq!(answer.generation, told.generation);
    if answer.now < until {
        assert_eq!(answer.frozen_until, Some(until));
    }
    let grant = lease(&other, &limit, 1).await;
    assert!(grant.first >= until);
}

async fn the_end_of_a_freeze_only_moves_later((store, other): (Store, Store)) {
    let limit = limit("later", "400/1s");
    let hour = Duration::from_secs(3600);
    let until = store.freeze(&limit, hour).await.unwrap().until;
    let shorter = other.freeze(&limit, hour / 2).await.unwrap().until;
    assert_eq!(shorter, until);
    let longer = other.freeze(&limit, hour).await.unwrap().until;
    assert!(longer > until);
    let clock_view = steady(&store, &limit).await;
    let answer = store.lease(&limit, ask(5, None, clock_view)).await.unwrap();
    assert_eq!((answer.grant, answer.frozen_until), (None, Some(longer)));
}

async fn a_freeze_before_any_lease_holds((store, _): (Store, Store)) {
    let limit = limit("early", "400/1s");
    let until = store
        .freeze(&limit, Duration::from_millis(300))
        .await
        .unwrap()
        .until;
    let grant = lease(&store, &limit, 1).await;
    assert!(grant.first >= until);
}

async fn a_batch_is_never_exceeded((store, _): (Store, Store)) {
    let limit = limit("batch", "1000/1s");
    let grant = lease(&store, &limit, u64::MAX).await;
    assert!(u64::from(grant.count.get()) <= limit.pace.batch());
    let last = grant.slot(&limit.pace, u64::from(grant.count.get()) - 1);
    let at = now(&store, &limit).await;
    assert!(last.as_micros() <= at.as_micros() + micros(limit.pace.horizon()));
}

contract!(redis, sentinel, cluster, memory; (
    grants_follow_the_pace,
    a_turn_is_kept_until_it_comes,
    an_unknown_state_starts_behind_the_guard,
    a_young_clock_gets_a_turn_and_no_slots,
    a_witness_of_a_step_starts_a_generation_and_a_second_one_does_not,
    a_freeze_is_seen_by_all,
    the_end_of_a_freeze_only_moves_later,
    a_freeze_before_any_lease_holds,
    a_batch_is_never_exceeded,
));
