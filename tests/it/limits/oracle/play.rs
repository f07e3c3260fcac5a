//! A sequence of events on both sides, and what the test remembers between them.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use sluiced_core::limits::admission::Decision;
use sluiced_core::limits::cell::{Cell, Limit};
use sluiced_core::limits::once::NotCalled;
use sluiced_core::limits::{Fit, Rule, Ticket, admission, record};
use sluiced_core::policy::{PolicyUpdate, PolicyVersion};
use sluiced_core::time::StoreTime;
use sluiced_ports::limits::{Candidate, Charge, LimitStore as _, RuleInForce};
use sluiced_ports::policies::PolicyOf;
use sluiced_ports::store::{Family, PolicyStore as _};

use super::event::{Event, Message};
use super::kept::text;
use super::later::{later, moved};
use super::returns::CallEvent;
use super::world::{KEYS, KINDS, Sight, World};
use crate::limits::rules::*;
use crate::support::redis::RedisServer;

/// A limit and a key of it.
pub(super) type Name = (usize, usize);

/// A play: what the test remembers between events.
pub(super) struct Play<'a> {
    pub(super) world: &'a World,
    pub(super) redis: redis::Connection,
    /// What was granted, when.
    pub(super) grants: Vec<(Name, u32, StoreTime)>,
    pub(super) calls: Vec<(Name, (Charge, Ticket))>,
}

pub(super) fn play(world: &World, events: &[Event]) -> TestCaseResult {
    let mut play = Play {
        world,
        redis: RedisServer::shared().connection(),
        grants: Vec::new(),
        calls: Vec::new(),
    };
    play.clear();
    for event in events {
        play.happens(event)?;
    }
    Ok(())
}

impl Play<'_> {
    /// As if nothing had ever happened.
    fn clear(&mut self) {
        let prefix = self.world.prefix;
        let mut all: Vec<String> =
            self.ask(redis::cmd("KEYS").arg(format!("{prefix}:{{limits}}:*")));
        all.retain(|key| *key != generation_key(prefix));
        if !all.is_empty() {
            () = self.ask(redis::cmd("DEL").arg(all));
        }
        for field in ["guard_until", "lost_at", "back_at"] {
            set_generation(&mut self.redis, prefix, field, 0);
        }
        for (limit, rule) in self.world.limits.iter().zip(&self.world.rules) {
            limit.adopt(RuleInForce {
                rule: rule.clone(),
                version: PolicyVersion::NONE,
            });
        }
    }

    fn happens(&mut self, event: &Event) -> TestCaseResult {
        match event {
            Event::Ask(messages, wanted) => return self.admit(messages, *wanted),
            Event::Correct(limit, said) => return self.correct(*limit, said),
            Event::Refund(which) => return self.refund(which),
            Event::Renew(which) => return self.about_calls(which, CallEvent::Renewed),
            Event::Release(which) => return self.about_calls(which, CallEvent::Ended),
            Event::Done(which) => return self.about_calls(which, CallEvent::Accepted),
            Event::Delete(limit, key) => {
                let key = self.name((*limit, *key));
                () = self.ask(redis::cmd("DEL").arg(key));
            }
            Event::Spoil(limit, key, text) => self.put((*limit, *key), text),
            Event::Cut(limit, key, length) => {
                if let Some(text) = self.raw((*limit, *key)) {
                    let cut: String = text.chars().take(*length).collect();
                    self.put((*limit, *key), &cut);
                }
            }
            Event::Smear(limit, key, at, by) => {
                if let Some(text) = self.raw((*limit, *key)) {
                    let smeared = text.chars().enumerate();
                    let smeared = smeared.map(|(i, was)| if i == *at { *by } else { was });
                    let smeared: String = smeared.collect();
                    self.put((*limit, *key), &smeared);
                }
            }
            Event::Shift(by) => self.shift(*by),
            Event::Policy {
                limit,
                rule,
                same,
                heard,
            } => self.set(*limit, *rule, *same, *heard),
            Event::Pause(limit, length) => self.pause(*limit, Duration::from_micros(*length)),
            Event::Lose(ago) | Event::Back(ago) => {
                let at = self.time().as_micros() - ago;
                let is_loss = matches!(event, Event::Lose(_));
                let field = if is_loss { "lost_at" } else { "back_at" };
                set_generation(&mut self.redis, self.world.prefix, field, at);
            }
            Event::Guard(length) => {
                let until = self.time().as_micros() + length;
                set_generation(&mut self.redis, self.world.prefix, "guard_until", until);
            }
            Event::Open(limit) => {
                let name = &self.world.limits[*limit].name;
                let opened = self.world.store.open(Family::Keyed, name);
                let _at = self.world.runtime.block_on(opened).unwrap();
            }
            Event::Remade(limit, ago) => {
                let at = self.time().as_micros() - ago;
                // A limit without a policy was never one of another kind.
                if self.in_force(*limit).version != PolicyVersion::NONE {
                    let key = self.policy(*limit);
                    () = self.ask(redis::cmd("HSET").arg(key).arg("remade_at").arg(at));
                }
            }
        }
        Ok(())
    }

    fn shift(&mut self, by: i64) {
        for limit in 0..self.world.limits.len() {
            for key in 0..KEYS.len() {
                let text = self.raw((limit, key));
                let (rule, ..) = self.rule(limit);
                if let Some(state) = text.and_then(|text| record::read(&text, &rule)) {
                    let text = record::write(&later(state, -by), StoreTime::default());
                    self.put((limit, key), &text);
                }
            }
        }
        for (.., at) in &mut self.grants {
            *at = moved(*at, -by);
        }
    }

    fn adopt(&mut self, limit: usize, rule: Rule) {
        let version = self.in_force(limit).version;
        self.world.limits[limit].adopt(RuleInForce { rule, version });
    }

    fn set(&mut self, limit: usize, rule: usize, same: bool, heard: bool) {
        let world = self.world;
        let update = PolicyUpdate {
            over: self.in_force(limit).version,
            text: "any",
            file: "any",
            by: "op",
        };
        let policy = PolicyOf::new(&*world.store, Family::Keyed, &world.limits[limit].name);
        let set = policy.set(&update);
        assert!(world.runtime.block_on(set).unwrap().is_some());
        let kind = KINDS.iter().find(|kind| kind.contains(&limit)).unwrap();
        let rule = if same {
            kind.start + rule % kind.len()
        } else {
            rule
        };
        if heard {
            self.adopt(limit, world.rules[rule].clone());
        }
    }

    fn pause(&mut self, limit: usize, length: Duration) {
        let world = self.world;
        let policy = PolicyOf::new(&*world.store, Family::Keyed, &world.limits[limit].name);
        let was_said = if length.is_zero() {
            let resumed = world.runtime.block_on(policy.resume("op"));
            resumed.unwrap().is_some()
        } else {
            let paused = world.runtime.block_on(policy.pause(length, "op"));
            paused.unwrap().is_some()
        };
        if was_said {
            let (rule, ..) = self.rule(limit);
            self.adopt(limit, rule);
        }
    }

    fn admit(&mut self, messages: &[Message], wanted: u64) -> TestCaseResult {
        let now = self.time();
        let candidates = messages.iter().map(|m| self.candidate(m, now));
        let candidates: Vec<Candidate> = candidates.collect();
        let mut before = BTreeMap::new();
        for (limit, key, _) in messages.iter().flat_map(|m| &m.charges) {
            let name = (*limit, *key);
            let text = self.kept(name);
            before.insert(name, text);
            let waiting = format!("{}:waiting", self.name(name));
            () = self.ask(redis::cmd("DEL").arg(waiting));
        }
        let writes_before = self.record().writes;
        let asked = self.world.store.admit(&candidates, wanted);
        let answer = self.world.runtime.block_on(asked).unwrap();
        let now = answer.now;

        let mut limits = BTreeMap::new();
        for (limit, _) in before.keys() {
            let access = self.access(*limit, now);
            limits.insert(*limit, access);
        }
        let limits: BTreeMap<usize, Limit<'_>> = limits
            .iter()
            .map(|(at, (rule, access))| {
                (
                    *at,
                    Limit {
                        rule,
                        access: *access,
                    },
                )
            })
            .collect();
        let names: Vec<Name> = before.keys().copied().collect();
        let mut cells: Vec<Cell> = Vec::new();
        for (name, text) in &before {
            let rule = limits[&name.0].rule;
            let state = text.as_ref().and_then(|text| record::read(text, rule));
            let cell = Cell::of(rule, state, now);
            self.world.saw(Sight::Ahead, usize::from(cell.changed));
            cells.push(cell);
        }
        let asking: Vec<admission::Candidate<_, _>> = messages
            .iter()
            .zip(&candidates)
            .map(|(message, candidate)| admission::Candidate {
                charges: message
                    .charges
                    .iter()
                    .map(|(limit, key, cost)| admission::Charge {
                        limit: &limits[limit],
                        key: names.iter().position(|n| *n == (*limit, *key)).unwrap(),
                        cost: super::super::rules::cost(*cost),
                    })
                    .collect(),
                was_denied: message.was_denied,
                slots: message.slots,
                ticket: candidate.ticket,
                died: candidate.died,
                others_wait: candidate.others_wait,
            })
            .collect();
        let decisions = admission::decide(&asking, &mut cells, wanted, now);
        prop_assert_eq!(&answer.decisions, &decisions, "{:?} at {:?}", before, now);
        let looked_at = |d: &Decision| {
            is_granted(d) || matches!(d, Decision::Denied { .. } | Decision::NotCalled { .. })
        };
        let looked = asking.iter().zip(&decisions).filter(|(_, d)| looked_at(d));
        let looked: Vec<usize> = looked
            .flat_map(|(asked, _)| asked.charges.iter().map(|charge| charge.key))
            .collect();
        for (i, (name, cell)) in names.iter().zip(&mut cells).enumerate() {
            // A state with times ahead of now is only written once it is looked at.
            cell.changed &= looked.contains(&i);
            self.is_as_decided(*name, limits[&name.0].rule, cell, &before[name], now)?;
        }
        let granted = decisions.iter().filter(|d| is_granted(d)).count();
        prop_assert_eq!(self.record().writes, writes_before + granted as u64);
        self.remember(messages, &candidates, &decisions, now)
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
        let dies = rule.dies_at(state);
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
                    } if *at < until.as_micros() => self.world.saw(Sight::Line, 1),
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
