//! What a configuration may say and this version does not do yet. It is refused, never ignored.

use crate::settings::KeyPath;
use crate::settings::text::Costing;
use crate::settings::types::{Limit, Paced, Route, Settings};

/// The keys in use that nothing acts on yet, each with what to say of it.
pub(super) fn unbuilt(settings: &Settings) -> Vec<(KeyPath, String)> {
    let mut found = Vec::new();
    for (name, limit) in &settings.limits {
        let path = KeyPath::of(&["limits", name]);
        match limit {
            Limit::Paced(paced) => of_paced(paced, &path, &mut found),
            other => found.push((path.join("kind"), other.kind())),
        }
    }
    for (name, route) in &settings.routes {
        of_route(route, &KeyPath::of(&["routes", name]), &mut found);
    }
    let say = |(path, what)| (path, format!("{what} is not built yet; take it out"));
    found.into_iter().map(say).collect()
}

fn of_paced(paced: &Paced, path: &KeyPath, found: &mut Vec<(KeyPath, &'static str)>) {
    let costs = [
        ("cost", paced.cost != Costing::default()),
        (
            "max_cost",
            paced.max_cost.is_some_and(|most| most.get() > 1),
        ),
        ("reserve", paced.reserve.is_some()),
    ];
    let used = costs.into_iter().filter(|(_, used)| *used);
    found.extend(used.map(|(key, _)| (path.join(key), key)));
}

fn of_route(route: &Route, path: &KeyPath, found: &mut Vec<(KeyPath, &'static str)>) {
    let turns = [
        ("priority", route.priority > 0),
        ("fair_by", route.fair_by.is_some()),
        ("denied_headers", route.denied_headers),
    ];
    let used = turns.into_iter().filter(|(_, used)| *used);
    found.extend(used.map(|(key, _)| (path.join(key), key)));
}
