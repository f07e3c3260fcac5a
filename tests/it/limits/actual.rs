//! Costs that are known only after the call, checked for both stores: units that were not used come back,
//! units used beyond the estimate are taken, and units beyond the limit are owed.

use std::sync::Arc;
use std::time::Duration;

use sluiced_core::limits::admission::Decision;
use sluiced_core::limits::token_bucket::{Refill, Start};
use sluiced_core::limits::{Fit, Lacks, Rule};
use sluiced_core::time::StoreTime;
use sluiced_core::version::PolicyVersion;
use sluiced_ports::clock;
use sluiced_ports::limits::{
    Corrected, Correction, GrantedAt, KeyedLimit, LimitStore, RuleInForce,
};
use sluiced_store::memory::MemoryStore;

use super::rules::*;
use crate::support::contract::contract;
use crate::support::redis::RedisServer;

type Store = Arc<dyn LimitStore>;

const HOUR: Duration = Duration::from_secs(3600);

async fn redis() -> Store {
    Arc::new(established(RedisServer::shared(), "actual").await)
}

async fn memory() -> Store {
    std::future::ready(Arc::new(MemoryStore::default()) as Store).await
}

/// Kinds that correct, of this many units; none comes back while a test runs.
fn kinds(units: u32) -> [Rule; 6] {
    [
        gcra("1/1h", units - 1, MS),
        bucket([units, 1, 0], HOUR, Refill::Continuous, Start::Full),
        bucket([units, 1, 0], HOUR, Refill::Stepped, Start::Full),
        first_call(&format!("{units}/1h"), MS),
        aligned(&format!("{units}/366d"), MS),
        log(&format!("{units}/1h"), MS),
    ]
}

fn of(limit: &Arc<KeyedLimit>, what: Corrected) -> [Correction; 1] {
    [Correction {
        limit: Arc::clone(limit),
        key: key("a"),
        what,
    }]
}

fn more(limit: &Arc<KeyedLimit>, units: u64) -> [Correction; 1] {
    of(limit, Corrected::More { units })
}

/// Takes this many units.
async fn take(store: &Store, limit: &Arc<KeyedLimit>, units: u32) -> (StoreTime, Decision) {
    let asked = [new(vec![charge(limit, "a", units)])];
    let mut answer = store.admit(&asked, 1).await.unwrap();
    (answer.now, answer.decisions.remove(0))
}

async fn remaining(store: &Store, limit: &Arc<KeyedLimit>) -> u64 {
    store.look(limit, key("a")).await.unwrap().room.remaining
}

async fn an_estimate_is_corrected_in_both_directions(store: Store) {
    for (i, rule) in kinds(100).into_iter().enumerate() {
        let limit = limit(&format!("corrected-{i}"), rule);
        let (at, decision) = take(&store, &limit, 30).await;
        assert!(is_granted(&decision));
        assert_eq!(remaining(&store, &limit).await, 70, "{limit:?}");
        let units = cost(20);
        let at = just_asked(at);
        let less = of(&limit, Corrected::Less { units, at });
        assert_eq!(store.correct(&less).await.unwrap(), [0; 0]);
        assert_eq!(remaining(&store, &limit).await, 90, "{limit:?}");
        assert_eq!(store.correct(&more(&limit, 15)).await.unwrap(), [0; 0]);
        assert_eq!(remaining(&store, &limit).await, 75, "{limit:?}");
    }
}

/// The store's clock went back by ten seconds after the grant. What came back by itself in these is not returned.
async fn time_that_only_the_asker_saw_counts_for_what_is_returned(store: Store) {
    let second = Duration::from_secs(1);
    let bucket = bucket([100, 1, 0], second, Refill::Continuous, Start::Full);
    for (i, rule) in [gcra("1/1s", 99, MS), bucket].into_iter().enumerate() {
        let limit = limit(&format!("back-{i}"), rule);
        let (at, _) = take(&store, &limit, 30).await;
        let (_, decision) = take(&store, &limit, 1).await;
        assert!(is_granted(&decision));
        let at = GrantedAt {
            asked: clock::now() - second * 10,
            ..just_asked(at)
        };
        let units = cost(20);
        let less = of(&limit, Corrected::Less { units, at });
        assert_eq!(store.correct(&less).await.unwrap(), [0; 0]);
        // 69 of 100 were left, and seconds may pass here.
        let left = remaining(&store, &limit).await;
        assert!((78..=83).contains(&left), "{left}: {limit:?}");
    }
}

async fn a_debt_delays_what_follows_and_is_paid_first(store: Store) {
    for (i, rule) in kinds(100).into_iter().enumerate() {
        let limit = limit(&format!("owed-{i}"), rule);
        assert!(is_granted(&take(&store, &limit, 30).await.1));
        store.correct(&more(&limit, 170)).await.unwrap();
        // A second answer reports the same.
        store.correct(&more(&limit, 25)).await.unwrap();
        let (at, denied) = take(&store, &limit, 1).await;
        let Decision::Denied {
            fits: Fit::At(fits),
            room,
            ..
        } = denied
        else {
            panic!("{limit:?}: {denied:?}");
        };
        assert_eq!(room.remaining, 0, "{limit:?}");
        // 225 units were used: twice the limit has to come free, and a part of the third.
        let span = limit.policy().rule.forgotten_at(at).as_micros() - at.as_micros();
        assert!(
            fits.as_micros() > at.as_micros() + span,
            "{limit:?}: {fits:?}"
        );
        let look = store.look(&limit, key("a")).await.unwrap();
        assert_eq!(look.state.unwrap().owed.units, 125, "{limit:?}");
        assert_eq!(look.fits, Fit::At(fits), "{limit:?}");
    }
}

/// What was taken of the limit itself stays taken.
async fn a_debt_and_a_reported_quota_can_be_forgiven(store: Store) {
    let lacks = |decision: &Decision| match decision {
        Decision::Denied { lacks, .. } => *lacks,
        other => panic!("{other:?}"),
    };
    for (i, rule) in kinds(100).into_iter().enumerate() {
        let limit = limit(&format!("forgiven-{i}"), rule);
        assert!(is_granted(&take(&store, &limit, 30).await.1));
        store.correct(&more(&limit, 1_000_000)).await.unwrap();
        assert_eq!(lacks(&take(&store, &limit, 1).await.1), Lacks::Debt);
        let forgiven = of(&limit, Corrected::Forgiven);
        assert_eq!(store.correct(&forgiven).await.unwrap(), [0; 0]);
        let (at, denied) = take(&store, &limit, 1).await;
        assert_eq!(lacks(&denied), Lacks::Room, "{limit:?}");
        let look = store.look(&limit, key("a")).await.unwrap();
        assert_eq!(look.state.unwrap().owed.units, 0, "{limit:?}");
        let span = limit.policy().rule.forgotten_at(at).as_micros() - at.as_micros();
        let Decision::Denied { until, .. } = denied else {
            unreachable!("it is denied");
        };
        // The next return lay behind the debt.
        assert!(until.as_micros() <= at.as_micros() + span, "{limit:?}");

        let limit = self::limit(&format!("forgotten-{i}"), limit.policy().rule.clone());
        let length = HOUR;
        let left = of(&limit, Corrected::Quota { units: 0, length });
        store.correct(&left).await.unwrap();
        assert_eq!(lacks(&take(&store, &limit, 1).await.1), Lacks::Quota);
        let forgotten = of(&limit, Corrected::Forgiven);
        store.correct(&forgotten).await.unwrap();
        assert!(is_granted(&take(&store, &limit, 1).await.1), "{limit:?}");
    }
}

/// No answer reports the units of a limit of calls in flight.
async fn calls_in_flight_are_not_corrected(store: Store) {
    let limit = limit("flight", concurrency(3, HOUR));
    assert!(is_granted(&take(&store, &limit, 1).await.1));
    assert_eq!(store.correct(&more(&limit, 50)).await.unwrap(), [0; 0]);
    assert_eq!(remaining(&store, &limit).await, 2);
}

/// The caller writes it again once it knows the policy.
async fn under_an_unknown_policy_nothing_is_done(store: Store) {
    let limit = limit("unknown", log("100/1h", MS));
    assert!(is_granted(&take(&store, &limit, 1).await.1));
    let policy = limit.policy();
    limit.adopt(RuleInForce {
        version: PolicyVersion::new(77),
        ..RuleInForce::clone(&policy)
    });
    assert_eq!(store.correct(&more(&limit, 5)).await.unwrap(), [0]);
    limit.adopt(RuleInForce::clone(&policy));
    assert_eq!(remaining(&store, &limit).await, 99);
}

contract!(redis, memory; (
    an_estimate_is_corrected_in_both_directions,
    time_that_only_the_asker_saw_counts_for_what_is_returned,
    a_debt_delays_what_follows_and_is_paid_first,
    a_debt_and_a_reported_quota_can_be_forgiven,
    calls_in_flight_are_not_corrected,
    under_an_unknown_policy_nothing_is_done,
));
