//! What the replicas know, put together: sums over the fleet, why its taps are closed, its last events.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{BARS, Fleet, Replica, Route};
use crate::core::stall::millis;
use crate::telemetry::{CHANGE, RecentLine};

const NO_TURN: &str = "its limits let nothing pass yet";

impl Route {
    /// What is wrong where the limits keep too little for the way.
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

    /// What is wrong where the oldest message waits for too long.
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

impl Fleet {
    /// The replicas that report how they are.
    pub fn heard(&self) -> impl Iterator<Item = &Replica> {
        self.replicas.iter().filter(|replica| replica.silent == 0)
    }

    /// Completes why taps are closed: those that no replica gave a reason for wait for a limit. `names` has
    /// the limits of each route.
    pub(super) fn say_why(&mut self, names: &BTreeMap<String, Vec<String>>) {
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

    /// The last warnings, and what operators changed, the newest first, each with the replica that says
    /// so. A change is said by all that saw it, and stands once, as the fleet's.
    #[must_use]
    pub fn events(&self) -> Vec<(&str, &RecentLine)> {
        let all = self.replicas.iter();
        let mut all: Vec<_> = all
            .flat_map(|replica| replica.events.iter().map(|line| (&*replica.name, line)))
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

    /// A route over all replicas: numbers add up but for those at the broker, which each replica counts.
    #[must_use]
    pub fn route(&self, name: &str) -> Route {
        let mut sum = Route::default();
        for route in self.heard().filter_map(|r| r.routes.get(name)) {
            sum.open |= route.open;
            sum.away |= route.away;
            for (sum, of) in [
                (&mut sum.why, &route.why),
                (&mut sum.away_why, &route.away_why),
                (&mut sum.dying, &route.dying),
                (&mut sum.stalled, &route.stalled),
            ] {
                if sum.is_empty() {
                    sum.clone_from(of);
                }
            }
            // Of the replica that has it worst.
            if route.way_spread - route.way_kept >= sum.way_spread - sum.way_kept {
                (sum.way_spread, sum.way_kept) = (route.way_spread, route.way_kept);
            }
            sum.oldest = sum.oldest.max(route.oldest);
            sum.max_delay = sum.max_delay.max(route.max_delay);
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

    use super::super::Use;
    use super::*;

    #[test]
    fn what_replicas_use_adds_up_but_for_those_that_are_silent() {
        let using = |used, silent| {
            let used = Use {
                used,
                per_second: 10.0,
                ..Use::default()
            };
            let route = Route {
                held: 7,
                ..Route::default()
            };
            Replica {
                limits: BTreeMap::from([("account".to_owned(), used)]),
                routes: BTreeMap::from([("sms".to_owned(), route)]),
                silent,
                ..Replica::default()
            }
        };
        let fleet = Fleet {
            replicas: vec![using(6.0, 0), using(4.5, 0), using(1.0, 4)],
            used: BTreeMap::from([("account".to_owned(), vec![1.0; BARS])]),
            ..Fleet::default()
        };
        assert_eq!(fleet.rates("account"), (10.0, 10.5));
        assert_eq!(fleet.route("sms").held, 14);
        assert_eq!(fleet.bars("account"), vec![1.0; BARS]);
        assert_eq!(fleet.bars("another"), vec![0.0; BARS]);
    }

    #[test]
    fn a_way_that_varies_by_more_than_is_kept_is_that_of_the_replica_that_has_it_worst() {
        let of = |way_spread, way_kept| Replica {
            routes: BTreeMap::from([(
                "sms".to_owned(),
                Route {
                    way_spread,
                    way_kept,
                    ..Route::default()
                },
            )]),
            ..Replica::default()
        };
        let mut fleet = Fleet {
            replicas: vec![of(0.000_5, 0.001_25), of(0.0, 0.001_25)],
            ..Fleet::default()
        };
        assert_eq!(fleet.route("sms").thin(), None);
        fleet.replicas.insert(1, of(0.02, 0.001_25));
        let said =
            "the way to the downstream varies by 20 ms, and the headroom keeps 1.3 ms for that";
        assert_eq!(fleet.route("sms").thin().as_deref(), Some(said));
    }

    #[test]
    fn a_change_that_all_replicas_saw_stands_once() {
        let line = |at: &str, level: &str, text: &str| RecentLine {
            at: at.to_owned(),
            level: level.to_owned(),
            text: text.to_owned(),
        };
        let of = |name: &str, events: &[RecentLine]| Replica {
            name: name.to_owned(),
            events: events.to_vec(),
            ..Replica::default()
        };
        let paused = |at| line(at, CHANGE, "limit account is paused by anna (version 2)");
        let fleet = Fleet {
            replicas: vec![
                of("a", &[line("12:00:03", "WARN", "late"), paused("12:00:02")]),
                of("b", &[line("12:00:04", "WARN", "late"), paused("12:00:01")]),
            ],
            ..Fleet::default()
        };
        let told = fleet.events();
        let told = told.iter().map(|(name, line)| (*name, &*line.at));
        let expected = [("b", "12:00:04"), ("a", "12:00:03"), ("fleet", "12:00:01")];
        assert_eq!(told.collect::<Vec<_>>(), expected);
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
