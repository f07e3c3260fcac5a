//! Terms that change, in Redis and in this process: the same for both.

use std::sync::Arc;
use std::time::Duration;

use sluiced::core::policy::{Declaration, LimitPolicy, PolicyUpdate, PolicyVersion};
use sluiced::limiter::memory::MemoryBudgetStore;
use sluiced::limiter::redis::{Family, RedisPolicies};
use sluiced::ports::budget::{BudgetLimit, BudgetStore, Claim, Lost, Ruling, Terms};
use sluiced::ports::clock::Clock;
use sluiced::ports::policy::PolicyStore;

use super::rules::*;
use crate::support::redis::RedisServer;
use crate::support::wait::within;

const LONG: Duration = Duration::from_secs(3_600);

struct Place {
    budgets: Arc<dyn BudgetStore>,
    policies: Arc<dyn PolicyStore>,
}

impl Place {
    fn memory() -> Self {
        let store = MemoryBudgetStore::new(Clock::start());
        Self {
            policies: store.policies(),
            budgets: Arc::new(store),
        }
    }

    async fn redis() -> Self {
        let store = Arc::new(connect(RedisServer::shared(), "policy").await);
        Self {
            policies: Arc::new(RedisPolicies::new(Arc::clone(&store), Family::Budget)),
            budgets: store,
        }
    }

    async fn ask(&self, claim: Claim, may_reserve: bool) -> Ruling {
        let petition = if may_reserve {
            reserve(vec![claim])
        } else {
            take(vec![claim])
        };
        let answer = self.budgets.admit(&[petition], None).await.unwrap();
        answer.rulings[0].clone()
    }

    async fn all(&self, limit: &Arc<BudgetLimit>) -> u32 {
        let mut count = 0;
        while is_granted(&self.ask(claim(limit, "k", 1), false).await) {
            count += 1;
        }
        count
    }

    async fn declare(&self, limit: &str) -> LimitPolicy {
        let declaration = Declaration {
            replica: "replica".to_owned(),
            file: "any".to_owned(),
            was_read: true,
            known: None,
        };
        self.policies.declare(limit, &declaration).await.unwrap()
    }

    /// An operator sets other terms; nobody has heard of them yet.
    async fn set(&self, limit: &BudgetLimit) -> PolicyVersion {
        let over = self.policies.inspect(&limit.name).await.unwrap();
        let over = over.policy.unwrap().version;
        let update = PolicyUpdate {
            over,
            text: "other",
            file: "any",
            by: "op",
        };
        let set = self.policies.set(&limit.name, update);
        set.await.unwrap().unwrap().version
    }
}

async fn both(test: impl AsyncFn(Place)) {
    test(Place::memory()).await;
    test(Place::redis().await).await;
}

fn outdated(ruling: &Ruling) -> bool {
    matches!(ruling, Ruling::Outdated { by: 0 })
}

#[tokio::test]
async fn whoever_knows_other_terms_than_those_in_force_gets_nothing() {
    both(async |place: Place| {
        let limit = limit("known", log("5/1h", MS), Lost::Open);
        let rule = limit.terms().rule.clone();
        let adopt = |version| {
            let rule = rule.clone();
            limit.adopt(Terms { rule, version });
        };
        assert!(is_granted(&place.ask(claim(&limit, "k", 1), true).await));
        let first = place.declare("known").await.version;
        assert!(outdated(&place.ask(claim(&limit, "k", 1), true).await));
        adopt(first);
        assert!(is_granted(&place.ask(claim(&limit, "k", 1), true).await));
        let second = place.set(&limit).await;
        assert!(outdated(&place.ask(claim(&limit, "k", 1), true).await));
        adopt(second);
        assert_eq!(place.all(&limit).await, 3, "what was spent stays spent");
        // Who comes from before does not count either.
        adopt(first);
        assert!(outdated(&place.ask(claim(&limit, "k", 1), true).await));
    })
    .await;
}

#[tokio::test]
async fn a_lowered_limit_grants_nothing_and_a_raised_one_the_difference() {
    both(async |place: Place| {
        for (kind, [large, small, middle], left) in [
            (
                "log",
                [log("6/1h", MS), log("3/1h", MS), log("8/1h", MS)],
                2,
            ),
            (
                "window",
                [
                    first_call("6/1h", MS),
                    first_call("3/1h", MS),
                    first_call("8/1h", MS),
                ],
                2,
            ),
            // A whole debt is a whole debt: of the two more that may come early, two come.
            (
                "gcra",
                [
                    gcra("6/1h", 5, MS),
                    gcra("3/1h", 2, MS),
                    gcra("8/1h", 4, MS),
                ],
                2,
            ),
            // A word fills no bucket.
            (
                "bucket",
                [full(6, 1, LONG), full(3, 1, LONG), full(8, 1, LONG)],
                0,
            ),
            (
                "calls",
                [
                    concurrency(6, LONG),
                    concurrency(3, LONG),
                    concurrency(8, LONG),
                ],
                2,
            ),
        ] {
            let limit = limit(&format!("changed-{kind}"), large, Lost::Open);
            let first = place.declare(&limit.name).await.version;
            let rule = limit.terms().rule.clone();
            limit.adopt(Terms {
                rule,
                version: first,
            });
            assert_eq!(place.all(&limit).await, 6, "{kind}");
            let version = place.set(&limit).await;
            limit.adopt(Terms {
                rule: small,
                version,
            });
            assert_eq!(place.all(&limit).await, 0, "{kind}");
            let usage = place.budgets.look(&limit, key("k")).await.unwrap().usage;
            assert_eq!((usage.limit, usage.remaining), (3, 0), "{kind}");
            let version = place.set(&limit).await;
            limit.adopt(Terms {
                rule: middle,
                version,
            });
            assert_eq!(place.all(&limit).await, left, "{kind}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_place_and_a_refund_under_other_terms_are_none() {
    both(async |place: Place| {
        let limit = limit("place", log("1/1h", MS), Lost::Open);
        let version = place.declare("place").await.version;
        let rule = limit.terms().rule.clone();
        limit.adopt(Terms { rule, version });
        assert_eq!(place.all(&limit).await, 1);
        let denied = place.ask(claim(&limit, "k", 1), true).await;
        let (_, held) = booked(&denied)[0];
        let version = place.set(&limit).await;
        let rule = log("2/1h", MS);
        limit.adopt(Terms { rule, version });
        // It does not wait for its old place: there is room now.
        let held = Claim {
            held: Some(held),
            ..claim(&limit, "k", 1)
        };
        assert!(is_granted(&place.ask(held.clone(), true).await));
        let refund = sluiced::ports::budget::Refund {
            limit: Arc::clone(&limit),
            key: key("k"),
            cost: cost(1),
            booked: held.held.unwrap(),
            taken: sluiced::ports::budget::Taken::Place,
            ticket: ticket(),
        };
        assert_eq!(place.budgets.refund(&[refund]).await.unwrap(), 0);
        assert_eq!(place.all(&limit).await, 0);
    })
    .await;
}

#[tokio::test]
async fn a_pause_bars_until_it_ends_and_costs_nothing() {
    both(async |place: Place| {
        let limit = limit("pause", log("2/1h", MS), Lost::Open);
        place.declare("pause").await;
        let length = Duration::from_millis(300);
        let paused = place.policies.pause("pause", length, "op").await.unwrap();
        let (said, ends) = paused.unwrap();
        let rule = limit.terms().rule.clone();
        limit.adopt(Terms {
            rule,
            version: said.version,
        });
        assert_eq!(
            place.ask(claim(&limit, "k", 1), true).await,
            Ruling::Paused { until: ends, by: 0 }
        );
        let look = place.budgets.look(&limit, key("k")).await.unwrap();
        assert_eq!((look.usage.remaining, look.state), (2, None));
        within(BOUND, "the end of the pause", async {
            while !is_granted(&place.ask(claim(&limit, "k", 1), false).await) {
                tokio::time::sleep(MS).await;
            }
        })
        .await;
        assert!(place.budgets.look(&limit, key("k")).await.unwrap().now >= ends);
        assert_eq!(place.all(&limit).await, 1);
    })
    .await;
}
