//! What was taken of many keys, in the memory of one process: for the store in memory and for the
//! simulations.
//!
//! Beside the states it remembers which replicas wait for calls in flight, as `lua/admit.lua` and
//! `lua/release.lua` do. States that no longer count are swept out whenever as many were added as
//! remained after the last sweep, so the memory follows what is in use.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use super::admission::{self, Candidate, Decision};
use super::cell::{self, Cell, Limit};
use super::rule::{KindState, LimitState, Rule};
use super::{Fit, Ticket, UnusedUnits};
use crate::time::StoreTime;

/// No sweep before this many states are known.
const SWEEP_MIN: usize = 1024;

/// The states, by the name of a limit's key.
#[derive(Clone, Debug)]
pub struct KeyedStates<N> {
    /// What was taken, and from when on it no longer counts.
    known: HashMap<N, (LimitState, StoreTime)>,
    /// The replicas that wait for calls of a key to end, first come, first served.
    waiting: HashMap<N, Vec<u32>>,
    /// How many states there may be before the next sweep.
    sweep_at: usize,
}

impl<N> Default for KeyedStates<N> {
    fn default() -> Self {
        Self {
            known: HashMap::new(),
            waiting: HashMap::new(),
            sweep_at: SWEEP_MIN,
        }
    }
}

impl<N: Clone + Eq + Hash> KeyedStates<N> {
    /// Decides a batch (`admission::decide`) for `asker`, the number of a replica. `wanted`: grants, in slots.
    pub fn admit(
        &mut self,
        asker: u32,
        batch: &[Candidate<&Limit<'_>, N>],
        wanted: u64,
        now: StoreTime,
    ) -> Vec<Decision> {
        let (mut indices, mut cells, mut keys) = (HashMap::new(), Vec::new(), Vec::new());
        let with_cells = batch.iter().map(|candidate| {
            candidate.renamed(|charge| {
                let (name, rule) = (&charge.key, charge.limit.rule);
                let cell = *indices.entry(name).or_insert_with(|| {
                    cells.push(self.cell(name, rule, now));
                    keys.push((name, rule));
                    cells.len() - 1
                });
                (charge.limit, cell)
            })
        });
        let candidates: Vec<_> = with_cells.collect();
        let decisions = admission::decide(&candidates, &mut cells, wanted, now);
        for ((name, rule), cell) in keys.into_iter().zip(cells) {
            self.put(name, rule, cell, now);
        }
        for (candidate, decision) in batch.iter().zip(&decisions) {
            self.wait(asker, candidate, decision);
        }
        decisions
    }

    /// What counts of a key at `now`; `None`: nothing does.
    #[must_use]
    pub fn state(&self, name: &N, rule: &Rule, now: StoreTime) -> Option<LimitState> {
        self.cell(name, rule, now).state
    }

    /// Takes back units that were granted and not used (`cell::refund`); `false`: they stay spent.
    pub fn refund(
        &mut self,
        name: &N,
        limit: &Limit<'_>,
        since: StoreTime,
        unused: &UnusedUnits,
        now: StoreTime,
    ) -> bool {
        self.with(name, limit.rule, now, |cell| {
            cell::refund(limit, since, cell, unused, now)
        })
    }

    /// The downstream says that this many units are left of a key for this long (`cell::tighten`). `false`: the asker
    /// knows another policy than the store, and nothing was done.
    pub fn tighten(
        &mut self,
        name: &N,
        limit: &Limit<'_>,
        units: u64,
        length: Duration,
        now: StoreTime,
    ) -> bool {
        self.with(name, limit.rule, now, |cell| {
            cell::tighten(limit, cell, units, length, now)
        })
    }

    /// A call of a key used this many units more than its message took (`limits::add_debt`). `false`: as for
    /// [`Self::tighten`].
    pub fn add_debt(&mut self, name: &N, limit: &Limit<'_>, units: u64, now: StoreTime) -> bool {
        self.with(name, limit.rule, now, |cell| {
            super::add_debt(limit, cell, units, now)
        })
    }

    /// What a key owes, and what the downstream said of it, is forgiven (`limits::forgive`). `false`: as for
    /// [`Self::tighten`].
    pub fn forgive(&mut self, name: &N, limit: &Limit<'_>, now: StoreTime) -> bool {
        self.with(name, limit.rule, now, |cell| {
            super::forgive(limit, cell, now)
        })
    }

    /// Gives a call or a claim another lease; `false`: it has ended, or the kind has no leases.
    pub fn renew(&mut self, name: &N, rule: &Rule, ticket: Ticket, now: StoreTime) -> bool {
        self.change(name, rule, now, |taken| {
            Some((rule.renew(taken?, ticket, now)?, ()))
        })
        .is_some()
    }

    /// Ends a call or a claim. Returns the replicas that waited for that, as many as units came free, each with its
    /// share of them; none if the call had ended before. They no longer wait until they ask again.
    pub fn release(
        &mut self,
        name: &N,
        rule: &Rule,
        ticket: Ticket,
        now: StoreTime,
    ) -> Vec<(u32, u64)> {
        let freed = self.change(name, rule, now, |taken| rule.release(taken?, ticket, now));
        let room = rule.room(self.state(name, rule, now).as_ref(), now);
        self.wake(name, freed.unwrap_or(0).min(room.remaining))
    }

    /// A message of this key was accepted. Returns the replicas that waited for that, like
    /// [`Self::release`].
    pub fn done(&mut self, name: &N, rule: &Rule, now: StoreTime) -> Vec<(u32, u64)> {
        let done = self.change(name, rule, now, |_| Some((rule.done(now)?, ())));
        self.wake(name, done.map_or(0, |()| 1))
    }

    /// The replicas that waited, as many as units came free.
    fn wake(&mut self, name: &N, freed: u64) -> Vec<(u32, u64)> {
        let Some(waiting) = self.waiting.get_mut(name).filter(|_| freed > 0) else {
            return Vec::new();
        };
        let count = waiting
            .len()
            .min(usize::try_from(freed).unwrap_or(usize::MAX));
        let woken: Vec<u32> = waiting.drain(..count).collect();
        if waiting.is_empty() {
            self.waiting.remove(name);
        }
        let units_each = freed.div_ceil(count as u64);
        woken.into_iter().map(|asker| (asker, units_each)).collect()
    }

    /// Changes what was taken of a key. Returns the result of the change, if there was one.
    fn change<R>(
        &mut self,
        name: &N,
        rule: &Rule,
        now: StoreTime,
        change: impl FnOnce(Option<&KindState>) -> Option<(KindState, R)>,
    ) -> Option<R> {
        let mut cell = self.cell(name, rule, now);
        let (taken, gave) = change(cell.state.as_ref().map(|state| &state.taken))?;
        cell.put(taken);
        self.put(name, rule, cell, now);
        Some(gave)
    }

    /// Acts on what counts of a key, and keeps what that changed. Returns the result.
    fn with<R>(
        &mut self,
        name: &N,
        rule: &Rule,
        now: StoreTime,
        act: impl FnOnce(&mut Cell) -> R,
    ) -> R {
        let mut cell = self.cell(name, rule, now);
        let result = act(&mut cell);
        self.put(name, rule, cell, now);
        result
    }

    fn cell(&self, name: &N, rule: &Rule, now: StoreTime) -> Cell {
        let unexpired = self.known.get(name).filter(|(_, dies)| *dies > now);
        Cell::of(rule, unexpired.map(|(state, _)| state.clone()), now)
    }

    /// What was not changed is not written.
    fn put(&mut self, name: &N, rule: &Rule, cell: Cell, now: StoreTime) {
        let Some(state) = cell.state.filter(|_| cell.changed) else {
            return;
        };
        let dies = rule.expires_at(&state);
        if dies <= now {
            self.known.remove(name);
            return;
        }
        self.known.insert(name.clone(), (state, dies));
        if self.known.len() > self.sweep_at {
            self.known.retain(|_, (_, dies)| *dies > now);
            // Calls that ended by their leases wake no replica, and the replicas that waited for them have asked again.
            self.waiting.retain(|name, _| self.known.contains_key(name));
            self.sweep_at = (2 * self.known.len()).max(SWEEP_MIN);
        }
    }

    /// Remembers that `asker` waits for calls to end.
    fn wait(&mut self, asker: u32, candidate: &Candidate<&Limit<'_>, N>, decision: &Decision) {
        let charges = match decision {
            Decision::Denied {
                by,
                fits: Fit::Full,
                ..
            } => &candidate.charges[*by..=*by],
            Decision::Granted { .. } if candidate.others_wait => &candidate.charges,
            _ => return,
        };
        for charge in charges {
            if charge.limit.rule.lease().is_some() {
                let waiting = self.waiting.entry(charge.key.clone()).or_default();
                waiting.retain(|other| *other != asker);
                waiting.push(asker);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::rate::Cost;
    use std::num::NonZeroU32;

    use super::super::admission::Charge;
    use super::super::cell::LimitAccess;
    use super::super::gcra::Gcra;
    use super::*;
    use crate::rate::Rate;

    #[test]
    fn what_died_is_swept_out() {
        let rate = Rate::new(NonZeroU32::MIN, Duration::from_millis(1)).unwrap();
        let rule = Rule::Gcra(Gcra::new(rate, 0, Duration::ZERO).unwrap());
        let limit = Limit {
            rule: &rule,
            access: LimitAccess::Open,
        };
        let mut states = KeyedStates::default();
        for key in 0..20_000_u64 {
            let charge = Charge {
                limit: &limit,
                key,
                cost: Cost::ONE,
            };
            let candidate = Candidate {
                charges: vec![charge],
                was_denied: false,
                slots: Cost::ONE,
                ticket: Ticket(u128::from(key)),
                died: StoreTime::default(),
                others_wait: false,
            };
            // Five hundred keys, then all of them are over.
            let now = StoreTime::from_micros(1_000_000 + key / 500 * 2_000);
            let decisions = states.admit(0, &[candidate], 1, now);
            assert!(matches!(decisions[..], [Decision::Granted { .. }]));
        }
        assert!(states.known.len() <= 4_096, "{}", states.known.len());
    }
}
