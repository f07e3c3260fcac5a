//! Routes that share a queue: what they must have in common, and standbys.

use super::Checks;
use crate::path::KeyPath;
use crate::types::{Limit, QueueType, Route};
use sluiced_template::Templates;

impl Checks<'_> {
    /// A route with the first other route of its queue, and with the one that it stands by for.
    pub(super) fn shares_queue(&mut self, name: &str, route: &Route) {
        self.stands_by(name, route);
        self.publishes_apart(name, route);
        let settings = self.settings;
        let first = settings.of_queue(&route.queue).next();
        let Some((other_name, other)) = first.filter(|(first, _)| *first != name) else {
            return;
        };
        let wrong = self
            .called_apart(other_name, other, route)
            .or_else(|| declared_apart(other_name, other, route));
        if let Some((key, message)) = wrong {
            let at = |name: &str| KeyPath::of(&["routes", name, key]);
            self.error([at(name), at(other_name)], message);
        }
        self.keyed_apart(route);
    }

    /// The other route must know which messages one of them has called.
    fn called_apart(
        &self,
        other_name: &str,
        other: &Route,
        route: &Route,
    ) -> Option<(&'static str, String)> {
        let limits = &self.settings.limits;
        let is_once = |name: &String| {
            limits
                .get(name)
                .is_some_and(|limit| limit.as_once().is_some())
        };
        let only = |one: &Route, other: &Route| {
            let mut once = one.limits.iter().filter(|name| is_once(name));
            once.find(|name| !other.limits.contains(name)).cloned()
        };
        let limit = only(route, other).or_else(|| only(other, route))?;
        let message = format!(
            "`{limit}` calls each message once, and only one of this route and `routes.{other_name}` names it, so the other one could call what was called before; name it in both"
        );
        Some(("limits", message))
    }

    /// A message has one key, whichever of them calls it.
    fn keyed_apart(&mut self, route: &Route) {
        let settings = self.settings;
        for name in &route.limits {
            let once = settings.limits.get(name).and_then(Limit::as_once);
            let mut templates = Templates::new();
            let key = once.and_then(|once| templates.add("key", once.key.as_str()).ok());
            if key.is_some() && templates.uses("route") {
                let message = format!(
                    "with `route` in it a message has another key in each route of the queue `{}`, and each of them could call it; take `route` out, and write a limit of its own for each queue",
                    route.queue
                );
                self.error(KeyPath::of(&["limits", name, "key"]), message);
            }
        }
    }

    /// Results of one queue are published by one session, for verdicts of any of its routes.
    fn publishes_apart(&mut self, name: &str, route: &Route) {
        let settings = self.settings;
        let results_of = |route: &Route| {
            let results = route.results.as_ref()?;
            Some((results.exchange.clone(), results.unroutable()))
        };
        let mut of_queue = settings.of_queue(&route.queue);
        let first = of_queue.find_map(|(first, other)| Some((first, results_of(other)?)));
        let Some((other_name, theirs)) = first.filter(|(first, _)| *first != name) else {
            return;
        };
        let at = |name: &str| KeyPath::of(&["routes", name, "results"]);
        match results_of(route) {
            Some(own) if own != theirs => {
                let message = format!(
                    "`routes.{other_name}` publishes the results of the same queue to another exchange, or treats unroutable ones differently; write the same in both"
                );
                self.error([at(name), at(other_name)], message);
            }
            Some(_) => {}
            None => {
                let message = format!(
                    "`routes.{other_name}` of the same queue publishes results, and this route does not: of what it sends nothing is published; write the table in both, or in none"
                );
                let queue = KeyPath::of(&["routes", name, "queue"]);
                self.warning([queue, at(other_name)], message);
            }
        }
    }

    /// The main route of a standby consumes the same queue.
    fn stands_by(&mut self, name: &str, route: &Route) {
        let Some(main) = &route.standby_for else {
            return;
        };
        let queue = &route.queue;
        let message = match self.settings.routes.get(main) {
            None => {
                format!("no route has the name `{main}`; name a route with queue = \"{queue}\"")
            }
            Some(_) if main == name => {
                "a route cannot stand by for itself; name the other route of the queue".to_owned()
            }
            Some(other) if other.queue != *queue => format!(
                "`routes.{main}` consumes `{}`, this route has `{queue}`; write the same queue in both",
                other.queue
            ),
            Some(other) if other.standby_for.is_some() => format!(
                "`routes.{main}` is a standby itself, and would consume nothing; name a route that consumes `{queue}`"
            ),
            Some(_) => return,
        };
        let at = |name: &str, key: &str| KeyPath::of(&["routes", name, key]);
        let keys = [
            at(name, "standby_for"),
            at(name, "queue"),
            at(main, "queue"),
            at(main, "standby_for"),
        ];
        self.error(keys, message);
    }
}

/// Routes of one queue declare it, and the queues that belong to it, in the same way.
fn declared_apart(
    other_name: &str,
    other: &Route,
    route: &Route,
) -> Option<(&'static str, String)> {
    let in_words = |queue_type: QueueType| match queue_type {
        QueueType::Classic => "\"classic\"",
        QueueType::Quorum => "\"quorum\"",
    };
    let alike = |theirs: &str| {
        format!(
            "`routes.{other_name}` has {theirs}; routes of one queue declare it alike, so write the same"
        )
    };
    if other.queue_type != route.queue_type {
        Some(("queue_type", alike(in_words(other.queue_type))))
    } else if other.declare != route.declare {
        Some(("declare", alike(&other.declare.to_string())))
    } else if (other.parks() > 0) != (route.parks() > 0) {
        let message = format!(
            "only one of this route and `routes.{other_name}` parks messages beside their queue; write fair_by in both, or parked = 0"
        );
        Some(("fair_by", message))
    } else {
        None
    }
}
