//! What every store of keyed limits must do, checked for both of them.

use std::sync::Arc;
use std::time::Duration;

use sluiced_core::calendar::CalendarUnit;
use sluiced_core::limits::admission::Decision;
use sluiced_core::limits::token_bucket::{Refill, Start};
use sluiced_core::limits::{Fit, Rule};
use sluiced_core::scheduler::BATCH_MAX;
use sluiced_core::time::StoreTime;
use sluiced_ports::limits::{Candidate, Charge, GrantedCharge, KeyedLimit, LimitStore};
use sluiced_ports::store::Notice;
use sluiced_store::memory::MemoryStore;

use super::rules::*;
use crate::support::contract::contract;
use crate::support::redis::RedisServer;
use crate::support::wait::{eventually_async, within};

type Store = Arc<dyn LimitStore>;

const HOUR: Duration = Duration::from_secs(3600);

async fn redis() -> (Store, Store) {
    let server = RedisServer::shared();
    let one = established(server, "contract").await;
    (Arc::new(one), Arc::new(connect(server, "contract").await))
}

/// One store for both replicas: it is this process alone.
async fn memory() -> (Store, Store) {
    let store: Store = Arc::new(MemoryStore::default());
    std::future::ready((Arc::clone(&store), store)).await
}

async fn ask(store: &Store, charges: Vec<Charge>) -> (StoreTime, Decision) {
    let mut answer = store.admit(&[new(charges)], 1).await.unwrap();
    (answer.now, answer.decisions.remove(0))
}

async fn takes(store: &Store, limit: &Arc<KeyedLimit>, key: &str) -> bool {
    super::rules::takes(&**store, limit, key).await
}

async fn remaining(store: &Store, limit: &Arc<KeyedLimit>, text: &str) -> u64 {
    store.look(limit, key(text)).await.unwrap().room.remaining
}

async fn now(store: &Store) -> StoreTime {
    store.admit(&[], 0).await.unwrap().now
}

/// One of each kind, of this many units; none comes back while a test runs.
fn of_each_kind(units: u32) -> [Rule; 8] {
    let borrow = units / 2;
    let lent = [units - borrow, 1, borrow];
    [
        gcra("1/1h", units - 1, MS),
        full(units, 1, HOUR),
        bucket(lent, HOUR, Refill::Stepped, Start::Full),
        first_call(&format!("{units}/1h"), MS),
        aligned(&format!("{units}/366d"), MS),
        calendar(units, CalendarUnit::Month, MS),
        log(&format!("{units}/1h"), MS),
        concurrency(units, HOUR),
    ]
}

async fn each_kind_grants_its_limit_and_no_more((store, other): (Store, Store)) {
    for (i, rule) in of_each_kind(3).into_iter().enumerate() {
        let limit = limit(&format!("grants-{i}"), rule);
        for left in (0..3).rev() {
            let store = if left % 2 == 0 { &store } else { &other };
            let (at, decision) = ask(store, vec![charge(&limit, "a", 1)]).await;
            let Decision::Granted { after } = &decision else {
                panic!("{limit:?} {decision:?}");
            };
            assert_eq!(after[0].room.remaining, left, "{limit:?}");
            assert_eq!(after[0].next == Fit::Now, left > 0, "{limit:?}");
            assert!(after[0].room.reset_at > at);
        }
        let (at, decision) = ask(&other, vec![charge(&limit, "a", 1)]).await;
        let Decision::Denied {
            by: 0,
            fits,
            until,
            room,
            ..
        } = decision
        else {
            panic!("{limit:?} {decision:?}");
        };
        assert_eq!(room.remaining, 0);
        if limit.counts_calls() {
            assert_eq!((fits, until), (Fit::Full, StoreTime::default()));
        } else {
            assert_eq!(fits, Fit::At(until));
            assert!(until > at);
        }
        let look = store.look(&limit, key("a")).await.unwrap();
        assert_eq!((look.limit, look.room, look.fits), (3, room, fits));
        assert_eq!(look.closed, None);
        // Another key has a limit of its own.
        assert!(takes(&store, &limit, "b").await, "{limit:?}");
        let (_, never) = ask(&store, vec![charge(&limit, "c", 4)]).await;
        assert_eq!(never, Decision::TooCostly { by: 0, most: 3 });
        assert_eq!(remaining(&store, &limit, "c").await, 3);
    }
}

async fn all_limits_of_a_message_or_none((store, _): (Store, Store)) {
    let sender = limit("all-sender", log("10/1h", MS));
    let recipient = limit("all-recipient", log("1/1h", MS));
    let both = |to: &str| vec![charge(&sender, "s", 1), charge(&recipient, to, 1)];
    assert!(is_granted(&ask(&store, both("x")).await.1));
    let (_, denied) = ask(&store, both("x")).await;
    assert!(
        matches!(denied, Decision::Denied { by: 1, .. }),
        "{denied:?}"
    );
    assert_eq!(remaining(&store, &sender, "s").await, 9);
    assert!(is_granted(&ask(&store, both("y")).await.1));
}

/// In Redis this batch takes two scripts.
async fn a_message_of_too_many_slots_ends_its_batch((store, _): (Store, Store)) {
    let [one, two] = ["ends-one", "ends-two"].map(|name| limit(name, log("300/1h", MS)));
    let candidates = (0..200).map(|n| {
        let key = n.to_string();
        let mut candidate = new(vec![charge(&one, &key, 1), charge(&two, &key, 1)]);
        candidate.slots = cost(if n == 0 { 2 } else { 1 });
        candidate
    });
    let candidates: Vec<_> = candidates.collect();
    let decisions = store.admit(&candidates, 1).await.unwrap().decisions;
    let asked = decisions.iter().filter(|one| **one != Decision::NotAsked);
    assert_eq!((asked.count(), decisions.len()), (0, 200));
    let rest = store.admit(&candidates[1..], 1).await.unwrap().decisions;
    assert!(is_granted(&rest[0]));
}

async fn messages_of_a_batch_see_each_other((store, _): (Store, Store)) {
    let limit = limit("batch", log("3/1h", MS));
    let candidates: Vec<_> = (0..5).map(|_| new(vec![charge(&limit, "a", 1)])).collect();
    let decisions = store.admit(&candidates, 5).await.unwrap().decisions;
    let granted: Vec<bool> = decisions.iter().map(is_granted).collect();
    assert_eq!(granted, [true, true, true, false, false]);
}

async fn no_more_are_granted_than_are_wanted((store, _): (Store, Store)) {
    let limit = limit("wanted", log("100/1h", MS));
    let candidates: Vec<_> = (0..5).map(|_| new(vec![charge(&limit, "a", 1)])).collect();
    let decisions = store.admit(&candidates, 2).await.unwrap().decisions;
    let granted: Vec<bool> = decisions.iter().map(is_granted).collect();
    assert_eq!(granted, [true, true, false, false, false]);
    assert_eq!(decisions[2..], [(); 3].map(|()| Decision::NotAsked));
    assert_eq!(remaining(&store, &limit, "a").await, 98);
    // A message of several slots is several of those that are wanted.
    let heavy = |slots| Candidate {
        slots: cost(slots),
        ..new(vec![charge(&limit, "a", 1)])
    };
    let candidates = [heavy(2), heavy(2), heavy(1)];
    let decisions = store.admit(&candidates, 3).await.unwrap().decisions;
    let granted: Vec<bool> = decisions.iter().map(is_granted).collect();
    assert_eq!(granted, [true, false, false]);
}

async fn messages_sent_away_come_back_one_after_another((store, other): (Store, Store)) {
    let limit = limit("line", log("1/1h", Duration::ZERO));
    assert!(takes(&store, &limit, "a").await);
    let mut told = Vec::new();
    for store in [&store, &other, &store] {
        for candidate in [new, was_denied] {
            let candidate = candidate(vec![charge(&limit, "a", 1)]);
            let answer = store.admit(&[candidate], 1).await.unwrap();
            let Decision::Denied { until, .. } = answer.decisions[0] else {
                panic!("{answer:?}");
            };
            told.push(until);
        }
    }
    // Messages that were denied before get the time at which they fit, and do not move the next return.
    let fits = told[0];
    assert_eq!(
        told,
        [0, 0, 1, 0, 2, 0].map(|returns| fits + HOUR * returns)
    );
}

async fn a_batch_may_be_large((store, _): (Store, Store)) {
    let slow = limit("large-slow", log("900/1h", MS));
    let quick = limit("large-quick", gcra("1/1s", 0, MS));
    let candidates: Vec<_> = (0..BATCH_MAX)
        .map(|i| {
            let own = i.to_string();
            new(vec![charge(&slow, &own[..1], 1), charge(&quick, &own, 1)])
        })
        .collect();
    let mut rest = &candidates[..];
    let mut calls = 0;
    while !rest.is_empty() {
        let answer = store.admit(rest, rest.len() as u64).await.unwrap();
        assert_eq!(answer.decisions.len(), rest.len());
        let granted = answer.decisions.iter().filter(|d| is_granted(d)).count();
        // In their order: a message that does not ask comes behind all that do.
        assert!(answer.decisions[..granted].iter().all(is_granted));
        assert!(granted >= 10, "{granted}");
        rest = &rest[granted..];
        calls += 1;
    }
    assert!(calls <= 20, "{calls}");
}

async fn what_was_not_sent_comes_back_once((store, _): (Store, Store)) {
    for (i, rule) in of_each_kind(1).into_iter().enumerate() {
        let limit = limit(&format!("refund-{i}"), rule);
        let candidate = new(vec![charge(&limit, "a", 1)]);
        let call = GrantedCharge::call(&candidate.charges[0], candidate.ticket);
        let answer = store.admit(&[candidate], 1).await.unwrap();
        assert!(is_granted(&answer.decisions[0]));
        assert!(!takes(&store, &limit, "a").await);
        let granted_at = |at| GrantedCharge::Units {
            charge: charge(&limit, "a", 1),
            at,
        };
        let (refund, later) = (
            granted_at(just_asked(answer.now)),
            granted_at(just_asked(answer.now + MS)),
        );
        if limit.counts_calls() {
            // Calls end by their tickets.
            assert_eq!(store.release(&[refund]).await.unwrap(), 0);
            store.release(&[call]).await.unwrap();
        } else {
            if !matches!(limit.policy().rule, Rule::TokenBucket(_)) {
                let taken = store.release(&[later]).await.unwrap();
                assert_eq!(taken, 0, "{limit:?}: it was never granted");
            }
            let taken = store.release(&[refund]).await.unwrap();
            assert_eq!(taken, 1, "{limit:?}");
        }
        assert!(takes(&store, &limit, "a").await, "{limit:?}");
        assert!(!takes(&store, &limit, "a").await, "{limit:?}");
    }
}

async fn calls_in_flight_end_by_themselves_unless_renewed((store, other): (Store, Store)) {
    let limit = limit("calls", concurrency(2, 300 * MS));
    let candidates = [0, 1].map(|_| new(vec![charge(&limit, "a", 1)]));
    let [kept, dropped] = [candidates[0].ticket, candidates[1].ticket];
    let answer = store.admit(&candidates, 2).await.unwrap();
    assert!(answer.decisions.iter().all(is_granted));
    let at = answer.now;
    assert!(!takes(&other, &limit, "a").await);
    let call = |ticket| GrantedCharge::call(&charge(&limit, "a", 1), ticket);
    eventually_async(
        BOUND,
        "the end of the call that is not renewed",
        async || {
            let gone = store.renew(&[call(kept)]).await.unwrap();
            assert!(
                gone.is_empty() || now(&store).await > at + 300 * MS,
                "renewed in time"
            );
            takes(&other, &limit, "a").await
        },
    )
    .await;
    assert!(now(&store).await >= at + 200 * MS);
    let gone = store.renew(&[call(dropped)]).await.unwrap();
    assert_eq!(tickets(&gone), [dropped]);
}

async fn a_call_that_ended_frees_its_place_once((store, other): (Store, Store)) {
    let limit = limit("release", concurrency(1, HOUR));
    let candidate = new(vec![charge(&limit, "a", 1)]);
    let call = GrantedCharge::call(&candidate.charges[0], candidate.ticket);
    store.admit(&[candidate], 1).await.unwrap();
    assert!(!takes(&other, &limit, "a").await);
    store.release(std::slice::from_ref(&call)).await.unwrap();
    store.release(&[call]).await.unwrap();
    assert!(takes(&other, &limit, "a").await);
    assert!(!takes(&other, &limit, "a").await);
}

async fn a_replica_that_waits_is_told_when_a_call_ends((store, other): (Store, Store)) {
    let limit = limit("told", concurrency(2, HOUR));
    let mut notices = other.notices();
    // A subscription is not there at once.
    let told = within(BOUND, "a notice", async {
        loop {
            let mut candidate = new(vec![charge(&limit, "a", 2)]);
            candidate.others_wait = false;
            let call = GrantedCharge::call(&candidate.charges[0], candidate.ticket);
            let answer = store.admit(&[candidate], 2).await.unwrap();
            assert!(is_granted(&answer.decisions[0]));
            assert!(!takes(&other, &limit, "a").await);
            store.release(&[call]).await.unwrap();
            if let Ok(notice) = tokio::time::timeout(100 * MS, notices.recv()).await {
                return notice.unwrap();
            }
        }
    });
    let expected = Notice::Freed {
        limit: Arc::clone(&limit.name),
        key: key("a"),
        units: 2,
    };
    assert_eq!(told.await, expected);
}

contract!(redis, memory; (
    each_kind_grants_its_limit_and_no_more,
    all_limits_of_a_message_or_none,
    a_message_of_too_many_slots_ends_its_batch,
    messages_of_a_batch_see_each_other,
    no_more_are_granted_than_are_wanted,
    messages_sent_away_come_back_one_after_another,
    a_batch_may_be_large,
    what_was_not_sent_comes_back_once,
    calls_in_flight_end_by_themselves_unless_renewed,
    a_call_that_ended_frees_its_place_once,
    a_replica_that_waits_is_told_when_a_call_ends,
));
