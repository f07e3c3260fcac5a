//! How the fleet is, at a glance: for the status page, `sluiced status` and `sluiced top`.
//!
//! Problem: an operator sees one replica's metrics and log, or needs a dashboard first. So each replica
//! sums up what it knows of itself every ten seconds and tells the others by way of the store of the
//! limits; any of them can be asked about all. The numbers are those of `/metrics` (`sample` reads them
//! there), so that the page and the dashboard cannot differ.
//!
//! ```text
//! /metrics, health, last warnings ──sample──> Replica ──board──> store <──board── the other replicas
//!                                                                  └──> /status.json, /, status, top
//! ```

mod board;
mod sample;
mod series;

use std::collections::BTreeMap;
use std::fmt;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::board::Board;
use crate::telemetry::RecentLine;

/// So many bars has the plot of a limit's use, one for each time that a replica tells: ten minutes.
pub const BARS: usize = 60;

const NO_TURN: &str = "its limits let nothing pass yet";

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
    /// Host and process.
    pub name: String,
    pub version: String,
    /// How long it has run, in seconds.
    pub seconds: u64,
    /// What keeps it from working; empty: it is ready.
    pub missing: Vec<Missing>,
    pub routes: BTreeMap<String, Route>,
    pub limits: BTreeMap<String, Use>,
    /// The newest first.
    pub warnings: Vec<RecentLine>,
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

/// A route, as one replica sees it. The numbers at the broker are of the whole fleet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Route {
    pub open: bool,
    /// Why its tap is closed; empty while it is open.
    pub why: String,
    /// The downstream is away: nothing is sent but single probes, also while the tap is open.
    pub away: bool,
    pub held: u64,
    pub in_flight: u64,
    pub ready: u64,
    pub waiting: u64,
    pub parked: u64,
    pub dead: u64,
    /// Messages done, since the replica was started and in the last seconds.
    pub done: u64,
    pub per_second: f64,
    /// Calls by answer, since the replica was started; those that came.
    pub answers: BTreeMap<String, u64>,
}

/// The use of a limit by one replica.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Use {
    /// Of a paced limit: what is in force, in units per second.
    pub per_second: f64,
    /// Units a second that were used in the last intervals, the newest last. An interval is as long as
    /// between two times that the replica told, about ten seconds.
    pub used: Vec<f64>,
}

/// All that is known of the fleet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fleet {
    /// Which replica answers.
    pub replica: String,
    /// RFC 3339, by its clock.
    pub now: String,
    /// Whether the store of the limits answered; else only this replica is shown.
    pub complete: bool,
    pub replicas: Vec<Replica>,
    pub limits: Vec<Value>,
}

impl Fleet {
    /// Completes why taps are closed: those that no replica gave a reason for wait for a limit. `names` has
    /// the limits of each route.
    fn say_why(&mut self, names: &BTreeMap<String, Vec<String>>) {
        let limits = &self.limits;
        for (name, route) in self.replicas.iter_mut().flat_map(|r| &mut r.routes) {
            if route.open || !route.why.is_empty() {
                continue;
            }
            let own = names.get(name).map_or(&[][..], |own| own);
            let shut = limits.iter().find_map(|limit| {
                let name = own.iter().find(|name| limit["name"] == **name)?;
                let state = limit["state"].as_str()?;
                let shut = state == "paused" || state == "frozen";
                shut.then(|| format!("its limit {name} is {state}"))
            });
            route.why = shut.unwrap_or_else(|| NO_TURN.to_owned());
        }
    }

    /// Units a second of a limit that all replicas used in each of the last [`BARS`] intervals. Intervals
    /// of replicas do not begin at the same moment; a plot of minutes does not show it.
    #[must_use]
    pub fn used(&self, limit: &str) -> Vec<f64> {
        let mut sums = vec![0.0; BARS];
        for each in self.replicas.iter().filter_map(|r| r.limits.get(limit)) {
            for (sum, used) in sums.iter_mut().rev().zip(each.used.iter().rev()) {
                *sum += used;
            }
        }
        sums
    }

    /// The units per second of a paced limit, and those used in the last three intervals.
    #[must_use]
    pub fn rates(&self, limit: &str) -> (f64, f64) {
        let uses = self.replicas.iter().filter_map(|r| r.limits.get(limit));
        let mut allowed = 0.0_f64;
        let mut used = 0.0;
        for each in uses {
            allowed = allowed.max(each.per_second);
            let last = &each.used[each.used.len().saturating_sub(3)..];
            used += last.iter().sum::<f64>() / last.len().max(1) as f64;
        }
        (allowed, used)
    }

    /// A route over all replicas: numbers add up but for those at the broker, which each replica counts.
    #[must_use]
    pub fn route(&self, name: &str) -> Route {
        let mut sum = Route::default();
        for route in self.replicas.iter().filter_map(|r| r.routes.get(name)) {
            sum.open |= route.open;
            sum.away |= route.away;
            if sum.why.is_empty() {
                sum.why.clone_from(&route.why);
            }
            sum.held = sum.held.saturating_add(route.held);
            sum.in_flight = sum.in_flight.saturating_add(route.in_flight);
            sum.ready = sum.ready.max(route.ready);
            sum.waiting = sum.waiting.max(route.waiting);
            sum.parked = sum.parked.max(route.parked);
            sum.dead = sum.dead.max(route.dead);
            sum.done = sum.done.saturating_add(route.done);
            sum.per_second += route.per_second;
            for (answer, count) in &route.answers {
                let sum = sum.answers.entry(answer.clone()).or_default();
                *sum = sum.saturating_add(*count);
            }
        }
        if sum.open {
            sum.why.clear();
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn using(used: &[f64]) -> Replica {
        let used = Use {
            used: used.to_vec(),
            per_second: 10.0,
        };
        Replica {
            limits: BTreeMap::from([("account".to_owned(), used)]),
            ..Replica::default()
        }
    }

    #[test]
    fn what_replicas_use_adds_up() {
        let fleet = Fleet {
            replicas: vec![
                using(&[3.0, 6.0, 9.0]),
                using(&[4.0]),
                using(&[1.0; BARS + 1]),
                using(&[]),
            ],
            ..Fleet::default()
        };
        let used = fleet.used("account");
        assert_eq!(
            used[BARS - 4..],
            [1.0, 3.0 + 1.0, 6.0 + 1.0, 9.0 + 4.0 + 1.0]
        );
        assert_eq!(fleet.rates("account"), (10.0, 6.0 + 4.0 + 1.0));
        assert_eq!(fleet.used("another"), vec![0.0; BARS]);
    }

    #[test]
    fn a_route_is_open_if_one_replica_consumes_it() {
        let route = |open, why: &str, held| Route {
            open,
            why: why.to_owned(),
            held,
            ready: 40,
            ..Route::default()
        };
        let of = |route| Replica {
            routes: BTreeMap::from([("sms".to_owned(), route)]),
            ..Replica::default()
        };
        let mut fleet = Fleet {
            replicas: vec![of(route(false, "closed hours", 1)), of(route(false, "", 2))],
            ..Fleet::default()
        };
        let sum = fleet.route("sms");
        assert_eq!(
            (sum.open, &*sum.why, sum.held, sum.ready),
            (false, "closed hours", 3, 40)
        );
        fleet.replicas.push(of(route(true, "", 0)));
        assert_eq!(fleet.route("sms").why, "");
    }

    #[test]
    fn a_route_waits_for_its_own_limits_only() {
        let route = |open, why: &str| Route {
            open,
            why: why.to_owned(),
            ..Route::default()
        };
        let routes = [
            ("sms", route(false, "")),
            ("mail", route(false, "")),
            ("night", route(false, "closed hours")),
            ("free", route(true, "")),
        ];
        let replica = Replica {
            routes: routes.map(|(name, route)| (name.to_owned(), route)).into(),
            ..Replica::default()
        };
        let mut fleet = Fleet {
            replicas: vec![replica],
            limits: vec![
                json!({"name": "account", "state": "open"}),
                json!({"name": "sender", "state": "paused"}),
            ],
            ..Fleet::default()
        };
        let limits = [
            ("sms", vec!["account", "sender"]),
            ("mail", vec!["account"]),
            ("night", vec!["sender"]),
            ("free", vec!["sender"]),
        ];
        let owned = |(route, limits): (&str, Vec<&str>)| {
            (
                route.to_owned(),
                limits.into_iter().map(str::to_owned).collect(),
            )
        };
        fleet.say_why(&limits.map(owned).into());
        let why = |name| fleet.route(name).why;
        assert_eq!(why("sms"), "its limit sender is paused");
        assert_eq!(why("mail"), NO_TURN);
        assert_eq!(why("night"), "closed hours");
        assert_eq!(why("free"), "");
    }
}
