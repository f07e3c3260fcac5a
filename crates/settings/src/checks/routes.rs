//! Routes: their limits, whether prefetch, waits and timeouts fit each other, tenants and hours.

use std::time::Duration;

use tracing::Level;
use tracing_subscriber::filter::Targets;

use super::{Bound, Checks};
use crate::path::KeyPath;
use crate::schema::hint;
use crate::types::{Downstream, JournalLines, Limit, MAX_LIMITS, OnDenied, QueueBackend, Route};
use sluiced_core::rate::{Rate, Span};

/// A quarter of a smaller prefetch is too little to look ahead with.
const LEAST_PREFETCH: u16 = 16;

impl Checks<'_> {
    pub(super) fn routes(&mut self) {
        let settings = self.settings;
        if settings.routes.is_empty() && settings.callers.is_empty() {
            let message = "no route: nothing would be consumed; write a table [routes.NAME] with queue, limits and downstream, in a file that --config names";
            self.error(KeyPath::of(&["routes"]), message);
        }
        for (name, route) in &settings.routes {
            let path = KeyPath::of(&["routes", name]);
            self.name(&path, name);
            self.shares_queue(name, route);
            self.limits_of(&path, &route.limits);
            self.gives_back(&path, route);
            if let Some((limit, rate)) = self.pace_of(route) {
                self.prefetch(&path, route, limit, rate);
            }
            self.times(&path, route);
            self.claims(&path, route);
            self.tenants(&path, route);
            self.varies(path.join("fair_by"), route.fair_by.as_ref(), "fair_by");
            self.clock(&path, route);
            self.journal(&path, route);
            self.results(&path, route);
            self.priority(&path, name, route);
            match &route.downstream {
                Downstream::Http(http) => self.http(&path.join("downstream"), http),
                Downstream::Smpp(smpp) => {
                    self.smpp(&path.join("downstream"), smpp);
                    self.window(&path, route, smpp);
                }
            }
            self.quotas(&path, route);
            self.throttles(&path, route);
        }
    }

    /// Routes of one paced limit share its slots by priority. Limits of other kinds are asked by each route
    /// separately.
    fn priority(&mut self, path: &KeyPath, own: &str, route: &Route) {
        let settings = self.settings;
        let found = settings.routes.iter().find_map(|(name, other)| {
            let is_lower = name != own && other.priority.least() < route.priority.most();
            Some((
                name,
                self.shares_unpaced(route, other).filter(|_| is_lower)?,
            ))
        });
        if let Some((other, limit)) = found {
            let message = format!(
                "`routes.{other}` shares `{limit}` with it and no paced limit, so its messages do not wait for these; name one paced limit in both, or take the priority out"
            );
            let limits = KeyPath::of(&["routes", other, "limits"]);
            self.warning([path.join("priority"), limits], message);
        }
    }

    /// A limit that both routes name, if they share no paced one.
    fn shares_unpaced<'r>(&self, one: &Route, other: &'r Route) -> Option<&'r str> {
        let shared_names = other.limits.iter().filter(|name| one.limits.contains(name));
        let limits = &self.settings.limits;
        let mut shared_limits =
            shared_names.filter_map(|name| Some((name.as_str(), limits.get(name)?)));
        let is_paced = shared_limits
            .clone()
            .any(|(_, limit)| limit.as_paced().is_some());
        shared_limits
            .next()
            .map(|(name, _)| name)
            .filter(|_| !is_paced)
    }

    /// The paced limits that a route names, with their rates.
    fn paces_of<'r>(&self, named: &'r [String]) -> Vec<(&'r str, Rate)> {
        let paced = |name: &'r String| match self.settings.limits.get(name) {
            Some(Limit::Paced(limit)) => Some((name.as_str(), limit.rate.0)),
            _ => None,
        };
        named.iter().filter_map(paced).collect()
    }

    /// The paced limit of a route, if it has one and all of its limits are known.
    pub(super) fn pace_of<'r>(&self, route: &'r Route) -> Option<(&'r str, Rate)> {
        let is_known = |name: &String| self.settings.limits.contains_key(name);
        match self.paces_of(&route.limits)[..] {
            [paced] if route.limits.iter().all(is_known) => Some(paced),
            _ => None,
        }
    }

    /// The limits that a route or callers name.
    pub(super) fn limits_of(&mut self, path: &KeyPath, named: &[String]) {
        let at = path.join("limits");
        let limits = &self.settings.limits;
        for (i, name) in named.iter().enumerate() {
            if !limits.contains_key(name) {
                let known_names = limits.keys().map(String::as_str);
                let hint = hint(name, known_names, || {
                    format!("write a table [limits.{name}]")
                });
                let message = format!("no limit has the name `{name}`; {hint}");
                self.error([at.at(i), KeyPath::of(&["limits", name])], message);
            } else if named[..i].contains(name) {
                self.error(at.at(i), format!("`{name}` is named twice; name it once"));
            }
        }
        let mut paced = self.paces_of(named);
        paced.dedup();
        let count = named.len();
        if count == 0 {
            let message =
                "no limit: nothing would hold the calls of this route back; write [\"NAME\"]";
            self.error(at, message);
        } else if count > MAX_LIMITS {
            let message = format!(
                "{count} limits: a message asks all of them at once, and {MAX_LIMITS} is the most; leave some out"
            );
            self.error(at, message);
        } else if paced.len() > 1 {
            let names: Vec<_> = paced.iter().map(|(name, _)| *name).collect();
            let message = format!(
                "{} paced limits ({}): a message waits for one slot, so a route takes at most one; write kind = \"gcra\" for the others",
                names.len(),
                names.join(", ")
            );
            self.error(at, message);
        }
    }

    /// A message that is given back comes again at once unless the route stops consuming, as it does for a
    /// paced limit.
    fn gives_back(&mut self, path: &KeyPath, route: &Route) {
        if route.on_denied != OnDenied::Nack {
            return;
        }
        let limits = &self.settings.limits;
        let is_counted = |name: &&String| limits.get(*name).is_some_and(|l| l.as_paced().is_none());
        if let Some(name) = route.limits.iter().find(is_counted) {
            let message = format!(
                "a message that `{name}` denies would come back at once, again and again, for the others of the queue go on; nack is for a route with a paced limit alone; write hold, delay or dead_letter"
            );
            let kind = KeyPath::of(&["limits", name, "kind"]);
            self.error([path.join("on_denied"), path.join("limits"), kind], message);
        }
    }

    /// Whether the prefetch keeps the rate busy, and its messages are not held longer than the broker
    /// allows.
    fn prefetch(&mut self, path: &KeyPath, route: &Route, limit: &str, rate: Rate) {
        let prefetch = route.prefetch_for(rate);
        let latency = route.call_latency();
        let [at, hold, downstream] = path.all(["prefetch", "max_hold", "downstream"]);
        let rate_at = KeyPath::of(&["limits", limit, "rate"]);
        let mut keys = vec![at, rate_at, downstream.join("latency"), hold];
        let what = match route.prefetch {
            Some(_) => format!("{prefetch} messages"),
            None => format!("the default of {prefetch} messages"),
        };
        let busy = (rate.per_second() * latency.as_secs_f64()).ceil();
        if f64::from(prefetch) < busy {
            let default = route.default_prefetch(rate);
            let right = if route.prefetch.is_some() && f64::from(default) >= busy {
                format!("leave it out for {default}")
            } else {
                let most = busy.min(f64::from(u16::MAX));
                format!("write {most}, or run more replicas")
            };
            let message = format!(
                "{what} do not keep {rate} busy at a latency of {}: one replica alone needs {busy} or more; {right}",
                Span(latency)
            );
            self.warning(&keys, message);
        }
        let ack = self.settings.rabbitmq.ack_timeout.get();
        let held = f64::from(prefetch) / rate.per_second();
        let embedded = self.settings.backend.queue == QueueBackend::Embedded;
        if !embedded && prefetch > 1 && held > ack.as_secs_f64() / 2.0 {
            let in_half = rate.per_second() * ack.as_secs_f64() / 2.0;
            let right = in_half.floor().max(1.0);
            let (held, ack) = (Span(Duration::from_secs(held as u64)), Span(ack));
            let message = format!(
                "{what} at {rate} would be held for {held}, beyond half of the broker's ack timeout of {ack}; write {right} or less"
            );
            keys.push(KeyPath::of(&["rabbitmq", "ack_timeout"]));
            self.error(keys, message);
        }
    }

    fn results(&mut self, path: &KeyPath, route: &Route) {
        let Some(results) = &route.results else {
            return;
        };
        let table = path.join("results");
        if self.settings.backend.queue == QueueBackend::Embedded {
            let message =
                "an embedded queue publishes no results; take this table out, or use RabbitMQ";
            return self.error([table], message);
        }
        let back = results
            .queue()
            .filter(|queue| results.comes_back(queue, &route.queue));
        if let Some(queue) = back {
            let message = format!(
                "results in `{queue}` would come back to this route as messages; name another queue"
            );
            self.error([table.join("routing_key")], message);
        }
        self.deliveries(&table, route, results);
        if results.on.is_empty() {
            let message = "no result is published; write [\"accepted\", \"dead\"] or one of them, or take this table out";
            self.error([table.join("on")], message);
        }
    }

    fn times(&mut self, path: &KeyPath, route: &Route) {
        let [hold, downstream, retry] = path.all(["max_hold", "downstream", "retry"]);
        let ack = self.settings.rabbitmq.ack_timeout.get();
        if route.max_hold.get() >= ack / 2 {
            let [max_hold, ack, half] = [route.max_hold.get(), ack, ack / 2].map(Span);
            let message = format!(
                "{max_hold} is half of the broker's ack timeout of {ack} or more; write less than {half}"
            );
            self.error([hold, KeyPath::of(&["rabbitmq", "ack_timeout"])], message);
        }
        let grace = self.settings.service.grace.get();
        let by_grace = Bound {
            why: ": a stop would cut calls off",
            or: ", or a longer grace",
            ..Bound::plain(KeyPath::of(&["service", "grace"]), "service.grace", grace)
        };
        self.at_most(downstream.join("timeout"), route.call_timeout(), by_grace);
        let [base, max] = retry.all(["base", "max"]);
        let by_max = Bound::plain(max, "retry.max", route.retry.max.get());
        self.at_most(base, route.retry.base.get(), by_max);
    }

    /// A claim that ends before its call could be granted to another message meanwhile.
    fn claims(&mut self, path: &KeyPath, route: &Route) {
        let timeout = path.join("downstream").join("timeout");
        let settings = self.settings;
        for name in &route.limits {
            let Some(once) = settings.limits.get(name).and_then(Limit::as_once) else {
                continue;
            };
            let key = KeyPath::of(&["limits", name, "lease"]);
            let lease = format!("limits.{name}.lease");
            let bound = Bound {
                why: ": the claim of a dead replica would end before its call",
                or: ", or a longer lease",
                ..Bound::plain(key, &lease, once.lease.get())
            };
            self.at_most(timeout.clone(), route.call_timeout(), bound);
        }
    }

    /// Tenants need a template that names them, and a prefetch and queues that can hold parked messages.
    fn tenants(&mut self, path: &KeyPath, route: &Route) {
        let [fair, weights, parked, prefetch] =
            path.all(["fair_by", "weights", "parked", "prefetch"]);
        if route.fair_by.is_none() {
            let whose = "nothing names the tenant of a message; write fair_by = \"{{ body.tenant }}\" beside it, or take";
            if self.is_written(&parked) {
                let message = format!("nothing is parked where {whose} parked out");
                self.warning([parked, fair.clone()], message);
            }
            if !route.weights.is_empty() {
                self.error([weights, fair], format!("{whose} the weights out"));
            }
            return;
        }
        if route.parks() == 0 {
            return;
        }
        if let Some(held) = route.prefetch.filter(|held| *held < LEAST_PREFETCH) {
            let message = format!(
                "of {held} messages at a time none shows what stands behind them: tenants do not share fairly; write {LEAST_PREFETCH} or more"
            );
            self.warning([prefetch, fair.clone()], message);
        }
        let ours = format!("{}.parked.", route.queue);
        let settings = self.settings;
        for (name, _) in settings
            .routes
            .iter()
            .filter(|(_, other)| other.queue.starts_with(&ours))
        {
            let message = format!(
                "queues `{ours}0` to `{ours}7` are where the route of `{}` parks messages; name another queue",
                route.queue
            );
            self.error(
                [KeyPath::of(&["routes", name, "queue"]), fair.clone()],
                message,
            );
        }
    }

    /// The lines of a journal are logged only where the level lets them.
    fn journal(&mut self, path: &KeyPath, route: &Route) {
        let [journal, id] = path.all(["journal", "journal_id"]);
        if route.journal == JournalLines::None {
            if route.journal_id.is_some() {
                let message = "nothing is logged with it; write journal = \"after\" beside it, or take journal_id out";
                self.error([id, journal], message);
            }
            return;
        }
        let level = &self.settings.log.level;
        let filter = level.parse::<Targets>();
        if filter.is_ok_and(|filter| !filter.would_enable("sluiced::journal", &Level::INFO)) {
            let message = format!(
                "`{level}` logs none of its lines; write \"{level},sluiced::journal=info\""
            );
            self.warning([KeyPath::of(&["log", "level"]), journal], message);
        }
    }

    fn clock(&mut self, path: &KeyPath, route: &Route) {
        if route.timezone.is_some() && route.open.is_none() && route.days.is_none() {
            let message = "this route never closes, so no clock counts; write open = \"08:00-21:00\" beside it, or take timezone out";
            self.error(path.all(["timezone", "open", "days"]), message);
        }
    }
}
