//! Budgets of this process alone: the decisions of `core::budget` behind a lock.
//!
//! Nothing is ever lost here, so there is one epoch, and every budget is whole when the process
//! starts. States that say nothing any more are swept out whenever as many were added as lived
//! through the last sweep, so the memory follows what is in use.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::FutureExt;

use super::MemoryPolicies;
use crate::core::budget::admit::{self, Cell, Mode, Want};
use crate::core::budget::epoch::Era;
use crate::core::budget::limit::{Gate, Limit};
use crate::core::budget::regime::Regimes;
use crate::core::budget::{State, Usage};
use crate::core::policy::PolicyVersion;
use crate::core::rate::Cost;
use crate::core::time::StoreTime;
use crate::ports::budget::{
    Booking, BudgetKey, BudgetLimit, BudgetStore, CallUnderWay, Epoch, Look, Made, Petition,
    Refund, Ruling, Rulings, Terms, Ticket,
};
use crate::ports::clock::Clock;
use crate::ports::pace::StoreFuture;

/// No sweep before so many budgets are known.
const SWEEP_MIN: usize = 1024;

/// The budgets of this process.
pub struct MemoryBudgetStore {
    clock: Clock,
    policies: Arc<MemoryPolicies>,
    shelf: Mutex<Shelf>,
}

type Name = (Arc<str>, BudgetKey);

struct Shelf {
    policies: Arc<MemoryPolicies>,
    era: Era,
    /// States by the epoch that they were written in, and from when on they say nothing any more.
    states: HashMap<Name, (State, Epoch, StoreTime)>,
    /// The terms that each limit had.
    regimes: HashMap<Arc<str>, Regimes>,
    /// How many states there may be before the next sweep.
    room: usize,
}

impl MemoryBudgetStore {
    /// A store in which every budget is whole, whose time follows `clock`.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        let policies = Arc::new(MemoryPolicies::new(clock));
        Self {
            clock,
            shelf: Mutex::new(Shelf {
                policies: Arc::clone(&policies),
                era: Era::whole(clock.store_time()),
                states: HashMap::new(),
                regimes: HashMap::new(),
                room: SWEEP_MIN,
            }),
            policies,
        }
    }

    /// What is in force for its limits.
    #[must_use]
    pub fn policies(&self) -> Arc<MemoryPolicies> {
        Arc::clone(&self.policies)
    }

    /// How many budgets it remembers at present.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().states.len()
    }

    /// Whether it remembers none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, Shelf> {
        // A state is replaced as a whole: after a panic each of them is either old or new.
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides at the time that is read under the lock: the order of decisions is that of their times.
    fn decide<T>(&self, decision: impl FnOnce(&mut Shelf, StoreTime) -> T) -> T {
        let mut shelf = self.lock();
        let now = self.clock.store_time();
        decision(&mut shelf, now)
    }
}

impl Shelf {
    fn get(&self, name: &Name, now: StoreTime) -> Option<State> {
        let (state, epoch, dies) = self.states.get(name)?;
        let state = (*dies > now).then(|| state.clone())?;
        match self.regimes.get(&name.0) {
            Some(regimes) => regimes.carried(state, *epoch),
            None => Some(state),
        }
    }

    fn put(&mut self, name: Name, limit: &Limit<'_>, state: State, now: StoreTime) {
        let dies = limit.dies_at(&state);
        if dies <= now {
            self.states.remove(&name);
            return;
        }
        let epoch = limit.epoch(&self.era);
        self.states.insert(name, (state, epoch, dies));
        if self.states.len() > self.room {
            self.states.retain(|_, (_, _, dies)| *dies > now);
            self.room = (2 * self.states.len()).max(SWEEP_MIN);
        }
    }

    /// The limit as it stands. In force, its terms begin to count.
    fn standing<'a>(&mut self, limit: &BudgetLimit, terms: &'a Terms, now: StoreTime) -> Limit<'a> {
        let policy = self.policies.of(&limit.name);
        let version = policy.as_ref().map_or(PolicyVersion::NONE, |s| s.version);
        let regimes = self.regimes.entry(Arc::clone(&limit.name)).or_default();
        let gate = if version != terms.version {
            Gate::Outdated
        } else {
            regimes.enter(&terms.rule, &self.era, now);
            let paused = policy.and_then(|policy| policy.paused_until(now));
            paused.map_or(Gate::Open, Gate::Paused)
        };
        let epoch = regimes.epoch().unwrap_or(self.era.epoch);
        Limit::new(&terms.rule, limit.lost, now).standing(epoch, gate)
    }

    fn admit(&mut self, petition: &Petition, mode: Mode, now: StoreTime) -> Ruling {
        let claims = &petition.claims;
        let terms: Vec<_> = claims.iter().map(|claim| claim.limit.terms()).collect();
        let limits: Vec<Limit<'_>> = claims
            .iter()
            .zip(&terms)
            .map(|(claim, terms)| self.standing(&claim.limit, terms, now))
            .collect();
        let names: Vec<Name> = petition
            .claims
            .iter()
            .map(|claim| (Arc::clone(&claim.limit.name), claim.key))
            .collect();
        let mut cells: Vec<Cell> = names
            .iter()
            .map(|name| Cell {
                state: self.get(name, now),
                changed: false,
            })
            .collect();
        let wants: Vec<Want<'_>> = petition
            .claims
            .iter()
            .enumerate()
            .map(|(cell, claim)| Want {
                limit: &limits[cell],
                cell,
                cost: u64::from(claim.cost.get()),
                held: claim.held,
            })
            .collect();
        let ruling = admit::admit(&wants, &mut cells, mode, petition.ticket, &self.era, now);
        for ((name, limit), cell) in names.into_iter().zip(&limits).zip(cells) {
            if let Some(state) = cell.state.filter(|_| cell.changed) {
                self.put(name, limit, state, now);
            }
        }
        ruling
    }

    /// The epoch of what is taken of a limit now; `None` while the asker's terms are not in force.
    fn epoch_of(&mut self, limit: &BudgetLimit, now: StoreTime) -> Option<Epoch> {
        let terms = limit.terms();
        let limit = self.standing(limit, &terms, now);
        (limit.gate != Gate::Outdated).then(|| limit.epoch(&self.era))
    }

    /// Limits whose terms have changed.
    fn changed(&self) -> Vec<(Arc<str>, Epoch)> {
        let later = self.regimes.iter().filter_map(|(name, regimes)| {
            let epoch = regimes.epoch().filter(|epoch| *epoch != self.era.epoch)?;
            Some((Arc::clone(name), epoch))
        });
        later.collect()
    }

    /// Replaces the state of a budget by what `change` makes of it; `false` if that is nothing.
    fn change(
        &mut self,
        limit: &BudgetLimit,
        key: BudgetKey,
        now: StoreTime,
        change: impl FnOnce(&Limit<'_>, &State) -> Option<State>,
    ) -> bool {
        let name = (Arc::clone(&limit.name), key);
        let terms = limit.terms();
        let limit = self.standing(limit, &terms, now);
        let changed = self
            .get(&name, now)
            .and_then(|state| change(&limit, &state));
        changed
            .map(|state| self.put(name, &limit, state, now))
            .is_some()
    }
}

impl BudgetStore for MemoryBudgetStore {
    fn admit<'a>(
        &'a self,
        petitions: &'a [Petition],
        _predicted: Option<StoreTime>,
    ) -> StoreFuture<'a, Rulings> {
        async move {
            Ok(self.decide(|shelf, now| Rulings {
                now,
                epoch: shelf.era.epoch,
                blind: None,
                rulings: petitions
                    .iter()
                    .map(|petition| shelf.admit(petition, petition.mode(), now))
                    .collect(),
                changed: shelf.changed(),
            }))
        }
        .boxed()
    }

    fn refund<'a>(&'a self, refunds: &'a [Refund]) -> StoreFuture<'a, usize> {
        async move {
            Ok(self.decide(|shelf, now| {
                let taken = refunds.iter().filter(|refund| {
                    shelf.epoch_of(&refund.limit, now) == Some(refund.booked.epoch)
                        && shelf.change(&refund.limit, refund.key, now, |limit, state| {
                            let cost = u64::from(refund.cost.get());
                            limit.undo(
                                state,
                                refund.taken,
                                refund.booked.at,
                                cost,
                                refund.ticket,
                                now,
                            )
                        })
                });
                taken.count()
            }))
        }
        .boxed()
    }

    fn confirm<'a>(&'a self, made: &'a [Made]) -> StoreFuture<'a, usize> {
        async move {
            Ok(self.decide(|shelf, now| {
                let told = made.iter().filter(|made| {
                    let Booking { at, epoch } = made.granted;
                    shelf.epoch_of(&made.limit, now) == Some(epoch)
                        && shelf.change(&made.limit, made.key, now, |limit, state| {
                            limit.made(state, at, now)
                        })
                });
                told.count()
            }))
        }
        .boxed()
    }

    fn renew<'a>(&'a self, calls: &'a [CallUnderWay]) -> StoreFuture<'a, Vec<Ticket>> {
        async move {
            Ok(self.decide(|shelf, now| {
                let mut gone = Vec::new();
                for (limit, key, ticket) in calls {
                    let renewed = shelf.change(limit, *key, now, |limit, state| {
                        limit.renewed(state, *ticket, now)
                    });
                    if !renewed {
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
            self.decide(|shelf, now| {
                for (limit, key, ticket) in calls {
                    shelf.change(limit, *key, now, |limit, state| {
                        limit.released(state, *ticket, now)
                    });
                }
            });
            Ok(())
        }
        .boxed()
    }

    fn look<'a>(&'a self, limit: &'a Arc<BudgetLimit>, key: BudgetKey) -> StoreFuture<'a, Look> {
        async move {
            let petition = Petition {
                claims: vec![crate::ports::budget::Claim {
                    limit: Arc::clone(limit),
                    key,
                    cost: Cost::ONE,
                    held: None,
                }],
                reserve: None,
                ticket: Ticket(0),
            };
            Ok(self.decide(|shelf, now| Look {
                now,
                usage: match shelf.admit(&petition, Mode::Peek, now) {
                    Ruling::Granted { passes } => {
                        passes.first().map(|pass| pass.usage).unwrap_or_default()
                    }
                    Ruling::Denied { usage, .. } | Ruling::Never { usage, .. } => usage,
                    Ruling::Outdated { .. } | Ruling::Paused { .. } | Ruling::Late { .. } => {
                        Usage::default()
                    }
                },
                state: shelf.get(&(Arc::clone(&limit.name), key), now),
            }))
        }
        .boxed()
    }
}

impl fmt::Debug for MemoryBudgetStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBudgetStore").finish_non_exhaustive()
    }
}
