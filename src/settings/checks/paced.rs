//! Paced limits: horizon, cost, reserve.

use super::Checks;
use crate::core::rate::Span;
use crate::settings::path::KeyPath;
use crate::settings::text::Costing;
use crate::settings::types::Paced;

/// A paced limit that uses less than this of its rate, for the sake of large messages, is
/// probably not meant.
const SPARSE: f64 = 0.75;

impl Checks<'_> {
    pub(super) fn paced(&mut self, path: &KeyPath, name: &String, paced: &Paced) {
        let (headroom, horizon, least) =
            (paced.parts().all(), paced.horizon(), paced.least_horizon());
        let most = Paced::longest_headroom();
        let [at_horizon, at_headroom] = path.all(["horizon", "headroom"]);
        if headroom > most {
            let (headroom, most) = (Span(headroom), Span(most));
            let message = format!(
                "{headroom} asks for a horizon of four times as much, more than the longest one; write {most} or less"
            );
            self.error([at_headroom, at_horizon], message);
        } else if horizon < least {
            let (horizon, headroom, least) = (Span(horizon), Span(headroom), Span(least));
            let message = format!(
                "{horizon} is less than four times the headroom of {headroom}; write {least} or more, or take horizon out"
            );
            self.error([at_horizon, at_headroom], message);
        }
        self.largest_cost(path, paced);
        self.reserve(path, name, paced);
    }

    /// Whether the largest cost fits, and what it leaves of the rate.
    fn largest_cost(&mut self, path: &KeyPath, paced: &Paced) {
        let (rate, open) = (paced.rate.0, paced.open_rate());
        let largest = paced.largest_cost().get();
        let what = match (paced.max_cost, &paced.cost) {
            (Some(_), _) => format!("messages of up to {largest} units"),
            (None, Costing::Made(_)) => format!("messages of up to {largest} units (the default)"),
            (None, Costing::Units(_)) => format!("messages of {largest} units"),
        };
        let keys = match (paced.max_cost, &paced.cost) {
            (None, Costing::Units(_)) => ["cost", "rate", "max_cost", "reserve"],
            _ => ["max_cost", "rate", "cost", "reserve"],
        };
        let keys = path.all(keys);
        let Some(headroom) = paced.headroom_in_all() else {
            let units = open.units();
            let message = if open == rate {
                format!("{what} never fit into {rate}; write max_cost = {units} or less")
            } else {
                format!(
                    "{what} never fit into the {units} of {rate} that the reserve leaves; write max_cost = {units} or less, or a smaller reserve"
                )
            };
            self.error(keys, message);
            return;
        };
        let window = open.window().as_secs_f64();
        let used = window / (window + headroom.as_secs_f64());
        if largest > 1 && used < SPARSE {
            let percent = used * 100.0;
            let message = format!(
                "{what} leave only {percent:.0} % of {open} in use, for any of them may come; write a smaller max_cost if none are that large"
            );
            self.warning(keys, message);
        }
    }

    /// A reserve is for some messages, but not for all.
    fn reserve(&mut self, path: &KeyPath, name: &String, paced: &Paced) {
        let keys = path.all(["reserve", "reserve_priority"]);
        let least = paced.reserve_priority;
        if paced.reserve.is_none() {
            let [reserve, priority] = keys;
            if self.is_written(&priority) {
                let message = "there is no reserve that it could be for; write reserve = \"20%\" beside it, or take it out";
                self.warning([priority, reserve], message);
            }
            return;
        }
        let routes = self.settings.routes.iter();
        let users: Vec<_> = routes
            .filter(|(_, route)| route.limits.contains(name))
            .collect();
        if !users.is_empty() && users.iter().all(|(_, route)| route.priority >= least) {
            let message = format!(
                "every route of this limit has a priority of {least} or more, so everything may take the reserve and it keeps nothing free; write a lower priority for one of them, or a higher reserve_priority"
            );
            let priority = |route: &String| KeyPath::of(&["routes", route, "priority"]);
            let keys = keys
                .into_iter()
                .chain(users.iter().map(|(route, _)| priority(route)));
            self.warning(keys.collect::<Vec<_>>(), message);
        }
    }
}
