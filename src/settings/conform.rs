//! Holds the tree against the schema and reports every departure at once.
//!
//! What is wrong is replaced by a stand-in (the default, or an example), so that serde accepts
//! the rest and the checks across keys still see it. The collector knows which keys are stand-ins
//! and lets no later check complain about them.

mod scalar;

use std::collections::BTreeMap;

use self::scalar::{literal, scalar};
use super::fault::{Collector, Show};
use super::path::KeyPath;
use super::schema::{Key, Kind, Need, Shape, nearest};
use super::tree::{Node, Value};

/// Whether the value may stay.
type Fits = bool;

/// Checks `node` and all below it. `built_in` is the tree of `default.toml`, for stand-ins.
/// Answers whether the node itself may stay; what is wrong below it was replaced already.
pub(super) fn conform(
    node: &mut Node,
    shape: &Shape,
    path: &KeyPath,
    built_in: &Node,
    faults: &mut Collector<'_>,
) -> Fits {
    Conforming { built_in, faults }.any(node, shape, path)
}

/// A pass over the tree.
struct Conforming<'a, 'f> {
    built_in: &'a Node,
    faults: &'a mut Collector<'f>,
}

/// How much of a value of this shape a fault may show.
const fn shown(shape: &Shape) -> Show {
    match shape {
        Shape::Hidden | Shape::Url => Show::Key,
        _ => Show::Value,
    }
}

/// The other kinds of a table, for keys that stand in the wrong one.
#[derive(Default)]
struct Kin {
    own: &'static str,
    all: &'static [Kind],
}

impl Kin {
    /// What to say of a key that this kind does not have and others do.
    fn hint(&self, name: &str) -> Option<String> {
        let has = |kind: &&Kind| kind.keys().any(|key| key.name == name);
        let others: Vec<_> = self.all.iter().filter(has).map(|kind| kind.name).collect();
        let own = self.own;
        (!others.is_empty()).then(|| {
            format!(
                "the kind {own} has no such key; kinds that have it: {}",
                others.join(", ")
            )
        })
    }
}

impl Conforming<'_, '_> {
    fn any(&mut self, node: &mut Node, shape: &Shape, path: &KeyPath) -> Fits {
        match shape {
            Shape::Section(keys) => self.section(node, keys.iter(), &Kin::default(), path),
            Shape::Named(inner) => self.named(node, inner, path),
            Shape::Kinds { default, kinds } => self.kinds(node, *default, kinds, path),
            Shape::List(inner) => self.list(node, inner, path),
            Shape::OneOrMore { most, of } => self.one_or_more(node, *most, of, path),
            _ => match scalar(&node.value, shape) {
                Ok(()) => true,
                Err(message) => {
                    self.faults.broken(node, path, shown(shape), message);
                    false
                }
            },
        }
    }

    fn entries_of<'n>(
        &mut self,
        node: &'n mut Node,
        path: &KeyPath,
    ) -> Option<&'n mut BTreeMap<String, Node>> {
        if node.entries().is_none() {
            let what = node.value.what();
            let message =
                format!("{what} where a table is needed; write `[{path}]` and its keys below");
            self.faults.broken(node, path, Show::Key, message);
        }
        match &mut node.value {
            Value::Table(entries) => Some(entries),
            _ => None,
        }
    }

    fn section(
        &mut self,
        node: &mut Node,
        keys: impl Iterator<Item = &'static Key> + Clone,
        kin: &Kin,
        path: &KeyPath,
    ) -> Fits {
        let table = node.clone_places();
        let Some(entries) = self.entries_of(node, path) else {
            return false;
        };
        self.unknown(entries, kin, keys.clone().map(|key| key.name), path);
        for key in keys {
            let below = path.join(key.name);
            let fits = match (entries.get_mut(key.name), &key.need) {
                (Some(value), _) => self.any(value, &key.shape, &below),
                (None, Need::Required(example)) => {
                    let wanted = missing(key, example, &below);
                    self.faults.missing(&table, &below, wanted);
                    false
                }
                (None, _) => true,
            };
            if !fits {
                self.stand_in(entries, key, &below);
            }
        }
        true
    }

    /// Puts what is in force instead of a wrong value, or nothing if nothing need be there.
    fn stand_in(&self, entries: &mut BTreeMap<String, Node>, key: &Key, path: &KeyPath) {
        let value = match key.need {
            Need::BuiltIn => self.built_in.find(path).cloned(),
            Need::Required(example) => Some(Node::literal(example)),
            Need::Default(_) | Need::Optional => None,
        };
        match value {
            Some(value) => drop(entries.insert(key.name.to_owned(), value)),
            None => drop(entries.remove(key.name)),
        }
    }

    fn unknown(
        &mut self,
        entries: &mut BTreeMap<String, Node>,
        kin: &Kin,
        known: impl Iterator<Item = &'static str> + Clone,
        path: &KeyPath,
    ) {
        entries.retain(|name, node| {
            if known.clone().any(|key| key == name) {
                return true;
            }
            let message = kin.hint(name).unwrap_or_else(|| {
                let hint = nearest(name, known.clone()).map_or_else(
                    || {
                        let names: Vec<_> = known.clone().collect();
                        format!("known here: {}", names.join(", "))
                    },
                    |near| format!("did you mean `{near}`?"),
                );
                format!("unknown key; {hint}")
            });
            self.faults
                .broken(node, &path.join(name), Show::Key, message);
            false
        });
    }

    fn named(&mut self, node: &mut Node, inner: &'static Shape, path: &KeyPath) -> Fits {
        let Some(entries) = self.entries_of(node, path) else {
            return false;
        };
        // A limit or a route that is no table at all: the rest goes on without it.
        entries.retain(|name, value| self.any(value, inner, &path.join(name)));
        true
    }

    fn kinds(
        &mut self,
        node: &mut Node,
        default: Option<&'static str>,
        kinds: &'static [Kind],
        path: &KeyPath,
    ) -> Fits {
        let table = node.clone_places();
        let Some(entries) = self.entries_of(node, path) else {
            return false;
        };
        let written = entries.remove("kind");
        // What belongs to a kind that nobody can guess cannot be judged.
        let Some(kind) = self.kind_of(written, default, kinds, &table, path) else {
            return false;
        };
        let kin = Kin {
            own: kind.name,
            all: kinds,
        };
        self.section(node, kind.keys(), &kin, path);
        if let Value::Table(entries) = &mut node.value {
            let name = Node::absent(Value::Text(kind.name.to_owned()));
            entries.insert("kind".to_owned(), name);
        }
        true
    }

    /// The kind of a table that says it is of kind `written`, or does not say.
    fn kind_of(
        &mut self,
        written: Option<Node>,
        default: Option<&'static str>,
        kinds: &'static [Kind],
        table: &Node,
        path: &KeyPath,
    ) -> Option<&'static Kind> {
        let at = path.join("kind");
        let names = || kinds.iter().map(|kind| kind.name);
        let known: Vec<_> = names().map(|name| format!("\"{name}\"")).collect();
        let known = known.join(" or ");
        let named = |name: &str| kinds.iter().find(|known| known.name == name);
        match written {
            Some(kind) => {
                let name = kind.text().unwrap_or_default().to_owned();
                named(&name).or_else(|| {
                    let near = nearest(&name, names());
                    let hint =
                        near.map_or_else(String::new, |n| format!("; did you mean \"{n}\"?"));
                    let message =
                        format!("`{}` is no kind; write {known}{hint}", literal(&kind.value));
                    self.faults.broken(&kind, &at, Show::Value, message);
                    near.and_then(named)
                })
            }
            None => default.and_then(named).or_else(|| {
                let message = format!("missing; write `kind = {known}`");
                self.faults.missing(table, &at, message);
                kinds.first().filter(|_| kinds.len() == 1)
            }),
        }
    }

    fn list(&mut self, node: &mut Node, inner: &'static Shape, path: &KeyPath) -> Fits {
        let Value::List(elements) = &mut node.value else {
            let message = format!(
                "{} where a list is needed; write it in brackets, such as [\"a\", \"b\"]",
                node.value.what()
            );
            self.faults.broken(node, path, shown(inner), message);
            return false;
        };
        let mut fits = true;
        for (index, element) in elements.iter_mut().enumerate() {
            fits &= self.any(element, inner, &path.at(index));
        }
        fits
    }

    fn one_or_more(
        &mut self,
        node: &mut Node,
        most: usize,
        inner: &'static Shape,
        path: &KeyPath,
    ) -> Fits {
        let Value::List(elements) = &node.value else {
            return self.any(node, inner, path);
        };
        let length = elements.len();
        if (1..=most).contains(&length) {
            return self.list(node, inner, path);
        }
        let message = format!("{length} elements in this list; write 1 to {most}, or leave it out");
        self.faults.broken(node, path, shown(inner), message);
        false
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
