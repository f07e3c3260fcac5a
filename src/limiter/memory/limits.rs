//! Keyed limits of this process alone: the decisions of `core::limits` behind a lock.
//!
//! Nothing is ever lost here, so there is one generation, and every limit is open when the process
//! starts. States that say nothing any more are swept out whenever as many were added as lived
//! through the last sweep, so the memory follows what is in use.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::FutureExt;
use tokio::sync::broadcast;

use super::{MemoryPolicies, NOTICES};
use crate::core::limits::admission::{self, Cell, Charge, Limit, LimitGate, PolicyState};
use crate::core::limits::concurrency::{Calls, Concurrency};
use crate::core::limits::generation::Generation;
use crate::core::limits::{Line, Rule, State, Taken};
use crate::core::policy::PolicyVersion;
use crate::core::time::StoreTime;
use crate::ports::clock::Clock;
use crate::ports::limits::{
    Answer, CallUnderWay, Candidate, Decision, Fit, KeyedLimit, LimitKey, LimitStore, Look, Refund,
    Ticket,
};
use crate::ports::pace::{Notice, StoreFuture};

/// No sweep before so many states are known.
const SWEEP_MIN: usize = 1024;

type Name = (Arc<str>, LimitKey);

/// The keyed limits of this process.
pub struct MemoryLimitStore {
    clock: Clock,
    policies: Arc<MemoryPolicies>,
    notices: broadcast::Sender<Notice>,
    states: Mutex<States>,
}

#[derive(Default)]
struct States {
    /// What was taken, and from when on that says nothing any more.
    known: HashMap<Name, (State, StoreTime)>,
    /// Limits for whose calls a message of this process waits.
    waiting: HashSet<Name>,
    /// How many states there may be before the next sweep.
    room: usize,
}

impl MemoryLimitStore {
    /// A store in which nothing was taken, whose time follows `clock`.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            policies: Arc::new(MemoryPolicies::new(clock)),
            notices: broadcast::Sender::new(NOTICES),
            states: Mutex::default(),
        }
    }

    /// What is in force for its limits.
    #[must_use]
    pub fn policies(&self) -> Arc<MemoryPolicies> {
        Arc::clone(&self.policies)
    }

    /// How many states it remembers at present.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().known.len()
    }

    /// Whether it remembers none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, States> {
        // A state is replaced as a whole: after a panic each of them is either old or new.
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides at the time that is read under the lock: the order of decisions is that of their times.
    fn decide<T>(&self, decision: impl FnOnce(&mut States, StoreTime) -> T) -> T {
        let mut states = self.lock();
        let now = self.clock.store_time();
        decision(&mut states, now)
    }

    /// A limit as it is in force now.
    fn in_force(&self, limit: &KeyedLimit, now: StoreTime) -> InForceNow {
        let policy = limit.policy();
        let stored = self.policies.of(&limit.name);
        let in_force = stored.map_or_else(PolicyState::default, |stored| PolicyState {
            version: stored.version,
            paused_until: stored.paused_until(now).unwrap_or_default(),
            opened_at: StoreTime::default(),
        });
        let rule = policy.rule.around(now);
        let known = (&rule, policy.version, limit.lost_wait);
        InForceNow {
            gate: LimitGate::of(in_force, known, &Generation::whole(), now),
            version: policy.version,
            rule,
        }
    }

    fn admit_now(
        &self,
        states: &mut States,
        candidates: &[Candidate],
        wanted: u64,
        now: StoreTime,
    ) -> Vec<Decision> {
        let (mut named, mut limits) = (HashMap::new(), Vec::new());
        let (mut places, mut cells, mut names) = (HashMap::new(), Vec::new(), Vec::new());
        for charge in candidates.iter().flat_map(|candidate| &candidate.charges) {
            let name = (Arc::clone(&charge.limit.name), charge.key);
            let at = *named.entry(Arc::clone(&name.0)).or_insert_with(|| {
                limits.push(self.in_force(&charge.limit, now));
                limits.len() - 1
            });
            places.entry(name).or_insert_with_key(|name| {
                cells.push(states.cell(&limits[at].rule, name, now));
                names.push((name.clone(), at));
                cells.len() - 1
            });
        }
        let limits: Vec<Limit<'_>> = limits.iter().map(InForceNow::limit).collect();
        let charge = |charge: &crate::ports::limits::Charge| Charge {
            limit: &limits[named[&charge.limit.name]],
            cell: places[&(Arc::clone(&charge.limit.name), charge.key)],
            cost: u64::from(charge.cost.get()),
        };
        let asking: Vec<admission::Candidate<'_>> = candidates
            .iter()
            .map(|candidate| admission::Candidate {
                charges: candidate.charges.iter().map(charge).collect(),
                waited: candidate.waited,
                weight: candidate.weight,
                ticket: candidate.ticket,
            })
            .collect();
        let decisions = admission::decide(&asking, &mut cells, wanted, now);
        for (cell, (name, at)) in cells.into_iter().zip(names) {
            states.put(name, limits[at].rule, cell, now);
        }
        for (candidate, decision) in candidates.iter().zip(&decisions) {
            states.wait(candidate, decision);
        }
        decisions
    }

    /// Changes the state of a key, if there is one that `change` has to do with.
    fn change<T>(
        &self,
        states: &mut States,
        (limit, key): (&KeyedLimit, LimitKey),
        now: StoreTime,
        change: impl FnOnce(&InForceNow, &mut Cell) -> Option<T>,
    ) -> Option<T> {
        let name = (Arc::clone(&limit.name), key);
        let limit = self.in_force(limit, now);
        let mut cell = states.cell(&limit.rule, &name, now);
        let changed = change(&limit, &mut cell);
        states.put(name, &limit.rule, cell, now);
        changed
    }

    /// Ends a call, and tells that it did if a message waits for that.
    fn end(&self, states: &mut States, call: &CallUnderWay, now: StoreTime) {
        let CallUnderWay {
            limit, key, ticket, ..
        } = call;
        let units = self.change(states, (limit, *key), now, |limit, cell| {
            let (rule, calls) = under_way(&limit.rule, cell)?;
            let freed = calls.calls.iter().find(|call| call.ticket == *ticket)?.cost;
            let rest = rule.release(calls, *ticket, now.as_micros())?;
            set(cell, rest);
            let room = limit.rule.room(cell.state.as_ref(), now).remaining;
            Some(freed.min(room)).filter(|units| *units > 0)
        });
        let name = (Arc::clone(&limit.name), *key);
        if let Some(units) = units
            && states.waiting.remove(&name)
        {
            let (limit, key) = name;
            // A replica that listens to nothing asks again after a while.
            drop(self.notices.send(Notice::Freed { limit, key, units }));
        }
    }
}

/// A limit under the policy that its asker knows.
struct InForceNow {
    rule: Rule,
    version: PolicyVersion,
    gate: LimitGate,
}

impl InForceNow {
    const fn limit(&self) -> Limit<'_> {
        Limit {
            rule: &self.rule,
            gate: self.gate,
        }
    }
}

fn under_way<'a>(rule: &'a Rule, cell: &'a Cell) -> Option<(&'a Concurrency, &'a Calls)> {
    match (rule, &cell.state.as_ref()?.taken) {
        (Rule::Concurrency(rule), Taken::Concurrency(calls)) => Some((rule, calls)),
        _ => None,
    }
}

fn set(cell: &mut Cell, calls: Calls) {
    cell.state = Some(State {
        taken: Taken::Concurrency(calls),
        line: Line::default(),
    });
    cell.changed = true;
}

impl States {
    fn cell(&self, rule: &Rule, name: &Name, now: StoreTime) -> Cell {
        let known = self.known.get(name).filter(|(_, dies)| *dies > now);
        Cell::of(rule, known.map(|(state, _)| state.clone()), now)
    }

    fn put(&mut self, name: Name, rule: &Rule, cell: Cell, now: StoreTime) {
        let Some(state) = cell.state.filter(|_| cell.changed) else {
            return;
        };
        let dies = rule.dies_at(&state);
        if dies <= now {
            self.known.remove(&name);
            return;
        }
        self.known.insert(name, (state, dies));
        if self.known.len() > self.room {
            self.known.retain(|_, (_, dies)| *dies > now);
            self.room = (2 * self.known.len()).max(SWEEP_MIN);
        }
    }

    /// Remembers that messages wait for calls to end.
    fn wait(&mut self, candidate: &Candidate, decision: &Decision) {
        let charges = match decision {
            Decision::Denied {
                by,
                fits: Fit::Full,
                ..
            } => &candidate.charges[*by..=*by],
            Decision::Granted { .. } if candidate.others_wait => &candidate.charges,
            _ => return,
        };
        let calls = charges.iter().filter(|c| c.limit.is_concurrency());
        let names = calls.map(|c| (Arc::clone(&c.limit.name), c.key));
        self.waiting.extend(names);
    }
}

impl LimitStore for MemoryLimitStore {
    fn admit<'a>(&'a self, candidates: &'a [Candidate], wanted: u64) -> StoreFuture<'a, Answer> {
        async move {
            Ok(self.decide(|states, now| Answer {
                now,
                decisions: self.admit_now(states, candidates, wanted, now),
            }))
        }
        .boxed()
    }

    fn refund<'a>(&'a self, refunds: &'a [Refund]) -> StoreFuture<'a, usize> {
        async move {
            Ok(self.decide(|states, now| {
                let taken = refunds.iter().filter(|refund| {
                    let whose = (&*refund.limit, refund.key);
                    let units = (refund.at, u64::from(refund.cost.get()));
                    let back = self.change(states, whose, now, |limit, cell| {
                        let since = limit.version.since();
                        admission::refund(&limit.limit(), since, cell, units, now).then_some(())
                    });
                    back.is_some()
                });
                taken.count()
            }))
        }
        .boxed()
    }

    fn renew<'a>(&'a self, calls: &'a [CallUnderWay]) -> StoreFuture<'a, Vec<Ticket>> {
        async move {
            Ok(self.decide(|states, now| {
                let mut gone = Vec::new();
                for CallUnderWay {
                    limit, key, ticket, ..
                } in calls
                {
                    let renewed = self.change(states, (limit, *key), now, |limit, cell| {
                        let (rule, calls) = under_way(&limit.rule, cell)?;
                        let calls = rule.renew(calls, *ticket, now.as_micros())?;
                        set(cell, calls);
                        Some(())
                    });
                    if renewed.is_none() {
                        gone.push(*ticket);
                    }
                }
                gone
            }))
        }
        .boxed()
    }

    fn release<'a>(&'a self, calls: &'a [CallUnderWay]) -> StoreFuture<'a, ()> {
        async move {
            self.decide(|states, now| {
                for call in calls {
                    self.end(states, call, now);
                }
            });
            Ok(())
        }
        .boxed()
    }

    fn look<'a>(&'a self, limit: &'a Arc<KeyedLimit>, key: LimitKey) -> StoreFuture<'a, Look> {
        async move {
            Ok(self.decide(|states, now| {
                let in_force = self.in_force(limit, now);
                let rule = &in_force.rule;
                let state = states
                    .cell(rule, &(Arc::clone(&limit.name), key), now)
                    .state;
                Look {
                    now,
                    limit: rule.most(),
                    room: rule.room(state.as_ref(), now),
                    fits: rule.fit(state.as_ref(), now, 1),
                    closed: match in_force.gate {
                        LimitGate::Closed { until, why } => Some((until, why)),
                        LimitGate::Open | LimitGate::Outdated => None,
                    },
                    state,
                }
            }))
        }
        .boxed()
    }

    fn notices(&self) -> broadcast::Receiver<Notice> {
        self.notices.subscribe()
    }
}

impl fmt::Debug for MemoryLimitStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryLimitStore").finish_non_exhaustive()
    }
}
