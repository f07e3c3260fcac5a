//! Keyed limits: the decisions of `core::limits`. Nothing is ever lost here, so there is one generation,
//! and every limit is open when the process starts.

use std::collections::HashMap;
use std::sync::Arc;

use futures::FutureExt;
use tokio::sync::broadcast;

use super::MemoryStore;
use sluiced_core::limits::admission::Decision;
use sluiced_core::limits::cell::{Limit, LimitAccess, PolicyState};
use sluiced_core::limits::generation::Generation;
use sluiced_core::limits::keyed_states::KeyedStates;
use sluiced_core::limits::{Rule, Ticket};
use sluiced_core::rate::Cost;
use sluiced_core::time::StoreTime;
use sluiced_core::version::PolicyVersion;
use sluiced_ports::limits::{
    Candidate, Charge, Corrected, Correction, Decisions, GrantedAt, GrantedCharge, KeyedLimit,
    LimitKey, LimitStore, Look,
};
use sluiced_ports::store::{Notice, StoreFuture};

/// All pacers of the process listen to the same notices.
const ALL: u32 = 0;

/// A limit and one of its keys.
pub(super) type StateName = (Arc<str>, LimitKey);

/// A limit under the policy that its asker knows.
struct InForceNow {
    rule: Rule,
    version: PolicyVersion,
    access: LimitAccess,
}

impl InForceNow {
    const fn limit(&self) -> Limit<'_> {
        Limit {
            rule: &self.rule,
            access: self.access,
        }
    }
}

fn name(limit: &KeyedLimit, key: LimitKey) -> StateName {
    (Arc::clone(&limit.name), key)
}

impl MemoryStore {
    fn in_force(&self, limit: &KeyedLimit, now: StoreTime) -> InForceNow {
        let policy = limit.policy();
        let stored = self.policy(&limit.name);
        let in_force = stored.map_or_else(PolicyState::default, |stored| PolicyState {
            version: stored.version,
            paused_until: stored.paused_until(now).unwrap_or_default(),
            opened_at: StoreTime::default(),
            kind_changed_at: stored.kind_changed_at,
        });
        let rule = policy.rule.around(now);
        InForceNow {
            access: LimitAccess::of(
                in_force,
                &rule,
                policy.version,
                limit.lost_wait,
                &Generation::whole(),
                now,
            ),
            version: policy.version,
            rule,
        }
    }

    fn admit_now(
        &self,
        states: &mut KeyedStates<StateName>,
        candidates: &[Candidate],
        wanted: u64,
        now: StoreTime,
    ) -> Vec<Decision> {
        let mut in_force = HashMap::new();
        for charge in candidates.iter().flat_map(|candidate| &candidate.charges) {
            let limit = &charge.limit;
            let entry = in_force.entry(&*limit.name);
            entry.or_insert_with(|| self.in_force(limit, now));
        }
        let limits: HashMap<&str, Limit<'_>> = in_force
            .iter()
            .map(|(name, limit)| (*name, limit.limit()))
            .collect();
        let in_batch = |candidate: &Candidate| {
            candidate.renamed(|charge| {
                let limit = &limits[&*charge.limit.name];
                (limit, name(&charge.limit, charge.key))
            })
        };
        let batch: Vec<_> = candidates.iter().map(in_batch).collect();
        states.admit(ALL, &batch, wanted, now)
    }

    fn refund(
        &self,
        states: &mut KeyedStates<StateName>,
        charge: &Charge,
        at: &GrantedAt,
        now: StoreTime,
    ) -> bool {
        let limit = self.in_force(&charge.limit, now);
        let name = name(&charge.limit, charge.key);
        let unused = at.unused(charge.cost);
        states.refund(&name, &limit.limit(), limit.version.since(), &unused, now)
    }

    /// `false`: the asker knows another policy, and nothing was corrected.
    fn correct_now(
        &self,
        states: &mut KeyedStates<StateName>,
        correction: &Correction,
        now: StoreTime,
    ) -> bool {
        let in_force = self.in_force(&correction.limit, now);
        let (name, limit) = (name(&correction.limit, correction.key), in_force.limit());
        match correction.what {
            Corrected::Quota { units, length } => states.tighten(&name, &limit, units, length, now),
            Corrected::Less { units, at } => {
                let since = in_force.version.since();
                states.refund(&name, &limit, since, &at.unused(units), now);
                limit.access != LimitAccess::Outdated
            }
            Corrected::More { units } => states.add_debt(&name, &limit, units, now),
            Corrected::Forgiven => states.forgive(&name, &limit, now),
        }
    }

    fn end_call(
        &self,
        states: &mut KeyedStates<StateName>,
        charge: &Charge,
        ticket: Ticket,
        now: StoreTime,
    ) {
        let key = name(&charge.limit, charge.key);
        let policy = charge.limit.policy();
        self.freed(&key, &states.release(&key, &policy.rule, ticket, now));
    }

    /// Replicas that waited may ask for this many units each.
    fn freed(&self, name: &StateName, woken: &[(u32, u64)]) {
        for (_, units) in woken {
            let ((limit, key), units) = (name.clone(), *units);
            // A replica that listens to nothing asks again after a while.
            drop(self.notices.send(Notice::Freed { limit, key, units }));
        }
    }
}

impl LimitStore for MemoryStore {
    fn notices(&self) -> broadcast::Receiver<Notice> {
        self.notices.subscribe()
    }

    fn admit<'a>(&'a self, candidates: &'a [Candidate], wanted: u64) -> StoreFuture<'a, Decisions> {
        async move {
            Ok(self.decide(&self.states, |states, now| Decisions {
                now,
                alone: true,
                decisions: self.admit_now(states, candidates, wanted, now),
            }))
        }
        .boxed()
    }

    fn release<'a>(&'a self, granted: &'a [GrantedCharge]) -> StoreFuture<'a, usize> {
        async move {
            Ok(self.decide(&self.states, |states, now| {
                let refunded = granted.iter().filter(|granted| match granted {
                    GrantedCharge::Units { charge, at } => self.refund(states, charge, at, now),
                    GrantedCharge::Call { charge, ticket }
                    | GrantedCharge::Claim { charge, ticket } => {
                        self.end_call(states, charge, *ticket, now);
                        false
                    }
                });
                refunded.count()
            }))
        }
        .boxed()
    }

    fn mark_done<'a>(&'a self, claims: &'a [GrantedCharge]) -> StoreFuture<'a, ()> {
        async move {
            self.decide(&self.states, |states, now| {
                for charge in claims.iter().map(GrantedCharge::charge) {
                    let key = name(&charge.limit, charge.key);
                    let policy = charge.limit.policy();
                    self.freed(&key, &states.done(&key, &policy.rule, now));
                }
            });
            Ok(())
        }
        .boxed()
    }

    fn renew<'a>(&'a self, calls: &'a [GrantedCharge]) -> StoreFuture<'a, Vec<GrantedCharge>> {
        async move {
            Ok(self.decide(&self.states, |states, now| {
                let gone = calls.iter().filter_map(|call| match call {
                    GrantedCharge::Call { charge, ticket }
                    | GrantedCharge::Claim { charge, ticket } => {
                        let key = name(&charge.limit, charge.key);
                        let policy = charge.limit.policy();
                        let is_renewed = states.renew(&key, &policy.rule, *ticket, now);
                        (!is_renewed).then(|| call.clone())
                    }
                    GrantedCharge::Units { .. } => None,
                });
                gone.collect()
            }))
        }
        .boxed()
    }

    fn correct<'a>(&'a self, corrections: &'a [Correction]) -> StoreFuture<'a, Vec<usize>> {
        async move {
            Ok(self.decide(&self.states, |states, now| {
                let undone = corrections
                    .iter()
                    .enumerate()
                    .filter(|(_, correction)| !self.correct_now(states, correction, now));
                undone.map(|(place, _)| place).collect()
            }))
        }
        .boxed()
    }

    fn look<'a>(&'a self, limit: &'a Arc<KeyedLimit>, key: LimitKey) -> StoreFuture<'a, Look> {
        async move {
            Ok(self.decide(&self.states, |states, now| {
                let InForceNow { rule, access, .. } = self.in_force(limit, now);
                let state = states.state(&name(limit, key), &rule, now);
                Look {
                    now,
                    limit: rule.max_cost(),
                    room: rule.room(state.as_ref(), now),
                    fits: rule.fit(state.as_ref(), now, Cost::ONE),
                    closed: match access {
                        LimitAccess::Closed { until, why } => Some((until, why)),
                        LimitAccess::Open | LimitAccess::Outdated => None,
                    },
                    state,
                }
            }))
        }
        .boxed()
    }
}
