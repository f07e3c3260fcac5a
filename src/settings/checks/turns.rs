//! Who goes when: tenants and opening hours of a route.

use super::Checks;
use crate::settings::path::KeyPath;
use crate::settings::types::Route;

impl Checks<'_, '_> {
    pub(super) fn turns(&mut self, path: &KeyPath, route: &Route) {
        let (at_fair, at_weights) = (path.join("fair_by"), path.join("weights"));
        if let Some(template) = &route.fair_by {
            self.plain_template(&at_fair, template.as_str());
        } else if !route.weights.is_empty() {
            let message = "nothing says whose message it is; write fair_by = \"{{ body.tenant }}\" beside it, or take the weights out";
            self.error(&[at_weights, at_fair], message);
        }
        if route.timezone.is_some() && route.open.is_none() && route.days.is_none() {
            let message = "this route never closes, so no clock counts; write open = \"08:00-21:00\" beside it, or take timezone out";
            let paths = ["timezone", "open", "days"].map(|key| path.join(key));
            self.error(&paths, message);
        }
    }
}
