//! A sequence of events on both sides, and what the test remembers between them.

use std::time::Duration;

use proptest::test_runner::TestCaseResult;
use sluiced_core::limits::{Rule, Ticket, record};
use sluiced_core::policy::PolicyUpdate;
use sluiced_core::time::StoreTime;
use sluiced_core::version::PolicyVersion;
use sluiced_ports::limits::{Charge, RuleInForce};
use sluiced_ports::policies::PolicyOf;
use sluiced_ports::store::{Family, PolicyStore as _};

use super::event::Event;
use super::later::{later, moved};
use super::returns::CallEvent;
use super::world::{KEYS, KINDS, World};
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
            replaces: self.in_force(limit).version,
            text: "any",
            file: "any",
            by: "op",
        };
        let policy = PolicyOf::new(&*world.store, Family::Keyed, &world.limits[limit].name);
        let set = policy.set(&update, None);
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
}
