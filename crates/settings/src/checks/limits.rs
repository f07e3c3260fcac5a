//! Limits: which routes use them, the costs of messages, their headroom, and the rules of each kind.
//!
//! Problem: each key of a limit may be valid by itself, and the limit may still let nothing pass, or much less than is
//! meant: a message that costs more than ever fits, a headroom of half a window, a lease that ends before it can be
//! renewed. That would be seen only in production, as messages that wait. So the numbers of a limit are compared with
//! each other. What can never work is a fault, what costs more than is likely meant is a warning, and both name a value
//! that would do.

use std::time::Duration;

use super::Checks;
use crate::fixed_or_template::Costing;
use crate::path::KeyPath;
use crate::text::{TemplateText, WindowRate};
use crate::types::{FixedWindow, Limit, LimitBackend, Paced};
use sluiced_core::limits::most_plausible;
use sluiced_core::rate::{Cost, MAX_WINDOW, Span};
use sluiced_template as template;

/// How the names begin under which routes without a paced limit are shown.
const OF_ROUTES: &str = "route.";

/// Below this a busy machine cannot keep its slots (measured: timers are late by up to 4 ms), and a grant
/// hardly lasts longer than its way from Redis.
const THIN_HEADROOM: Duration = Duration::from_millis(2);

impl Checks<'_> {
    pub(super) fn limits(&mut self) {
        for (name, limit) in &self.settings.limits {
            let path = KeyPath::of(&["limits", name]);
            self.name(&path, name);
            self.is_no_route(&path, name);
            self.headroom(&path, limit);
            match limit {
                Limit::Paced(paced) => self.paced(&path, name, paced),
                counted => self.counted(&path, counted),
            }
            self.cost(&path, limit);
            self.estimate(&path, limit);
            self.varies(path.join("key"), limit.key(), "key");
            self.unused(path, name);
        }
    }

    /// What a route without a paced limit waits for has a name in metrics and logs as if it were a limit.
    fn is_no_route(&mut self, path: &KeyPath, name: &str) {
        if name.starts_with(OF_ROUTES) {
            let message = format!(
                "names that begin with `{OF_ROUTES}` stand for routes without a paced limit; give the limit another name"
            );
            self.error(path, message);
        }
    }

    /// A text without a template puts all messages under one key: the braces were forgotten.
    pub(super) fn varies(&mut self, path: KeyPath, text: Option<&TemplateText>, what: &str) {
        if let Some(text) = text.filter(|text| !template::is_template(text.as_str())) {
            let text = text.as_str();
            let message = format!(
                "`{text}` is the same for every message; write a template, such as \"{{{{ body.to }}}}\", or take {what} out"
            );
            self.warning(path, message);
        }
    }

    /// The headroom against the window that it is a part of, and against what a machine can keep.
    fn headroom(&mut self, path: &KeyPath, limit: &Limit) {
        let (key, what, of) = match limit {
            Limit::Paced(_) => ("rate", "window", "rate"),
            Limit::TokenBucket(_) => ("interval", "interval", "limit"),
            Limit::Concurrency(_) | Limit::Once(_) => ("lease", "lease", "limit"),
            _ => ("rate", "window", "limit"),
        };
        let (headroom, window) = (limit.headroom().all(), limit.window());
        let [at, at_window] = path.all(["headroom", key]);
        let (length, span, half) = (Span(headroom), Span(window), Span(window / 2));
        if headroom >= window / 2 && (self.is_written(&at) || limit.as_paced().is_some()) {
            let message = format!(
                "{length} is half of the {what} of {span} or more, and would cost as much of the {of}; write less than {half}"
            );
            self.error([at, at_window], message);
        } else if headroom >= window / 2 {
            let message = format!(
                "this {what} of {span} is too short for the default headroom of {length}; write a longer one, or a headroom of less than {half}"
            );
            self.error([at_window, at], message);
        } else if headroom < THIN_HEADROOM && limit.as_paced().is_some() {
            let message = format!(
                "{length} is less than a busy machine can keep: calls come late and slots are dropped; write 2ms or more, 5ms is good"
            );
            self.warning(at, message);
        } else if headroom < THIN_HEADROOM {
            let lateness = Span(limit.headroom().late);
            let message = format!(
                "a call may leave up to {lateness} after Redis allowed it, less than the answer takes to arrive: hardly a message would be sent; write 2ms or more, or leave it out"
            );
            self.warning(at, message);
        }
    }

    /// A cost that is a number must fit. If it is a template, more than one unit must fit.
    fn cost(&mut self, path: &KeyPath, limit: &Limit) {
        let most = limit.largest_cost().get();
        let (key, value) = match limit {
            Limit::Paced(_) => ("max_cost", 0),
            Limit::Gcra(_) => ("burst", 1),
            Limit::TokenBucket(_) => ("capacity", 0),
            Limit::FixedWindow(_) | Limit::SlidingLog(_) => ("rate", 0),
            Limit::Concurrency(_) => ("limit", 0),
            // It has no cost.
            Limit::Once(_) => return,
        };
        let keys = path.all(["cost", key]);
        match limit.cost() {
            Costing::Fixed(cost) if cost.get() > most => {
                let cost = cost.get();
                let needed = match key {
                    "rate" => "a larger rate".to_owned(),
                    key => format!("{key} = {}", cost - value),
                };
                let message = format!(
                    "a message of {cost} can never pass, for {most} is the most that fits; write {most} or less, or {needed}"
                );
                self.error(keys, message);
            }
            Costing::Template(_) if most == 1 => {
                let message = format!(
                    "a message of more than 1 can never pass, for 1 is the most that fits; write a larger {key}, or take cost out"
                );
                self.warning(keys, message);
            }
            _ => {}
        }
    }

    /// Until an answer says what a call used, the call counts with its cost. What it says is believed up to a bound.
    fn estimate(&mut self, path: &KeyPath, limit: &Limit) {
        let [actual, cost, most] = path.all(["actual", "cost", "max_actual"]);
        let written = limit.max_actual();
        if limit.actual().is_none() {
            if written.is_some() {
                let message = "no answer says what a call used; write actual beside it, or take max_actual out";
                self.warning([most, actual], message);
            }
            return;
        }
        if !self.is_written(&cost) {
            let believed = most_plausible(Cost::ONE, written);
            let message = format!(
                "each call counts 1 until its answer says more, so that as many are under way as the limit has units, and an answer is believed up to {believed}; write a cost beside it: about what a call uses"
            );
            self.warning([actual, cost, most], message);
        } else if let (Some(written), Costing::Fixed(estimate)) = (written, limit.cost())
            && written.get() < estimate.get()
        {
            let (written, estimate) = (written.get(), estimate.get());
            let message = format!(
                "{written} is less than the estimate of {estimate}, so no answer that says more than the estimate would be believed; write more, or leave it out for {}",
                most_plausible(Cost::ONE, None) * u64::from(estimate)
            );
            self.error([most, cost], message);
        }
    }

    /// A limit that no route names; silent if a route names one that is not defined, because
    /// that is then probably this one.
    fn unused(&mut self, path: KeyPath, name: &String) {
        let settings = self.settings;
        let mut named = settings.named_limits();
        if named.any(|other| other == name || !settings.limits.contains_key(other)) {
            return;
        }
        let Some(first) = settings.routes.keys().next() else {
            return;
        };
        let limits_of = |route: &String| KeyPath::of(&["routes", route, "limits"]);
        let looked_at = settings.routes.keys().map(limits_of);
        let keys: Vec<_> = std::iter::once(path).chain(looked_at).collect();
        let message =
            format!("no route uses this limit; name it in `routes.{first}.limits` or take it out");
        self.warning(keys, message);
    }
}

/// A log beyond this is expensive in memory and slow to search.
const LONG_LOG: u32 = 1_000;
/// A log beyond this would stall Redis for all of its clients.
const LONGEST_LOG: u32 = 10_000;
/// With fewer free units at once, a message of several units seldom finds enough beside smaller ones.
const FEW: u32 = 10;
/// If all of a limit is back sooner than this, no message waits for long.
const SLOW: Duration = Duration::from_secs(60);
/// A shorter lease hardly leaves time to renew it.
const SHORT_LEASE: Duration = Duration::from_secs(2);

impl Checks<'_> {
    pub(super) fn counted(&mut self, path: &KeyPath, limit: &Limit) {
        self.costly(path, limit);
        match limit {
            Limit::Gcra(_) => self.recovery(&path.all(["burst", "rate"]), limit, "burst"),
            Limit::TokenBucket(_) => {
                let keys = path.all(["capacity", "refill", "interval", "borrow"]);
                self.recovery(&keys, limit, "bucket");
            }
            Limit::FixedWindow(limit) => self.fixed_window(path, &limit.own),
            Limit::SlidingLog(limit) => self.sliding_log(path, limit.own.rate.0.units().get()),
            Limit::Concurrency(limit) => self.lease(path, limit.own.lease.get()),
            Limit::Once(limit) => self.lease(path, limit.lease.get()),
            Limit::Paced(_) => {}
        }
    }

    /// Any message that fits passes, so a message that needs all of a small limit waits for as long as
    /// smaller ones come.
    fn costly(&mut self, path: &KeyPath, limit: &Limit) {
        let most = limit.largest_cost().get();
        let is_made = matches!(limit.cost(), Costing::Template(_));
        let is_slow = limit.as_paced().is_none() && limit.memory() >= SLOW;
        if is_slow && is_made && (2..FEW).contains(&most) {
            let message = format!(
                "a message of {most} fits only while nothing else counts: smaller ones of its key pass it for as long as they come; give such messages a route and a limit of their own (`sluiced plan` shows how long they wait)"
            );
            self.warning(path.join("cost"), message);
        }
    }

    /// Whether all of a used-up limit is back in a reasonable time.
    fn recovery(&mut self, keys: &[KeyPath], limit: &Limit, what: &str) {
        let recovery = limit.memory();
        if recovery > MAX_WINDOW {
            let (recovery, most) = (Duration::from_secs(recovery.as_secs()), Span(MAX_WINDOW));
            let message = format!(
                "a {what} that was used up would take {} to be whole again; write numbers that make it {most} or less",
                Span(recovery)
            );
            self.error(keys, message);
        }
    }

    fn fixed_window(&mut self, path: &KeyPath, limit: &FixedWindow) {
        match limit.rate {
            WindowRate::Calendar { each, .. } if limit.aligned => {
                let message = format!(
                    "a {each} of the calendar begins when the calendar says; take aligned out, or write a duration in the rate"
                );
                self.error(path.all(["aligned", "rate"]), message);
            }
            WindowRate::Every(rate) if limit.timezone.is_some() => {
                let message = format!(
                    "a window of {} is as long everywhere; write a word of the calendar in the rate, such as \"{}/day\", or take timezone out",
                    Span(rate.window()),
                    rate.units()
                );
                self.error(path.all(["timezone", "rate"]), message);
            }
            WindowRate::Every(_) | WindowRate::Calendar { .. } => {}
        }
    }

    fn sliding_log(&mut self, path: &KeyPath, units: u32) {
        let others = "gcra, fixed_window and paced keep one number";
        if units > LONGEST_LOG {
            let message = format!(
                "a log of {units} units for each key is too long; write {LONGEST_LOG} or less, or another kind: {others}"
            );
            self.error(path.join("rate"), message);
        } else if units > LONG_LOG {
            let message = format!(
                "a log of {units} units for each key is costly; sliding_log is for {LONG_LOG} or less: {others}"
            );
            self.warning(path.join("rate"), message);
        }
    }

    fn lease(&mut self, path: &KeyPath, lease: Duration) {
        if lease < SHORT_LEASE {
            let message = format!(
                "{} hardly leaves time to renew it while a call runs; write {} or more, 30s is good",
                Span(lease),
                Span(SHORT_LEASE)
            );
            self.warning(path.join("lease"), message);
        }
    }
}

/// A paced limit that uses less than this of its rate, because of large messages, is probably a
/// mistake.
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
            (None, Costing::Template(_)) => {
                format!("messages of up to {largest} units (the default)")
            }
            (None, Costing::Fixed(_)) => format!("messages of {largest} units"),
        };
        let keys = path.all(match (paced.max_cost, &paced.cost) {
            (None, Costing::Fixed(_)) => ["cost", "rate", "max_cost", "reserve"],
            _ => ["max_cost", "rate", "cost", "reserve"],
        });
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
        let units = rate.units().get();
        let is_shared = self.settings.backend.limits == LimitBackend::Redis;
        if is_shared && !paced.leases_whole(units, largest) {
            let (mut most, mut beyond) = (1, largest);
            while beyond - most > 1 {
                let middle = most.midpoint(beyond);
                match paced.leases_whole(units, middle) {
                    true => most = middle,
                    false => beyond = middle,
                }
            }
            let spread = Span(Duration::from_secs(
                paced.paces().main.slot_span().as_secs(),
            ));
            let key = match (paced.max_cost, &paced.cost) {
                (None, Costing::Fixed(_)) => "cost",
                _ => "max_cost",
            };
            let message = format!(
                "{what} take slots that lie {spread} apart in {open}: of several replicas none would get all slots of such a message; write {key} = {most} or less, or a shorter window"
            );
            self.error(keys, message);
            return;
        }
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
        let rate = paced.rate_in_force();
        if rate.units().get() == 1 {
            let [reserve, _] = keys;
            let message = format!(
                "a rate of 1 unit leaves nothing to keep in reserve; write one of more units, such as 60/1m in place of 1/1s, or take reserve out of limits.{name}"
            );
            self.error([path.join("rate"), reserve], message);
            return;
        }
        let routes = self.settings.routes.iter().map(|(route, route_settings)| {
            let at = KeyPath::of(&["routes", route, "priority"]);
            (at, &route_settings.limits, route_settings.priority.least())
        });
        let callers = self.settings.callers.iter().map(|(name, caller_settings)| {
            let at = KeyPath::of(&["callers", name, "priority"]);
            (at, &caller_settings.limits, caller_settings.priority)
        });
        let users: Vec<_> = routes
            .chain(callers)
            .filter(|(_, limits, _)| limits.contains(name))
            .collect();
        if !users.is_empty() && users.iter().all(|(.., priority)| *priority >= least) {
            let message = format!(
                "every route of this limit has a priority of {least} or more, so everything may take the reserve and it keeps nothing free; write a lower priority for one of them, or a higher reserve_priority"
            );
            let priorities = users.into_iter().map(|(at, ..)| at);
            self.warning(
                keys.into_iter().chain(priorities).collect::<Vec<_>>(),
                message,
            );
        }
    }
}
