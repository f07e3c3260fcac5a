//! The keys and costs of expected messages.
//!
//! Limits whose templates are the same count by the same thing, so one choice serves them all.

use std::collections::HashMap;
use std::fs;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;

use crate::wire::PlannedLimit;
use sluiced_core::rate::Cost;
use sluiced_settings::fixed_or_template::Costing;
use sluiced_simulation::dice::Dice;

/// `--keys`: `1000`, `recipient=1000`, `@FILE` or `recipient=@FILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeysOf {
    limit: Option<String>,
    from: KeysFrom,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum KeysFrom {
    Count(NonZeroU32),
    /// One key a line; one that comes twice is chosen twice as often.
    File(PathBuf),
}

impl KeysOf {
    /// The file that is read.
    pub(super) const fn file(&self) -> Option<&PathBuf> {
        match &self.from {
            KeysFrom::Count(_) => None,
            KeysFrom::File(path) => Some(path),
        }
    }
}

/// `--cost`: `3`, `1-3`, `provider=3` or `provider=1-3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CostsOf {
    limit: Option<String>,
    least: NonZeroU32,
    most: NonZeroU32,
}

fn named(text: &str) -> (Option<String>, &str) {
    match text.split_once('=') {
        Some((limit, rest)) => {
            let limit = limit.trim().trim_start_matches("limits.");
            (Some(limit.to_owned()), rest.trim())
        }
        None => (None, text.trim()),
    }
}

impl FromStr for KeysOf {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (limit, rest) = named(text);
        let from = match rest.strip_prefix('@') {
            Some(file) if !file.is_empty() => KeysFrom::File(file.into()),
            _ => KeysFrom::Count(rest.replace('_', "").parse().map_err(|_| {
                "write how many keys there are, or a file with one a line: \"1000\", \"recipient=1000\", \"recipient=@numbers.txt\""
            })?),
        };
        Ok(Self { limit, from })
    }
}

impl FromStr for CostsOf {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (limit, rest) = named(text);
        let (least, most) = rest.split_once('-').unwrap_or((rest, rest));
        let read = |text: &str| text.trim().parse::<NonZeroU32>().ok();
        match (read(least), read(most)) {
            (Some(least), Some(most)) if least <= most => Ok(Self { limit, least, most }),
            _ => Err("write a whole number from 1, or from which to which: \"3\", \"1-3\", \"provider=1-3\"".to_owned()),
        }
    }
}

/// The keys of one template.
#[derive(Debug)]
pub(super) struct TemplateKeys {
    /// `None`: they are numbers.
    pub(super) names: Option<Vec<Box<str>>>,
    /// The key of each line.
    lines: Vec<u32>,
    count: u32,
}

impl TemplateKeys {
    fn read(from: &KeysFrom) -> Result<Self, String> {
        let file = match from {
            KeysFrom::Count(count) => {
                return Ok(Self {
                    names: None,
                    lines: Vec::new(),
                    count: count.get(),
                });
            }
            KeysFrom::File(file) => file,
        };
        let text =
            fs::read_to_string(file).map_err(|why| format!("--keys @{}: {why}", file.display()))?;
        let (mut numbers, mut names, mut lines) = (HashMap::new(), Vec::new(), Vec::new());
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let number = *numbers.entry(line).or_insert_with(|| {
                names.push(Box::from(line));
                u32::try_from(names.len() - 1).unwrap_or(u32::MAX)
            });
            lines.push(number);
        }
        if lines.is_empty() {
            return Err(format!("--keys @{}: it has no keys", file.display()));
        }
        Ok(Self {
            count: u32::try_from(names.len()).unwrap_or(u32::MAX),
            names: Some(names),
            lines,
        })
    }

    pub(super) fn draw(&self, dice: &mut Dice) -> u32 {
        if self.lines.is_empty() {
            return u32::try_from(dice.below(u64::from(self.count))).unwrap_or(0);
        }
        dice.pick(&self.lines)
    }
}

/// The random choices for each message: texts of templates with their choices, and which of them each
/// limit uses.
#[derive(Debug)]
pub(super) struct Choices<'a> {
    /// Keys by template.
    pub(super) keys: Vec<(&'a str, TemplateKeys)>,
    /// For each limit of the route; `None`: it has no key.
    pub(super) key_of: Vec<Option<usize>>,
    /// Costs by template, lowest and highest.
    costs: Vec<(u32, u32)>,
    /// For each limit of the route.
    cost_of: Vec<usize>,
    /// Limits without a given cost, although a template makes it.
    pub(super) assumed: Vec<&'a str>,
}

impl<'a> Choices<'a> {
    pub(super) fn new(
        limits: &'a [PlannedLimit],
        keys: &[KeysOf],
        costs: &[CostsOf],
    ) -> Result<Self, String> {
        let of_keys = keys.iter().map(|of| ("--keys", &of.limit));
        let of_costs = costs.iter().map(|of| ("--cost", &of.limit));
        for (option, name) in of_keys.chain(of_costs) {
            if let Some(name) = name
                && limits.iter().all(|limit| limit.name != *name)
            {
                let names: Vec<&str> = limits.iter().map(|limit| limit.name.as_str()).collect();
                return Err(format!(
                    "{option}: the route has no limit `{name}`; it has: {}",
                    names.join(", ")
                ));
            }
        }
        let mut choices = Self {
            keys: Vec::new(),
            key_of: Vec::new(),
            costs: Vec::new(),
            cost_of: Vec::new(),
            assumed: Vec::new(),
        };
        choices.choose_keys(limits, keys)?;
        choices.choose_costs(limits, costs)?;
        Ok(choices)
    }

    fn choose_keys(&mut self, limits: &'a [PlannedLimit], keys: &[KeysOf]) -> Result<(), String> {
        let text = |limit: &'a PlannedLimit| limit.limit.key().map(|key| key.as_str());
        if let Some(name) = keys
            .iter()
            .filter_map(|of| of.limit.as_deref())
            .find(|name| {
                limits
                    .iter()
                    .any(|limit| limit.name == *name && text(limit).is_none())
            })
        {
            return Err(format!(
                "--keys: limits.{name} has no key; it counts all messages together"
            ));
        }
        for limit in limits {
            let Some(template) = text(limit) else {
                self.key_of.push(None);
                continue;
            };
            if let Some(place) = self.keys.iter().position(|(listed, _)| *listed == template) {
                self.key_of.push(Some(place));
                continue;
            }
            // The choice for any limit with this template, otherwise the one for all.
            let same = limits.iter().filter(|other| text(other) == Some(template));
            let names: Vec<&str> = same.map(|other| other.name.as_str()).collect();
            let is_own = |of: &&KeysOf| of.limit.as_deref().is_some_and(|l| names.contains(&l));
            let mut own_choices = keys.iter().filter(is_own);
            let any = keys.iter().find(|of| of.limit.is_none());
            let found = own_choices.next().or(any).ok_or_else(|| {
                let name = &limit.name;
                format!(
                    "limits.{name} counts by `{template}`: how many keys are there? \
                     --keys {name}=1000, or --keys {name}=@FILE with one key a line"
                )
            })?;
            if own_choices.next().is_some() {
                return Err(format!(
                    "limits.{} count by the same key: give --keys for one of them, once",
                    names.join(" and limits.")
                ));
            }
            self.key_of.push(Some(self.keys.len()));
            self.keys.push((template, TemplateKeys::read(&found.from)?));
        }
        if self.keys.is_empty() && !keys.is_empty() {
            return Err("--keys: no limit of the route has a key".to_owned());
        }
        Ok(())
    }

    fn choose_costs(
        &mut self,
        limits: &'a [PlannedLimit],
        costs: &[CostsOf],
    ) -> Result<(), String> {
        let mut by_template: HashMap<&str, usize> = HashMap::new();
        let any = costs.iter().find(|of| of.limit.is_none());
        for limit in limits {
            let named = costs
                .iter()
                .find(|of| of.limit.as_deref() == Some(&limit.name));
            let (template, range) = match (limit.limit.cost(), named) {
                (_, Some(of)) => (None, (of.least.get(), of.most.get())),
                (Costing::Fixed(cost), None) => (None, (cost.get(), cost.get())),
                (Costing::Template(text), None) => {
                    let range = any.map_or((1, 1), |of| (of.least.get(), of.most.get()));
                    (Some(text.as_str()), range)
                }
            };
            if template.is_some() && any.is_none() {
                self.assumed.push(&limit.name);
            }
            let next = self.costs.len();
            let place = template.map_or(next, |text| *by_template.entry(text).or_insert(next));
            if place == next {
                self.costs.push(range);
            }
            self.cost_of.push(place);
        }
        if any.is_some() && by_template.is_empty() {
            return Err(
                "--cost: the costs of this route are numbers in its configuration; \
                 --cost LIMIT=3 plans with another one"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// The key and the cost of a message for each limit, in the order of the route.
    pub(super) fn draw(&self, dice: &mut Dice) -> Vec<(Option<u32>, Cost)> {
        let keys: Vec<u32> = self.keys.iter().map(|(_, keys)| keys.draw(dice)).collect();
        let cost = |(least, most): &(u32, u32)| {
            let drawn = dice.between(u64::from(*least), u64::from(*most));
            let units = u32::try_from(drawn).ok().and_then(NonZeroU32::new);
            Cost::new(units.unwrap_or(NonZeroU32::MIN))
        };
        let costs: Vec<Cost> = self.costs.iter().map(cost).collect();
        let keys_and_costs = self.key_of.iter().zip(&self.cost_of);
        keys_and_costs
            .map(|(key, cost)| (key.map(|key| keys[key]), costs[*cost]))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_costs_are_read_with_and_without_a_limit() {
        let keys: KeysOf = "recipient=1_000".parse().expect("keys");
        assert_eq!(keys.limit.as_deref(), Some("recipient"));
        let keys: KeysOf = "@numbers.txt".parse().expect("keys");
        assert_eq!(keys.from, KeysFrom::File("numbers.txt".into()));
        let cost: CostsOf = "limits.provider=1-3".parse().expect("a cost");
        assert_eq!((cost.least.get(), cost.most.get()), (1, 3));
        assert_eq!(cost.limit.as_deref(), Some("provider"));
        for wrong in ["0", "x", "recipient=", "@"] {
            assert!(wrong.parse::<KeysOf>().is_err(), "{wrong}");
        }
        for wrong in ["0", "3-1", "provider=x", ""] {
            assert!(wrong.parse::<CostsOf>().is_err(), "{wrong}");
        }
    }
}
