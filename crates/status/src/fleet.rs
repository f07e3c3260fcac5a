//! The reports of all replicas together: sums over the fleet, and the last events.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{BARS, Curve, LimitStatus, LimitWait, Replica, RouteState};
use sluiced_telemetry::waits::WaitsFor;
use sluiced_telemetry::{CHANGE, RecentLine};

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
    pub limits: Vec<LimitStatus>,
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

impl Fleet {
    /// The replicas that report.
    pub fn reporting_replicas(&self) -> impl Iterator<Item = &Replica> {
        self.replicas.iter().filter(|replica| replica.silent == 0)
    }

    /// The last warnings, and what operators changed, the newest first, each with its replica. A change
    /// is reported by all replicas that saw it, and is shown once, as the fleet's.
    #[must_use]
    pub fn events(&self) -> Vec<(&str, &RecentLine)> {
        let replicas = self.replicas.iter();
        let mut all: Vec<_> = replicas
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
        let uses = self
            .reporting_replicas()
            .filter_map(|r| r.limits.get(limit));
        uses.fold((0.0, 0.0), |(allowed, used), limit_use| {
            (limit_use.per_second.max(allowed), used + limit_use.used)
        })
    }

    /// Units that all replicas took of a limit since they were started, and the units that calls used
    /// according to their answers. `None`: the limit has no `actual`, or no call has ended.
    #[must_use]
    pub fn actual(&self, limit: &str) -> Option<(u64, u64)> {
        let uses = self
            .reporting_replicas()
            .filter_map(|r| r.limits.get(limit));
        let sum = uses.fold((0_u64, 0_u64), |(taken, used), limit_use| {
            (
                taken.saturating_add(limit_use.total),
                used.saturating_add(limit_use.actual),
            )
        });
        (sum.1 > 0).then_some(sum)
    }

    /// What messages wait for at a limit besides its rate, a pause, a freeze and a loss: the longest wait that a
    /// replica knows.
    #[must_use]
    pub fn waits(&self, limit: &str) -> Option<&LimitWait> {
        let all = self.reporting_replicas().flat_map(|replica| &replica.waits);
        // Pauses, freezes and losses are in the policy of the limit (`Fleet::limits`).
        let shown = [WaitsFor::Debt, WaitsFor::Quota].map(WaitsFor::label);
        all.filter(|wait| wait.limit == limit && shown.contains(&&*wait.what))
            .max_by_key(|wait| wait.seconds)
    }

    /// What is left of the downstream's quota for a limit: the least that a replica knows.
    #[must_use]
    pub fn left(&self, limit: &str) -> Option<f64> {
        let uses = self
            .reporting_replicas()
            .filter_map(|r| r.limits.get(limit)?.left);
        uses.reduce(f64::min)
    }

    /// A route over all replicas: numbers add up, except those at the broker, which each replica counts.
    #[must_use]
    pub fn route(&self, name: &str) -> RouteState {
        let mut sum = RouteState::default();
        for route in self.reporting_replicas().filter_map(|r| r.routes.get(name)) {
            sum.add_replica(route);
        }
        if sum.open && !sum.moving {
            sum.why = None;
        }
        sum
    }
}

impl RouteState {
    /// Adds the state of a route in one more replica.
    fn add_replica(&mut self, route: &Self) {
        self.open |= route.open;
        self.away |= route.away;
        self.moving |= route.moving;
        for (text, of_replica) in [
            (&mut self.why, &route.why),
            (&mut self.away_why, &route.away_why),
            (&mut self.dying, &route.dying),
            (&mut self.stalled, &route.stalled),
            (&mut self.taken, &route.taken),
            (&mut self.standby_for, &route.standby_for),
        ] {
            if text.is_none() {
                text.clone_from(of_replica);
            }
        }
        // From the replica with the worst value.
        if route.way_spread - route.way_kept >= self.way_spread - self.way_kept {
            (self.way_spread, self.way_kept) = (route.way_spread, route.way_kept);
        }
        self.oldest = self.oldest.max(route.oldest);
        self.delay = self.delay.into_iter().chain(route.delay).reduce(f64::max);
        self.max_delay = self.max_delay.max(route.max_delay);
        self.held = self.held.saturating_add(route.held);
        self.in_flight = self.in_flight.saturating_add(route.in_flight);
        self.ready = self.ready.max(route.ready);
        self.waiting = self.waiting.max(route.waiting);
        self.parked = self.parked.max(route.parked);
        self.dead = self.dead.max(route.dead);
        self.done = self.done.saturating_add(route.done);
        self.repeats = self.repeats.saturating_add(route.repeats);
        for (part, count) in &route.vanished {
            let most = self.vanished.entry(part.clone()).or_default();
            *most = (*most).max(*count);
        }
        self.per_second += route.per_second;
        self.calls_per_second += route.calls_per_second;
        for (sums, of_replica) in [
            (&mut self.answers, &route.answers),
            (&mut self.results, &route.results),
        ] {
            for (what, count) in of_replica {
                let sum = sums.entry(what.clone()).or_default();
                *sum = sum.saturating_add(*count);
            }
        }
    }
}

#[cfg(test)]
mod tests;
