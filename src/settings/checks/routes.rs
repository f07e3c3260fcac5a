//! Routes: their limits, and whether prefetch, waits and timeouts fit each other.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Checks;
use crate::core::rate::{Rate, Span};
use crate::settings::path::KeyPath;
use crate::settings::schema::nearest;
use crate::settings::types::{Downstream, Limit, MAX_LIMITS, QueueBackend, Route};

impl Checks<'_, '_> {
    pub(super) fn routes(&mut self) {
        let settings = self.settings;
        if settings.routes.is_empty() {
            self.error(
                &[KeyPath::of(&["routes"])],
                "no route: nothing would be consumed; write a table [routes.NAME] with queue, limits and downstream",
            );
        }
        let mut queues: BTreeMap<&str, &str> = BTreeMap::new();
        for (name, route) in &settings.routes {
            let path = KeyPath::of(&["routes", name]);
            self.name(&path, name);
            self.queue(&path, route, name, &mut queues);
            if let Some((limit, rate)) = self.limits_of(&path, route) {
                self.prefetch(&path, route, &limit, rate);
            }
            self.times(&path, route);
            self.turns(&path, route);
            match &route.downstream {
                Downstream::Http(http) => self.http(&path.join("downstream"), http),
            }
        }
    }

    fn queue<'q>(
        &mut self,
        path: &KeyPath,
        route: &'q Route,
        name: &'q str,
        queues: &mut BTreeMap<&'q str, &'q str>,
    ) {
        let at = path.join("queue");
        if let Some(other) = queues.insert(&route.queue, name) {
            let message =
                format!("`routes.{other}` consumes this queue already; one queue, one route");
            let other = KeyPath::of(&["routes", other, "queue"]);
            self.error(&[at.clone(), other], message);
        }
        // AMQP's short strings have 255 bytes, and ours get `.wait.<delay>` behind the name.
        if route.queue.is_empty() || route.queue.len() > 200 {
            let message = "a queue's name must have 1 to 200 bytes";
            self.error(std::slice::from_ref(&at), message);
        }
        if route.queue.starts_with("amq.") {
            let message =
                "names that start with `amq.` belong to the broker; name a queue of your own";
            self.error(&[at], message);
        }
    }

    /// The paced limit of a route and its rate, if it has one and all of its limits are right.
    fn limits_of(&mut self, path: &KeyPath, route: &Route) -> Option<(String, Rate)> {
        let at = path.join("limits");
        let limits = &self.settings.limits;
        let mut paced = Vec::new();
        for (i, name) in route.limits.iter().enumerate() {
            let element = at.at(i);
            match limits.get(name) {
                None => {
                    let hint = nearest(name, limits.keys().map(String::as_str)).map_or_else(
                        || format!("write a table [limits.{name}]"),
                        |near| format!("did you mean \"{near}\"?"),
                    );
                    let defined = KeyPath::of(&["limits", name]);
                    let message = format!("no limit has the name `{name}`; {hint}");
                    self.error(&[element, defined], message);
                }
                Some(_) if route.limits[..i].contains(name) => {
                    self.error(&[element], format!("`{name}` is named twice; name it once"));
                }
                Some(Limit::Paced(limit)) => paced.push((name.clone(), limit.rate.0)),
                Some(_) => {}
            }
        }
        let count = route.limits.len();
        let wrong = if count == 0 {
            Some(
                "no limit: nothing would hold the calls of this route back; write [\"NAME\"]"
                    .to_owned(),
            )
        } else if count > MAX_LIMITS {
            Some(format!(
                "{count} limits: a message asks all of them at once, and {MAX_LIMITS} is the most; leave some out"
            ))
        } else if paced.len() > 1 {
            let names: Vec<_> = paced.iter().map(|(name, _)| name.as_str()).collect();
            Some(format!(
                "{} paced limits ({}): a message waits for one slot, so a route takes at most one; write kind = \"gcra\" for the others",
                paced.len(),
                names.join(", ")
            ))
        } else {
            None
        };
        if let Some(message) = wrong {
            self.error(std::slice::from_ref(&at), message);
            return None;
        }
        let defined = route.limits.iter().all(|name| limits.contains_key(name));
        paced.pop().filter(|_| defined)
    }

    fn prefetch(&mut self, path: &KeyPath, route: &Route, limit: &str, rate: Rate) {
        let prefetch = route.prefetch_for(rate);
        let latency = route.call_latency();
        let at = path.join("prefetch");
        let looked = [
            at.clone(),
            KeyPath::of(&["limits", limit, "rate"]),
            path.join("downstream").join("latency"),
            path.join("max_hold"),
        ];
        let what = match route.prefetch {
            Some(_) => format!("{prefetch} messages"),
            None => format!("the default of {prefetch} messages"),
        };
        let busy = (rate.per_second() * latency.as_secs_f64()).ceil();
        if f64::from(prefetch) < busy {
            let default = Route {
                prefetch: None,
                ..route.clone()
            };
            let default = default.prefetch_for(rate);
            let right = if route.prefetch.is_some() && f64::from(default) >= busy {
                format!("leave it out for {default}")
            } else {
                format!(
                    "write {}, or run more replicas",
                    busy.min(f64::from(u16::MAX))
                )
            };
            let message = format!(
                "{what} do not keep {rate} busy at a latency of {}: one replica alone needs {busy} or more; {right}",
                Span(latency)
            );
            self.warning(&looked, message);
        }
        let ack = self.settings.rabbitmq.ack_timeout.get();
        let held = f64::from(prefetch) / rate.per_second();
        let embedded = self.settings.backend.queue == QueueBackend::Embedded;
        if !embedded && prefetch > 1 && held > ack.as_secs_f64() / 2.0 {
            let right = (rate.per_second() * ack.as_secs_f64() / 2.0)
                .floor()
                .max(1.0);
            let message = format!(
                "{what} at {rate} would be held for {}, beyond half of the broker's ack timeout of {}; write {right} or less",
                Span(Duration::from_secs(held as u64)),
                Span(ack)
            );
            let paths = [&looked[..], &[KeyPath::of(&["rabbitmq", "ack_timeout"])]].concat();
            self.error(&paths, message);
        }
    }

    fn times(&mut self, path: &KeyPath, route: &Route) {
        let ack = self.settings.rabbitmq.ack_timeout.get();
        let ack_at = KeyPath::of(&["rabbitmq", "ack_timeout"]);
        let max_hold = route.max_hold.get();
        if max_hold >= ack / 2 {
            let message = format!(
                "{} is half of the broker's ack timeout of {} or more; write less than {}",
                Span(max_hold),
                Span(ack),
                Span(ack / 2)
            );
            self.error(&[path.join("max_hold"), ack_at], message);
        }
        let (timeout, grace) = (route.call_timeout(), self.settings.service.grace.get());
        if timeout > grace {
            let message = format!(
                "{} is longer than service.grace of {}: a stop would cut calls off; write {} or less, or a longer grace",
                Span(timeout),
                Span(grace),
                Span(grace)
            );
            let paths = [
                path.join("downstream").join("timeout"),
                KeyPath::of(&["service", "grace"]),
            ];
            self.error(&paths, message);
        }
        let (base, max) = (route.retry.base.get(), route.retry.max.get());
        if base > max {
            let retry = path.join("retry");
            let message = format!(
                "{} is longer than retry.max of {}; write {} or less",
                Span(base),
                Span(max),
                Span(max)
            );
            self.error(&[retry.join("base"), retry.join("max")], message);
        }
    }
}
