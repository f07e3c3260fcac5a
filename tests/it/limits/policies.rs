//! Policies that change, in Redis and in this process: both behave the same.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use sluiced_core::limits::Rule;
use sluiced_core::limits::admission::Decision;
use sluiced_core::limits::generation::{ClosedReason, LostWait};
use sluiced_core::policy::{self, Declaration, LimitPolicy, PolicyUpdate, Replacement};
use sluiced_core::version::PolicyVersion;
use sluiced_ports::limits::{Charge, GrantedCharge, KeyedLimit, RuleInForce};
use sluiced_ports::policies::PolicyOf;
use sluiced_ports::store::{Family, Store};
use sluiced_store::memory::MemoryStore;

use super::rules::*;
use crate::support::redis::RedisServer;
use crate::support::wait::within;

const LONG: Duration = Duration::from_secs(3_600);

struct Place {
    store: Arc<dyn Store>,
}

impl Place {
    fn memory() -> Self {
        Self {
            store: Arc::new(MemoryStore::default()),
        }
    }

    async fn redis() -> Self {
        Self {
            store: Arc::new(established(RedisServer::shared(), "policy").await),
        }
    }

    fn policy<'a>(&'a self, limit: &'a str) -> PolicyOf<'a> {
        PolicyOf::new(&*self.store, Family::Keyed, limit)
    }

    async fn ask(&self, charge: Charge) -> Decision {
        let answer = self.store.admit(&[new(vec![charge])], 1).await.unwrap();
        answer.decisions[0].clone()
    }

    async fn all(&self, limit: &Arc<KeyedLimit>) -> u32 {
        let mut count = 0;
        while is_granted(&self.ask(charge(limit, "k", 1)).await) {
            count += 1;
        }
        count
    }

    async fn declare(&self, limit: &str) -> LimitPolicy {
        self.read(limit, "any").await
    }

    /// A replica has read its file.
    async fn read(&self, limit: &str, file: &str) -> LimitPolicy {
        let declaration = Declaration {
            replica: "replica".to_owned(),
            file: file.to_owned(),
            known: None,
        };
        self.policy(limit).declare(&declaration).await.unwrap()
    }

    /// An operator sets another rule; no replica has got a notice yet.
    async fn set(&self, limit: &KeyedLimit) -> PolicyVersion {
        let over = self
            .store
            .inspect(Family::Keyed, &limit.name)
            .await
            .unwrap();
        let over = over.policy.unwrap().version;
        let update = PolicyUpdate {
            replaces: over,
            text: "other",
            file: "any",
            by: "op",
        };
        let set = self.policy(&limit.name).set(&update, None).await;
        set.unwrap().unwrap().version
    }
}

async fn both(test: impl AsyncFn(Place)) {
    test(Place::memory()).await;
    test(Place::redis().await).await;
}

fn adopt(limit: &KeyedLimit, rule: Rule, version: PolicyVersion) {
    limit.adopt(RuleInForce { rule, version });
}

fn outdated(decision: &Decision) -> bool {
    matches!(decision, Decision::Outdated { by: 0 })
}

#[tokio::test]
async fn a_replica_that_knows_another_policy_than_the_one_in_force_gets_nothing() {
    both(async |place: Place| {
        let rule = log("5/1h", MS);
        let limit = limit("known", rule.clone());
        let one = || charge(&limit, "k", 1);
        assert!(is_granted(&place.ask(one()).await));
        let first = place.declare("known").await.version;
        assert!(outdated(&place.ask(one()).await));
        adopt(&limit, rule.clone(), first);
        assert!(is_granted(&place.ask(one()).await));
        let second = place.set(&limit).await;
        assert!(outdated(&place.ask(one()).await));
        adopt(&limit, rule.clone(), second);
        assert_eq!(place.all(&limit).await, 3, "what was spent stays spent");
        // A replica with an earlier policy does not count either.
        adopt(&limit, rule.clone(), first);
        assert!(outdated(&place.ask(one()).await));
    })
    .await;
}

#[tokio::test]
async fn a_lowered_limit_grants_nothing_and_a_raised_one_the_difference() {
    both(async |place: Place| {
        let window = |n: u32| first_call(&format!("{n}/1h"), MS);
        let debt = |n: u32| gcra(&format!("{n}/1h"), n - 1, MS);
        for (kind, [large, small, middle], left) in [
            ("log", [6, 3, 8].map(|n| log(&format!("{n}/1h"), MS)), 2),
            ("window", [6, 3, 8].map(window), 2),
            // A debt of six was never paid down: of eight, two are left.
            ("gcra", [6, 3, 8].map(debt), 2),
            // An operator's update fills no bucket.
            ("bucket", [6, 3, 8].map(|n| full(n, 1, LONG)), 0),
            ("calls", [6, 3, 8].map(|n| concurrency(n, LONG)), 2),
        ] {
            let limit = limit(&format!("changed-{kind}"), large.clone());
            let first = place.declare(&limit.name).await.version;
            adopt(&limit, large, first);
            assert_eq!(place.all(&limit).await, 6, "{kind}");
            let version = place.set(&limit).await;
            adopt(&limit, small, version);
            assert_eq!(place.all(&limit).await, 0, "{kind}");
            let look = place.store.look(&limit, key("k")).await.unwrap();
            assert_eq!((look.limit, look.room.remaining), (3, 0), "{kind}");
            let version = place.set(&limit).await;
            adopt(&limit, middle, version);
            assert_eq!(place.all(&limit).await, left, "{kind}");
        }
    })
    .await;
}

/// `3/1h` as a log, as a window, as a log again: no kind reads the states of another one, so the spent units
/// are not known, and the limit waits, as after a loss.
#[tokio::test]
async fn a_change_of_kind_lets_no_more_through() {
    both(async |place: Place| {
        let kinds = [
            ("kind=sliding_log", log("3/1h", MS)),
            ("kind=fixed_window", first_call("3/1h", MS)),
            ("kind=sliding_log", log("3/1h", MS)),
        ];
        for (name, wait, granted) in [
            ("forever", LostWait::Forever, [3, 0, 0]),
            // An operator chose not to wait: a limit of each kind grants at once.
            ("at-once", LostWait::For(Duration::ZERO), [3, 3, 3]),
        ] {
            let limit = waiting(name, kinds[0].1.clone(), wait);
            for ((file, rule), granted) in kinds.iter().zip(granted) {
                let version = place.read(name, file).await.version;
                adopt(&limit, rule.clone(), version);
                assert_eq!(place.all(&limit).await, granted, "{name} {file}");
            }
            let look = place.store.look(&limit, key("new")).await.unwrap();
            let lost = look.closed.map(|(_, why)| why);
            assert_eq!(
                lost,
                (wait == LostWait::Forever).then_some(ClosedReason::Lost)
            );
        }
    })
    .await;
}

/// Spent units no longer count after the `lost_wait`, or once an operator opens the limit.
#[tokio::test]
async fn a_limit_whose_kind_changed_opens_after_its_wait_or_by_hand() {
    let place = Place::redis().await;
    let limits = [
        waiting("waits", log("3/1h", MS), LostWait::For(200 * MS)),
        waiting("opened", log("3/1h", MS), LostWait::Forever),
    ];
    for limit in &limits {
        place.read(&limit.name, "kind=sliding_log").await;
        let version = place.read(&limit.name, "kind=fixed_window").await.version;
        adopt(limit, first_call("3/1h", MS), version);
    }
    assert!(!is_granted(&place.ask(charge(&limits[1], "k", 1)).await));
    place.store.open(Family::Keyed, "opened").await.unwrap();
    assert!(is_granted(&place.ask(charge(&limits[1], "k", 1)).await));
    within(BOUND, "the end of the wait", async {
        while !is_granted(&place.ask(charge(&limits[0], "k", 1)).await) {
            tokio::time::sleep(MS).await;
        }
    })
    .await;
}

#[tokio::test]
async fn what_was_granted_under_another_policy_stays_spent() {
    both(async |place: Place| {
        let limit = limit("refund", log("1/1h", MS));
        let version = place.declare("refund").await.version;
        adopt(&limit, log("1/1h", MS), version);
        let candidate = new(vec![charge(&limit, "k", 1)]);
        let answer = place.store.admit(&[candidate], 1).await.unwrap();
        assert!(is_granted(&answer.decisions[0]));
        let refund = GrantedCharge::Units {
            charge: charge(&limit, "k", 1),
            at: just_asked(answer.now),
        };
        let refunds = [refund];
        let version = place.set(&limit).await;
        assert_eq!(place.store.release(&refunds).await.unwrap(), 0, "outdated");
        adopt(&limit, log("1/1h", MS), version);
        assert_eq!(place.store.release(&refunds).await.unwrap(), 0);
        assert_eq!(place.all(&limit).await, 0);
    })
    .await;
}

/// An update is decided with what was read, and replaces it a moment later.
#[tokio::test]
async fn what_was_granted_while_an_update_was_decided_is_of_the_old_policy() {
    both(async |place: Place| {
        let rule = log("2/1h", MS);
        let limit = limit("decided", rule.clone());
        let version = place.declare("decided").await.version;
        adopt(&limit, rule.clone(), version);
        let found = place.policy("decided").inspect().await.unwrap();
        let mut policy = found.policy;
        let update = PolicyUpdate {
            replaces: version,
            text: "other",
            file: "any",
            by: "op",
        };
        assert!(policy::set(&mut policy, &update, found.now));
        let candidate = new(vec![charge(&limit, "k", 1)]);
        let answer = place.store.admit(&[candidate], 1).await.unwrap();
        assert!(is_granted(&answer.decisions[0]));
        let replacement = Replacement {
            replaces: version,
            policy: policy.as_ref().unwrap(),
            decided: found.now,
        };
        let store = &place.store;
        let replaced = store.replace(Family::Keyed, "decided", replacement, false);
        let version = replaced.await.unwrap().unwrap().version;
        assert!(version.since() >= answer.now);
        let found = place.policy("decided").inspect().await.unwrap();
        let kept = found.policy.unwrap();
        assert_eq!((kept.version, kept.changed), (version, version));
        adopt(&limit, rule, version);
        let refund = GrantedCharge::Units {
            charge: charge(&limit, "k", 1),
            at: just_asked(answer.now),
        };
        assert_eq!(store.release(&[refund]).await.unwrap(), 0, "it stays spent");
    })
    .await;
}

#[tokio::test]
async fn a_pause_bars_until_it_ends_and_costs_nothing() {
    both(async |place: Place| {
        let limit = limit("pause", log("2/1h", MS));
        place.declare("pause").await;
        let length = Duration::from_millis(300);
        let paused = place.policy("pause").pause(length, "op").await.unwrap();
        let (said, until) = paused.unwrap();
        adopt(&limit, log("2/1h", MS), said.version);
        let why = ClosedReason::Paused;
        assert_eq!(
            place.ask(charge(&limit, "k", 1)).await,
            Decision::Closed { by: 0, until, why }
        );
        let look = place.store.look(&limit, key("k")).await.unwrap();
        assert_eq!((look.room.remaining, &look.state), (2, &None));
        assert_eq!(look.closed, Some((until, why)));
        within(BOUND, "the end of the pause", async {
            while !is_granted(&place.ask(charge(&limit, "k", 1)).await) {
                tokio::time::sleep(MS).await;
            }
        })
        .await;
        let look = place.store.look(&limit, key("k")).await.unwrap();
        assert!(look.now >= until);
        assert_eq!(look.closed, None);
        assert_eq!(place.all(&limit).await, 1);
    })
    .await;
}

#[tokio::test]
async fn only_a_limit_that_was_declared_can_be_opened() {
    both(async |place: Place| {
        let opened = place.store.open(Family::Keyed, "unheard-of").await.unwrap();
        assert_eq!(opened, None);
        place.declare("declared").await;
        let opened = place.store.open(Family::Keyed, "declared").await.unwrap();
        let now = place.store.admit(&[], 0).await.unwrap().now;
        assert!(opened.unwrap() <= now);
        // It is no update of the policy.
        let found = place
            .store
            .inspect(Family::Keyed, "declared")
            .await
            .unwrap();
        assert_eq!(found.policy.unwrap().updates, 1);
    })
    .await;
}

/// Each of them finds the policy that another one has just replaced, and decides again.
#[tokio::test]
async fn no_update_is_lost_among_many_at_once() {
    both(async |place: Place| {
        let before = place.declare("many").await.updates;
        let pauses = (1..=8).map(async |seconds| {
            let paused = place.policy("many").pause(LONG * seconds, "op").await;
            paused.unwrap().expect("it is declared").0.updates
        });
        let files = (1..=8)
            .map(async |number: u32| place.read("many", &format!("file {number}")).await.updates);
        let (pauses, _) = tokio::join!(join_all(pauses), join_all(files));
        let pauses: BTreeSet<u64> = pauses.into_iter().collect();
        assert_eq!(pauses.len(), 8, "each has a number of its own");
        let found = place.policy("many").inspect().await.unwrap();
        assert_eq!(found.policy.unwrap().updates, before + 16);
    })
    .await;
}
