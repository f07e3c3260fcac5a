//! One request for several messages, and what follows from its answer.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use sluiced_core::limits::admission::Decision;
use sluiced_core::limits::cell::{Cell, Limit, LimitAccess};
use sluiced_core::limits::once::NotCalled;
use sluiced_core::limits::{Fit, Rule, admission, record};
use sluiced_core::time::StoreTime;
use sluiced_ports::limits::{Candidate, LimitStore as _};

use super::event::Message;
use super::kept::text;
use super::later::moved;
use super::play::{Name, Play};
use super::world::{KEYS, Sight};
use crate::limits::rules::*;

/// The texts of states in Redis.
type States = BTreeMap<Name, Option<String>>;
/// A message as this program asks for it: its keys are places in the list of their names.
type Asking<'a> = admission::Candidate<&'a Limit<'a>, usize>;

fn asking<'a>(
    message: &Message,
    candidate: &Candidate,
    limits: &'a BTreeMap<usize, Limit<'a>>,
    names: &[Name],
) -> Asking<'a> {
    let place_of = |name: Name| names.iter().position(|known| *known == name).unwrap();
    let charges = message.charges.iter();
    let charges = charges.map(|(limit, key, units)| admission::Charge {
        limit: &limits[limit],
        key: place_of((*limit, *key)),
        cost: cost(*units),
    });
    admission::Candidate {
        charges: charges.collect(),
        was_denied: message.was_denied,
        slots: message.slots,
        ticket: candidate.ticket,
        died: candidate.died,
        others_wait: candidate.others_wait,
    }
}

/// The places of the keys at which a decision looked.
fn looked_at(asking: &[Asking<'_>], decisions: &[Decision]) -> Vec<usize> {
    let is_looked_at = |decision: &Decision| {
        is_granted(decision)
            || matches!(
                decision,
                Decision::Denied { .. } | Decision::NotCalled { .. }
            )
    };
    let looked = asking.iter().zip(decisions);
    looked
        .filter(|(_, decision)| is_looked_at(decision))
        .flat_map(|(asked, _)| asked.charges.iter().map(|charge| charge.key))
        .collect()
}

impl Play<'_> {
    /// Redis and this program decide the same request alike, and leave the same states.
    pub(super) fn admit(&mut self, messages: &[Message], wanted: u64) -> TestCaseResult {
        let now = self.time();
        let candidates = messages.iter().map(|message| self.candidate(message, now));
        let candidates: Vec<Candidate> = candidates.collect();
        let before = self.states_before(messages);
        let writes_before = self.record().writes;
        let asked = self.world.store.admit(&candidates, wanted);
        let answer = self.world.runtime.block_on(asked).unwrap();
        let now = answer.now;

        let rules = self.rules_of(&before, now);
        let limits: BTreeMap<usize, Limit<'_>> = rules
            .iter()
            .map(|(at, (rule, access))| {
                let access = *access;
                (*at, Limit { rule, access })
            })
            .collect();
        let mut cells = self.cells(&before, &limits, now);
        let names: Vec<Name> = before.keys().copied().collect();
        let asking: Vec<Asking<'_>> = messages
            .iter()
            .zip(&candidates)
            .map(|(message, candidate)| asking(message, candidate, &limits, &names))
            .collect();
        let decisions = admission::decide(&asking, &mut cells, wanted, now);
        prop_assert_eq!(&answer.decisions, &decisions, "{:?} at {:?}", before, now);
        let looked = looked_at(&asking, &decisions);
        for (i, (name, cell)) in names.iter().zip(&mut cells).enumerate() {
            // A state with times ahead of now is only written once it is looked at.
            cell.changed &= looked.contains(&i);
            self.is_as_decided(*name, limits[&name.0].rule, cell, &before[name], now)?;
        }
        let granted = decisions
            .iter()
            .filter(|decision| is_granted(decision))
            .count();
        prop_assert_eq!(self.record().writes, writes_before + granted as u64);
        self.remember(messages, &candidates, &decisions, now)
    }

    /// The states of the keys of these messages. No message waits for one of these keys any more.
    fn states_before(&mut self, messages: &[Message]) -> States {
        let mut before = BTreeMap::new();
        for (limit, key, _) in messages.iter().flat_map(|message| &message.charges) {
            let name = (*limit, *key);
            let text = self.kept(name);
            before.insert(name, text);
            let waiting = format!("{}:waiting", self.name(name));
            () = self.ask(redis::cmd("DEL").arg(waiting));
        }
        before
    }

    /// The rules of the limits of these keys, and whether they may be asked.
    fn rules_of(
        &mut self,
        states: &States,
        now: StoreTime,
    ) -> BTreeMap<usize, (Rule, LimitAccess)> {
        let mut rules = BTreeMap::new();
        for (limit, _) in states.keys() {
            let rule = self.access(*limit, now);
            rules.insert(*limit, rule);
        }
        rules
    }

    /// The states as this program reads them.
    fn cells(
        &self,
        states: &States,
        limits: &BTreeMap<usize, Limit<'_>>,
        now: StoreTime,
    ) -> Vec<Cell> {
        let read = states.iter().map(|(name, text)| {
            let rule = limits[&name.0].rule;
            let state = text.as_ref().and_then(|text| record::read(text, rule));
            let cell = Cell::of(rule, state, now);
            self.world.saw(Sight::Ahead, usize::from(cell.changed));
            cell
        });
        read.collect()
    }

    /// The state in Redis is what the decision in Rust made of it.
    pub(super) fn is_as_decided(
        &mut self,
        name: Name,
        rule: &Rule,
        cell: &Cell,
        before: &Option<String>,
        now: StoreTime,
    ) -> TestCaseResult {
        let key = self.name(name);
        let mut both = redis::pipe();
        both.cmd("GET").arg(&key).cmd("PTTL").arg(key);
        let (bytes, ttl): (Option<Vec<u8>>, i64) = self.ask_all(&both);
        let raw = text(bytes);
        let Some(state) = cell.state.as_ref().filter(|_| cell.changed) else {
            prop_assert_eq!(&raw, before, "{:?} was not changed", name);
            return Ok(());
        };
        let dies = rule.expires_at(state);
        let left = dies.as_micros().saturating_sub(now.as_micros());
        let expected = (left > 0).then(|| record::write(state, now));
        // It may have expired since.
        let ended = (raw.is_none() || ttl == -2) && self.time() >= dies;
        prop_assert!(
            raw == expected || ended && raw.is_none(),
            "{:?}: {:?} became {:?}, not {:?} at {:?}",
            name,
            before,
            raw,
            expected,
            now
        );
        let most = i64::try_from(left.div_ceil(1_000)).unwrap();
        prop_assert!(
            ended || left == 0 || (0..=most).contains(&ttl),
            "{ttl} {most}"
        );
        Ok(())
    }

    fn candidate(&self, message: &Message, now: StoreTime) -> Candidate {
        let limits = &self.world.limits;
        let charges = message.charges.iter();
        let charges = charges.map(|(limit, key, cost)| charge(&limits[*limit], KEYS[*key], *cost));
        let own = message.again.filter(|_| !self.calls.is_empty());
        let own = own.map(|own| own.get(&self.calls).1.1.next());
        self.world.saw(Sight::Again, usize::from(own.is_some()));
        let died = message.died.map(|ago| moved(now, -(ago as i64)));
        Candidate {
            was_denied: message.was_denied,
            slots: message.slots,
            others_wait: message.others_wait,
            ticket: own.unwrap_or_else(ticket),
            died: died.unwrap_or_default(),
            ..new(charges.collect())
        }
    }

    fn remember(
        &mut self,
        messages: &[Message],
        candidates: &[Candidate],
        decisions: &[Decision],
        now: StoreTime,
    ) -> TestCaseResult {
        let mut waits = BTreeMap::new();
        for ((message, candidate), decision) in messages.iter().zip(candidates).zip(decisions) {
            for (i, (limit, key, cost)) in message.charges.iter().enumerate() {
                let name = (*limit, *key);
                let counts_calls = self.world.limits[*limit].counts_calls();
                let waits = waits.entry(name).or_insert(false);
                match decision {
                    Decision::Granted { .. } => {
                        self.world.saw(Sight::Granted, 1);
                        *waits |= message.others_wait && counts_calls;
                        self.grants.push((name, *cost, now));
                        let call = (candidate.charges[i].clone(), candidate.ticket);
                        if counts_calls {
                            self.calls.push((name, call));
                        }
                    }
                    Decision::Denied {
                        by,
                        fits: Fit::Full,
                        ..
                    } if *by == i => {
                        self.world.saw(Sight::Full, 1);
                        *waits = true;
                    }
                    Decision::Denied {
                        fits: Fit::At(at),
                        until,
                        ..
                    } if *at < *until => self.world.saw(Sight::NextReturn, 1),
                    Decision::NotCalled { how, .. } => {
                        let what = match how {
                            NotCalled::Done => Sight::Repeat,
                            NotCalled::Unknown => Sight::Unknown,
                        };
                        self.world.saw(what, 1);
                    }
                    Decision::Closed { .. } => self.world.saw(Sight::Closed, 1),
                    _ => (),
                }
            }
        }
        for (name, waits) in waits {
            let key = format!("{}:waiting", self.name(name));
            let mut both = redis::pipe();
            both.cmd("ZCARD").arg(&key).cmd("PTTL").arg(key);
            let (count, ttl): (usize, i64) = self.ask_all(&both);
            // It ends by itself, also between the decision and these questions.
            let lease = self.rule(name.0).0.lease().filter(|_| waits);
            let ended = lease.is_some_and(|lease| self.time() >= now + lease);
            prop_assert!(ended || count == usize::from(waits), "{:?}", name);
            prop_assert!(ended || !waits || ttl > 0, "{}", ttl);
        }
        Ok(())
    }
}
