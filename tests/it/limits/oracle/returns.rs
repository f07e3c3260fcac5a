//! Refunds, what downstreams report as left, and calls that are renewed or end. Their scripts do not return
//! the time: it lies between two readings of Redis' clock, and one moment between them must explain what they
//! did.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use sluiced_core::limits::cell::{self, Cell, Limit, LimitAccess};
use sluiced_core::limits::{LimitState, Rule, Ticket, add_debt, forgive, record};
use sluiced_core::time::StoreTime;
use sluiced_ports::limits::{Charge, Corrected, Correction, GrantedCharge, LimitStore as _};

use super::event::{Back, Said};
use super::kept::Known;
use super::later::moved;
use super::play::{Name, Play};
use super::world::{KEYS, Sight};
use crate::limits::rules::*;

impl Play<'_> {
    pub(super) fn refund(&mut self, which: &[Back]) -> TestCaseResult {
        let first = chosen(&self.grants, which.iter().take(1).map(|(at, ..)| at));
        let Some(&&(name, ..)) = first.first() else {
            return Ok(());
        };
        // One that lies ahead of now is refused or not by how long ago it was asked for, to the millisecond.
        let latest = self.time();
        let own: Vec<_> = self.grants.iter().filter(|grant| grant.0 == name).collect();
        let refunds = which.iter().map(|(which, by, other)| {
            let (_, units, at) = own[which.index(own.len())];
            let charge = charge(
                &self.world.limits[name.0],
                KEYS[name.1],
                other.unwrap_or(*units),
            );
            (charge, moved(*at, *by).min(latest))
        });
        let refunds: Vec<(Charge, StoreTime)> = refunds.collect();
        let granted = refunds.iter().cloned();
        let granted: Vec<GrantedCharge> = granted
            .map(|(charge, at)| GrantedCharge::Units {
                charge,
                at: just_asked(at),
            })
            .collect();
        let before = self.kept(name);
        let from = self.time();
        let taken = self.world.store.release(&granted);
        let taken = self.world.runtime.block_on(taken).unwrap();
        self.world.saw(Sight::Back, taken);
        let explains = |known: &Known, now: StoreTime| {
            let (rule, access) = known.access(now);
            let state = before.as_ref().and_then(|text| record::read(text, &rule));
            let mut cell = Cell::of(&rule, state, now);
            let limit = Limit {
                rule: &rule,
                access,
            };
            let since = known.since();
            let asked = |at: StoreTime| access != LimitAccess::Outdated && at >= since;
            // A state with times ahead of now is only written once it is looked at.
            cell.changed &= refunds.iter().any(|(_, at)| asked(*at));
            let taken = refunds.iter().filter(|(charge, at)| {
                let unused = just_asked(*at).unused(charge.cost);
                cell::refund(&limit, since, &mut cell, &unused, now)
            });
            (taken.count(), expected(&rule, &cell, &before, now))
        };
        self.is_explained(name, (taken, &before), from, explains)
    }

    /// Each key of the limit: one moment must explain the reply and all states.
    pub(super) fn correct(&mut self, limit: usize, said: &[(usize, Said)]) -> TestCaseResult {
        let latest = self.time();
        let corrections = said.iter().map(|(at, said)| Correction {
            limit: self.world.limits[limit].clone(),
            key: key(KEYS[*at]),
            what: self.corrected((limit, *at), said, latest),
        });
        let corrections: Vec<Correction> = corrections.collect();
        let names = said.iter().map(|(at, ..)| (limit, *at));
        let before: BTreeMap<Name, _> = names.map(|name| (name, self.kept(name))).collect();
        let from = self.time();
        let undone = self.world.store.correct(&corrections);
        let undone = self.world.runtime.block_on(undone).unwrap();
        self.world.saw(Sight::Quota, said.len() - undone.len());
        for (name, before) in &before {
            // Of the moment that explained it.
            let (back, owed) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
            let explains = |known: &Known, now: StoreTime| {
                let (rule, access) = known.access(now);
                let state = before.as_ref().and_then(|text| record::read(text, &rule));
                let mut cell = Cell::of(&rule, state, now);
                let since = known.since();
                let limit = Limit {
                    rule: &rule,
                    access,
                };
                let own = corrections.iter().zip(said);
                let own = own.filter(|(_, (at, _))| *at == name.1);
                let own: Vec<Corrected> = own.map(|(one, _)| one.what).collect();
                let is_current = access != LimitAccess::Outdated;
                // A state with times ahead of now is only written once it is looked at.
                cell.changed &= is_current
                    && own.iter().any(|what| match what {
                        Corrected::Less { at, .. } => at.at >= since,
                        _ => true,
                    });
                back.set(0);
                for what in own {
                    match what {
                        Corrected::Quota { units, length } => {
                            cell::tighten(&limit, &mut cell, units, length, now);
                        }
                        Corrected::Less { units, at } => {
                            let unused = just_asked(at.at).unused(units);
                            let done = cell::refund(&limit, since, &mut cell, &unused, now);
                            back.set(back.get() + usize::from(done));
                        }
                        Corrected::More { units } => {
                            add_debt(&limit, &mut cell, units, now);
                        }
                        Corrected::Forgiven => {
                            forgive(&limit, &mut cell, now);
                        }
                    }
                }
                let units = cell.state.as_ref().map_or(0, |state| state.owed.units);
                owed.set(usize::from(units > 0));
                let all = (0..said.len()).filter(|_| !is_current).collect();
                (all, expected(&rule, &cell, before, now))
            };
            self.is_explained(*name, (undone.clone(), before), from, explains)?;
            self.world.saw(Sight::Back, back.get());
            self.world.saw(Sight::Owed, owed.get());
        }
        Ok(())
    }

    /// What is written down of an answer.
    fn corrected(&self, name: Name, said: &Said, latest: StoreTime) -> Corrected {
        match *said {
            Said::Quota(units, length) => Corrected::Quota {
                units,
                length: Duration::from_micros(length),
            },
            Said::Less(which, by, units) => {
                let own: Vec<_> = self.grants.iter().filter(|grant| grant.0 == name).collect();
                let at = chosen(&own, std::iter::once(&which))
                    .first()
                    .map(|one| one.2);
                Corrected::Less {
                    units: cost(units),
                    at: just_asked(moved(at.unwrap_or_default(), by).min(latest)),
                }
            }
            Said::More(units) => Corrected::More { units },
            Said::Forgiven => Corrected::Forgiven,
        }
    }

    pub(super) fn about_calls(
        &mut self,
        which: &[prop::sample::Index],
        what: CallEvent,
    ) -> TestCaseResult {
        let first = chosen(&self.calls, which.iter().take(1));
        let Some(&&(name, _)) = first.first() else {
            return Ok(());
        };
        let own = self.calls.iter().filter(|call| call.0 == name);
        let own: Vec<(Charge, Ticket)> = own.map(|(_, call)| call.clone()).collect();
        let calls: Vec<_> = chosen(&own, which.iter()).into_iter().cloned().collect();
        let granted = calls
            .iter()
            .map(|(charge, ticket)| GrantedCharge::call(charge, *ticket));
        let granted: Vec<GrantedCharge> = granted.collect();
        let before = self.kept(name);
        let from = self.time();
        let store = &self.world.store;
        let runtime = &self.world.runtime;
        let gone = match what {
            CallEvent::Ended => {
                runtime.block_on(store.release(&granted)).unwrap();
                None
            }
            CallEvent::Accepted => {
                runtime.block_on(store.mark_done(&granted)).unwrap();
                None
            }
            CallEvent::Renewed => {
                let gone = runtime.block_on(store.renew(&granted)).unwrap();
                Some(tickets(&gone))
            }
        };
        let explains = |known: &Known, now: StoreTime| {
            let (rule, ..) = &known.of_replica;
            let state = before.as_ref().and_then(|text| record::read(text, rule));
            let mut cell = Cell::of(rule, state, now);
            let mut not_there = Vec::new();
            for (_, ticket) in &calls {
                if !happened(rule, &mut cell, (*ticket, what), now) {
                    not_there.push(*ticket);
                }
            }
            let refused = (what == CallEvent::Renewed).then_some(not_there);
            (refused, expected(rule, &cell, &before, now))
        };
        self.is_explained(name, (gone, &before), from, explains)
    }

    /// Whether a moment since `from` explains the reply of a script, and the state that it wrote.
    fn is_explained<T: PartialEq + std::fmt::Debug>(
        &mut self,
        name: Name,
        (said, before): (T, &Option<String>),
        from: StoreTime,
        explains: impl Fn(&Known, StoreTime) -> (T, Option<String>),
    ) -> TestCaseResult {
        let (raw, to) = self.raw_by(name);
        let known = self.known(name.0);
        let mut last = None;
        for now in (from.as_micros()..=to.as_micros()).map(StoreTime::from_micros) {
            let (reply, state) = explains(&known, now);
            let ended = raw.is_none();
            if reply == said && (state == raw || ended) {
                return Ok(());
            }
            last = Some((reply, state));
        }
        prop_assert!(
            false,
            "{name:?}: {before:?} became {raw:?} ({said:?}), and not {last:?} by {to:?}"
        );
        Ok(())
    }
}

/// The items of `all` with these numbers.
fn chosen<'a, 'i, T>(
    all: &'a [T],
    which: impl Iterator<Item = &'i prop::sample::Index>,
) -> Vec<&'a T> {
    let is_any = !all.is_empty();
    let which = which.filter(|_| is_any);
    which.map(|which| which.get(all)).collect()
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallEvent {
    Renewed,
    Ended,
    /// Its message was accepted.
    Accepted,
}

/// Applies it, as Rust decides. `false`: the call is not in flight.
fn happened(
    rule: &Rule,
    cell: &mut Cell,
    (ticket, what): (Ticket, CallEvent),
    now: StoreTime,
) -> bool {
    let known = cell.state.as_ref().map(|state| &state.taken);
    let changed = match what {
        CallEvent::Ended => known
            .and_then(|taken| rule.release(taken, ticket, now))
            .map(|(left, _)| left),
        CallEvent::Renewed => known.and_then(|taken| rule.renew(taken, ticket, now)),
        CallEvent::Accepted => rule.done(now),
    };
    let is_changed = changed.is_some();
    if let Some(taken) = changed {
        let known = cell.state.take();
        let known = known.map(|state| (state.next_return, state.quota, state.owed));
        let (next_return, quota, owed) = known.unwrap_or_default();
        cell.state = Some(LimitState {
            taken,
            next_return,
            quota,
            owed,
        });
        cell.changed = true;
    }
    is_changed
}

fn expected(rule: &Rule, cell: &Cell, before: &Option<String>, now: StoreTime) -> Option<String> {
    match cell.state.as_ref().filter(|_| cell.changed) {
        Some(state) if rule.expires_at(state) > now => Some(record::write(state, now)),
        Some(_) => None,
        None => before.clone(),
    }
}
