//! What routes, and what downstreams, have in common: `[defaults.route]` and `[defaults.downstream]`.
//!
//! Every route gets the keys of `defaults.route` that it does not write itself, and every downstream those of
//! `defaults.downstream`. Tables are merged key by key; any other value, a list too, counts as a whole. A table of
//! another `kind` gets nothing.
//!
//! This happens to the merged layers, before routes are compared with the table of keys. So a value that was taken
//! is checked as if the route had written it. Its place is the line of `defaults`, and a fault in it is reported
//! once, there.

use config::{Value, ValueKind};

use super::collector::Collector;
use super::conform::conform;
use super::layers::{Table, entries};
use crate::path::KeyPath;
use crate::schema::Shape::Section;
use crate::types::Defaults;

/// Gives the routes of `root` what its `defaults` have, and takes these out.
pub(crate) fn give(root: &mut Value, faults: &mut Collector) {
    let Some(root) = entries_mut(root) else {
        return;
    };
    let Some(mut defaults) = root.remove("defaults") else {
        return;
    };
    let from = KeyPath::of(&["defaults"]);
    conform(&mut defaults, &Section(Defaults::KEYS), &from, faults);
    let table = |name: &str| entries(&defaults).and_then(|all| entries(all.get(name)?));
    let (route, downstream) = (table("route"), table("downstream"));
    let routes = root.get_mut("routes").and_then(entries_mut);
    for (name, own_table) in routes.into_iter().flatten() {
        let (Some(own_table), at) = (entries_mut(own_table), KeyPath::of(&["routes", name])) else {
            continue;
        };
        if let Some(route) = route {
            inherit(own_table, &at, route, &from.join("route"), faults);
        }
        if let Some(downstream) = downstream {
            let all = Table::from([("downstream".to_owned(), downstream.clone().into())]);
            inherit(own_table, &at, &all, &from, faults);
        }
    }
}

/// Gives the table `own` what it lacks of `defaults`.
fn inherit(
    own: &mut Table,
    at: &KeyPath,
    defaults: &Table,
    from: &KeyPath,
    faults: &mut Collector,
) {
    let kind = |table: &Table| table.get("kind").map(ToString::to_string);
    if kind(own).is_some_and(|own_kind| kind(defaults).is_some_and(|other| own_kind != other)) {
        return;
    }
    for (name, value) in defaults {
        let (at, from) = (at.join(name), from.join(name));
        match (
            own.get_mut(name).map(|own_value| &mut own_value.kind),
            &value.kind,
        ) {
            (None, _) => {
                own.insert(name.clone(), value.clone());
                faults.inherit(&from, &at);
            }
            (Some(ValueKind::Table(own)), ValueKind::Table(defaults)) => {
                inherit(own, &at, defaults, &from, faults);
            }
            (Some(_), _) => {}
        }
    }
}

const fn entries_mut(value: &mut Value) -> Option<&mut Table> {
    match &mut value.kind {
        ValueKind::Table(entries) => Some(entries),
        _ => None,
    }
}
