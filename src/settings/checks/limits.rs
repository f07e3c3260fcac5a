//! Limits: who uses them, what they count, and the paced ones: headroom, horizon, cost, reserve.

use std::time::Duration;

use super::Checks;
use crate::core::rate::Span;
use crate::settings::path::KeyPath;
use crate::settings::text::Costing;
use crate::settings::types::{Limit, Paced};

/// Below this a busy machine cannot keep its slots (measured: timers are late by up to 4 ms).
const THIN_HEADROOM: Duration = Duration::from_millis(2);
/// A shorter horizon leaves no time to fetch the next lease.
const MIN_HORIZON: Duration = Duration::from_millis(20);
/// A longer one loses too much with a replica that dies.
const MAX_HORIZON: Duration = Duration::from_secs(1);

/// A paced limit that uses less than this of its rate, for the sake of large messages, is
/// probably not meant.
const SPARSE: f64 = 0.75;

impl Checks<'_, '_> {
    pub(super) fn limits(&mut self) {
        for (name, limit) in &self.settings.limits {
            let path = KeyPath::of(&["limits", name]);
            self.name(&path, name);
            match limit {
                Limit::Paced(paced) => {
                    self.paced(&path, paced);
                    self.paced_cost(&path, paced);
                    self.reserve(&path, name, paced);
                }
                budget => self.budget(&path, budget),
            }
            self.cost(&path, limit);
            self.unused(path, name);
        }
    }

    /// A limit that no route names; silent if a route names one that is not defined, for that is
    /// then probably this one.
    fn unused(&mut self, path: KeyPath, name: &String) {
        let settings = self.settings;
        let mut named = settings.routes.values().flat_map(|route| &route.limits);
        if named.any(|other| other == name || !settings.limits.contains_key(other)) {
            return;
        }
        let Some(first) = settings.routes.keys().next() else {
            return;
        };
        let looked = settings.routes.keys();
        let looked = looked.map(|route| KeyPath::of(&["routes", route, "limits"]));
        let paths: Vec<_> = std::iter::once(path).chain(looked).collect();
        let message =
            format!("no route uses this limit; name it in `routes.{first}.limits` or take it out");
        self.warning(&paths, message);
    }

    fn paced(&mut self, path: &KeyPath, paced: &Paced) {
        let window = paced.rate.0.window();
        let headroom = paced.headroom.get();
        let horizon = paced.horizon.get();
        let (at_rate, at_headroom, at_horizon) = (
            path.join("rate"),
            path.join("headroom"),
            path.join("horizon"),
        );
        if headroom >= window / 2 {
            let message = format!(
                "{} is half of the window of {} or more, and would cost as much of the rate; write less than {}",
                Span(headroom),
                Span(window),
                Span(window / 2)
            );
            self.error(&[at_headroom.clone(), at_rate], message);
        } else if headroom < THIN_HEADROOM {
            let message = format!(
                "{} is less than a busy machine can keep: calls come late and slots are dropped; write 2ms or more, 5ms is good",
                Span(headroom)
            );
            self.warning(std::slice::from_ref(&at_headroom), message);
        }
        if horizon < MIN_HORIZON || horizon > MAX_HORIZON {
            let message = format!("{} is out of range; write 20ms to 1s", Span(horizon));
            self.error(&[at_horizon], message);
        } else if horizon < headroom * 4 {
            let right = if headroom * 4 <= MAX_HORIZON {
                format!("write {} or more", Span(headroom * 4))
            } else {
                format!("write a headroom of {} or less", Span(MAX_HORIZON / 4))
            };
            let message = format!(
                "{} is less than four times the headroom of {}; {right}",
                Span(horizon),
                Span(headroom)
            );
            self.error(&[at_horizon, at_headroom], message);
        }
    }

    /// What a message takes: a template that can be read, or a number that fits.
    fn cost(&mut self, path: &KeyPath, limit: &Limit) {
        let at = path.join("cost");
        match limit.cost() {
            Costing::Made(template) => self.plain_template(&at, template.as_str()),
            Costing::Units(cost) if *cost > limit.largest_cost() => {
                let (cost, most) = (cost.get(), limit.largest_cost().get());
                // The key that says so, and what it would have to be.
                let (key, needed) = match limit {
                    Limit::Paced(_) => ("max_cost", format!("max_cost = {cost}")),
                    Limit::Gcra(_) => ("burst", format!("burst = {}", cost - 1)),
                    Limit::TokenBucket(_) => ("capacity", format!("capacity = {cost}")),
                    Limit::FixedWindow(_) | Limit::SlidingLog(_) => {
                        ("rate", "a larger rate".to_owned())
                    }
                    Limit::Concurrency(_) => ("limit", format!("limit = {cost}")),
                };
                let message = format!(
                    "a message of {cost} can never pass, for {most} is the most that fits; write {most} or less, or {needed}"
                );
                self.error(&[at, path.join(key)], message);
            }
            Costing::Units(_) => {}
        }
    }

    /// Whether the largest cost fits, and what it leaves of the rate.
    fn paced_cost(&mut self, path: &KeyPath, paced: &Paced) {
        let rate = paced.rate.0;
        let largest = paced.largest_cost().get();
        let (at_rate, at_cost, at_most) =
            (path.join("rate"), path.join("cost"), path.join("max_cost"));
        let what = match (paced.max_cost, &paced.cost) {
            (Some(_), _) => format!("messages of up to {largest} units"),
            (None, Costing::Made(_)) => format!("messages of up to {largest} units (the default)"),
            (None, Costing::Units(_)) => format!("messages of {largest} units"),
        };
        let paths = match (paced.max_cost, &paced.cost) {
            (None, Costing::Units(_)) => [at_cost, at_rate, at_most],
            _ => [at_most, at_rate, at_cost],
        };
        let Some(headroom) = paced.headroom_in_all() else {
            let message = format!(
                "{what} never fit into {rate}; write max_cost = {} or less",
                rate.units()
            );
            self.error(&paths, message);
            return;
        };
        let window = rate.window().as_secs_f64();
        let used = window / (window + headroom.as_secs_f64());
        if largest > 1 && used < SPARSE {
            let message = format!(
                "{what} leave only {:.0} % of {rate} in use, for any of them may come; write a smaller max_cost if none are that large",
                used * 100.0
            );
            self.warning(&paths, message);
        }
    }

    /// A reserve is for somebody, but not for everybody.
    fn reserve(&mut self, path: &KeyPath, name: &String, paced: &Paced) {
        let (at, at_priority) = (path.join("reserve"), path.join("reserve_priority"));
        let least = paced.reserve_priority;
        if paced.reserve.is_none() {
            if self.is_written(&at_priority) {
                let message = "there is no reserve that it could be for; write reserve = \"20%\" beside it, or take it out";
                self.warning(&[at_priority, at], message);
            }
            return;
        }
        let users: Vec<_> = self
            .settings
            .routes
            .iter()
            .filter(|(_, route)| route.limits.contains(name))
            .collect();
        if !users.is_empty() && users.iter().all(|(_, route)| route.priority >= least) {
            let message = format!(
                "every route of this limit has a priority of {least} or more, so everything may take the reserve and it keeps nothing free; write a lower priority for one of them, or a higher reserve_priority"
            );
            let priorities = users
                .iter()
                .map(|(route, _)| KeyPath::of(&["routes", route, "priority"]));
            let paths: Vec<_> = [at, at_priority].into_iter().chain(priorities).collect();
            self.warning(&paths, message);
        }
    }
}
