//! What was taken of each key of each keyed limit, decided as in production.

use std::collections::{HashMap, HashSet};

use sluiced_core::limits::admission::{self, Cell, Decision, Limit};
use sluiced_core::limits::{Fit, Rule, State, Taken, Ticket};
use sluiced_core::scheduler::KeyId;
use sluiced_core::time::StoreTime;

/// A limit and one of its keys.
pub(super) type Name = (usize, u32);

/// What a message takes of a keyed limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The number of its key.
    pub key: u32,
    pub cost: u32,
}

/// A message that is asked for. Its charges are in the order of the limits.
#[derive(Clone, Debug)]
pub(super) struct Asked<'a> {
    pub(super) charges: &'a [Charge],
    pub(super) waited: bool,
    /// Others wait for a call of one of its keys to end.
    pub(super) others_wait: bool,
    pub(super) weight: u64,
    pub(super) ticket: Ticket,
}

/// The states.
#[derive(Clone, Debug, Default)]
pub(super) struct Cells {
    states: HashMap<Name, State>,
    /// Keys for whose calls messages wait.
    waited_for: HashSet<Name>,
}

/// The keys of charges.
pub(super) fn names(charges: &[Charge]) -> impl Iterator<Item = Name> {
    let each = charges.iter().enumerate();
    each.map(|(index, charge)| (index, charge.key))
}

/// A key, for the scheduler.
pub(super) fn key_id((limit, key): Name) -> KeyId {
    (limit as u64) << 32 | u64::from(key)
}

impl Cells {
    pub(super) fn decide(
        &mut self,
        limits: &[Limit<'_>],
        batch: &[Asked<'_>],
        wanted: u64,
        now: StoreTime,
    ) -> Vec<Decision> {
        let (mut places, mut known, mut cells) = (HashMap::new(), Vec::new(), Vec::new());
        let mut candidates = Vec::with_capacity(batch.len());
        for asked in batch {
            let charges = names(asked.charges).zip(asked.charges);
            let charges = charges.map(|(name, charge)| {
                let limit = &limits[name.0];
                let cell = *places.entry(name).or_insert_with(|| {
                    cells.push(self.cell(limit, name, now));
                    known.push(name);
                    cells.len() - 1
                });
                let cost = u64::from(charge.cost);
                admission::Charge { limit, cell, cost }
            });
            candidates.push(admission::Candidate {
                charges: charges.collect(),
                waited: asked.waited,
                weight: asked.weight,
                ticket: asked.ticket,
            });
        }
        let decisions = admission::decide(&candidates, &mut cells, wanted, now);
        for (name, cell) in known.into_iter().zip(cells) {
            self.keep(name, cell);
        }
        for (asked, decision) in batch.iter().zip(&decisions) {
            self.wait(asked, decision);
        }
        decisions
    }

    fn cell(&self, limit: &Limit<'_>, name: Name, now: StoreTime) -> Cell {
        Cell::of(limit.rule, self.states.get(&name).cloned(), now)
    }

    /// As a store does: what was not changed is not written.
    fn keep(&mut self, name: Name, cell: Cell) {
        if let Some(state) = cell.state.filter(|_| cell.changed) {
            self.states.insert(name, state);
        }
    }

    /// Remembers that messages wait for calls to end.
    fn wait(&mut self, asked: &Asked<'_>, decision: &Decision) {
        let names = names(asked.charges);
        match decision {
            Decision::Denied {
                by,
                fits: Fit::Full,
                ..
            } => self
                .waited_for
                .extend(names.filter(|(index, _)| index == by)),
            Decision::Granted { .. } if asked.others_wait => self.waited_for.extend(names),
            _ => {}
        }
    }

    /// Takes back what was granted at `at` and not used; what was granted before `since` stays spent.
    pub(super) fn refund(
        &mut self,
        limits: &[Limit<'_>],
        charges: &[Charge],
        (at, since): (StoreTime, StoreTime),
        now: StoreTime,
    ) {
        for (name, charge) in names(charges).zip(charges) {
            let limit = &limits[name.0];
            let mut cell = self.cell(limit, name, now);
            admission::refund(limit, since, &mut cell, (at, u64::from(charge.cost)), now);
            self.keep(name, cell);
        }
    }

    /// A call ended. Answers the keys whose calls messages wait for, with the units that came free.
    pub(super) fn release(
        &mut self,
        limits: &[Limit<'_>],
        charges: &[Charge],
        ticket: Ticket,
        now: StoreTime,
    ) -> Vec<(Name, u64)> {
        let mut freed = Vec::new();
        for (name, charge) in names(charges).zip(charges) {
            let limit = &limits[name.0];
            let mut cell = self.cell(limit, name, now);
            let (Rule::Concurrency(rule), Some(state)) = (limit.rule, &mut cell.state) else {
                continue;
            };
            let Taken::Concurrency(calls) = &state.taken else {
                continue;
            };
            let Some(rest) = rule.release(calls, ticket, now.as_micros()) else {
                continue;
            };
            state.taken = Taken::Concurrency(rest);
            cell.changed = true;
            let room = limit.rule.room(cell.state.as_ref(), now).remaining;
            self.keep(name, cell);
            if room > 0 && self.waited_for.remove(&name) {
                freed.push((name, u64::from(charge.cost).min(room)));
            }
        }
        freed
    }

    /// A call goes on: it is given another lease.
    pub(super) fn renew(
        &mut self,
        limits: &[Limit<'_>],
        charges: &[Charge],
        ticket: Ticket,
        now: StoreTime,
    ) {
        for name in names(charges) {
            let limit = &limits[name.0];
            let mut cell = self.cell(limit, name, now);
            if let (Rule::Concurrency(rule), Some(state)) = (limit.rule, &mut cell.state)
                && let Taken::Concurrency(calls) = &state.taken
                && let Some(renewed) = rule.renew(calls, ticket, now.as_micros())
            {
                state.taken = Taken::Concurrency(renewed);
                cell.changed = true;
            }
            self.keep(name, cell);
        }
    }
}
