//! What every store of budgets must do, held against both of them.

use std::sync::Arc;
use std::time::Duration;

use sluiced::core::budget::admit::SOON;
use sluiced::core::budget::fixed_window::Used;
use sluiced::core::budget::token_bucket::{Refill, Start};
use sluiced::core::budget::{Rule, State};
use sluiced::core::calendar::CalendarUnit;
use sluiced::core::rate::Cost;
use sluiced::core::time::StoreTime;
use sluiced::limiter::memory::MemoryBudgetStore;
use sluiced::ports::budget::{
    Booking, BudgetLimit, BudgetStore, Claim, Epoch, IfLate, Lost, Made, Petition, Refund, Ruling,
    Rulings, Taken,
};
use sluiced::ports::clock::Clock;

use super::rules::*;
use crate::support::contract::contract;
use crate::support::redis::RedisServer;
use crate::support::wait::{eventually_async, within};

type Store = Arc<dyn BudgetStore>;

const HOUR: Duration = Duration::from_secs(3600);

async fn redis() -> (Store, Store) {
    let server = RedisServer::shared();
    let (one, other) = tokio::join!(connect(server, "contract"), connect(server, "contract"));
    (Arc::new(one), Arc::new(other))
}

/// One store for both replicas: it is this process alone.
async fn memory() -> (Store, Store) {
    let store: Store = Arc::new(MemoryBudgetStore::new(Clock::start()));
    std::future::ready((Arc::clone(&store), store)).await
}

fn open(name: &str, rule: Rule) -> Arc<BudgetLimit> {
    limit(name, rule, Lost::Open)
}

async fn ask(store: &Store, claims: Vec<Claim>) -> (StoreTime, Ruling) {
    let mut answer = store.admit(&[take(claims)], None).await.unwrap();
    (answer.now, answer.rulings.remove(0))
}

async fn takes(store: &Store, limit: &Arc<BudgetLimit>, key: &str) -> bool {
    is_granted(&ask(store, vec![claim(limit, key, 1)]).await.1)
}

async fn now(store: &Store) -> StoreTime {
    store.admit(&[], None).await.unwrap().now
}

async fn reach(store: &Store, time: StoreTime) {
    let wait = async {
        while now(store).await < time {
            tokio::time::sleep(MS).await;
        }
    };
    within(BOUND, "the store's time", wait).await;
}

/// One of each kind, of so many units; none comes back while a test runs.
fn of_each_kind(units: u32) -> [Rule; 8] {
    let borrow = units / 2;
    [
        gcra("1/1h", units - 1, MS),
        full(units, 1, HOUR),
        bucket(
            [units - borrow, 1, borrow],
            HOUR,
            Refill::Stepped,
            Start::Full,
        ),
        first_call(&format!("{units}/1h"), MS),
        aligned(&format!("{units}/366d"), MS),
        calendar(units, CalendarUnit::Month, MS),
        log(&format!("{units}/1h"), MS),
        concurrency(units, HOUR),
    ]
}

async fn each_kind_grants_its_limit_and_no_more((store, other): (Store, Store)) {
    for (i, rule) in of_each_kind(3).into_iter().enumerate() {
        let limit = open(&format!("grants-{i}"), rule);
        for left in (0..3).rev() {
            let store = if left % 2 == 0 { &store } else { &other };
            let (_, ruling) = ask(store, vec![claim(&limit, "a", 1)]).await;
            let Ruling::Granted { passes } = &ruling else {
                panic!("{limit:?} {ruling:?}");
            };
            assert_eq!(
                (passes[0].usage.limit, passes[0].usage.remaining),
                (3, left),
                "{limit:?}"
            );
            assert_eq!(passes[0].usage.retry_after, Duration::ZERO);
            assert!(passes[0].usage.reset_after > Duration::ZERO);
        }
        let (at, ruling) = ask(&other, vec![claim(&limit, "a", 1)]).await;
        let Ruling::Denied {
            until,
            by: 0,
            booked,
            usage,
        } = ruling
        else {
            panic!("{limit:?} {ruling:?}");
        };
        assert!(booked.is_empty());
        assert_eq!((usage.remaining, usage.retry_after), (0, until.since(at)));
        assert!(until > at);
        let peeked = store.look(&limit, key("a")).await.unwrap().usage;
        assert_eq!((peeked.limit, peeked.remaining), (3, 0));
        assert!(peeked.retry_after > Duration::ZERO);
        // Another key has a budget of its own.
        assert!(takes(&store, &limit, "b").await, "{limit:?}");
        let (_, never) = ask(&store, vec![claim(&limit, "c", 4)]).await;
        assert!(matches!(never, Ruling::Never { by: 0, .. }), "{never:?}");
        assert_eq!(
            store.look(&limit, key("c")).await.unwrap().usage.remaining,
            3
        );
    }
}

async fn all_limits_of_a_message_or_none((store, _): (Store, Store)) {
    let sender = open("all-sender", log("10/1h", MS));
    let recipient = open("all-recipient", log("1/1h", MS));
    let both = |to: &str| vec![claim(&sender, "s", 1), claim(&recipient, to, 1)];
    assert!(is_granted(&ask(&store, both("x")).await.1));
    let (_, denied) = ask(&store, both("x")).await;
    assert!(matches!(denied, Ruling::Denied { by: 1, .. }), "{denied:?}");
    assert_eq!(
        store.look(&sender, key("s")).await.unwrap().usage.remaining,
        9
    );
    assert!(is_granted(&ask(&store, both("y")).await.1));
}

async fn messages_of_a_batch_see_each_other((store, _): (Store, Store)) {
    let limit = open("batch", log("3/1h", MS));
    let petitions: Vec<_> = (0..5).map(|_| take(vec![claim(&limit, "a", 1)])).collect();
    let Rulings { rulings, .. } = store.admit(&petitions, None).await.unwrap();
    let granted: Vec<bool> = rulings.iter().map(is_granted).collect();
    assert_eq!(granted, [true, true, true, false, false]);
}

async fn a_batch_may_be_large((store, _): (Store, Store)) {
    let slow = open("large-slow", log("900/1h", MS));
    let quick = open("large-quick", gcra("1/1s", 0, MS));
    let petitions: Vec<_> = (0..600)
        .map(|i| {
            let own = i.to_string();
            take(vec![claim(&slow, &own[..1], 1), claim(&quick, &own, 1)])
        })
        .collect();
    let answer = store.admit(&petitions, None).await.unwrap();
    assert_eq!(answer.rulings.len(), 600);
    assert!(answer.rulings.iter().all(is_granted));
}

async fn a_place_is_kept_and_passes_without_asking((store, other): (Store, Store)) {
    let limit = open("place", log("1/200ms", 50 * MS));
    assert!(takes(&store, &limit, "a").await);
    let wants = vec![claim(&limit, "a", 1)];
    let answer = store.admit(&[reserve(wants)], None).await.unwrap();
    let (_, place) = booked(&answer.rulings[0])[0];
    let held = |place| {
        vec![Claim {
            held: Some(place),
            ..claim(&limit, "a", 1)
        }]
    };
    // Too early: the same place, and nothing is booked again.
    let (at, early) = ask(&other, held(place)).await;
    if at < place.at {
        assert_eq!(booked(&early), [(0, place)]);
    }
    // Whoever comes meanwhile is behind it.
    let (_, behind) = ask(&other, vec![claim(&limit, "a", 1)]).await;
    assert!(!is_granted(&behind));
    reach(&store, place.at).await;
    let passes = within(BOUND, "the place", async {
        // A machine that stood still for longer than the headroom costs the place, and only that.
        let mut place = place;
        loop {
            let answer = store.admit(&[reserve(held(place))], None).await.unwrap();
            if is_granted(&answer.rulings[0]) {
                return true;
            }
            place = booked(&answer.rulings[0])[0].1;
            reach(&store, place.at).await;
        }
    });
    assert!(passes.await);
}

async fn who_is_late_is_told_to_wait_and_keeps_his_place((store, other): (Store, Store)) {
    let (limit, quick) = (
        open("wait", log("1/20s", MS)),
        open("wait-not", gcra("100/1s", 0, MS)),
    );
    let answer = store.admit(&[], None).await.unwrap();
    let place = Booking {
        at: StoreTime::from_micros(answer.now.as_micros() - 60_000_000),
        epoch: answer.epoch,
    };
    let (used, ruling) = ask(&store, vec![claim(&limit, "a", 1)]).await;
    assert!(is_granted(&ruling));
    let late = |if_late| Petition {
        reserve: Some(if_late),
        ..take(vec![
            claim(&quick, "a", 1),
            Claim {
                held: Some(place),
                ..claim(&limit, "a", 1)
            },
        ])
    };
    for ahead in [Duration::ZERO, SOON] {
        let wait = late(IfLate::Wait { ahead });
        let answer = other.admit(&[wait], None).await.unwrap();
        let Ruling::Late { until, by: 1 } = answer.rulings[0] else {
            panic!("{answer:?}");
        };
        let window = until.since(used);
        assert!(window >= Duration::from_secs(20) && window <= Duration::from_secs(21));
    }
    // Nothing was taken of either.
    let look = store.look(&quick, claim(&quick, "a", 1).key).await.unwrap();
    assert_eq!(look.state, None);
    let answer = other.admit(&[late(IfLate::Grant)], None).await.unwrap();
    assert!(matches!(answer.rulings[0], Ruling::Denied { .. }));
}

async fn a_place_of_another_epoch_is_none((store, _): (Store, Store)) {
    let limit = open("old-place", log("1/1h", MS));
    assert!(takes(&store, &limit, "a").await);
    let answer = store.admit(&[], None).await.unwrap();
    let held = Some(Booking {
        at: answer.now,
        epoch: Epoch(answer.epoch.0 - 1),
    });
    let wants = vec![Claim {
        held,
        ..claim(&limit, "a", 1)
    }];
    assert!(!is_granted(&ask(&store, wants).await.1));
}

async fn what_was_not_sent_comes_back_once((store, _): (Store, Store)) {
    for (i, rule) in of_each_kind(1).into_iter().enumerate() {
        let limit = open(&format!("refund-{i}"), rule);
        let petition = take(vec![claim(&limit, "a", 1)]);
        let ticket = petition.ticket;
        let answer = store.admit(&[petition], None).await.unwrap();
        assert!(is_granted(&answer.rulings[0]));
        assert!(!takes(&store, &limit, "a").await);
        let refund = Refund {
            limit: Arc::clone(&limit),
            key: key("a"),
            cost: Cost::ONE,
            booked: Booking {
                at: answer.now,
                epoch: answer.epoch,
            },
            taken: Taken::Now,
            ticket,
        };
        let other = Refund {
            booked: Booking {
                epoch: Epoch(answer.epoch.0 + 1),
                ..refund.booked
            },
            ..refund.clone()
        };
        assert_eq!(store.refund(&[other]).await.unwrap(), 0);
        assert_eq!(store.refund(&[refund]).await.unwrap(), 1, "{limit:?}");
        assert!(takes(&store, &limit, "a").await, "{limit:?}");
        assert!(!takes(&store, &limit, "a").await, "{limit:?}");
    }
}

async fn a_window_is_in_doubt_until_a_call_of_it_was_made((store, other): (Store, Store)) {
    let limit = open("doubt", first_call("3/1h", MS));
    let petitions = [0, 1].map(|_| take(vec![claim(&limit, "a", 1)]));
    let answer = store.admit(&petitions, None).await.unwrap();
    for ruling in &answer.rulings {
        assert!(matches!(ruling, Ruling::Granted { passes } if passes[0].in_doubt));
    }
    let made = |epoch: Epoch| Made {
        limit: Arc::clone(&limit),
        key: key("a"),
        granted: Booking {
            at: answer.now,
            epoch,
        },
    };
    let earlier = made(Epoch(answer.epoch.0 - 1));
    assert_eq!(store.confirm(&[earlier]).await.unwrap(), 0);
    let now = made(answer.epoch);
    let twice = [now.clone(), now];
    assert_eq!(other.confirm(&twice).await.unwrap(), 1);
    let (_, ruling) = ask(&store, vec![claim(&limit, "a", 1)]).await;
    assert!(matches!(ruling, Ruling::Granted { passes } if !passes[0].in_doubt));
    let begun = State::FixedWindow(Used::of(answer.now.as_micros(), 3));
    let found = other.look(&limit, key("a")).await.unwrap();
    assert_eq!(found.state, Some(begun));
}

async fn calls_under_way_end_by_themselves_unless_renewed((store, other): (Store, Store)) {
    let limit = open("calls", concurrency(2, 300 * MS));
    let petitions = [0, 1].map(|_| take(vec![claim(&limit, "a", 1)]));
    let [kept, dropped] = [petitions[0].ticket, petitions[1].ticket];
    let answer = store.admit(&petitions, None).await.unwrap();
    assert!(answer.rulings.iter().all(is_granted));
    let (at, denied) = ask(&other, vec![claim(&limit, "a", 1)]).await;
    let Ruling::Denied { until, booked, .. } = denied else {
        panic!("two are under way");
    };
    assert!(booked.is_empty() && until <= at + Duration::from_millis(100));
    let call = |ticket| (Arc::clone(&limit), key("a"), ticket);
    eventually_async(
        BOUND,
        "the end of the call that nobody renews",
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
    assert_eq!(gone, [dropped]);
}

async fn a_call_that_ended_frees_its_place((store, other): (Store, Store)) {
    let limit = open("release", concurrency(1, HOUR));
    let petition = take(vec![claim(&limit, "a", 1)]);
    let call = (Arc::clone(&limit), key("a"), petition.ticket);
    store.admit(&[petition], None).await.unwrap();
    assert!(!takes(&other, &limit, "a").await);
    store.release(std::slice::from_ref(&call)).await.unwrap();
    store.release(&[call]).await.unwrap();
    assert!(takes(&other, &limit, "a").await);
    assert!(!takes(&other, &limit, "a").await);
}

contract!(redis, memory; (
    each_kind_grants_its_limit_and_no_more,
    all_limits_of_a_message_or_none,
    messages_of_a_batch_see_each_other,
    a_batch_may_be_large,
    a_place_is_kept_and_passes_without_asking,
    who_is_late_is_told_to_wait_and_keeps_his_place,
    a_place_of_another_epoch_is_none,
    what_was_not_sent_comes_back_once,
    a_window_is_in_doubt_until_a_call_of_it_was_made,
    calls_under_way_end_by_themselves_unless_renewed,
    a_call_that_ended_frees_its_place,
));
