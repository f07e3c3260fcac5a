//! Routes that share a queue: what they must have in common, and standbys.

use super::Checks;
use crate::settings::fault::KeyPath;
use crate::settings::types::{QueueType, Route};

impl Checks<'_> {
    /// A route with the first other route of its queue, and with the one that it stands by for.
    pub(super) fn shares_queue(&mut self, name: &str, route: &Route) {
        self.stands_by(name, route);
        let settings = self.settings;
        let first = settings.of_queue(&route.queue).next();
        let Some((other_name, other)) = first.filter(|(first, _)| *first != name) else {
            return;
        };
        let same = "routes of one queue declare it alike";
        let in_words = |own: QueueType| match own {
            QueueType::Classic => "\"classic\"",
            QueueType::Quorum => "\"quorum\"",
        };
        let result = |route: &Route| {
            let results = route.results.as_ref()?;
            Some((results.exchange.clone(), results.unroutable()))
        };
        let wrong = if other.queue_type != route.queue_type {
            let theirs = in_words(other.queue_type);
            Some((
                "queue_type",
                format!("`routes.{other_name}` has {theirs}; {same}, so write the same"),
            ))
        } else if other.declare != route.declare {
            let theirs = other.declare;
            Some((
                "declare",
                format!("`routes.{other_name}` has {theirs}; {same}, so write the same"),
            ))
        } else if (other.parks() > 0) != (route.parks() > 0) {
            Some((
                "fair_by",
                format!(
                    "only one of this route and `routes.{other_name}` parks messages beside their queue; write fair_by in both, or parked = 0"
                ),
            ))
        } else if result(other)
            .zip(result(route))
            .is_some_and(|(theirs, own)| theirs != own)
        {
            Some((
                "results",
                format!(
                    "`routes.{other_name}` publishes the results of the same queue to another exchange, or treats unroutable ones differently; write the same in both"
                ),
            ))
        } else {
            None
        };
        if let Some((key, message)) = wrong {
            let at = |name: &str| KeyPath::of(&["routes", name, key]);
            self.error([at(name), at(other_name)], message);
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
