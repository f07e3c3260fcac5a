//! The keyed limits of the fleet: what the store decides, and what a replica makes of it.

use std::cmp::Reverse;
use std::time::Duration;

use super::{Event, Fleet, Message};
use crate::limits::admission::{self, Cell, CellCharge, Decision, Limit, LimitGate};
use crate::limits::{Fit, Ticket};
use crate::scheduler::{KeyRoom, Queued as _};
use crate::time::{StoreTime, micros};

impl Fleet {
    pub(super) fn refund(&mut self, message: &mut Message) {
        let now = self.store();
        let Some(granted) = message.granted.take() else {
            return;
        };
        for (index, (rule, _)) in self.setting.rules.iter().enumerate() {
            let Some(state) = self.states.get_mut(&(index, message.keys[index])) else {
                continue;
            };
            if let Some(taken) = rule.refund(state, granted, u64::from(message.cost), now) {
                state.taken = taken;
            }
        }
    }

    pub(super) fn decide(&mut self, batch: &[Message], wanted: u64) -> Vec<Decision> {
        let now = self.store();
        let limits = self.setting.rules.iter().map(|(rule, _)| Limit {
            rule,
            gate: LimitGate::Open,
        });
        let limits: Vec<Limit<'_>> = limits.collect();
        let mut names: Vec<(usize, u32)> = Vec::new();
        let mut cells: Vec<Cell> = Vec::new();
        let candidates: Vec<_> = batch
            .iter()
            .map(|message| {
                let charges = message.keys.iter().enumerate().map(|(index, key)| {
                    let name = (index, *key);
                    let cell = names.iter().position(|known| *known == name);
                    let cell = cell.unwrap_or_else(|| {
                        names.push(name);
                        cells.push(Cell {
                            state: self.states.get(&name).cloned(),
                            ..Cell::default()
                        });
                        cells.len() - 1
                    });
                    CellCharge {
                        limit: &limits[index],
                        cell,
                        cost: u64::from(message.cost),
                    }
                });
                admission::CellCandidate {
                    charges: charges.collect(),
                    waited: message.waited,
                    weight: u64::from(message.cost),
                    ticket: Ticket(u128::from(message.id)),
                }
            })
            .collect();
        let decisions = admission::decide(&candidates, &mut cells, wanted, now);
        for (name, cell) in names.into_iter().zip(cells) {
            if let Some(state) = cell.state.filter(|_| cell.changed) {
                self.states.insert(name, state);
            }
        }
        decisions
    }

    /// As `pipeline::admit` does it.
    pub(super) fn decided(
        &mut self,
        replica: usize,
        decided: StoreTime,
        each: Vec<(Message, Decision)>,
    ) {
        let now = self.mono();
        let looked = each
            .iter()
            .filter(|(_, d)| *d != Decision::NotAsked)
            .count();
        let granted = |(_, d): &&(Message, Decision)| matches!(d, Decision::Granted { .. });
        let granted = each.iter().filter(granted).count();
        let scheduler = &mut self.schedulers[replica];
        let since = scheduler.decided(decided, looked, granted, now);
        let usable = self
            .setting
            .rules
            .iter()
            .map(|(rule, _)| rule.usable())
            .min();
        let until = since + usable.expect("a limit");
        let mut rest = Vec::new();
        for (mut message, decision) in each {
            if decision != Decision::NotAsked {
                *self.looks.entry(message.id).or_default() += 1;
            }
            match decision {
                Decision::Granted { passes } => {
                    message.granted = Some(decided);
                    for (key, pass) in message.keys().zip(&passes) {
                        scheduler.set_room(
                            key,
                            match pass.next {
                                Fit::Now => KeyRoom::Now(pass.room.remaining),
                                Fit::At(at) => KeyRoom::At(
                                    scheduler.local_time(StoreTime::from_micros(at), now),
                                ),
                                Fit::Full => KeyRoom::Full(now + Duration::from_secs(1)),
                            },
                        );
                    }
                    scheduler.granted(message, until);
                }
                Decision::Denied {
                    by, fits, until, ..
                } => {
                    let Fit::At(fits) = fits else {
                        panic!("{fits:?}")
                    };
                    let key = message.keys().nth(by).expect("a charge");
                    let fits = StoreTime::from_micros(fits);
                    let opening = KeyRoom::At(scheduler.local_time(fits, now));
                    let wait = until.since(decided);
                    let near = fits.since(decided) <= self.setting.max_hold;
                    if near && scheduler.has_room(&message, key) {
                        message.waited = true;
                        scheduler.denied(message, key, opening);
                    } else {
                        scheduler.set_room(key, opening);
                        scheduler.gone(&message);
                        *self.trips.entry(message.id).or_default() += 1;
                        message.waited = true;
                        // The ladder takes a step that is longer by up to 3 %.
                        let wait = micros(wait) + micros(wait) / 50;
                        let after = wait.max(1_000);
                        self.count += 1;
                        self.bodies
                            .insert(self.count, (replica, Event::Back(message)));
                        self.events.push(Reverse((self.now + after, self.count)));
                    }
                }
                Decision::NotAsked => rest.push(message),
                other => panic!("{other:?} for {message:?}"),
            }
        }
        scheduler.put_back(rest, now);
    }
}
