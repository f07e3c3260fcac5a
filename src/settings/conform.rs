//! Holds the tree against the table of keys: reports every departure at once, and completes the tree
//! with the defaults.
//!
//! serde stops at the first fault, loses the way inside tagged tables and knows no neighbours of a wrong
//! name. So it only sees a tree that is right: what is wrong is replaced by a stand-in (the default, or an
//! example), and the checks across keys still see the rest. The collector knows which keys are stand-ins
//! and lets no later check complain about them.

mod scalar;

use std::collections::BTreeMap;

pub(super) use self::scalar::{read, scalar};

use self::scalar::literal;
use super::fault::{Collector, Show};
use super::path::KeyPath;
use super::schema::{Key, Kind, Need, Shape, nearest};
use super::tree::{Node, Value};

/// Whether the value may stay.
type Fits = bool;

/// Checks `node` and all below it, and adds the defaults. Answers whether the node itself may stay; what
/// is wrong below it was replaced already.
pub(super) fn conform(
    node: &mut Node,
    shape: &Shape,
    path: &KeyPath,
    faults: &mut Collector<'_>,
) -> Fits {
    match shape {
        Shape::Section(keys) => section(node, keys.iter(), None, path, faults),
        Shape::Named { of, .. } => named(node, of, path, faults),
        Shape::Kinds { default, kinds } => Kinds {
            default: *default,
            kinds,
        }
        .conform(node, path, faults),
        Shape::List(of) => list(node, of, path, faults),
        Shape::OneOrMore { most, of } => one_or_more(node, *most, of, path, faults),
        _ => scalar(&node.value, shape).map_or_else(
            |message| {
                faults.broken(node, path, shown(shape), message);
                false
            },
            |()| true,
        ),
    }
}

/// How much of a value of this shape a fault may show.
fn shown(shape: &Shape) -> Show {
    if shape.is_plain() {
        Show::Value
    } else {
        Show::Key
    }
}

fn entries_of<'n>(
    node: &'n mut Node,
    path: &KeyPath,
    faults: &mut Collector<'_>,
) -> Option<&'n mut BTreeMap<String, Node>> {
    if node.entries().is_none() {
        let what = node.value.what();
        let message =
            format!("{what} where a table is needed; write `[{path}]` and its keys below");
        faults.broken(node, path, Show::Key, message);
    }
    match &mut node.value {
        Value::Table(entries) => Some(entries),
        _ => None,
    }
}

fn section(
    node: &mut Node,
    keys: impl Iterator<Item = &'static Key> + Clone,
    kinds: Option<(&Kind, &'static [Kind])>,
    path: &KeyPath,
    faults: &mut Collector<'_>,
) -> Fits {
    let table = node.clone_places();
    let Some(entries) = entries_of(node, path, faults) else {
        return false;
    };
    let known = keys.clone().map(|key| key.name);
    entries.retain(|name, node| {
        let fits = known.clone().any(|key| key == name);
        if !fits {
            let message = unknown(name, known.clone(), kinds);
            faults.broken(node, &path.join(name), Show::Key, message);
        }
        fits
    });
    for key in keys {
        let below = path.join(key.name);
        let fits = match (entries.get_mut(key.name), key.need) {
            (Some(value), _) => conform(value, &key.shape, &below, faults),
            (None, Need::Required(example)) => {
                faults.missing(&table, &below, missing(key, example, &below));
                false
            }
            (None, _) => false,
        };
        if fits {
            continue;
        }
        entries.remove(key.name);
        if let Some(value) = key.need.stand_in() {
            let mut value = Node::literal(value);
            conform(&mut value, &key.shape, &below, faults);
            entries.insert(key.name.to_owned(), value);
        }
    }
    true
}

/// What to say of a key that is not there; `kinds`: the kind of its table, and all of them.
fn unknown(
    name: &str,
    mut known: impl Iterator<Item = &'static str> + Clone,
    kinds: Option<(&Kind, &'static [Kind])>,
) -> String {
    let has = |kind: &&Kind| kind.keys().any(|key| key.name == name);
    if let Some((own, all)) = kinds {
        let others: Vec<_> = all.iter().filter(has).map(|kind| kind.name).collect();
        if !others.is_empty() {
            return format!(
                "the kind {} has no such key; kinds that have it: {}",
                own.name,
                others.join(", ")
            );
        }
    }
    match nearest(name, known.clone()) {
        Some(near) => format!("unknown key; did you mean `{near}`?"),
        None => {
            let first = known.next().unwrap_or_default().to_owned();
            let known = known.fold(first, |all, name| all + ", " + name);
            format!("unknown key; known here: {known}")
        }
    }
}

/// What to say of a required key that is not there.
fn missing(key: &Key, example: &str, path: &KeyPath) -> String {
    let name = key.name;
    if key.shape.is_table() {
        format!("missing; write a table `[{path}]`, or `{name} = {example}`")
    } else {
        format!("missing; write it, such as `{name} = {example}`")
    }
}

fn named(node: &mut Node, of: &'static Shape, path: &KeyPath, faults: &mut Collector<'_>) -> Fits {
    let Some(entries) = entries_of(node, path, faults) else {
        return false;
    };
    // A limit or a route that is no table at all: the rest goes on without it.
    entries.retain(|name, value| conform(value, of, &path.join(name), faults));
    true
}

/// The kinds of a table.
struct Kinds {
    default: Option<&'static str>,
    kinds: &'static [Kind],
}

impl Kinds {
    fn conform(&self, node: &mut Node, path: &KeyPath, faults: &mut Collector<'_>) -> Fits {
        let table = node.clone_places();
        let Some(entries) = entries_of(node, path, faults) else {
            return false;
        };
        let written = entries.remove("kind");
        let kind = match &written {
            Some(written) => self.of(written, path, faults),
            None => self.absent(&table, path, faults),
        };
        // What belongs to a kind that cannot be guessed cannot be judged.
        let Some(kind) = kind else {
            return false;
        };
        section(node, kind.keys(), Some((kind, self.kinds)), path, faults);
        if let Value::Table(entries) = &mut node.value {
            let name = Value::Text(kind.name.to_owned());
            let node = match written {
                Some(written) => Node {
                    value: name,
                    ..written
                },
                None => Node::absent(name),
            };
            entries.insert("kind".to_owned(), node);
        }
        true
    }

    fn named(&self, name: &str) -> Option<&'static Kind> {
        self.kinds.iter().find(|kind| kind.name == name)
    }

    fn names(&self) -> String {
        let names: Vec<_> = self
            .kinds
            .iter()
            .map(|kind| format!("\"{}\"", kind.name))
            .collect();
        names.join(" or ")
    }

    fn of(
        &self,
        written: &Node,
        path: &KeyPath,
        faults: &mut Collector<'_>,
    ) -> Option<&'static Kind> {
        let name = literal(&written.value);
        self.named(&name).or_else(|| {
            let near = nearest(&name, self.kinds.iter().map(|kind| kind.name));
            let hint = near.map_or_else(String::new, |n| format!("; did you mean \"{n}\"?"));
            let message = format!("`{name}` is no kind; write {}{hint}", self.names());
            faults.broken(written, &path.join("kind"), Show::Value, message);
            near.and_then(|near| self.named(near))
        })
    }

    fn absent(
        &self,
        table: &Node,
        path: &KeyPath,
        faults: &mut Collector<'_>,
    ) -> Option<&'static Kind> {
        self.default.and_then(|name| self.named(name)).or_else(|| {
            let message = format!("missing; write `kind = {}`", self.names());
            faults.missing(table, &path.join("kind"), message);
            self.kinds.first().filter(|_| self.kinds.len() == 1)
        })
    }
}

fn list(node: &mut Node, of: &'static Shape, path: &KeyPath, faults: &mut Collector<'_>) -> Fits {
    let Value::List(elements) = &mut node.value else {
        let message = format!(
            "{} where a list is needed; write it in brackets, such as [\"a\", \"b\"]",
            node.value.what()
        );
        faults.broken(node, path, shown(of), message);
        return false;
    };
    let mut fits = true;
    for (index, element) in elements.iter_mut().enumerate() {
        fits &= conform(element, of, &path.at(index), faults);
    }
    fits
}

fn one_or_more(
    node: &mut Node,
    most: usize,
    of: &'static Shape,
    path: &KeyPath,
    faults: &mut Collector<'_>,
) -> Fits {
    let Value::List(elements) = &node.value else {
        return conform(node, of, path, faults);
    };
    let length = elements.len();
    if (1..=most).contains(&length) {
        return list(node, of, path, faults);
    }
    let message = format!("{length} elements in this list; write 1 to {most}, or leave it out");
    faults.broken(node, path, shown(of), message);
    false
}
