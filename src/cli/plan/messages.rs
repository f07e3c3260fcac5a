//! The messages of a plan: drawn from the expected arrivals, or those of a recorded trace.

use std::collections::HashMap;
use std::num::NonZeroU32;

use super::arrivals::Arrivals;
use super::choices::Choices;
use super::trace::RecordedMessage;
use crate::wire::{PlannedLimit, PlannedRoute};
use sluiced_core::message::TenantShare;
use sluiced_core::rate::Cost;
use sluiced_settings::types::Route;
use sluiced_simulation::dice::Dice;
use sluiced_simulation::plan::{KeyCost, Message};

/// All messages, and the names of their keys.
#[derive(Debug)]
pub(super) struct DrawnMessages {
    pub(super) messages: Vec<Message>,
    /// Of each keyed limit, in the order of the route.
    pub(super) keys: Vec<KeyNames>,
    /// Messages that a limit cannot count: when they come.
    pub(super) invalid: Vec<u64>,
    /// Why the first of them cannot be counted.
    pub(super) why: Option<String>,
}

/// The names of keys.
#[derive(Clone, Debug)]
pub(super) enum KeyNames {
    /// The limit has none: it counts all messages together.
    None,
    Numbers,
    Known(Vec<Box<str>>),
}

impl KeyNames {
    pub(super) fn name_of(&self, key: u32) -> String {
        match self {
            Self::None => String::new(),
            Self::Numbers => (u64::from(key) + 1).to_string(),
            Self::Known(names) => names
                .get(key as usize)
                .map_or("?", AsRef::as_ref)
                .to_owned(),
        }
    }
}

/// The fields that all messages of a route have in common.
struct MessageForm<'a> {
    planned: &'a PlannedRoute,
    priority: u8,
}

impl MessageForm<'_> {
    fn message(
        &self,
        at: u64,
        priority: u8,
        share: TenantShare,
        takes: &[(Option<u32>, Cost)],
    ) -> Message {
        let (mut slots, mut charges) = (Cost::ONE, Vec::with_capacity(takes.len()));
        for (limit, (key, cost)) in self.planned.limits.iter().zip(takes) {
            if limit.rule.is_none() {
                slots = *cost;
            } else {
                let key = key.unwrap_or(0);
                charges.push(KeyCost {
                    limit: (),
                    key,
                    cost: *cost,
                });
            }
        }
        let urgent = self.planned.rules.urgent_from;
        Message {
            at,
            slots,
            priority: u16::from_be_bytes([self.priority, priority]),
            urgent: urgent.is_some_and(|from| self.priority.max(priority) >= from),
            share,
            charges: charges.into(),
        }
    }
}

/// The message that costs more than a limit can ever grant, in words.
fn too_dear(limits: &[PlannedLimit], takes: &[(Option<u32>, Cost)]) -> Option<String> {
    let beyond = |(limit, (_, cost)): (&PlannedLimit, &(Option<u32>, Cost))| {
        let largest = limit.limit.largest_cost();
        let (cost, most) = (cost.get(), largest.get());
        let name = &limit.name;
        (cost > most).then(|| {
            format!("limits.{name}: a message that costs {cost} never passes; {most} is the most that can ever fit")
        })
    };
    limits.iter().zip(takes).find_map(beyond)
}

/// The expected messages.
pub(super) fn draw_messages(
    planned: &PlannedRoute,
    route: &Route,
    choices: &Choices<'_>,
    arrivals: &Arrivals<'_>,
    seed: u64,
) -> DrawnMessages {
    let mut dice = Dice::new(seed ^ 0x9_1A17);
    let form = MessageForm {
        planned,
        priority: route.priority.least(),
    };
    let fair_by = route.fair_by.as_ref().map(|text| text.as_str());
    let tenant = fair_by.and_then(|by| choices.keys.iter().position(|(text, _)| *text == by));
    let (mut messages, mut invalid, mut why) = (Vec::new(), Vec::new(), None);
    for at in arrivals.times(&mut dice) {
        let takes = choices.draw(&mut dice);
        if let Some(costly) = too_dear(&planned.limits, &takes) {
            invalid.push(at);
            why.get_or_insert(costly);
            continue;
        }
        let by_key = choices.key_of.iter().zip(&takes);
        let mut of_tenant = by_key.filter(|(by, _)| by.is_some() && **by == tenant);
        let share = of_tenant.next().and_then(|(by, (key, _))| {
            let (names, key) = (choices.keys[(*by)?].1.names.as_ref(), (*key)?);
            let name = names.and_then(|names| names.get(key as usize));
            Some(share(route, u64::from(key), name.map(AsRef::as_ref)))
        });
        messages.push(form.message(at, 0, share.unwrap_or_default(), &takes));
    }
    let names = choices.key_of.iter().map(|by| match by {
        None => KeyNames::None,
        Some(by) => match &choices.keys[*by].1.names {
            Some(names) => KeyNames::Known(names.clone()),
            None => KeyNames::Numbers,
        },
    });
    DrawnMessages {
        messages,
        keys: keyed_only(planned, names.collect()),
        invalid,
        why,
    }
}

fn share(route: &Route, tenant: u64, name: Option<&str>) -> TenantShare {
    let weight = name.map_or(std::num::NonZeroU16::MIN, |name| route.weight_of(name));
    TenantShare {
        tenant,
        weight: NonZeroU32::from(weight),
    }
}

fn keyed_only(planned: &PlannedRoute, names: Vec<KeyNames>) -> Vec<KeyNames> {
    let limits_and_names = planned.limits.iter().zip(names);
    let keyed = limits_and_names.filter(|(limit, _)| limit.rule.is_some());
    keyed.map(|(_, names)| names).collect()
}

/// Numbers for texts, in the order in which they come.
#[derive(Debug, Default)]
struct TextNumbers {
    known: HashMap<Box<str>, u32>,
    names: Vec<Box<str>>,
}

impl TextNumbers {
    fn of(&mut self, text: &str) -> u32 {
        if let Some(number) = self.known.get(text) {
            return *number;
        }
        let number = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        self.known.insert(text.into(), number);
        self.names.push(text.into());
        number
    }

    /// For a message that the limit does not count: a key that no other message has delays nothing.
    fn own(&mut self) -> u32 {
        let number = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        self.names.push("(not counted)".into());
        number
    }
}

/// Messages of a trace: the templates of the route make keys, costs and tenants from them.
pub(super) fn messages_of_trace(
    planned: &PlannedRoute,
    route: &Route,
    trace: &[RecordedMessage],
) -> DrawnMessages {
    let form = MessageForm {
        planned,
        priority: route.priority.least(),
    };
    let mut numbers: Vec<TextNumbers> = Vec::new();
    numbers.resize_with(planned.limits.len(), TextNumbers::default);
    let mut tenants = TextNumbers::default();
    let (mut messages, mut invalid, mut why) = (Vec::new(), Vec::new(), None);
    for arrival in trace {
        let inputs = match planned.limit_inputs(&arrival.message) {
            Ok(inputs) => inputs,
            Err(reason) => {
                invalid.push(arrival.at);
                why.get_or_insert(format!("line {}: {reason}", arrival.line));
                continue;
            }
        };
        let by_limit = inputs.charges.iter().zip(&mut numbers);
        let charged = by_limit.map(|(charge, numbers)| match charge {
            Some(charge) => {
                let key = charge.key.0.as_deref().map(|key| numbers.of(key));
                (key, charge.cost)
            }
            None => (Some(numbers.own()), Cost::ONE),
        });
        let takes: Vec<(Option<u32>, Cost)> = charged.collect();
        let tenant = inputs.tenant.as_deref();
        let share = tenant.map(|name| share(route, tenants.of(name).into(), Some(name)));
        let priority = arrival.message.properties.priority;
        messages.push(form.message(arrival.at, priority, share.unwrap_or_default(), &takes));
    }
    let by_limit = planned.limits.iter().zip(numbers);
    let names = by_limit.map(|(limit, numbers)| match limit.limit.key() {
        Some(_) => KeyNames::Known(numbers.names),
        None => KeyNames::None,
    });
    DrawnMessages {
        messages,
        keys: keyed_only(planned, names.collect()),
        invalid,
        why,
    }
}
