//! The use of each limit, and which keys waited for one.

use std::collections::HashMap;

use serde::Serialize;

use super::messages::{DrawnMessages, KeyNames};
use crate::wire::PlannedRoute;
use sluiced_core::limits::Rule;
use sluiced_core::time::micros;
use sluiced_simulation::plan::{Plan, PlanOutcome, PlannedEnd};

/// This many keys are named.
const NAMED: usize = 5;

/// The figures of a limit.
#[derive(Debug)]
pub(super) struct LimitFigures {
    pub(super) name: String,
    pub(super) kind: &'static str,
    /// Units a second that it lets pass for a key in the long run.
    pub(super) per_second: f64,
    /// Units that it may let pass before that rate counts.
    pub(super) burst: f64,
    /// The share that was used, if it has no key: of what it lets pass until the last event.
    pub(super) share: Option<f64>,
    /// Units taken, of all keys.
    pub(super) units: u64,
    /// Units that the messages wanted.
    pub(super) wanted: u64,
    pub(super) has_key: bool,
    /// Keys that were seen.
    pub(super) keys: usize,
    /// The key of which most was taken.
    pub(super) busiest: Option<(String, u64)>,
    /// Keys for which more was wanted than the limit allows in the time.
    pub(super) beyond: usize,
    /// The worst of them: its name and the units.
    pub(super) worst: Option<(String, u64)>,
    pub(super) denials: u64,
    /// Keys whose messages were denied.
    pub(super) held: usize,
    /// How long expensive messages waited for it.
    pub(super) costly: Option<CostlyWaits>,
}

/// The messages that cost most, and those that cost half as much or less.
#[derive(Clone, Copy, Debug)]
pub(super) struct CostlyWaits {
    pub(super) cost: u32,
    /// The longest wait of messages with this cost, in microseconds.
    pub(super) wait: u64,
    pub(super) others: u64,
}

/// When a message ended, in any way.
pub(super) const fn end_time(end: PlannedEnd) -> Option<u64> {
    match end {
        PlannedEnd::Waiting => None,
        PlannedEnd::Called(at)
        | PlannedEnd::TooOld(at)
        | PlannedEnd::Denied(at)
        | PlannedEnd::Never(at, _) => Some(at),
    }
}

/// A key whose messages waited.
#[derive(Debug, Serialize)]
pub(super) struct KeyFigures {
    pub(super) limit: String,
    pub(super) key: String,
    /// The key's messages, and how many of them still wait.
    pub(super) messages: usize,
    pub(super) waiting: usize,
    pub(super) longest_us: u64,
}

/// What a limit lets pass.
#[derive(Clone, Copy)]
struct Capacity {
    /// Units a second in the long run.
    per_second: f64,
    /// How many units may pass at once before.
    burst: f64,
}

fn capacity(rule: Option<&Rule>, plan: &Plan) -> Capacity {
    match rule {
        None => {
            let rows = plan.route.rows.iter();
            let units = rows.map(|pace| pace.units() as f64 * 1e6 / pace.period() as f64);
            Capacity {
                per_second: units.sum(),
                burst: 0.0,
            }
        }
        Some(Rule::Concurrency(rule)) => {
            let call = plan.route.call.as_secs_f64().max(0.001);
            Capacity {
                per_second: rule.limit() as f64 / call,
                burst: rule.limit() as f64,
            }
        }
        Some(rule) => {
            // For many units, so that rounding does not matter.
            let spacing = rule.around(plan.start).spacing(1_000, plan.start).max(1);
            // Around the edge of two windows twice as many can pass.
            let windows = if matches!(rule, Rule::FixedWindow(_)) {
                2
            } else {
                1
            };
            Capacity {
                per_second: 1e9 / spacing as f64,
                burst: (windows * rule.max_cost()) as f64,
            }
        }
    }
}

/// The units wanted and taken of each key of a limit; `index` is its place among the keyed ones.
fn by_key(plan: &Plan, outcome: &PlanOutcome, index: Option<usize>) -> HashMap<u32, KeySums> {
    let mut keys: HashMap<u32, KeySums> = HashMap::new();
    for (message, fate) in plan.messages.iter().zip(&outcome.fates) {
        let charge = index.map(|index| message.charges[index]);
        let cost = charge.map_or(message.slots, |charge| charge.cost);
        let of = keys
            .entry(charge.map_or(0, |charge| charge.key))
            .or_default();
        of.wanted += cost.units();
        if matches!(fate.end, PlannedEnd::Called(_)) {
            of.taken += cost.units();
        }
        if index.is_some() && fate.by.map(usize::from) == index {
            of.denied = true;
        }
    }
    keys
}

#[derive(Default)]
struct KeySums {
    wanted: u64,
    taken: u64,
    denied: bool,
}

/// How long a route could send, in microseconds.
#[derive(Clone, Copy)]
pub(super) struct SendingTime {
    /// There was something to do.
    pub(super) busy: u64,
    /// The route was open.
    pub(super) open: u64,
}

/// The used share of a limit: slots and calls go unused in closed hours, the units of a window do not.
fn share(
    rule: Option<&Rule>,
    capacity: Capacity,
    units: u64,
    SendingTime { busy, open }: SendingTime,
) -> Option<f64> {
    let (burst, time) = match rule {
        None | Some(Rule::Concurrency(_)) => (0.0, busy.min(open)),
        Some(Rule::FixedWindow(_)) => (capacity.burst / 2.0, busy),
        Some(_) => (capacity.burst, busy),
    };
    let all = burst + capacity.per_second * time as f64 / 1e6;
    (all > 0.0).then(|| units as f64 / all)
}

/// The figures of each limit.
pub(super) fn limits(
    plan: &Plan,
    planned: &PlannedRoute,
    drawn: &DrawnMessages,
    outcome: &PlanOutcome,
    time: SendingTime,
) -> Vec<LimitFigures> {
    let mut place = 0..;
    let keyed = planned.limits.iter().map(|limit| {
        let index: Option<usize> = limit.rule.as_ref().and_then(|_| place.next());
        let rule = limit.rule.as_ref();
        let capacity = capacity(rule, plan);
        let Capacity { per_second, burst } = capacity;
        let keys = by_key(plan, outcome, index);
        let allowed = burst + per_second * plan.length.as_secs_f64();
        let units = keys.values().map(|key| key.taken).sum();
        let has_key = index.is_some_and(|i| !matches!(drawn.keys[i], KeyNames::None));
        let name = |key: u32| index.map_or_else(String::new, |i| drawn.keys[i].name_of(key));
        let largest = |of: fn(&KeySums) -> u64| {
            let found = keys
                .iter()
                .max_by_key(|(key, sums)| (of(sums), u32::MAX - **key));
            found.map(|(key, sums)| (name(*key), of(sums)))
        };
        LimitFigures {
            name: limit.name.clone(),
            kind: limit.limit.kind(),
            per_second,
            burst,
            share: share(rule, capacity, units, time).filter(|_| !has_key),
            units,
            wanted: keys.values().map(|key| key.wanted).sum(),
            has_key,
            keys: keys.len(),
            busiest: largest(|key| key.taken),
            beyond: keys
                .values()
                .filter(|key| key.wanted as f64 > allowed)
                .count(),
            worst: largest(|key| key.wanted),
            denials: index.map_or(0, |i| outcome.denials[i]),
            held: keys.values().filter(|key| key.denied).count(),
            costly: index.and_then(|index| costly_waits(plan, outcome, index)),
        }
    });
    keyed.collect()
}

/// `None`: all messages cost about the same.
fn costly_waits(plan: &Plan, outcome: &PlanOutcome, index: usize) -> Option<CostlyWaits> {
    let length = micros(plan.length);
    let messages = plan.messages.iter().zip(&outcome.fates);
    let costs_and_waits = messages.map(|(message, fate)| {
        let wait = end_time(fate.end).unwrap_or(length) - message.at;
        (message.charges[index].cost.get(), wait)
    });
    let cost = costs_and_waits.clone().map(|(cost, _)| cost).max()?;
    let longest = |is_meant: &dyn Fn(u32) -> bool| {
        costs_and_waits
            .clone()
            .filter(|(charged, _)| is_meant(*charged))
            .map(|(_, wait)| wait)
            .max()
    };
    Some(CostlyWaits {
        cost,
        wait: longest(&|charged| charged == cost)?,
        others: longest(&|charged| charged <= cost / 2)?,
    })
}

/// The keys whose messages waited longest, of those that a limit denied.
pub(super) fn longest(
    plan: &Plan,
    planned: &PlannedRoute,
    drawn: &DrawnMessages,
    outcome: &PlanOutcome,
) -> Vec<KeyFigures> {
    let length = micros(plan.length);
    let names: Vec<_> = planned.limits.iter().filter(|l| l.rule.is_some()).collect();
    // Those behind a message that was denied wait without asking: all of the key count.
    let mut keys: HashMap<(usize, u32), (usize, usize, u64)> = HashMap::new();
    for (message, fate) in plan.messages.iter().zip(&outcome.fates) {
        if let Some(by) = fate.by.map(usize::from)
            && !matches!(drawn.keys[by], KeyNames::None)
        {
            keys.entry((by, message.charges[by].key)).or_default();
        }
    }
    for (message, fate) in plan.messages.iter().zip(&outcome.fates) {
        for (limit, charge) in message.charges.iter().enumerate() {
            if let Some(of) = keys.get_mut(&(limit, charge.key)) {
                of.0 += 1;
                of.1 += usize::from(fate.end == PlannedEnd::Waiting);
                of.2 = of.2.max(end_time(fate.end).unwrap_or(length) - message.at);
            }
        }
    }
    let mut ranked: Vec<_> = keys.into_iter().collect();
    ranked.sort_by_key(|(key, (messages, _, wait))| (u64::MAX - wait, usize::MAX - messages, *key));
    let worst = ranked.into_iter().take(NAMED);
    let figures = worst.map(|((limit, key), (messages, waiting, wait))| KeyFigures {
        limit: names[limit].name.clone(),
        key: drawn.keys[limit].name_of(key),
        messages,
        waiting,
        longest_us: wait,
    });
    figures.collect()
}
