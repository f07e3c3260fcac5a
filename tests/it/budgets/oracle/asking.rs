//! Messages are ruled on, in Redis and here.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use sluiced::core::budget::admit::{Cell, Want, admit};
use sluiced::core::budget::limit::Limit;
use sluiced::core::budget::record;
use sluiced::ports::budget::{Booking, BudgetStore as _, Claim, IfLate, Petition, Ruling, Taken};

use super::event::AskedFor;
use super::later::moved;
use super::play::{Name, Play};
use super::world::{KEYS, LATER, WAITS};
use crate::budgets::rules::*;

impl Play<'_> {
    pub(super) fn ask(
        &mut self,
        asked: &[(Vec<AskedFor>, Option<IfLate>)],
    ) -> Result<(), TestCaseError> {
        let mut petitions = Vec::new();
        let mut names: Vec<Vec<Name>> = Vec::new();
        for (claims, reserve) in asked {
            // Each limit at most once.
            let mut mine: Vec<Name> = Vec::new();
            let mut all = Vec::new();
            for asked in claims {
                if mine.iter().any(|(limit, _)| *limit == asked.limit) {
                    continue;
                }
                let name = (asked.limit, asked.key);
                let held = asked.held.and_then(|(by, old)| {
                    let (mut place, _) = *self.places.get(&name)?;
                    place.at = moved(place.at, by);
                    place.epoch.0 -= u64::from(old);
                    Some(place)
                });
                let limit = &self.world.limits[asked.limit];
                all.push(Claim {
                    held,
                    ..claim(limit, KEYS[asked.key], asked.cost)
                });
                mine.push(name);
            }
            names.push(mine);
            petitions.push(Petition {
                reserve: *reserve,
                ..take(all)
            });
        }
        let mut cells: Vec<Name> = names.iter().flatten().copied().collect();
        cells.sort_unstable();
        cells.dedup();
        let before: Vec<Option<String>> = cells.iter().map(|name| self.kept(*name)).collect();
        let world = self.world;
        let answer = world
            .runtime
            .block_on(world.store.admit(&petitions, None))
            .unwrap();
        self.now = answer.now;
        let era = self.era();
        prop_assert_eq!(era.epoch, answer.epoch);

        let stand = self.rule_on(&cells, &era, answer.now);
        for (limit, _) in &cells {
            let name = &world.limits[*limit].name;
            prop_assert_eq!(answer.epoch_of(name), stand[*limit].0);
        }
        let terms: Vec<_> = world.limits.iter().map(|limit| limit.terms()).collect();
        let limits: Vec<Limit<'_>> = world
            .limits
            .iter()
            .zip(&terms)
            .zip(&stand)
            .map(|((limit, terms), (epoch, gate))| {
                Limit::new(&terms.rule, limit.lost, answer.now).standing(*epoch, *gate)
            })
            .collect();
        let mut states: Vec<Cell> = cells
            .iter()
            .zip(&before)
            .map(|(name, text)| Cell {
                state: text
                    .as_ref()
                    .and_then(|text| self.counts(*name, text, &era, answer.now)),
                changed: false,
            })
            .collect();
        for ((petition, names), ruling) in petitions.iter().zip(&names).zip(&answer.rulings) {
            let wants: Vec<Want<'_>> = petition
                .claims
                .iter()
                .zip(names)
                .map(|(claim, name)| Want {
                    limit: &limits[name.0],
                    cell: cells.binary_search(name).unwrap(),
                    cost: u64::from(claim.cost.get()),
                    held: claim.held,
                })
                .collect();
            let (mode, ticket) = (petition.mode(), petition.ticket);
            let expected = admit(&wants, &mut states, mode, ticket, &era, answer.now);
            prop_assert_eq!(ruling, &expected, "{:?} of {:?}", petition, states);
            match ruling {
                Ruling::Granted { passes } => {
                    let later = passes[0].at > answer.now;
                    LATER.fetch_add(usize::from(later), Ordering::Relaxed);
                    for ((name, claim), pass) in names.iter().zip(&petition.claims).zip(passes) {
                        let epoch = stand[name.0].0;
                        let taken = match claim.held {
                            Some(held) if held.epoch == epoch => Taken::AtPlace,
                            _ => Taken::Now,
                        };
                        let booking = Booking { at: pass.at, epoch };
                        self.places.insert(*name, (booking, taken));
                        if claim.limit.is_concurrency() {
                            let call = (Arc::clone(&claim.limit), claim.key, ticket);
                            self.calls.push(call);
                        }
                    }
                }
                Ruling::Denied { booked, .. } => {
                    for (index, booking) in booked {
                        self.places.insert(names[*index], (*booking, Taken::Place));
                    }
                }
                Ruling::Late { .. } => {
                    WAITS.fetch_add(1, Ordering::Relaxed);
                }
                Ruling::Never { .. } | Ruling::Outdated { .. } | Ruling::Paused { .. } => {}
            }
        }
        for ((name, cell), before) in cells.iter().zip(states).zip(before) {
            let limit = &limits[name.0];
            let expected = match cell.state.filter(|_| cell.changed) {
                Some(state) if limit.dies_at(&state) > answer.now => {
                    Some(record::write(&state, stand[name.0].0))
                }
                Some(_) => None,
                None => before,
            };
            self.is(*name, expected)?;
        }
        Ok(())
    }
}
