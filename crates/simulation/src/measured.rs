//! Backlogs of one route over some replicas, and the results without faults.

mod costs;
mod distance;
mod hidden;
mod keyed;
mod refused;
mod way;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use sluiced_core::gate::OnDenied;
use sluiced_core::limits::Rule;
use sluiced_core::limits::concurrency::Concurrency;
use sluiced_core::limits::gcra::Gcra;
use sluiced_core::limits::sliding_log::SlidingLog;
use sluiced_core::message::TenantShare;
use sluiced_core::rate::Cost;
use sluiced_core::schedule::{DEFAULT_HORIZON, Pace};
use sluiced_core::time::StoreTime;

use crate::plan::{
    KeyCost, KeyedRule, Message, MessageFate, Plan, PlanOutcome, PlannedEnd, SimulatedRoute, run_in,
};
use crate::surroundings::{Fault, Surroundings};

/// The default of keyed limits.
const HEADROOM: Duration = Duration::from_millis(35);
/// Monday, 5 January 2026, 00:00 UTC.
const MONDAY: StoreTime = StoreTime::from_micros(1_767_571_200_000_000);

fn gcra(rate: &str, burst: u32) -> Rule {
    Rule::Gcra(Gcra::new(rate.parse().expect("a rate"), burst, HEADROOM).expect("a rule"))
}

fn log(rate: &str) -> Rule {
    Rule::SlidingLog(SlidingLog::new(rate.parse().expect("a rate"), HEADROOM).expect("a rule"))
}

fn calls_at_a_time(limit: u32) -> Rule {
    let limit = NonZeroU32::new(limit).expect("not zero");
    let rule = Concurrency::new(limit, Duration::from_secs(30), HEADROOM);
    Rule::Concurrency(rule.expect("a rule"))
}

fn cost(cost: u32) -> Cost {
    Cost::new(NonZeroU32::new(cost).expect("not zero"))
}

/// The account's row for messages that take up to this many slots.
fn account(rate: &str, most: u32) -> Pace {
    let rate = rate.parse().expect("a rate");
    Pace::new(rate, Duration::from_millis(5), DEFAULT_HORIZON).with_costs_up_to(cost(most))
}

/// How a limit chooses keys.
#[derive(Clone, Copy, Debug)]
enum By {
    /// This many keys have one in common.
    Keys(u32),
    /// One of this many keys, whatever the message's key.
    Any(u32),
    /// All messages together.
    All,
}

impl By {
    fn key(self, id: u32, key: u32) -> u32 {
        match self {
            Self::Keys(shared) => key / shared,
            Self::Any(all) => scramble(id) % all,
            Self::All => 0,
        }
    }
}

/// A number that has nothing to do with its neighbours' (the finalizer of MurmurHash3).
fn scramble(number: u32) -> u32 {
    let mut hash = number.wrapping_add(1);
    hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}

fn in_turns(keys: u32, each: u32) -> Vec<u32> {
    (0..each).flat_map(|_| 0..keys).collect()
}

fn in_blocks(keys: u32, each: u32) -> Vec<u32> {
    (0..keys)
        .flat_map(|key| std::iter::repeat_n(key, each as usize))
        .collect()
}

/// Messages that all wait from the start.
#[derive(Clone, Debug)]
struct Backlog {
    name: &'static str,
    /// `None`: nothing paces the messages.
    account: Option<Pace>,
    rules: Vec<(Rule, By)>,
    /// The cost of a message for every limit.
    cost: u32,
    replicas: u32,
    prefetch: u16,
    /// One way to the store: at least this long, and beyond that at the median.
    distance: Duration,
    way: Duration,
    call: Duration,
    /// All replicas stand still for this long in each second.
    stalls: Duration,
    /// The keys of the messages, in the order of the queue.
    keys: Vec<u32>,
    /// How long it is looked at.
    within: Duration,
    /// Replicas get no notices of each other.
    deaf: bool,
    /// The tenant of a message, by its key.
    tenant: fn(u32) -> u64,
}

impl Backlog {
    fn of(
        name: &'static str,
        account: Option<Pace>,
        rules: Vec<(Rule, By)>,
        keys: Vec<u32>,
    ) -> Self {
        Self {
            name,
            account,
            rules,
            cost: 1,
            replicas: 3,
            prefetch: 400,
            distance: Duration::ZERO,
            way: Duration::from_micros(800),
            call: Duration::from_millis(20),
            stalls: Duration::ZERO,
            keys,
            within: Duration::from_secs(400),
            deaf: false,
            tenant: |_| 0,
        }
    }

    fn charges(&self, id: u32, key: u32) -> Box<[KeyCost]> {
        let cost = cost(self.cost);
        let charge = |by: &By| KeyCost {
            limit: (),
            key: by.key(id, key),
            cost,
        };
        self.rules.iter().map(|(_, by)| charge(by)).collect()
    }

    fn plan(&self, seed: u64) -> Plan {
        let message = |(id, key): (u32, &u32)| Message {
            at: 0,
            slots: cost(self.cost),
            priority: 0,
            urgent: false,
            share: TenantShare {
                tenant: (self.tenant)(*key),
                ..TenantShare::default()
            },
            charges: self.charges(id, *key),
        };
        let keyed = self.rules.iter().map(|(rule, by)| KeyedRule {
            rule: rule.clone(),
            for_all: matches!(by, By::All),
        });
        Plan {
            seed,
            length: self.within,
            start: MONDAY,
            replicas: self.replicas,
            route: SimulatedRoute {
                rows: self.account.into_iter().collect(),
                keyed: keyed.collect(),
                prefetch: self.prefetch,
                max_hold: Duration::from_secs(1),
                on_denied: OnDenied::Hold,
                max_age: None,
                hours: None,
                call: self.call,
            },
            messages: (0..).zip(&self.keys).map(message).collect(),
        }
    }

    fn run(&self, seed: u64) -> MeasuredRun {
        let mut around = Surroundings::calm();
        around.distance = self.distance;
        around.to_store = self.way;
        around.lateness = Duration::ZERO;
        around.late_wakes = 0;
        around.lost_notices = if self.deaf { 1_000_000 } else { 0 };
        let stall = |second| (second * 1_000_000, Fault::PauseAll(self.stalls));
        let each_second = (1..=self.within.as_secs()).map(stall);
        let stalls: Vec<_> = each_second.filter(|_| !self.stalls.is_zero()).collect();
        let plan = self.plan(seed);
        let outcome = run_in(&plan, around, &stalls);
        let run = MeasuredRun::new(&plan, outcome);
        println!(
            "{} x{}: {} of {} in {:.2} s, looks {:?}, trips {:?}, ran out {}, questions {}",
            self.name,
            self.replicas,
            run.calls.len(),
            self.keys.len(),
            run.seconds(),
            run.looks(),
            run.trips(),
            run.outcome.ran_out,
            run.outcome.questions,
        );
        run
    }

    /// Runs it, and checks that all messages are sent.
    fn runs(&self, seed: u64) -> MeasuredRun {
        let run = self.run(seed);
        let (sent, all) = (run.calls.len(), self.keys.len());
        assert_eq!(sent, all, "{}: some are missing", self.name);
        run
    }
}

/// The result of a run.
struct MeasuredRun {
    outcome: PlanOutcome,
    /// When each call was made, and its keys.
    calls: Vec<(u64, Box<[KeyCost]>)>,
}

impl MeasuredRun {
    fn new(plan: &Plan, outcome: PlanOutcome) -> Self {
        let called = |(message, fate): (&Message, &MessageFate)| match fate.end {
            PlannedEnd::Called(at) => Some((at, message.charges.clone())),
            _ => None,
        };
        let messages = plan.messages.iter().zip(&outcome.fates);
        let mut calls: Vec<_> = messages.filter_map(called).collect();
        calls.sort_by_key(|(at, _)| *at);
        Self { outcome, calls }
    }

    /// From the first call to the last.
    fn seconds(&self) -> f64 {
        let at = |call: Option<&(u64, _)>| call.map_or(0, |(at, _)| *at);
        (at(self.calls.last()) - at(self.calls.first())) as f64 / 1e6
    }

    /// Calls a second, from the first second of a run until nine tenths of the messages are sent: the end
    /// of a backlog waits for the last keys.
    fn rate(&self) -> f64 {
        let first = self.calls[0].0 + 1_000_000;
        let times = self.calls.iter().map(|(at, _)| *at);
        let later: Vec<_> = times.filter(|at| *at > first).collect();
        let part = &later[..later.len() * 8 / 10];
        (part.len() - 1) as f64 / ((part[part.len() - 1] - part[0]) as f64 / 1e6)
    }

    /// How often a message was looked at: the mean, and the 99th and 99.9th percentile.
    fn looks(&self) -> (f64, u16, u16) {
        let fates = self.outcome.fates.iter();
        let mut all: Vec<u16> = fates.map(|fate| fate.looks).collect();
        all.sort_unstable();
        let sum: u64 = all.iter().copied().map(u64::from).sum();
        let at = |share: f64| all[((all.len() - 1) as f64 * share) as usize];
        (sum as f64 / all.len() as f64, at(0.99), at(0.999))
    }

    /// How often a limit sent a message through wait queues: the mean, and the most.
    fn trips(&self) -> (f64, u16) {
        let trips = self.outcome.fates.iter().map(|fate| fate.sent_away);
        let sum: u64 = trips.clone().map(u64::from).sum();
        let mean = sum as f64 / self.outcome.fates.len() as f64;
        (mean, trips.max().unwrap_or(0))
    }

    /// Checks that no window of any limit and key is over.
    fn none_over(&self, units: &[(usize, u64)]) {
        for (index, (units, window)) in units.iter().enumerate() {
            let mut by: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
            for (at, charges) in &self.calls {
                by.entry(charges[index].key).or_default().push(*at);
            }
            for (key, times) in by {
                for some in times.windows(units + 1) {
                    let span = some[*units] - some[0];
                    assert!(span >= *window, "{index} {key}: {} in {span} us", units + 1);
                }
            }
        }
    }
}
