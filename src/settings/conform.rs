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
use super::collector::Collector;
use super::path::KeyPath;
use super::schema::{Key, Need, Shape, TableKind, nearest};
use super::tree::{Node, Value};

/// Whether the value may stay.
type Fits = bool;

/// Checks `node` and all below it, and adds the defaults.
pub(super) fn conform(node: &mut Node, shape: &Shape, path: &KeyPath, faults: &mut Collector<'_>) {
    Conform { faults }.any(node, shape, path);
}

/// A walk through the tree. Each step answers whether the node itself may stay; what is wrong below it was
/// replaced already.
struct Conform<'a, 'b> {
    faults: &'a mut Collector<'b>,
}

/// The kind of a table, and all that there are.
#[derive(Clone, Copy)]
struct Kin(&'static TableKind, &'static [TableKind]);

impl Conform<'_, '_> {
    fn any(&mut self, node: &mut Node, shape: &Shape, path: &KeyPath) -> Fits {
        match shape {
            Shape::Section(keys) => self.section(node, keys.iter(), None, path),
            Shape::Named { of, .. } => self.named(node, of, path),
            Shape::Kinds { default, kinds } => self.kinds(node, *default, kinds, path),
            Shape::List(of) => self.list(node, of, path).is_some(),
            Shape::OneOrMore { most, of } => self.one_or_more(node, *most, of, path),
            _ => {
                let fits = scalar(&node.value, shape);
                let wrong = fits.map_err(|message| self.faults.broken(node, path, message));
                wrong.is_ok()
            }
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
            self.faults.broken(node, path, message);
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
        kin: Option<Kin>,
        path: &KeyPath,
    ) -> Fits {
        let table = node.clone_places();
        let Some(entries) = self.entries_of(node, path) else {
            return false;
        };
        let known = keys.clone().map(|key| key.name);
        entries.retain(|name, node| {
            let fits = known.clone().any(|key| key == name);
            if !fits {
                let message = unknown(name, known.clone(), kin);
                self.faults.unknown(node, &path.join(name), message);
            }
            fits
        });
        for key in keys {
            let below = path.join(key.name);
            let fits = match (entries.get_mut(key.name), key.need) {
                (Some(value), _) => self.any(value, &key.shape, &below),
                (None, Need::Required(example)) => {
                    let message = missing(key, example, &below);
                    self.faults.missing(&table, &below, message);
                    false
                }
                (None, _) => false,
            };
            if !fits {
                entries.remove(key.name);
                if let Some(value) = key.need.stand_in() {
                    let mut value = Node::literal(value);
                    self.any(&mut value, &key.shape, &below);
                    entries.insert(key.name.to_owned(), value);
                }
            }
        }
        true
    }

    fn named(&mut self, node: &mut Node, of: &'static Shape, path: &KeyPath) -> Fits {
        let Some(entries) = self.entries_of(node, path) else {
            return false;
        };
        // A limit or a route that is no table at all: the rest goes on without it.
        entries.retain(|name, value| self.any(value, of, &path.join(name)));
        true
    }

    fn kinds(
        &mut self,
        node: &mut Node,
        default: Option<&str>,
        kinds: &'static [TableKind],
        path: &KeyPath,
    ) -> Fits {
        let table = node.clone_places();
        let Some(entries) = self.entries_of(node, path) else {
            return false;
        };
        let written = entries.remove("kind");
        let kind = match (&written, default) {
            (Some(written), _) => self.kind_of(written, kinds, path),
            (None, Some(default)) => kinds.iter().find(|kind| kind.name == default),
            (None, None) => {
                let message = format!("missing; write `kind = {}`", names(kinds));
                self.faults.missing(&table, &path.join("kind"), message);
                kinds.first().filter(|_| kinds.len() == 1)
            }
        };
        // What belongs to a kind that cannot be guessed cannot be judged.
        let Some(kind) = kind else {
            return false;
        };
        self.section(node, kind.keys(), Some(Kin(kind, kinds)), path);
        if let Value::Table(entries) = &mut node.value {
            let value = Value::Text(kind.name.to_owned());
            let node = written.unwrap_or_else(Node::table);
            entries.insert("kind".to_owned(), Node { value, ..node });
        }
        true
    }

    /// The kind that is written, or probably meant.
    fn kind_of(
        &mut self,
        written: &Node,
        kinds: &'static [TableKind],
        path: &KeyPath,
    ) -> Option<&'static TableKind> {
        let name = literal(&written.value);
        let named = |name: &str| kinds.iter().find(|kind| kind.name == name);
        named(&name).or_else(|| {
            let near = nearest(&name, kinds.iter().map(|kind| kind.name));
            let hint = near.map_or_else(String::new, |n| format!("; did you mean \"{n}\"?"));
            let message = format!("`{name}` is no kind; write {}{hint}", names(kinds));
            self.faults.broken(written, &path.join("kind"), message);
            near.and_then(named)
        })
    }

    /// Whether all elements fit, if it is a list. A wrong one is replaced by an empty text.
    fn list(&mut self, node: &mut Node, of: &'static Shape, path: &KeyPath) -> Option<Fits> {
        let Value::List(elements) = &mut node.value else {
            let message = format!(
                "{} where a list is needed; write it in brackets, such as [\"a\", \"b\"]",
                node.value.what()
            );
            self.faults.broken(node, path, message);
            return None;
        };
        let mut all = true;
        for (index, element) in elements.iter_mut().enumerate() {
            if !self.any(element, of, &path.at(index)) {
                element.value = Value::Text(String::new());
                all = false;
            }
        }
        Some(all)
    }

    fn one_or_more(
        &mut self,
        node: &mut Node,
        most: usize,
        of: &'static Shape,
        path: &KeyPath,
    ) -> Fits {
        let Value::List(elements) = &node.value else {
            let fits = self.any(node, of, path);
            node.value = Value::List(vec![node.clone()]);
            return fits;
        };
        let length = elements.len();
        if (1..=most).contains(&length) {
            return self.list(node, of, path) == Some(true);
        }
        let message = format!("{length} elements in this list; write 1 to {most}, or leave it out");
        self.faults.broken(node, path, message);
        false
    }
}

/// What to say of a key that is not there.
fn unknown(
    name: &str,
    known: impl Iterator<Item = &'static str> + Clone,
    kin: Option<Kin>,
) -> String {
    let has = |kind: &&TableKind| kind.keys().any(|key| key.name == name);
    if let Some(Kin(own, kinds)) = kin {
        let others: Vec<_> = kinds.iter().filter(has).map(|kind| kind.name).collect();
        if !others.is_empty() {
            let (own, others) = (own.name, others.join(", "));
            return format!("the kind {own} has no such key; kinds that have it: {others}");
        }
    }
    match nearest(name, known.clone()) {
        Some(near) => format!("unknown key; did you mean `{near}`?"),
        None => {
            let known: Vec<_> = known.collect();
            format!("unknown key; known here: {}", known.join(", "))
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

fn names(kinds: &[TableKind]) -> String {
    let names: Vec<_> = kinds
        .iter()
        .map(|kind| format!("\"{}\"", kind.name))
        .collect();
    names.join(" or ")
}
