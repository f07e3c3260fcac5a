//! The store: the rows of the paced limit and what was taken of each key, decided as in production.

use std::collections::{HashMap, HashSet};

use sluiced_core::limits::admission::{self, Cell, Decision, Limit, LimitGate};
use sluiced_core::limits::{Fit, Line, Rule, State, Taken, Ticket};
use sluiced_core::pacing::Row;
use sluiced_core::schedule::{Answer, Ask, Pace, Schedule, lease};
use sluiced_core::time::StoreTime;

use super::replica::Parcel;
use super::{Charge, Message, Route};

/// A limit and one of its keys.
pub(super) type Name = (usize, u32);

#[derive(Debug)]
pub(super) struct Store<'a> {
    route: &'a Route,
    messages: &'a [Message],
    rows: [Option<Schedule>; 2],
    states: HashMap<Name, State>,
    /// Keys for whose calls messages wait.
    waited_for: HashSet<Name>,
}

/// A message that is asked for, and whether others wait for one of its keys.
pub(super) type Asked = (Parcel, bool);

impl<'a> Store<'a> {
    pub(super) fn new(route: &'a Route, messages: &'a [Message]) -> Self {
        Self {
            route,
            messages,
            rows: [None, None],
            states: HashMap::new(),
            waited_for: HashSet::new(),
        }
    }

    /// What a row answers; `None`: there is no such row.
    pub(super) fn lease(&mut self, row: Row, ask: &Ask, now: StoreTime) -> Option<Answer> {
        let index = usize::from(row == Row::Reserve);
        let pace: &Pace = self.route.rows.get(index)?;
        Some(lease(&mut self.rows[index], pace, "plan", ask, now))
    }

    pub(super) fn charges(&self, parcel: &Parcel) -> &'a [Charge] {
        &self.messages[parcel.id as usize].charges
    }

    pub(super) fn decide(&mut self, batch: &[Asked], wanted: u64, now: StoreTime) -> Vec<Decision> {
        let rules = self.route.keyed.iter().map(|keyed| keyed.rule.around(now));
        let rules: Vec<Rule> = rules.collect();
        let limit = |rule| Limit {
            rule,
            gate: LimitGate::Open,
        };
        let limits: Vec<Limit<'_>> = rules.iter().map(limit).collect();
        let (mut places, mut names, mut cells) = (HashMap::new(), Vec::new(), Vec::new());
        let mut candidates = Vec::with_capacity(batch.len());
        for (parcel, _) in batch {
            let charges = self.charges(parcel).iter().enumerate();
            let charges = charges.map(|(index, charge)| {
                let name = (index, charge.key);
                let cell = *places.entry(name).or_insert_with(|| {
                    let state = self.states.get(&name).cloned();
                    cells.push(Cell::of(&rules[index], state, now));
                    names.push(name);
                    cells.len() - 1
                });
                admission::Charge {
                    limit: &limits[index],
                    cell,
                    cost: u64::from(charge.cost),
                }
            });
            candidates.push(admission::Candidate {
                charges: charges.collect(),
                waited: parcel.waited,
                weight: u64::from(parcel.slots.get()),
                ticket: Ticket(u128::from(parcel.id)),
            });
        }
        let decisions = admission::decide(&candidates, &mut cells, wanted, now);
        for (name, cell) in names.into_iter().zip(cells) {
            if let Some(state) = cell.state.filter(|_| cell.changed) {
                self.states.insert(name, state);
            }
        }
        for ((parcel, others_wait), decision) in batch.iter().zip(&decisions) {
            self.wait(parcel, *others_wait, decision);
        }
        decisions
    }

    /// Remembers that messages wait for calls to end.
    fn wait(&mut self, parcel: &Parcel, others_wait: bool, decision: &Decision) {
        let names = (0..).zip(self.charges(parcel));
        let names = names.map(|(index, charge)| (index, charge.key));
        match decision {
            Decision::Denied {
                by,
                fits: Fit::Full,
                ..
            } => self
                .waited_for
                .extend(names.filter(|(index, _)| index == by)),
            Decision::Granted { .. } if others_wait => self.waited_for.extend(names),
            _ => {}
        }
    }

    /// Takes back what was granted at `at` and not used. Answers the keys whose calls messages wait for,
    /// with the units that came free.
    pub(super) fn refund(
        &mut self,
        parcel: &Parcel,
        at: StoreTime,
        now: StoreTime,
    ) -> Vec<(Name, u64)> {
        for (index, charge) in self.charges(parcel).iter().enumerate() {
            let rule = self.route.keyed[index].rule.around(now);
            if let Some(state) = self.states.get_mut(&(index, charge.key))
                && let Some(taken) = rule.refund(state, at, u64::from(charge.cost), now)
            {
                state.taken = taken;
            }
        }
        self.ended(parcel, now)
    }

    /// A call ended. Answers as [`Store::refund`] does.
    pub(super) fn ended(&mut self, parcel: &Parcel, now: StoreTime) -> Vec<(Name, u64)> {
        let mut freed = Vec::new();
        for (index, charge) in self.charges(parcel).iter().enumerate() {
            let Rule::Concurrency(rule) = &self.route.keyed[index].rule else {
                continue;
            };
            let name = (index, charge.key);
            let Some(Taken::Concurrency(calls)) = self.states.get(&name).map(|s| &s.taken) else {
                continue;
            };
            let ticket = Ticket(u128::from(parcel.id));
            let Some(rest) = rule.release(calls, ticket, now.as_micros()) else {
                continue;
            };
            let state = State {
                taken: Taken::Concurrency(rest),
                line: Line::default(),
            };
            let room = self.route.keyed[index].rule.room(Some(&state), now);
            self.states.insert(name, state);
            if room.remaining > 0 && self.waited_for.remove(&name) {
                freed.push((name, u64::from(charge.cost).min(room.remaining)));
            }
        }
        freed
    }
}
