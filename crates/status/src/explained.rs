//! Completes the reports of replicas with the configuration of their routes: why a tap is closed, what uses
//! the rate, and when a backlog is gone.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::{Fleet, LimitStatus, LimitWait, RouteState, Routes};
use sluiced_core::policy::UNTIL_RESUMED;
use sluiced_core::rate::Span;
use sluiced_telemetry::waits::ROUTE;

/// A backlog that is gone within this many seconds does not count.
const MOMENT: f64 = 10.0;
const MINUTE: Duration = Duration::from_secs(60);

pub(super) const NO_TURN: &str = "its limits let nothing pass yet";

impl Fleet {
    /// Completes which routes are standbys, and why taps are closed or messages move: if no replica gave a
    /// reason, they wait for a limit.
    pub(super) fn say_why(&mut self, routes: &Routes) {
        let limits = &self.limits;
        let all_routes = self.replicas.iter_mut().flat_map(|replica| {
            let waits = &replica.waits;
            let routes = replica.routes.iter_mut();
            routes.map(move |(name, route)| (waits, name, route))
        });
        for (waits, name, route) in all_routes {
            let main = routes
                .get(name)
                .and_then(|route_facts| route_facts.standby_for.as_ref());
            route.standby_for = main.cloned();
            if route.open && (!route.moving || route.away) || route.why.is_some() {
                continue;
            }
            let own_limits = routes
                .get(name)
                .map_or(&[][..], |route_facts| &route_facts.limits);
            let shut = limits.iter().find_map(|limit| shut_by(limit, own_limits));
            let reason = shut.or_else(|| waited_for(waits, name, own_limits));
            route.why = reason.or_else(|| (!route.open).then(|| NO_TURN.to_owned()));
        }
    }

    /// Completes when backlogs are gone: the routes of a queue send its backlog together.
    pub(super) fn say_when_gone(&mut self, routes: &Routes) {
        let gone = routes.iter().filter_map(|(name, route_facts)| {
            let of_queue = routes
                .iter()
                .filter(|(_, other)| other.queue == route_facts.queue);
            let states = of_queue.map(|(other, _)| self.route(other));
            // The rate of the seconds before an outage says nothing of the time after it.
            let waiting = states.filter(RouteState::waits_for_the_rate);
            let (held, rate) = waiting.fold((0, 0.0), |(held, rate), route| {
                (route.held + held, route.per_second + rate)
            });
            let backlog = self.route(name).backlog();
            let seconds = (backlog > 0).then(|| (backlog + held) as f64 / rate)?;
            let is_long = seconds.is_finite() && seconds >= MOMENT;
            let time_left = is_long.then(|| Duration::try_from_secs_f64(seconds).ok())?;
            Some((name.clone(), gone_at(&self.now, time_left?)?))
        });
        self.gone = gone.collect();
    }

    /// Completes what uses the rate, for routes whose oldest message waits for too long and only for the
    /// rate.
    pub(super) fn say_what_takes(&mut self, routes: &Routes) {
        let sums: BTreeMap<&String, RouteState> =
            routes.keys().map(|name| (name, self.route(name))).collect();
        let late = routes.iter().filter(|(name, _)| {
            sums[name].delay_warning().is_some() && sums[name].waits_for_the_rate()
        });
        let taken: BTreeMap<String, String> = late
            .filter_map(|(name, route_facts)| {
                let mut limits = route_facts.limits.iter();
                let taker = limits.find_map(|limit| most_of(limit, routes, &sums));
                Some((name.clone(), taker?))
            })
            .collect();
        for (name, route) in self.replicas.iter_mut().flat_map(|r| &mut r.routes) {
            route.taken = taken.get(name).cloned();
        }
    }
}

/// That a limit lets nothing pass, if it is one of `own` and does so.
fn shut_by(limit: &LimitStatus, own: &[String]) -> Option<String> {
    let name = own.iter().find(|name| limit.name == **name)?;
    let state = limit.state();
    let time_left = state.left()?;
    let time_left = Duration::from_secs(time_left.as_micros().div_ceil(1_000_000) as u64);
    let lasts = match time_left <= UNTIL_RESUMED {
        true => format!(" for another {}", Span(time_left)),
        false => String::new(),
    };
    Some(format!("its limit {name} is {}{lasts}", state.word()))
}

/// What messages of a route wait for at one of its limits, or at the route itself: a pause, or a freeze if none of them
/// is paced.
fn waited_for(waits: &[LimitWait], route: &str, limits: &[String]) -> Option<String> {
    waits.iter().find_map(|wait| {
        if wait.limit.strip_prefix(ROUTE) == Some(route) {
            return Some(wait.in_words());
        }
        let is_own = limits.contains(&wait.limit);
        is_own.then(|| format!("its limit {}: {}", wait.limit, wait.in_words()))
    })
}

/// Which route makes most of the calls of a limit that several routes share; `None`: one route has it alone, or none
/// makes a call.
fn most_of(
    limit: &String,
    routes: &Routes,
    sums: &BTreeMap<&String, RouteState>,
) -> Option<String> {
    let sharing = routes
        .iter()
        .filter(|(_, route_facts)| route_facts.limits.contains(limit));
    let rates: Vec<_> = sharing
        .map(|(name, _)| (name, sums[name].calls_per_second))
        .collect();
    let total: f64 = rates.iter().map(|(_, rate)| rate).sum();
    let (most, rate) = rates.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    (rates.len() > 1 && total > 0.0).then(|| {
        let share = 100.0 * rate / total;
        format!("of the routes that share limit {limit}, {most} makes {share:.0} % of the calls")
    })
}

/// `at` the time of day after `left`, with its date if that differs; below a minute `in` this many seconds,
/// because the time of day would be the current one.
pub(super) fn gone_at(now: &str, left: Duration) -> Option<String> {
    if left < MINUTE {
        return Some(format!("in {}s", left.as_secs()));
    }
    let today: Timestamp = now.parse().ok()?;
    let then = today.checked_add(left).ok()?.to_string();
    let (day, time_of_day) = then.split_once('T')?;
    let time = format!("{} UTC", time_of_day.get(..5)?);
    Some(match today.to_string().starts_with(day) {
        true => format!("at {time}"),
        false => format!("at {day} {time}"),
    })
}
