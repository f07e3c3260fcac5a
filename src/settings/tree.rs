//! A tree in which every value remembers where it was written.
//!
//! A file is parsed for its spans, so that a fault found much later still names file, line and
//! column. The tree may hold secrets: its `Debug` shows none of it, and it ends with loading.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::path::KeyPath;

/// Where something was written.
#[derive(Clone)]
pub(super) enum WrittenAt {
    /// A part of a file, by its number among the [`Sources`].
    Text { source: usize, span: Range<usize> },
    /// An environment variable.
    Variable(Arc<str>),
    /// Nowhere: a default.
    Absent,
}

/// The files, in the order of their layers.
pub(super) struct Sources(pub(super) Vec<Source>);

/// One file.
pub(super) struct Source {
    pub(super) name: String,
    pub(super) text: String,
}

/// A value with the places of its key and of itself.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) value: Value,
    pub(super) key: WrittenAt,
    pub(super) origin: WrittenAt,
}

#[derive(Clone)]
pub(super) enum Value {
    Text(String),
    Whole(i64),
    Flag(bool),
    /// What no key takes, by its name: a float, a date.
    Other(&'static str),
    List(Vec<Node>),
    Table(BTreeMap<String, Node>),
}

impl Node {
    /// A value that stands nowhere.
    pub(super) const fn absent(value: Value) -> Self {
        Self {
            value,
            key: WrittenAt::Absent,
            origin: WrittenAt::Absent,
        }
    }

    /// A value from a variable.
    pub(super) fn variable(value: Value, name: &Arc<str>) -> Self {
        Self {
            value,
            key: WrittenAt::Variable(Arc::clone(name)),
            origin: WrittenAt::Variable(Arc::clone(name)),
        }
    }

    /// An empty table at the same places.
    pub(super) fn clone_places(&self) -> Self {
        Self {
            value: Value::Table(BTreeMap::new()),
            key: self.key.clone(),
            origin: self.origin.clone(),
        }
    }

    /// An empty table.
    pub(super) const fn table() -> Self {
        Self::absent(Value::Table(BTreeMap::new()))
    }

    /// A value from its TOML text, which must be right: for the texts of the table of keys.
    pub(super) fn literal(text: &str) -> Self {
        DeValue::parse(text).map_or_else(
            |_| Self::absent(Value::Other("nothing")),
            |parsed| convert(parsed.get_ref(), None, 0..0, 0..0, 0),
        )
    }

    /// Whether it was written, rather than being a default.
    pub(super) const fn is_written(&self) -> bool {
        !matches!(self.origin, WrittenAt::Absent)
    }

    /// The entries, if this is a table.
    pub(super) const fn entries(&self) -> Option<&BTreeMap<String, Self>> {
        match &self.value {
            Value::Table(entries) => Some(entries),
            _ => None,
        }
    }

    /// The nodes on the way to `path`, as far as they exist.
    pub(super) fn walk<'a>(&'a self, path: &'a KeyPath) -> impl Iterator<Item = &'a Self> {
        let mut at = Some(self);
        path.steps().iter().map_while(move |step| {
            let next = match &at?.value {
                Value::Table(entries) => entries.get(step),
                Value::List(elements) => step
                    .trim_matches(['[', ']'])
                    .parse()
                    .ok()
                    .and_then(|index: usize| elements.get(index)),
                _ => None,
            };
            at = next;
            next
        })
    }

    /// The node at `path`.
    pub(super) fn find<'a>(&'a self, path: &'a KeyPath) -> Option<&'a Self> {
        let (depth, node) = self.walk(path).enumerate().last()?;
        (depth + 1 == path.steps().len()).then_some(node)
    }

    /// Takes out every value whose key or own text starts in one of `lines`: what a parser made
    /// of a line that it could not read is a guess.
    pub(super) fn prune(&mut self, lines: &[Range<usize>]) {
        let hit = |origin: &WrittenAt| match origin {
            WrittenAt::Text { span, .. } => lines.iter().any(|line| line.contains(&span.start)),
            WrittenAt::Variable(_) | WrittenAt::Absent => false,
        };
        match &mut self.value {
            Value::Table(entries) => {
                entries.retain(|_, node| {
                    node.entries().is_some() || !(hit(&node.key) || hit(&node.origin))
                });
                entries.values_mut().for_each(|node| node.prune(lines));
            }
            Value::List(elements) => elements.retain(|node| !hit(&node.origin)),
            _ => {}
        }
    }

    /// Lays `over` on top: tables are merged, everything else is replaced.
    pub(super) fn merge(&mut self, over: Self) {
        (self.key, self.origin) = (over.key, over.origin);
        match (&mut self.value, over.value) {
            (Value::Table(own), Value::Table(entries)) => {
                for (name, node) in entries {
                    match own.get_mut(&name) {
                        Some(below) => below.merge(node),
                        None => drop(own.insert(name, node)),
                    }
                }
            }
            (own, value) => *own = value,
        }
    }

    /// The values without their places, for serde.
    pub(super) fn plain(&self) -> toml::Value {
        match &self.value {
            Value::Text(text) => text.clone().into(),
            Value::Whole(number) => (*number).into(),
            Value::Flag(flag) => (*flag).into(),
            Value::Other(name) => (*name).into(),
            Value::List(list) => toml::Value::Array(list.iter().map(Self::plain).collect()),
            Value::Table(entries) => {
                let plain = entries
                    .iter()
                    .map(|(name, node)| (name.clone(), node.plain()));
                toml::Value::Table(plain.collect())
            }
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").finish_non_exhaustive()
    }
}

impl Value {
    /// What it is, with its article.
    pub(super) const fn what(&self) -> &'static str {
        match self {
            Self::Text(_) => "a text",
            Self::Whole(_) => "a number",
            Self::Flag(_) => "a flag",
            Self::Other(name) => name,
            Self::List(_) => "a list",
            Self::Table(_) => "a table",
        }
    }
}

/// A syntax error: where, and what the parser says.
pub(super) struct Syntax {
    pub(super) span: Range<usize>,
    pub(super) message: String,
}

/// Reads one file as far as it can be read, with all of its syntax errors.
pub(super) fn parse(source: usize, text: &str) -> (Node, Vec<Syntax>) {
    let (table, errors) = DeTable::parse_recoverable(text);
    let errors = errors.iter().map(|error| Syntax {
        span: error.span().unwrap_or(0..0),
        message: error.message().to_owned(),
    });
    let node = Node {
        value: entries(table.get_ref(), Some(source), 0),
        ..Node::table()
    };
    (node, errors.collect())
}

/// Deeper nesting than this is cut off: no key lies that deep, and recursion needs a bound.
const MAX_DEPTH: usize = 12;

/// The value of a file, or of no file, whose key and text stand at these places.
fn convert(
    value: &DeValue<'_>,
    source: Option<usize>,
    key: Range<usize>,
    span: Range<usize>,
    depth: usize,
) -> Node {
    let origin = |span| source.map_or(WrittenAt::Absent, |source| WrittenAt::Text { source, span });
    let value = match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or(Value::Other("a number beyond 64 bits"), Value::Whole),
        DeValue::Float(_) => Value::Other("a number with a fraction"),
        DeValue::Boolean(flag) => Value::Flag(*flag),
        DeValue::Datetime(_) => Value::Other("a date"),
        DeValue::Array(_) | DeValue::Table(_) if depth > MAX_DEPTH => {
            Value::Other("something nested too deep")
        }
        DeValue::Array(list) => {
            let element = |at: &Spanned<DeValue<'_>>| {
                convert(at.get_ref(), source, at.span(), at.span(), depth + 1)
            };
            Value::List(list.iter().map(element).collect())
        }
        DeValue::Table(table) => entries(table, source, depth + 1),
    };
    Node {
        value,
        key: origin(key),
        origin: origin(span),
    }
}

fn entries(table: &DeTable<'_>, source: Option<usize>, depth: usize) -> Value {
    let entries = table.iter().map(|(name, at)| {
        let node = convert(at.get_ref(), source, name.span(), at.span(), depth);
        (name.get_ref().to_string(), node)
    });
    Value::Table(entries.collect())
}
