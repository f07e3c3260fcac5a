//! A tree in which every value remembers where it was written.
//!
//! A file is parsed for its spans, so that a fault found much later still names file, line and
//! column. The tree may hold secrets: its `Debug` shows none of it, and it ends with loading.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use config::ValueKind;
use toml::de::{DeTable, DeValue};

use super::path::KeyPath;

/// Where something was written.
#[derive(Clone)]
pub(super) enum Origin {
    /// A part of a file, by its number among the [`Sources`].
    Text { source: usize, span: Range<usize> },
    /// An environment variable.
    Variable(Arc<str>),
    /// Nowhere: put in by the loader.
    Absent,
}

/// The number of the file that is compiled in.
pub(super) const BUILT_IN: usize = 0;

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
    pub(super) key: Origin,
    pub(super) origin: Origin,
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
    /// A value that nobody wrote.
    pub(super) const fn absent(value: Value) -> Self {
        Self {
            value,
            key: Origin::Absent,
            origin: Origin::Absent,
        }
    }

    /// A value from a variable.
    pub(super) fn variable(value: Value, name: &Arc<str>) -> Self {
        Self {
            value,
            key: Origin::Variable(Arc::clone(name)),
            origin: Origin::Variable(Arc::clone(name)),
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

    /// A value from its TOML text, which must be right: for the texts of the schema.
    pub(super) fn literal(text: &str) -> Self {
        DeValue::parse(text).map_or_else(
            |_| Self::absent(Value::Other("nothing")),
            |parsed| {
                convert_at(
                    parsed.get_ref(),
                    &|_| Origin::Absent,
                    Origin::Absent,
                    0..0,
                    0,
                )
            },
        )
    }

    /// The entries, if this is a table.
    pub(super) const fn entries(&self) -> Option<&BTreeMap<String, Self>> {
        match &self.value {
            Value::Table(entries) => Some(entries),
            _ => None,
        }
    }

    /// The text, if this is one.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
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
        let hit = |origin: &Origin| match origin {
            Origin::Text { span, .. } => lines.iter().any(|line| line.contains(&span.start)),
            Origin::Variable(_) | Origin::Absent => false,
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

    /// The same for the `config` crate, which knows nothing of places.
    pub(super) fn plain(&self) -> config::Value {
        let kind = match &self.value {
            Value::Text(text) => ValueKind::String(text.clone()),
            Value::Whole(number) => ValueKind::I64(*number),
            Value::Flag(flag) => ValueKind::Boolean(*flag),
            Value::Other(_) => ValueKind::Nil,
            Value::List(list) => ValueKind::Array(list.iter().map(Self::plain).collect()),
            Value::Table(entries) => ValueKind::Table(
                entries
                    .iter()
                    .map(|(name, node)| (name.clone(), node.plain()))
                    .collect(),
            ),
        };
        config::Value::new(None, kind)
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
    let place = |span: Range<usize>| Origin::Text { source, span };
    let node = convert_table(table.get_ref(), &place, place(0..0), 0..0, 0);
    let errors = errors
        .iter()
        .map(|error| Syntax {
            span: error.span().unwrap_or(0..0),
            message: error.message().to_owned(),
        })
        .collect();
    (node, errors)
}

/// Deeper nesting than this is cut off: no key lies that deep, and recursion needs a bound.
const MAX_DEPTH: usize = 12;

fn convert_at(
    value: &DeValue<'_>,
    place: &dyn Fn(Range<usize>) -> Origin,
    key: Origin,
    span: Range<usize>,
    depth: usize,
) -> Node {
    let plain = match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or(Value::Other("a number beyond 64 bits"), Value::Whole),
        DeValue::Float(_) => Value::Other("a number with a fraction"),
        DeValue::Boolean(flag) => Value::Flag(*flag),
        DeValue::Datetime(_) => Value::Other("a date"),
        DeValue::Array(_) | DeValue::Table(_) if depth > MAX_DEPTH => {
            Value::Other("something nested too deep")
        }
        DeValue::Array(list) => Value::List(
            list.iter()
                .map(|element| {
                    let own = place(element.span());
                    convert_at(element.get_ref(), place, own, element.span(), depth + 1)
                })
                .collect(),
        ),
        DeValue::Table(table) => return convert_table(table, place, key, span, depth + 1),
    };
    Node {
        value: plain,
        key,
        origin: place(span),
    }
}

fn convert_table(
    table: &DeTable<'_>,
    place: &dyn Fn(Range<usize>) -> Origin,
    key: Origin,
    span: Range<usize>,
    depth: usize,
) -> Node {
    let entries = table
        .iter()
        .map(|(name, value)| {
            let node = convert_at(
                value.get_ref(),
                place,
                place(name.span()),
                value.span(),
                depth,
            );
            (name.get_ref().to_string(), node)
        })
        .collect();
    Node {
        value: Value::Table(entries),
        key,
        origin: place(span),
    }
}
