//! Callers: where they ask, what protects that, their limits, and the headroom that they need.

use super::{Bound, Checks};
use crate::path::KeyPath;
use crate::types::{Callers, QueueBackend};
use sluiced_core::rate::Span;

impl Checks<'_> {
    pub(super) fn callers(&mut self) {
        let settings = self.settings;
        for (name, callers) in &settings.callers {
            let path = KeyPath::of(&["callers", name]);
            self.name(&path, name);
            self.named_apart(&path, name);
            self.limits_of(&path, &callers.limits);
            self.never_once(&path, callers);
            self.listens(&path, name, callers);
            self.keeps_use(&path, callers);
            self.ends_in_time(&path, callers);
            self.secret_file(&path.join("token_file"), callers.token_file.as_deref());
            let files = [&None, &callers.cert_file, &callers.key_file];
            self.tls_files(&path, files);
        }
        if !settings.callers.is_empty() {
            self.has_fleet();
        }
    }

    /// Pauses, metrics and reports have one name for each route, and callers are shown as routes.
    fn named_apart(&mut self, path: &KeyPath, name: &str) {
        let route = format!("callers.{name}");
        if self.settings.routes.contains_key(&route) {
            let message = format!(
                "a route has the name `{route}`, under which these callers are shown; give one of the two another name"
            );
            let other = KeyPath::of(&["routes", &route]);
            self.error([path.clone(), other], message);
        }
    }

    /// Whether a caller made its call is not known here.
    fn never_once(&mut self, path: &KeyPath, callers: &Callers) {
        for (i, name) in callers.limits.iter().enumerate() {
            let limit = self.settings.limits.get(name);
            if limit.is_some_and(|limit| limit.as_once().is_some()) {
                let message = format!(
                    "`{name}` calls each message of a queue once, and whether a caller was accepted is not known; leave it out here"
                );
                let kind = KeyPath::of(&["limits", name, "kind"]);
                self.error([path.join("limits").at(i), kind], message);
            }
        }
    }

    fn listens(&mut self, path: &KeyPath, name: &str, callers: &Callers) {
        let [listen, token, certificate] = path.all(["listen", "token_file", "cert_file"]);
        let others = self.settings.callers.iter();
        let mut before = others.take_while(|(other, _)| *other != name);
        if let Some((other, _)) = before.find(|(_, other)| other.listen == callers.listen) {
            let message = format!("`callers.{other}` listens there; write another place");
            let at = KeyPath::of(&["callers", other, "listen"]);
            self.error([listen, at], message);
        } else if !callers.listen.is_local()
            && (callers.token_file.is_none() || callers.cert_file.is_none())
        {
            let message = format!(
                "`{}` can be reached from other machines, so callers need a token, and TLS to hide it; write token_file, cert_file and key_file, or an address of loopback",
                callers.listen
            );
            self.error([listen, token, certificate], message);
        }
    }

    /// What a fixed headroom keeps for the way is what a caller has after its permit.
    fn keeps_use(&mut self, path: &KeyPath, callers: &Callers) {
        let wanted = callers.use_within.get();
        for name in &callers.limits {
            let Some(limit) = self.settings.limits.get(name) else {
                continue;
            };
            let kept = limit.headroom().way;
            let is_short = match limit.auto_bounds() {
                Some(bounds) => bounds.most / 2 < wanted,
                None => kept < wanted,
            };
            if !is_short || limit.counts_calls() {
                continue;
            }
            let at = KeyPath::of(&["limits", name, "headroom"]);
            let keys = [path.join("use_within"), at];
            let late = Span(wanted);
            let message = match limit.auto_bounds() {
                Some(bounds) => format!(
                    "a call may come {late} after its permit, and the headroom of `{name}` can keep no more than {}: calls would come too early for its window; write less",
                    Span(bounds.most / 2)
                ),
                None => format!(
                    "a call may come {late} after its permit, and the headroom of `{name}` keeps {} for that; write headroom = \"auto\" or {} there, or less here",
                    Span(kept),
                    Span(callers.use_within.get() * 4)
                ),
            };
            self.error(keys, message);
        }
    }

    /// A permit that its caller does not end is a call in flight, and a replica that stops waits for it.
    fn ends_in_time(&mut self, path: &KeyPath, callers: &Callers) {
        if self.settings.counts_after(callers) {
            let bound = Bound {
                key: KeyPath::of(&["service", "grace"]),
                name: "service.grace",
                time: self.settings.service.grace.get(),
                why: ": a replica that stops would not wait for the end of its permits",
                or: ", or a longer grace",
            };
            self.at_most(path.join("ends_after"), callers.ends_after.get(), bound);
        }
    }

    /// Without a queue the broker names no fleet.
    fn has_fleet(&mut self) {
        let settings = self.settings;
        let callers = KeyPath::of(&["callers"]);
        if settings.backend.queue == QueueBackend::Embedded {
            let queue = KeyPath::of(&["backend", "queue"]);
            let message = "a list comes to its end, and callers would be left alone then; write backend.queue = \"rabbitmq\", or take the callers out";
            self.error([callers, queue], message);
        } else if settings.routes.is_empty() && settings.redis.fleet.is_none() {
            let fleet = KeyPath::of(&["redis", "fleet"]);
            let message = "without a route there is no RabbitMQ that names the fleet; write redis.fleet, such as \"callers\"";
            self.error([callers, fleet], message);
        }
    }
}
