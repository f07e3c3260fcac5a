//! Many questions about budgets as the arguments of one script.
//!
//! Rules and keys are passed once each, however many petitions name them; a petition names its
//! cells by number. The order of the arguments is in the head of `lua/budget/common.lua`.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use redis::Script;

use super::scripts::{Arg, Family};
use crate::core::budget::Rule;
use crate::core::budget::epoch::Witness;
use crate::core::budget::limit::Limit;
use crate::core::time::{StoreTime, micros};
use crate::ports::budget::{BudgetKey, BudgetLimit, Lost, Terms};

/// What a claim weighs besides its entries.
const CLAIM: u64 = 8;

/// The kinds, in the order of their scripts.
#[derive(Clone, Copy)]
enum Kind {
    Gcra,
    TokenBucket,
    FixedWindow,
    SlidingLog,
    Concurrency,
}

impl Kind {
    const fn of(rule: &Rule) -> Self {
        match rule {
            Rule::Gcra(_) => Self::Gcra,
            Rule::TokenBucket(_) => Self::TokenBucket,
            Rule::FixedWindow(_) => Self::FixedWindow,
            Rule::SlidingLog(_) => Self::SlidingLog,
            Rule::Concurrency(_) => Self::Concurrency,
        }
    }
}

/// The scripts of the kinds.
const KINDS: [&str; 5] = [
    include_str!("../../../lua/budget/gcra.lua"),
    include_str!("../../../lua/budget/token_bucket.lua"),
    include_str!("../../../lua/budget/fixed_window.lua"),
    include_str!("../../../lua/budget/sliding_log.lua"),
    include_str!("../../../lua/budget/concurrency.lua"),
];
/// What comes before them.
const COMMON: &str = concat!(
    include_str!("../../../lua/budget/common.lua"),
    include_str!("../../../lua/budget/plan.lua"),
    include_str!("../../../lua/budget/lines.lua"),
    include_str!("../../../lua/budget/cells.lua"),
);

/// What a script does, behind the kinds that a call is about. Only those: what a script defines
/// takes longer than one decision.
pub(super) struct Composed {
    action: &'static str,
    by_kinds: [OnceLock<Script>; 1 << KINDS.len()],
}

impl Composed {
    pub(super) const fn new(action: &'static str) -> Self {
        Self {
            action,
            by_kinds: [const { OnceLock::new() }; 1 << KINDS.len()],
        }
    }

    /// The script for a call.
    pub(super) fn script(&self, batch: &Batch<'_>) -> &Script {
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

/// The rules and keys of a call.
pub(super) struct Batch<'a> {
    /// The store's time, as the caller believes it to be: where calendars are looked up.
    around: StoreTime,
    limits: Vec<Asked<'a>>,
    places: HashMap<(usize, BudgetKey), usize>,
}

struct Asked<'a> {
    limit: &'a BudgetLimit,
    /// Those of the moment in which it was first named.
    terms: Arc<Terms>,
    /// The boundaries of its windows.
    bounds: Vec<u64>,
    keys: Vec<BudgetKey>,
}

/// A budget of the call: the rule's place, and the key's place within it.
#[derive(Clone, Copy)]
pub(super) struct Place(usize, usize);

impl<'a> Batch<'a> {
    pub(super) fn around(now: StoreTime) -> Self {
        Self {
            around: now,
            limits: Vec::new(),
            places: HashMap::new(),
        }
    }

    /// By how much the call becomes heavier with a claim, in microseconds of Redis, roughly.
    pub(super) fn weight(&self, limit: &BudgetLimit, key: BudgetKey) -> u64 {
        match self.rule(limit) {
            Some(rule) if self.places.contains_key(&(rule, key)) => CLAIM,
            _ => CLAIM + limit.terms().rule.entries(),
        }
    }

    /// The kinds that it is about, a bit for each.
    pub(super) fn kinds(&self) -> usize {
        let bit = |asked: &Asked<'_>| 1 << Kind::of(&asked.terms.rule) as usize;
        self.limits.iter().map(bit).fold(0, |all, bit| all | bit)
    }

    fn rule(&self, limit: &BudgetLimit) -> Option<usize> {
        let same = |asked: &Asked<'_>| asked.limit.name == limit.name;
        self.limits.iter().position(same)
    }

    /// The place of a budget.
    pub(super) fn place(&mut self, limit: &'a BudgetLimit, key: BudgetKey) -> Place {
        let rule = self.rule(limit).unwrap_or_else(|| {
            let terms = limit.terms();
            self.limits.push(Asked {
                limit,
                bounds: Limit::new(&terms.rule, limit.lost, self.around)
                    .bounds()
                    .to_vec(),
                terms,
                keys: Vec::new(),
            });
            self.limits.len() - 1
        });
        let keys = &mut self.limits[rule].keys;
        let place = *self.places.entry((rule, key)).or_insert_with(|| {
            keys.push(key);
            keys.len() - 1
        });
        Place(rule, place)
    }

    /// The names of the limits, in the order of the rules.
    pub(super) fn names(&self) -> Vec<Arc<str>> {
        let name = |asked: &Asked<'_>| Arc::clone(&asked.limit.name);
        self.limits.iter().map(name).collect()
    }

    /// The keys in the store: the policies, in the order of the rules, and the budgets, in the order
    /// of the cells.
    pub(super) fn keys(&self, prefix: &str) -> Vec<String> {
        let policy = |asked: &Asked<'_>| Family::Budget.policy(prefix, &asked.limit.name);
        let mut keys: Vec<String> = self.limits.iter().map(policy).collect();
        for asked in &self.limits {
            let start = format!("{prefix}:{{budgets}}:{}:", asked.limit.name);
            for key in &asked.keys {
                let mut name = start.clone();
                BASE64_URL_SAFE_NO_PAD.encode_string(key.digest(), &mut name);
                keys.push(name);
            }
        }
        keys
    }

    /// The arguments that all scripts about budgets begin with.
    pub(super) fn arguments(&self, witness: Witness) -> Vec<Arg<'a>> {
        let mut args = vec![
            Arg::Run,
            Arg::Number(witness.known.0),
            Arg::Number(u64::from(witness.stepped)),
            Arg::Number(self.limits.len() as u64),
        ];
        for asked in &self.limits {
            let rule = &asked.terms.rule;
            let (letter, numbers) = numbers(rule, &asked.bounds);
            args.push(Arg::Text(letter));
            args.push(Arg::Number(u64::from(asked.limit.lost == Lost::Closed)));
            args.push(Arg::Number(micros(rule.headroom())));
            args.push(Arg::Number(asked.keys.len() as u64));
            args.push(Arg::Number(asked.terms.version.number()));
            args.extend(numbers.into_iter().map(Arg::Number));
        }
        args
    }

    /// The numbers of the cells, by place.
    pub(super) fn cells(&self) -> impl Fn(Place) -> Arg<'a> + use<'a> {
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

/// The record of the era.
pub(super) fn era_key(prefix: &str) -> String {
    format!("{prefix}:{{budgets}}:epoch")
}

/// A kind and its numbers, in the order that its script names.
fn numbers(rule: &Rule, bounds: &[u64]) -> (&'static str, Vec<u64>) {
    match rule {
        Rule::Gcra(rule) => ("g", vec![rule.limit(), rule.units(), rule.period()]),
        Rule::TokenBucket(rule) => ("t", rule.numbers().to_vec()),
        Rule::FixedWindow(rule) => {
            let mut numbers = rule.numbers().to_vec();
            numbers.push(bounds.len() as u64);
            numbers.extend_from_slice(bounds);
            ("w", numbers)
        }
        Rule::SlidingLog(rule) => ("l", vec![rule.limit(), rule.period()]),
        Rule::Concurrency(rule) => ("c", vec![rule.limit(), micros(rule.lease())]),
    }
}
