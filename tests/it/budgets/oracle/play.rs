//! A sequence of events on both sides: what the test remembers between them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use proptest::prelude::*;
use sluiced::core::budget::admit::Epoch;
use sluiced::core::budget::epoch::{Began, Era};
use sluiced::core::budget::limit::Gate;
use sluiced::core::budget::regime::Regimes;
use sluiced::core::budget::{Rule, State, record};
use sluiced::core::policy::{PolicyUpdate, PolicyVersion};
use sluiced::core::time::StoreTime;
use sluiced::ports::budget::{Booking, BudgetKey, BudgetLimit, BudgetStore as _, Taken, Terms};
use sluiced::ports::policy::PolicyStore as _;

use super::event::Event;
use super::later::{later, moved};
use super::world::{BESIDE, GAPS, KEYS, KINDS, PLANS, PREFIX, World, world};
use crate::budgets::rules::*;
use crate::support::redis::RedisServer;

pub(super) type Name = (usize, usize);

/// What was said of a limit, and the terms that it had.
#[derive(Default)]
pub(super) struct Words {
    pub(super) version: PolicyVersion,
    /// The last version that messages were ruled on under.
    pub(super) ruled: PolicyVersion,
    pub(super) regimes: Regimes,
    pub(super) paused_until: StoreTime,
}

/// A play: what the test remembers between events.
pub(super) struct Play<'a> {
    pub(super) world: &'a World,
    pub(super) redis: redis::Connection,
    pub(super) now: StoreTime,
    /// The last grant or place in each budget, and which it was.
    pub(super) places: HashMap<Name, (Booking, Taken)>,
    pub(super) words: HashMap<usize, Words>,
    pub(super) calls: Vec<(Arc<BudgetLimit>, BudgetKey, sluiced::ports::budget::Ticket)>,
}

impl Play<'_> {
    pub(super) fn name(&self, (limit, at): Name) -> String {
        redis_key(PREFIX, &self.world.limits[limit].name, key(KEYS[at]))
    }

    pub(super) fn raw(&mut self, name: Name) -> Option<String> {
        let key = self.name(name);
        let bytes: Option<Vec<u8>> = redis::cmd("GET").arg(key).query(&mut self.redis).unwrap();
        bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The state, which stays until a script writes it: one that ended between this look and the
    /// script's would be seen by one side only.
    pub(super) fn kept(&mut self, name: Name) -> Option<String> {
        let key = self.name(name);
        () = redis::cmd("EXPIRE")
            .arg(key)
            .arg(10_000)
            .query(&mut self.redis)
            .unwrap();
        self.raw(name)
    }

    pub(super) fn put(&mut self, name: Name, text: &str) {
        let key = self.name(name);
        () = redis::cmd("SET")
            .arg(key)
            .arg(text)
            .arg("EX")
            .arg(10_000)
            .query(&mut self.redis)
            .unwrap();
    }

    pub(super) fn era(&mut self) -> Era {
        let text: String = redis::cmd("GET")
            .arg(era_key(PREFIX))
            .query(&mut self.redis)
            .unwrap();
        record::read_era(&text).unwrap()
    }

    /// What Redis' clock shows.
    pub(super) fn time(&mut self) -> StoreTime {
        let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut self.redis).unwrap();
        StoreTime::from_micros(seconds * 1_000_000 + micros)
    }

    pub(super) fn rule(&self, name: Name) -> Rule {
        self.world.limits[name.0].terms().rule.clone()
    }

    /// The epoch of what is written of a limit.
    pub(super) fn mark(&self, limit: usize, era: &Era) -> Epoch {
        let regimes = self.words.get(&limit).map(|words| &words.regimes);
        regimes.and_then(Regimes::epoch).unwrap_or(era.epoch)
    }

    /// A state as it was written, and when.
    pub(super) fn written(
        &self,
        name: Name,
        text: &str,
        era: &Era,
        now: StoreTime,
    ) -> Option<(State, Epoch)> {
        let rule = self.rule(name);
        let epoch = record::written_in(text, &rule).filter(|epoch| *epoch >= era.epoch)?;
        Some((record::read(text, &rule, epoch, now)?, epoch))
    }

    /// A state as it counts now.
    pub(super) fn counts(
        &self,
        name: Name,
        text: &str,
        era: &Era,
        now: StoreTime,
    ) -> Option<State> {
        let (state, epoch) = self.written(name, text, era, now)?;
        match self.words.get(&name.0) {
            Some(words) => words.regimes.carried(state, epoch),
            None => Some(state),
        }
    }

    /// The limits as they stand when messages about `names` are ruled on.
    pub(super) fn rule_on(
        &mut self,
        names: &[Name],
        era: &Era,
        now: StoreTime,
    ) -> Vec<(Epoch, Gate)> {
        for (limit, _) in names {
            let terms = self.world.limits[*limit].terms();
            if let Some(words) = self.words.get_mut(limit)
                && terms.version == words.version
            {
                words.ruled = words.version;
                words.regimes.enter(&terms.rule, era, now);
            }
        }
        let stands = |limit: usize| {
            let known = self.world.limits[limit].terms().version;
            let gate = match self.words.get(&limit) {
                Some(words) if words.version != known => Gate::Outdated,
                Some(words) => Gate::Paused(words.paused_until),
                None => Gate::Open,
            };
            (self.mark(limit, era), gate)
        };
        (0..self.world.limits.len()).map(stands).collect()
    }

    /// An operator was_read; what the store says now.
    pub(super) fn said(&mut self, limit: usize) -> &mut Words {
        let world = self.world;
        let name = &world.limits[limit].name;
        let found = world.runtime.block_on(world.policies.inspect(name));
        let words = self.words.entry(limit).or_default();
        let policy = found.unwrap().policy.unwrap();
        words.version = policy.version;
        words.paused_until = policy.pause.map_or(StoreTime::default(), |p| p.until);
        words
    }

    pub(super) fn set(&mut self, limit: usize, rule: usize, same: bool, heard: bool) {
        let world = self.world;
        let own = &world.limits[limit];
        let over = self
            .words
            .get(&limit)
            .map_or(PolicyVersion::NONE, |w| w.version);
        let update = PolicyUpdate {
            over,
            text: "any",
            file: "any",
            by: "op",
        };
        let set = world.policies.set(&own.name, update);
        assert!(world.runtime.block_on(set).unwrap().is_some());
        let version = self.said(limit).version;
        let kind = KINDS.iter().find(|kind| kind.contains(&limit)).unwrap();
        let rule = if same {
            kind.start + rule % kind.len()
        } else {
            rule
        };
        if heard {
            let rule = world.rules[rule].clone();
            own.adopt(Terms { rule, version });
        }
    }

    pub(super) fn pause(&mut self, limit: usize, length: u64) {
        let world = self.world;
        let own = &world.limits[limit];
        if !self.words.contains_key(&limit) {
            return;
        }
        if length == 0 {
            let resumed = world.policies.resume(&own.name);
            world.runtime.block_on(resumed).unwrap();
        } else {
            let length = Duration::from_micros(length);
            let paused = world.policies.pause(&own.name, length, "op");
            world.runtime.block_on(paused).unwrap();
        }
        let version = self.said(limit).version;
        let rule = own.terms().rule.clone();
        own.adopt(Terms { rule, version });
    }

    /// The state of a budget, and that it has a time to live.
    pub(super) fn is(&mut self, name: Name, expected: Option<String>) -> Result<(), TestCaseError> {
        let found = self.raw(name);
        for (mark, count) in [(';', &GAPS), ('p', &PLANS), ('>', &BESIDE)] {
            if found.as_ref().is_some_and(|text| text.contains(mark)) {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
        let key = self.name(name);
        let ttl: i64 = redis::cmd("PTTL").arg(key).query(&mut self.redis).unwrap();
        // What lived for a few milliseconds only may have gone since.
        if found.is_some() || ttl == -2 && expected.is_none() {
            prop_assert_eq!(found, expected);
        }
        prop_assert!(ttl != -1, "no time to live");
        Ok(())
    }

    /// Moves all times that the states hold: time passes by `by`.
    pub(super) fn shift(&mut self, by: i64) {
        let era = self.era();
        for limit in 0..self.world.limits.len() {
            for at in 0..KEYS.len() {
                let name = (limit, at);
                let text = self.raw(name);
                let state = text.and_then(|text| self.written(name, &text, &era, self.now));
                if let Some((state, epoch)) = state {
                    self.put(name, &record::write(&later(state, -by), epoch));
                }
            }
        }
        for (place, _) in self.places.values_mut() {
            place.at = moved(place.at, -by);
        }
    }

    pub(super) fn play(&mut self, event: &Event) -> Result<(), TestCaseError> {
        match event {
            Event::Ask(asked) => self.ask(asked)?,
            Event::Refund { limit, key, cost } => self.refund((*limit, *key), *cost)?,
            Event::Made(limit, key, by) => self.made((*limit, *key), *by)?,
            Event::Renew => {
                let world = self.world;
                let gone = world
                    .runtime
                    .block_on(world.store.renew(&self.calls))
                    .unwrap();
                self.calls.retain(|call| !gone.contains(&call.2));
            }
            Event::Release => {
                let world = self.world;
                let half = self.calls.split_off(self.calls.len() / 2);
                world.runtime.block_on(world.store.release(&half)).unwrap();
            }
            Event::Delete(limit, at) => {
                let key = self.name((*limit, *at));
                () = redis::cmd("DEL").arg(key).query(&mut self.redis).unwrap();
            }
            Event::Spoil(limit, at, text) => self.put((*limit, *at), text),
            Event::Cut(limit, at, length) => {
                if let Some(text) = self.raw((*limit, *at)) {
                    let cut: String = text.chars().take(*length).collect();
                    self.put((*limit, *at), &cut);
                }
            }
            Event::Smear(limit, at, place, by) => {
                if let Some(text) = self.raw((*limit, *at)) {
                    let other = |(i, letter)| if i == *place { *by } else { letter };
                    let smeared: String = text.chars().enumerate().map(other).collect();
                    self.put((*limit, *at), &smeared);
                }
            }
            Event::Shift(by) => self.shift(*by),
            Event::Terms {
                limit,
                rule,
                same,
                heard,
            } => self.set(*limit, *rule, *same, *heard),
            Event::Pause(limit, length) => self.pause(*limit, *length),
            Event::Era(ago, lost) => {
                let mut era = self.era();
                era.since = StoreTime::from_micros(self.now.as_micros() - ago);
                era.began = if *lost { Began::Lost } else { Began::Fresh };
                () = redis::cmd("SET")
                    .arg(era_key(PREFIX))
                    .arg(record::write_era(&era))
                    .query(&mut self.redis)
                    .unwrap();
            }
        }
        Ok(())
    }
}

pub(super) fn play(events: &[Event]) -> Result<(), TestCaseError> {
    let world = world();
    let mut redis = RedisServer::shared().connection();
    for (limit, rule) in world.limits.iter().zip(&world.rules) {
        let policy = format!("{PREFIX}:{{budgets}}:{}:policy", limit.name);
        () = redis::cmd("DEL").arg(policy).query(&mut redis).unwrap();
        limit.adopt(Terms {
            rule: rule.clone(),
            version: PolicyVersion::NONE,
        });
        for text in KEYS {
            let key = redis_key(PREFIX, &limit.name, key(text));
            () = redis::cmd("DEL").arg(key).query(&mut redis).unwrap();
        }
    }
    let now = world.runtime.block_on(world.store.admit(&[], None));
    let mut play = Play {
        world,
        redis,
        now: now.unwrap().now,
        places: HashMap::new(),
        words: HashMap::new(),
        calls: Vec::new(),
    };
    for event in events {
        play.play(event)?;
    }
    Ok(())
}
