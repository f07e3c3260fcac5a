//! What happens when Redis loses its state, restarts, or its clock steps.

use std::time::Duration;

use sluiced::core::budget::admit::SOON;
use sluiced::core::budget::record;
use sluiced::core::time::StoreTime;
use sluiced::limiter::redis::RedisPaceStore;
use sluiced::ports::budget::{BudgetStore, Lost, Ruling, Rulings};
use sluiced::ports::pace::PaceStore;

use super::rules::*;
use crate::support::redis::RedisServer;
use crate::support::wait::eventually_async;

const PREFIX: &str = "losses";

async fn one(store: &RedisPaceStore, lost: Lost, name: &str) -> Rulings {
    let limit = limit(name, log("1/1h", MS), lost);
    let petition = take(vec![claim(&limit, "a", 1)]);
    store.admit(&[petition], None).await.unwrap()
}

fn until(answer: &Rulings) -> StoreTime {
    match &answer.rulings[0] {
        Ruling::Denied { until, .. } => *until,
        other => panic!("{other:?}"),
    }
}

fn period() -> Duration {
    Duration::from_secs(3600) + MS
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_installation_waits_for_a_moment_and_then_has_full_budgets() {
    let server = RedisServer::start();
    let store = connect(&server, PREFIX).await;
    let first = one(&store, Lost::Closed, "new").await;
    let since = first.blind.expect("a doubt").since;
    assert!(since <= first.now);
    assert_eq!(until(&first), since + Duration::from_secs(2));
    assert!(is_granted(
        &one(&store, Lost::Open, "new-open").await.rulings[0]
    ));
    eventually_async(BOUND, "the end of the doubt", async || {
        is_granted(&one(&store, Lost::Closed, "new").await.rulings[0])
    })
    .await;
    let later = one(&store, Lost::Closed, "new").await;
    assert_eq!((later.epoch, later.blind), (first.epoch, None));
    assert!(later.now >= since + Duration::from_secs(2));
}

/// A replica that has granted one of `name` and knows an epoch.
async fn with_history(server: &RedisServer) -> (RedisPaceStore, Rulings) {
    let store = connect(server, PREFIX).await;
    let known = one(&store, Lost::Open, "known").await;
    assert!(is_granted(&known.rulings[0]));
    (store, known)
}

async fn is_closed_since_the_loss(store: &RedisPaceStore, known: &Rulings) {
    let answer = one(store, Lost::Closed, "other").await;
    assert!(answer.epoch > known.epoch);
    let since = answer.blind.expect("a loss").since;
    assert!(since > known.now);
    // Somebody who came late may have been granted a moment ahead before the loss.
    assert_eq!(until(&answer), since + SOON + period());
}

/// Who would rather be over once than wait has a full budget at once.
async fn is_open(store: &RedisPaceStore) {
    assert!(is_granted(
        &one(store, Lost::Open, "known").await.rulings[0]
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_flush_the_one_who_remembers_closes_the_limits() {
    let server = RedisServer::start();
    let (store, known) = with_history(&server).await;
    () = redis::cmd("FLUSHALL")
        .query(&mut server.connection())
        .unwrap();
    // Somebody who knows nothing may come first, and takes the store for new.
    let stranger = connect(&server, PREFIX).await;
    until(&one(&stranger, Lost::Closed, "other").await);
    is_closed_since_the_loss(&store, &known).await;
    is_open(&store).await;
    // The heartbeat of the one who remembers was enough for the stranger to learn of it.
    is_closed_since_the_loss(&stranger, &known).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_tells_without_being_asked() {
    let server = RedisServer::start();
    let (store, known) = with_history(&server).await;
    let epoch = |server: &RedisServer| {
        let text: Option<String> = redis::cmd("GET")
            .arg(era_key(PREFIX))
            .query(&mut server.connection())
            .unwrap();
        text.and_then(|text| record::read_era(&text))
    };
    assert_eq!(epoch(&server).unwrap().epoch, known.epoch);
    () = redis::cmd("FLUSHALL")
        .query(&mut server.connection())
        .unwrap();
    eventually_async(BOUND, "a new epoch", async || {
        epoch(&server).is_some_and(|era| era.epoch > known.epoch)
    })
    .await;
    drop(store);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_process_of_redis_closes_the_limits() {
    let server = RedisServer::start();
    let (store, known) = with_history(&server).await;
    server.kill();
    server.boot();
    eventually_async(BOUND, "a connection", async || {
        store.link().borrow().is_up() && store.admit(&[], None).await.is_ok()
    })
    .await;
    is_closed_since_the_loss(&store, &known).await;
    is_open(&store).await;
    // Once: the era that began then goes on.
    let (one_more, two) = (
        store.admit(&[], None).await.unwrap(),
        store.admit(&[], None).await.unwrap(),
    );
    assert_eq!(one_more.epoch, two.epoch);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn places_of_a_lost_epoch_are_asked_for_again() {
    let server = RedisServer::start();
    let (store, _) = with_history(&server).await;
    let limit = limit("known", log("1/1h", MS), Lost::Open);
    let wants = vec![claim(&limit, "a", 1)];
    let answer = store.admit(&[reserve(wants.clone())], None).await.unwrap();
    let (_, place) = booked(&answer.rulings[0])[0];
    () = redis::cmd("FLUSHALL")
        .query(&mut server.connection())
        .unwrap();
    let mut held = wants;
    held[0].held = Some(place);
    let answer = store.admit(&[take(held)], None).await.unwrap();
    assert!(is_granted(&answer.rulings[0]));
    assert!(answer.epoch > place.epoch);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_from_the_future_shows_that_the_clock_went_back() {
    let server = RedisServer::start();
    let (store, known) = with_history(&server).await;
    let text: String = redis::cmd("GET")
        .arg(era_key(PREFIX))
        .query(&mut server.connection())
        .unwrap();
    let mut era = record::read_era(&text).unwrap();
    era.since = known.now + Duration::from_secs(600);
    () = redis::cmd("SET")
        .arg(era_key(PREFIX))
        .arg(record::write_era(&era))
        .query(&mut server.connection())
        .unwrap();
    is_closed_since_the_loss(&store, &known).await;
}
