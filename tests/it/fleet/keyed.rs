//! Fleets whose messages keyed limits count: the limits, the messages, and exact counts of requests and
//! trips.
//!
//! The assertions hold under any load: no window of any key is over its limit, no message is lost, none
//! comes twice, and each is looked at, and sent through wait queues, a bounded number of times on average. A
//! look is an answer of the store about a message, whatever the answer is. How much of the tightest limit
//! was used is printed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sluiced_core::time::Mono;

use super::{Fleet, Plan};
use crate::support::daemon::{Daemon, NEW_SCHEDULE};
use crate::support::judge::fullest;

/// What replicas may log here.
pub(super) const DECLARED: &[&str] = &[
    NEW_SCHEDULE,
    "nothing is kept on disk",
    // A wait queue that is used for the first time, on a busy machine.
    "copies are not confirmed",
];

const SECOND: Duration = Duration::from_secs(1);

/// Each message waits once in a wait queue: after that it waits in memory for the rest.
pub(super) const ROUTE: &str = "prefetch = 400\nmax_hold = \"30s\"\n";

/// A limit that counts by a field of the messages, in windows of a second.
#[derive(Clone, Copy)]
pub(super) struct Keyed {
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
    /// Units a second.
    pub(super) units: usize,
    /// Which part of `x-key`, and which field, is its key.
    pub(super) part: usize,
    pub(super) field: &'static str,
    /// How many keys there are.
    pub(super) keys: usize,
}

/// Of each recipient.
pub(super) const RECIPIENTS: Keyed = Keyed {
    name: "recipient",
    kind: "gcra",
    units: 5,
    part: 0,
    field: "to",
    keys: 40,
};
/// Of each sender.
pub(super) const SENDERS: Keyed = Keyed {
    name: "sender",
    kind: "gcra",
    units: 20,
    part: 1,
    field: "from",
    keys: 8,
};

impl Keyed {
    /// Its table, with more keys. Each limit has 100 ms of headroom.
    pub(super) fn table(&self, more: &str) -> String {
        format!(
            "[limits.{}]\nkind = \"{}\"\nrate = \"{}/1s\"\nheadroom = \"100ms\"\n\
             key = \"{{{{ body.{} }}}}\"\n{more}\n",
            self.name, self.kind, self.units, self.field
        )
    }

    /// No second holds more than `most` calls of any key.
    pub(super) fn none_over(&self, calls: &[(Mono, Box<str>)], most: usize) {
        let mut by: BTreeMap<&str, Vec<Mono>> = BTreeMap::new();
        for (at, key) in calls {
            let part = key.split('/').nth(self.part).expect("every part is named");
            by.entry(part).or_default().push(*at);
        }
        assert_eq!(by.len(), self.keys, "keys of {}", self.name);
        for (key, times) in by {
            let held = fullest(&times, SECOND);
            assert!(held <= most, "{key}: {held} calls in a second of {most}");
        }
    }

    /// What all of its keys together allow in a second.
    fn leaves(&self) -> f64 {
        self.keys as f64 * self.leaves_each()
    }

    /// What each of its keys allows in a second: less than its units, for the headroom.
    fn leaves_each(&self) -> f64 {
        self.units as f64 / 1.1
    }
}

/// What each message may need on average.
pub(super) struct Bounds {
    pub(super) looks: f64,
    pub(super) trips: f64,
}

/// One keyed limit binds.
pub(super) const ONE: Bounds = Bounds {
    looks: 3.0,
    trips: 1.0,
};
/// Two of them bind.
pub(super) const TWO: Bounds = Bounds {
    looks: 8.0,
    trips: 2.0,
};

/// Counted over all replicas.
#[derive(Debug)]
pub(super) struct Counts {
    pub(super) looks: f64,
    pub(super) granted: f64,
    /// Requests to the store.
    pub(super) requests: f64,
    /// Through wait queues.
    pub(super) trips: f64,
    pub(super) slots_missed: f64,
}

impl Counts {
    pub(super) async fn of(fleet: &mut Fleet) -> Self {
        let pages = pages(&mut fleet.replicas).await;
        let sum = |name: &str, label: &str| sum(&pages, name, label);
        let decided = |decision: &str| {
            let label = format!("decision=\"{decision}\"");
            sum("sluiced_admissions_total", &label)
        };
        let looks = ["granted", "denied", "never", "closed"].map(decided);
        Self {
            looks: looks.iter().sum(),
            granted: looks[0],
            requests: sum("sluiced_admission_duration_seconds_count", ""),
            trips: sum("sluiced_settled_total", "verdict=\"later\""),
            slots_missed: sum("sluiced_slots_missed_total", ""),
        }
    }

    /// Prints what each of this many messages needed, and checks it against the bounds.
    pub(super) fn judge(&self, name: &str, messages: usize, bounds: &Bounds) {
        let each = |count: f64| count / messages as f64;
        eprintln!(
            "{name}: a message took {:.2} looks, {:.2} grants, {:.2} requests and {:.2} trips; \
             {} slots were missed",
            each(self.looks),
            each(self.granted),
            each(self.requests),
            each(self.trips),
            self.slots_missed
        );
        assert!(each(self.looks) <= bounds.looks, "{name}: {self:?}");
        assert!(each(self.trips) <= bounds.trips, "{name}: {self:?}");
    }
}

async fn pages(replicas: &mut [Daemon]) -> Vec<String> {
    let mut pages = Vec::new();
    for replica in replicas {
        pages.push(replica.page("/metrics").await.1);
    }
    pages
}

/// The series of that name with that label, summed.
fn sum(pages: &[String], name: &str, label: &str) -> f64 {
    let lines = pages.iter().flat_map(|page| page.lines());
    let series = lines.filter_map(|line| line.strip_prefix(name)?.rsplit_once(' '));
    let series = series.filter(|(labels, _)| {
        (labels.is_empty() || labels.starts_with('{')) && labels.contains(label)
    });
    series.map(|(_, value)| value.parse::<f64>().unwrap()).sum()
}

/// A number that is unrelated to those of its neighbours (the finalizer of MurmurHash3).
pub(super) fn scramble(number: u32) -> u32 {
    let mut hash = number.wrapping_add(1);
    hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}

/// Three replicas send all of it, and the bounds are checked.
pub(super) async fn through(plan: Plan, fields: Vec<String>, limits: &[Keyed], bounds: &Bounds) {
    let name = plan.name;
    let account = account(&plan);
    let mut fleet = plan.prepare().await;
    let messages = fields.len();
    fleet.publish_with(numbered(fields)).await;
    fleet.add(3);
    fleet.arrived(messages as u64).await;
    let counts = Counts::of(&mut fleet).await;
    let report = fleet.finish(DECLARED).await;
    assert_eq!(report.repeated, 0, "{report:?}");
    let calls = fleet.provider.keyed();
    for limit in limits {
        limit.none_over(&calls, limit.units);
    }
    let leaves = limits.iter().map(Keyed::leaves).chain(account);
    used(name, &calls, leaves.fold(f64::MAX, f64::min));
    if let ([limit], Some(account)) = (limits, account) {
        let keys = (account / limit.leaves_each()).ceil() as usize;
        let busy = while_keys_are_left(&calls, keys);
        eprint!("while {keys} keys or more have messages left, ");
        used(name, busy, account);
    }
    counts.judge(name, messages, bounds);
}

/// What the account allows in a second, if it is paced.
fn account(plan: &Plan) -> Option<f64> {
    let (units, _) = plan.rate.split_once('/')?;
    let paced = plan.limits.contains(&"provider");
    paced.then(|| units.parse::<f64>().unwrap() / 1.05)
}

/// Messages with ids.
pub(super) fn numbered(fields: Vec<String>) -> impl Iterator<Item = (String, String)> {
    (0..).map(super::id).zip(fields)
}

/// The calls that were made while this many keys or more had messages left. At the end too few keys are
/// left to use up the account: then their own limit binds.
fn while_keys_are_left(calls: &[(Mono, Box<str>)], keys: usize) -> &[(Mono, Box<str>)] {
    let mut left = BTreeSet::new();
    let first_of_the_rest = calls.iter().rposition(|(_, key)| {
        left.insert(key);
        left.len() >= keys
    });
    &calls[..=first_of_the_rest.unwrap_or(calls.len() - 1)]
}

/// Prints how much of the tightest limit was used, which leaves this many calls a second.
pub(super) fn used(name: &str, calls: &[(Mono, Box<str>)], leaves: f64) {
    if let [(first, _), .., (last, _)] = calls {
        let pace = (calls.len() - 1) as f64 / last.since(*first).as_secs_f64();
        eprintln!(
            "{name}: {pace:.1} calls a second, {:.3} of what the tightest limit leaves",
            pace / leaves
        );
    }
}
