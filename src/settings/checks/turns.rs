//! Who goes when: tenants, parking and opening hours of a route.

use super::Checks;
use crate::settings::path::KeyPath;
use crate::settings::types::Route;

/// A quarter of a smaller prefetch is too little to look ahead with.
const LEAST_PREFETCH: u16 = 16;

impl Checks<'_, '_> {
    pub(super) fn turns(&mut self, path: &KeyPath, route: &Route) {
        let (at_fair, at_weights) = (path.join("fair_by"), path.join("weights"));
        let at_parked = path.join("parked");
        if let Some(template) = &route.fair_by {
            self.plain_template(&at_fair, template.as_str());
            self.parking(path, route);
        } else if self.is_written(&at_parked) {
            let message = "nothing is parked where nothing says whose message it is; write fair_by = \"{{ body.tenant }}\" beside it, or take parked out";
            self.warning(&[at_parked, at_fair.clone()], message);
        }
        if route.fair_by.is_none() && !route.weights.is_empty() {
            let message = "nothing says whose message it is; write fair_by = \"{{ body.tenant }}\" beside it, or take the weights out";
            self.error(&[at_weights, at_fair], message);
        }
        self.clock(path, route);
    }

    fn parking(&mut self, path: &KeyPath, route: &Route) {
        let at_prefetch = path.join("prefetch");
        if let Some(prefetch) = route.prefetch
            && prefetch < LEAST_PREFETCH
            && route.parks() > 0
        {
            let message = format!(
                "of {prefetch} messages at a time nobody sees what stands behind them: tenants do not share fairly; write {LEAST_PREFETCH} or more"
            );
            self.warning(&[at_prefetch, path.join("fair_by")], message);
        }
        let ours = format!("{}.parked.", route.queue);
        let routes = &self.settings.routes;
        let taken = routes
            .iter()
            .filter(|(_, other)| other.queue.starts_with(&ours));
        for (name, _) in taken.filter(|_| route.parks() > 0) {
            let message = format!(
                "queues `{ours}0` to `{ours}7` are where the route of `{}` parks messages; name another queue",
                route.queue
            );
            let at = KeyPath::of(&["routes", name, "queue"]);
            self.error(&[at, path.join("fair_by")], message);
        }
    }

    fn clock(&mut self, path: &KeyPath, route: &Route) {
        if route.timezone.is_some() && route.open.is_none() && route.days.is_none() {
            let message = "this route never closes, so no clock counts; write open = \"08:00-21:00\" beside it, or take timezone out";
            let paths = ["timezone", "open", "days"].map(|key| path.join(key));
            self.error(&paths, message);
        }
    }
}
