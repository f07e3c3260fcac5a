//! Many questions about keyed limits as the arguments of one script.
//!
//! Limits and keys are passed once each, however many messages name them; a message names its
//! states by number. The order of the arguments is in the head of `lua/limits/common.lua`.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use redis::Script;

use super::scripts::{Arg, policy_key};
use sluiced_core::limits::Rule;
use sluiced_core::limits::generation::{LostWait, Memory};
use sluiced_core::scheduler::BATCH_MAX;
use sluiced_core::time::{Direction, StoreTime, micros};
use sluiced_ports::limits::{KeyedLimit, LimitKey, RuleInForce};
use sluiced_ports::store::Family;

/// How heavy a call may be, in microseconds of Redis, roughly, because others wait for it. A
/// larger batch goes in several calls, one after the other.
const WEIGHT_MAX: u64 = 2_048;
/// What a charge weighs, and a state besides its entries.
const CHARGE: u64 = 4;
const STATE: u64 = 4;

/// The scripts of the kinds.
const KINDS: [&str; 6] = [
    include_str!("../../../../lua/limits/gcra.lua"),
    include_str!("../../../../lua/limits/token_bucket.lua"),
    include_str!("../../../../lua/limits/fixed_window.lua"),
    include_str!("../../../../lua/limits/sliding_log.lua"),
    include_str!("../../../../lua/limits/concurrency.lua"),
    include_str!("../../../../lua/limits/once.lua"),
];

/// The place in [`KINDS`] of the script of a rule, which is also its bit in `KeyBatch::kinds`.
const fn script_of(rule: &Rule) -> usize {
    match rule {
        Rule::Gcra(_) => 0,
        Rule::TokenBucket(_) => 1,
        Rule::FixedWindow(_) => 2,
        Rule::SlidingLog(_) => 3,
        Rule::Concurrency(_) => 4,
        Rule::Once(_) => 5,
    }
}

/// The first part of every script about keyed limits, before the parts of the kinds.
const COMMON: &str = include_str!("../../../../lua/limits/common.lua");

/// The last part of a script, after the kinds of a call. Only these kinds are included, because
/// defining a kind takes longer than one decision.
pub(super) struct ComposedScript {
    action: &'static str,
    by_kinds: [OnceLock<Script>; 1 << KINDS.len()],
}

impl ComposedScript {
    pub(super) const fn new(action: &'static str) -> Self {
        Self {
            action,
            by_kinds: [const { OnceLock::new() }; 1 << KINDS.len()],
        }
    }

    /// The script for a call.
    pub(super) fn script(&self, batch: &KeyBatch<'_>) -> &Script {
        let kinds = batch.kinds();
        self.by_kinds[kinds].get_or_init(|| {
            let parts = KINDS.iter().enumerate();
            let named = parts.filter(|(bit, _)| kinds & 1 << bit != 0);
            let mut code = COMMON.to_owned();
            code.extend(named.map(|(_, part)| *part));
            code.push_str(self.action);
            Script::new(&code)
        })
    }
}

/// The limits and keys of a call.
pub(super) struct KeyBatch<'a> {
    /// The store's time as the caller knows it, to look up calendars.
    around: StoreTime,
    limits: Vec<BatchLimit<'a>>,
    places: HashMap<(usize, LimitKey), usize>,
    weight: u64,
}

struct BatchLimit<'a> {
    limit: &'a KeyedLimit,
    /// The policy at the moment when the limit was first named.
    policy: Arc<RuleInForce>,
    keys: Vec<LimitKey>,
}

/// A state of the call: the limit's place, and the key's place within it.
#[derive(Clone, Copy)]
pub(super) struct CellIndex(usize, usize);

impl<'a> KeyBatch<'a> {
    pub(super) fn around(now: StoreTime) -> Self {
        Self {
            around: now,
            limits: Vec::new(),
            places: HashMap::new(),
            weight: 0,
        }
    }

    /// The places of states that belong together. `None`: with them the call would be too heavy, and they
    /// go into the next one. Further charges on states that it reads anyway are never too heavy.
    pub(super) fn add(
        &mut self,
        states: impl Iterator<Item = (&'a KeyedLimit, LimitKey)> + Clone,
    ) -> Option<Vec<CellIndex>> {
        let added = states.clone().map(|(limit, key)| self.heavier(limit, key));
        let weight = self.weight + added.sum::<u64>();
        let mut all = states.clone();
        let is_new = all.any(|(limit, key)| !self.reads(limit, key));
        if weight > WEIGHT_MAX && is_new && !self.limits.is_empty() {
            return None;
        }
        self.weight = weight;
        Some(states.map(|(limit, key)| self.index(limit, key)).collect())
    }

    /// The places of as many single states as one call takes: at least one.
    pub(super) fn fill(
        &mut self,
        states: impl Iterator<Item = (&'a KeyedLimit, LimitKey)>,
    ) -> Vec<CellIndex> {
        let add = |state| self.add(std::iter::once(state));
        let places = states.take(BATCH_MAX).map_while(add);
        places.flatten().collect()
    }

    /// The weight that a charge adds to the call.
    fn heavier(&self, limit: &KeyedLimit, key: LimitKey) -> u64 {
        if self.reads(limit, key) {
            CHARGE
        } else {
            CHARGE + STATE + limit.policy().rule.entries()
        }
    }

    fn reads(&self, limit: &KeyedLimit, key: LimitKey) -> bool {
        let at = self.find(limit);
        at.is_some_and(|at| self.places.contains_key(&(at, key)))
    }

    /// The kinds of the call, a bit for each.
    fn kinds(&self) -> usize {
        let bit = |asked: &BatchLimit<'_>| 1 << script_of(&asked.policy.rule);
        self.limits.iter().map(bit).fold(0, |all, bit| all | bit)
    }

    fn find(&self, limit: &KeyedLimit) -> Option<usize> {
        let same = |asked: &BatchLimit<'_>| asked.limit.name == limit.name;
        self.limits.iter().position(same)
    }

    /// The place of a state.
    pub(super) fn index(&mut self, limit: &'a KeyedLimit, key: LimitKey) -> CellIndex {
        let at = self.find(limit).unwrap_or_else(|| {
            self.limits.push(BatchLimit {
                limit,
                policy: limit.policy(),
                keys: Vec::new(),
            });
            self.limits.len() - 1
        });
        let keys = &mut self.limits[at].keys;
        let place = *self.places.entry((at, key)).or_insert_with(|| {
            keys.push(key);
            keys.len() - 1
        });
        CellIndex(at, place)
    }

    /// The keys in the store: the policies, in the order of the limits, and the states, in the order
    /// of the cells.
    pub(super) fn keys(&self, prefix: &str) -> Vec<String> {
        let policy = |asked: &BatchLimit<'_>| policy_key(Family::Keyed, prefix, &asked.limit.name);
        let mut keys: Vec<String> = self.limits.iter().map(policy).collect();
        for asked in &self.limits {
            let start = format!("{prefix}:{{limits}}:{}:", asked.limit.name);
            for key in &asked.keys {
                let mut name = start.clone();
                BASE64_URL_SAFE_NO_PAD.encode_string(key.digest(), &mut name);
                keys.push(name);
            }
        }
        keys
    }

    /// The arguments that all scripts about keyed limits begin with.
    pub(super) fn arguments(&self, memory: Memory) -> Vec<Arg<'a>> {
        let mut args = vec![
            Arg::Run,
            Arg::Number(memory.number),
            Arg::Number(memory.writes),
            Arg::Number(match memory.stepped {
                None => 0,
                Some(Direction::Forward) => 1,
                Some(Direction::Back) => 2,
            }),
            Arg::Number(self.limits.len() as u64),
        ];
        for asked in &self.limits {
            let (letter, numbers) = numbers(&asked.policy.rule, self.around);
            args.push(Arg::Text(letter));
            args.push(match asked.limit.lost_wait {
                LostWait::For(length) => Arg::Number(micros(length)),
                LostWait::Forever => Arg::Time(None),
            });
            args.push(Arg::Number(asked.policy.version.number()));
            args.push(Arg::Number(asked.keys.len() as u64));
            args.extend(numbers.into_iter().map(Arg::Number));
        }
        args
    }

    /// The numbers of the cells, by place.
    pub(super) fn cells(&self) -> impl Fn(CellIndex) -> Arg<'a> + use<'a> {
        let mut first = 1;
        let firsts: Vec<usize> = self
            .limits
            .iter()
            .map(|asked| {
                let mine = first;
                first += asked.keys.len();
                mine
            })
            .collect();
        move |place| Arg::Number((firsts[place.0] + place.1) as u64)
    }
}

/// The record of the generation.
pub(super) fn generation_key(prefix: &str) -> String {
    format!("{prefix}:{{limits}}:generation")
}

/// The key of the replicas that ask. `lua/admit.lua` uses the same name.
pub(super) fn askers_key(prefix: &str) -> String {
    format!("{}:askers", generation_key(prefix))
}

/// The key that a text in the store names.
pub(super) fn read_key(text: &str) -> Option<LimitKey> {
    let digest = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
    digest.try_into().ok().map(LimitKey::from_digest)
}

/// A kind and its numbers, in the order that its script names.
fn numbers(rule: &Rule, around: StoreTime) -> (&'static str, Vec<u64>) {
    match rule {
        Rule::Gcra(rule) => ("g", rule.numbers().to_vec()),
        Rule::TokenBucket(rule) => ("t", rule.numbers().to_vec()),
        Rule::FixedWindow(rule) => {
            let bounds = rule.bounds(around);
            let mut numbers = rule.numbers().to_vec();
            numbers.push(bounds.len() as u64);
            numbers.extend(bounds);
            ("w", numbers)
        }
        Rule::SlidingLog(rule) => ("l", rule.numbers().to_vec()),
        Rule::Concurrency(rule) => ("c", rule.numbers().to_vec()),
        Rule::Once(rule) => ("o", rule.numbers().to_vec()),
    }
}
