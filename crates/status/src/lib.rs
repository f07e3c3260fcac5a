//! The state of the fleet, at a glance: for the status page, `sluiced status` and `sluiced top`.
//!
//! Problem: an operator sees one replica's metrics and log, or needs a dashboard first. So each replica sums
//! up its own state and reports it to the others through the store of the limits: at once when a tap closes,
//! for example, otherwise every five seconds. A replica that stops reports that, and one that is silent is
//! shown as such. Any of them can be asked about all, and reads their reports only then. The numbers are
//! those of `/metrics` (`sample` reads them there), so that the page and the dashboard cannot differ. The use
//! of the limits in the last minutes is kept by the store, not by replicas, which come and go. Delay and
//! backlog of the last minutes are what the asked replica saw (`history`).
//!
//! ```text
//! /metrics, health, last warnings ──sample──> Replica ──board──> store <──board── the other replicas
//!                                                                  └──board──> /status.json, /, status, top
//! ```
//!
//! This file puts the reports together: sums over the fleet, why taps are closed, the last events. [`admin`] is the
//! listener that serves them, with `/metrics` and the probes.
//!
//! **Public API**: [`Board`] makes and reads reports, [`Fleet`] is all of them together, [`admin`] serves them.
//!
//! **May know**: `core`, `ports`, `telemetry`.

pub mod admin;
mod board;
mod explained;
mod history;
mod sample;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use sluiced_core::distance::millis;
use sluiced_core::rate::Span;
use sluiced_ports::store::{FleetReports, SILENT};
use sluiced_telemetry::health::PROGRESS;
use sluiced_telemetry::waits::WaitsFor;
use sluiced_telemetry::{CHANGE, RecentLine};

pub use self::board::Board;
pub use self::explained::time_left;
pub use self::history::Curve;
pub use sluiced_ports::store::BARS;

/// Why a tap is closed outside of its opening hours.
pub const CLOSED_HOURS: &str = "closed hours";

/// Why nothing else is sent while the breaker of a route is open.
pub const PROBES_ONLY: &str = "only single probes are sent";

/// Shown while a route cannot send and another route of its queue can.
pub const MOVING: &str = "its messages move to another route of its queue";

/// The policies of all limits, as the store has them.
pub trait Limits: Send + Sync + fmt::Debug {
    /// One entry for each limit, as `sluiced limits list --json` prints it. Empty if the store does not
    /// answer.
    fn inspect(&self) -> BoxFuture<'_, Vec<Value>>;
}

/// What one replica knows of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Replica {
    /// Of the configuration, else host and process.
    pub name: String,
    /// Where it listens for `/metrics`, `/` and the probes; empty: nowhere.
    pub admin: String,
    pub version: String,
    /// How long it has run, in seconds.
    pub seconds: u64,
    /// For how many seconds it has not reported: everything else is as it was then. 0: it reports.
    pub silent: u64,
    /// What it lacks; empty: it is ready.
    pub missing: Vec<Missing>,
    /// What its limits wait for, although it is ready.
    pub waits: Vec<LimitWait>,
    pub routes: BTreeMap<String, RouteState>,
    pub limits: BTreeMap<String, Use>,
    /// The last warnings, and what operators changed.
    pub events: Vec<RecentLine>,
}

/// Something that a replica needs and does not have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Missing {
    pub name: String,
    pub reason: String,
    /// For how long.
    pub seconds: u64,
}

/// A limit that lets messages wait for something else than its rate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitWait {
    /// A limit, or `route.` and the name of a route that is paused, or frozen without a paced limit.
    pub limit: String,
    /// `pause`, `freeze`, `debt`, `quota` or `lost`.
    pub what: String,
    pub reason: String,
    /// For how much longer. `None`: until an operator ends it.
    pub seconds: Option<u64>,
}

/// A route, as one replica sees it. The numbers at the broker are of the whole fleet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RouteState {
    pub open: bool,
    /// Why its tap is closed, or why its messages move although it is open; empty: neither, or it is not known.
    pub why: String,
    /// Calls failed or were rejected in a row: only single probes are sent, even while the tap is open.
    pub away: bool,
    /// The answer to the last of them; empty: there was none, or this replica made none of these calls.
    pub away_why: String,
    /// Why it sets messages aside that cannot be decoded or counted: those before died in a row; empty: it sets none
    /// aside.
    pub dying: String,
    /// Why it makes no call although its messages could go; empty: it does, or has a reason not to.
    pub stalled: String,
    /// By how much the way to the downstream varies, and how much the limits allow for that, in seconds.
    pub way_spread: f64,
    pub way_kept: f64,
    /// The age of the oldest message that waits, and the age that is warned of (0: none), in seconds.
    pub oldest: f64,
    pub max_delay: f64,
    /// How long the messages accepted in the last seconds had waited, in seconds; `None`: there were none.
    pub delay: Option<f64>,
    /// If its oldest message waits for too long: which route makes most of the calls of a limit that it
    /// shares.
    pub taken: String,
    pub held: u64,
    pub in_flight: u64,
    pub ready: u64,
    pub waiting: u64,
    pub parked: u64,
    pub dead: u64,
    /// Messages done, since the replica was started and in the last seconds.
    pub done: u64,
    pub per_second: f64,
    /// Calls in the last seconds, with any answer.
    pub calls_per_second: f64,
    /// Calls by answer, since the replica was started; only answers that came.
    pub answers: BTreeMap<String, u64>,
    /// Results by outcome, since the replica was started; only outcomes that occurred.
    pub results: BTreeMap<String, u64>,
    /// Messages that were in a queue of sluiced when it was deleted or purged, by part, since the replica was started;
    /// only parts that lost some. Each replica counts all of them.
    pub vanished: BTreeMap<String, u64>,
    /// Messages done without a call since the replica was started, because one of their key was accepted before.
    pub repeats: u64,
    /// The main route of a standby; empty: it is none.
    pub standby_for: String,
    /// Its messages move to another route of its queue, because it cannot send them.
    pub moving: bool,
}

/// The use of a limit by one replica.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Use {
    /// Of a paced limit: the current rate, in units per second.
    pub per_second: f64,
    /// Units a second that were used in the last seconds.
    pub used: f64,
    /// Units that were used since the start.
    pub total: u64,
    /// Units that are left of the downstream's quota, until that begins again.
    pub left: Option<f64>,
    /// Units that calls used according to their answers, since the start; zero if the limit has no `actual`.
    pub actual: u64,
}

/// All that is known of the fleet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fleet {
    /// Which replica answers.
    pub replica: String,
    /// RFC 3339, by its clock.
    pub now: String,
    /// Whether the store of the limits answered; otherwise only this replica is shown.
    pub complete: bool,
    pub replicas: Vec<Replica>,
    pub limits: Vec<Value>,
    /// Units a second of each limit that all replicas used, in stretches of ten seconds; the newest last.
    pub used: BTreeMap<String, Vec<f64>>,
    /// Delay and backlog of each route, as this replica saw them.
    pub curves: BTreeMap<String, Curve>,
    /// When the backlog of a route is gone at the rate of the last seconds, if that takes a while: `at 15:27
    /// UTC`, or `in 40s` below a minute.
    pub gone: BTreeMap<String, String>,
}

/// The configuration of a route.
#[derive(Clone, Debug, Default)]
pub struct RouteFacts {
    pub queue: String,
    /// The main route of a standby.
    pub standby_for: Option<String>,
    /// The names of its limits.
    pub limits: Vec<String>,
}

/// The routes of the configuration, by name.
pub type Routes = BTreeMap<String, RouteFacts>;

impl Replica {
    /// The replicas that reported. The report of a later version may be unreadable here.
    #[must_use]
    pub fn all(heard: &FleetReports) -> Vec<Self> {
        let replicas = heard.replicas.iter().filter_map(|(ago, text)| {
            let replica: Self = serde_json::from_str(text).ok()?;
            let silent = if *ago < SILENT { 0 } else { ago.as_secs() };
            Some(Self { silent, ..replica })
        });
        replicas.collect()
    }

    /// The part that others must know at once when it changes: everything except the numbers.
    fn state(&self) -> Self {
        let mut state = Self {
            seconds: 0,
            limits: BTreeMap::new(),
            ..self.clone()
        };
        for wait in &mut state.waits {
            wait.seconds = None;
        }
        for part in &mut state.missing {
            part.seconds = 0;
            if part.name.starts_with(PROGRESS) {
                // It says for how long.
                part.reason.clear();
            }
        }
        for route in state.routes.values_mut() {
            *route = RouteState {
                open: route.open,
                why: route.why.clone(),
                away: route.away,
                away_why: route.away_why.clone(),
                moving: route.moving,
                dying: route.dying.clone(),
                vanished: route.vanished.clone(),
                // It says for how long.
                stalled: String::from(if route.stalled.is_empty() { "" } else { "yes" }),
                ..RouteState::default()
            };
        }
        state
    }
}

impl LimitWait {
    /// For operators.
    #[must_use]
    pub fn in_words(&self) -> String {
        match self.seconds {
            Some(left) => {
                let left = Span(Duration::from_secs(left));
                format!("{}; for another {left}", self.reason)
            }
            None => self.reason.clone(),
        }
    }
}

impl RouteState {
    /// The warning if messages are gone with a queue of sluiced.
    #[must_use]
    pub fn lost(&self) -> Option<String> {
        let each = self.vanished.iter();
        let each: Vec<_> = each
            .map(|(part, count)| format!("{count} {part}"))
            .collect();
        (!each.is_empty()).then(|| {
            let each = each.join(", ");
            format!("messages gone with a queue of sluiced that was deleted or purged: {each}")
        })
    }

    /// The warning if the limits allow too little for the way.
    #[must_use]
    pub fn thin(&self) -> Option<String> {
        let ms = |seconds| millis(Duration::try_from_secs_f64(seconds).unwrap_or_default());
        (self.way_spread > self.way_kept).then(|| {
            format!(
                "the way to the downstream varies by {}, and the headroom keeps {} for that",
                ms(self.way_spread),
                ms(self.way_kept)
            )
        })
    }

    /// The warning if the oldest message waits for too long.
    #[must_use]
    pub fn late(&self) -> Option<String> {
        (self.max_delay > 0.0 && self.oldest > self.max_delay).then(|| {
            format!(
                "the oldest message waits for {:.0} s, longer than max_delay ({:.0} s)",
                self.oldest, self.max_delay
            )
        })
    }
}

impl RouteState {
    /// Whether only single probes are sent, and nothing else keeps it from consuming; with the answer to the last call
    /// that failed. Its tap opens for each probe.
    #[must_use]
    pub fn probing(&self) -> Option<String> {
        let probes = self.away && (self.open || self.why == PROBES_ONLY);
        probes.then(|| match self.away_why.as_str() {
            "" => PROBES_ONLY.to_owned(),
            why => format!("{PROBES_ONLY}: {why}"),
        })
    }

    /// Whether its messages wait for slots of its limits, and not for an operator, a downstream or its hours.
    fn waits_for_the_rate(&self) -> bool {
        let is_shut = !self.why.is_empty() && self.why != explained::NO_TURN;
        !is_shut && !self.away && !self.moving && self.dying.is_empty() && self.stalled.is_empty()
    }

    /// How many messages at the broker could be sent.
    #[must_use]
    pub const fn backlog(&self) -> u64 {
        self.ready.saturating_add(self.parked)
    }
}

impl Fleet {
    /// The replicas that report.
    pub fn heard(&self) -> impl Iterator<Item = &Replica> {
        self.replicas.iter().filter(|replica| replica.silent == 0)
    }

    /// The last warnings, and what operators changed, the newest first, each with its replica. A change
    /// is reported by all replicas that saw it, and is shown once, as the fleet's.
    #[must_use]
    pub fn events(&self) -> Vec<(&str, &RecentLine)> {
        let all = self.replicas.iter();
        let mut all: Vec<_> = all
            // The oldest first, so that lines of the same second keep their order.
            .flat_map(|replica| {
                let lines = replica.events.iter().rev();
                lines.map(|line| (&*replica.name, line))
            })
            .collect();
        all.sort_by(|a, b| a.1.at.cmp(&b.1.at));
        let mut seen = BTreeSet::new();
        all.retain(|(_, line)| line.level != CHANGE || seen.insert(line.text.clone()));
        for (name, line) in &mut all {
            if line.level == CHANGE {
                *name = "fleet";
            }
        }
        all.reverse();
        all
    }

    /// Units a second of a limit that all replicas used in each of the last [`BARS`] stretches.
    #[must_use]
    pub fn bars(&self, limit: &str) -> Vec<f64> {
        self.used
            .get(limit)
            .cloned()
            .unwrap_or_else(|| vec![0.0; BARS])
    }

    /// The units per second of a paced limit, and those used in the last seconds.
    #[must_use]
    pub fn rates(&self, limit: &str) -> (f64, f64) {
        let uses = self.heard().filter_map(|r| r.limits.get(limit));
        uses.fold((0.0, 0.0), |(allowed, used), each| {
            (each.per_second.max(allowed), used + each.used)
        })
    }

    /// Units that all replicas took of a limit since they were started, and the units that calls used
    /// according to their answers. `None`: the limit has no `actual`, or no call has ended.
    #[must_use]
    pub fn actual(&self, limit: &str) -> Option<(u64, u64)> {
        let uses = self.heard().filter_map(|r| r.limits.get(limit));
        let sum = uses.fold((0_u64, 0_u64), |(taken, used), each| {
            (
                taken.saturating_add(each.total),
                used.saturating_add(each.actual),
            )
        });
        (sum.1 > 0).then_some(sum)
    }

    /// What messages wait for at a limit besides its rate, a pause, a freeze and a loss: the longest wait that a
    /// replica knows.
    #[must_use]
    pub fn waits(&self, limit: &str) -> Option<&LimitWait> {
        let all = self.heard().flat_map(|replica| &replica.waits);
        // Pauses, freezes and losses are in the policy of the limit (`Fleet::limits`).
        let shown = [WaitsFor::Debt, WaitsFor::Quota].map(WaitsFor::label);
        all.filter(|wait| wait.limit == limit && shown.contains(&&*wait.what))
            .max_by_key(|wait| wait.seconds)
    }

    /// What is left of the downstream's quota for a limit: the least that a replica knows.
    #[must_use]
    pub fn left(&self, limit: &str) -> Option<f64> {
        let uses = self.heard().filter_map(|r| r.limits.get(limit)?.left);
        uses.reduce(f64::min)
    }

    /// A route over all replicas: numbers add up, except those at the broker, which each replica counts.
    #[must_use]
    pub fn route(&self, name: &str) -> RouteState {
        let mut sum = RouteState::default();
        for route in self.heard().filter_map(|r| r.routes.get(name)) {
            sum.open |= route.open;
            sum.away |= route.away;
            sum.moving |= route.moving;
            for (sum, of) in [
                (&mut sum.why, &route.why),
                (&mut sum.away_why, &route.away_why),
                (&mut sum.dying, &route.dying),
                (&mut sum.stalled, &route.stalled),
                (&mut sum.taken, &route.taken),
                (&mut sum.standby_for, &route.standby_for),
            ] {
                if sum.is_empty() {
                    sum.clone_from(of);
                }
            }
            // From the replica with the worst value.
            if route.way_spread - route.way_kept >= sum.way_spread - sum.way_kept {
                (sum.way_spread, sum.way_kept) = (route.way_spread, route.way_kept);
            }
            sum.oldest = sum.oldest.max(route.oldest);
            sum.delay = sum.delay.into_iter().chain(route.delay).reduce(f64::max);
            sum.max_delay = sum.max_delay.max(route.max_delay);
            sum.held = sum.held.saturating_add(route.held);
            sum.in_flight = sum.in_flight.saturating_add(route.in_flight);
            sum.ready = sum.ready.max(route.ready);
            sum.waiting = sum.waiting.max(route.waiting);
            sum.parked = sum.parked.max(route.parked);
            sum.dead = sum.dead.max(route.dead);
            sum.done = sum.done.saturating_add(route.done);
            sum.repeats = sum.repeats.saturating_add(route.repeats);
            for (part, count) in &route.vanished {
                let sum = sum.vanished.entry(part.clone()).or_default();
                *sum = (*sum).max(*count);
            }
            sum.per_second += route.per_second;
            sum.calls_per_second += route.calls_per_second;
            for (sum, of) in [
                (&mut sum.answers, &route.answers),
                (&mut sum.results, &route.results),
            ] {
                for (what, count) in of {
                    let sum = sum.entry(what.clone()).or_default();
                    *sum = sum.saturating_add(*count);
                }
            }
        }
        if sum.open && !sum.moving {
            sum.why.clear();
        }
        sum
    }
}

#[cfg(test)]
mod tests;
