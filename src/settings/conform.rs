//! Holds the tree against the schema and reports every departure at once.
//!
//! What is wrong is replaced by a stand-in (the default, or an example), so that serde accepts
//! the rest and the checks across keys still see it. The collector knows which keys are stand-ins
//! and lets no later check complain about them.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::Error as PlainError;

use super::fault::{Collector, Show};
use super::path::KeyPath;
use super::schema::{Key, Kind, Need, Shape, nearest};
use super::text::{CostError, Costing, Size};
use super::tree::{Node, Value};
use crate::core::calendar::CalendarUnit;
use crate::core::rate::{Rate, RateError, parse_duration};

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
    match shape {
        Shape::Section(keys) => section(node, keys, path, built_in, faults),
        Shape::Named(inner) => named(node, inner, path, built_in, faults),
        Shape::Kinds { default, kinds } => kinds_of(node, *default, kinds, path, built_in, faults),
        Shape::List(inner) => list(node, inner, path, built_in, faults),
        Shape::OneOrMore { most, of } => one_or_more(node, *most, of, path, built_in, faults),
        _ => match scalar(&node.value, shape) {
            Ok(()) => true,
            Err(message) => {
                faults.broken(node, path, shown(shape), message);
                false
            }
        },
    }
}

/// How much of a value of this shape a fault may show.
const fn shown(shape: &Shape) -> Show {
    match shape {
        Shape::Hidden | Shape::Url => Show::Key,
        _ => Show::Value,
    }
}

fn entries_of<'a>(
    node: &'a mut Node,
    path: &KeyPath,
    faults: &mut Collector<'_>,
) -> Option<&'a mut BTreeMap<String, Node>> {
    if node.entries().is_none() {
        let what = node.value.what();
        faults.broken(
            node,
            path,
            Show::Key,
            format!("{what} where a table is needed; write `[{path}]` and its keys below"),
        );
    }
    match &mut node.value {
        Value::Table(entries) => Some(entries),
        _ => None,
    }
}

fn section(
    node: &mut Node,
    keys: &'static [Key],
    path: &KeyPath,
    built_in: &Node,
    faults: &mut Collector<'_>,
) -> Fits {
    section_of_kind(node, keys, &Kin::default(), path, built_in, faults)
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
        let has = |kind: &&Kind| kind.keys.iter().any(|key| key.name == name);
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

fn section_of_kind(
    node: &mut Node,
    keys: &'static [Key],
    kin: &Kin,
    path: &KeyPath,
    built_in: &Node,
    faults: &mut Collector<'_>,
) -> Fits {
    let table = node.clone_places();
    let Some(entries) = entries_of(node, path, faults) else {
        return false;
    };
    unknown(entries, kin, keys.iter().map(|key| key.name), path, faults);
    for key in keys {
        let below = path.join(key.name);
        let Some(value) = entries.get_mut(key.name) else {
            if let Need::Required(example) = key.need {
                let wanted = if key.shape.is_table() {
                    format!(
                        "missing; write a table `[{below}]`, or `{} = {example}`",
                        key.name
                    )
                } else {
                    format!("missing; write it, such as `{} = {example}`", key.name)
                };
                faults.missing(&table, &below, wanted);
                stand_in(entries, key, &below, built_in);
            }
            continue;
        };
        if !conform(value, &key.shape, &below, built_in, faults) {
            stand_in(entries, key, &below, built_in);
        }
    }
    true
}

/// Puts what is in force instead of a wrong value, or nothing if nothing need be there.
fn stand_in(entries: &mut BTreeMap<String, Node>, key: &Key, path: &KeyPath, built_in: &Node) {
    let value = match key.need {
        Need::BuiltIn => built_in.find(path).cloned(),
        Need::Required(example) => Some(Node::literal(example)),
        Need::Default(_) | Need::Optional => None,
    };
    match value {
        Some(value) => drop(entries.insert(key.name.to_owned(), value)),
        None => drop(entries.remove(key.name)),
    }
}

fn unknown(
    entries: &mut BTreeMap<String, Node>,
    kin: &Kin,
    known: impl Iterator<Item = &'static str> + Clone,
    path: &KeyPath,
    faults: &mut Collector<'_>,
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
        faults.broken(node, &path.join(name), Show::Key, message);
        false
    });
}

fn named(
    node: &mut Node,
    inner: &'static Shape,
    path: &KeyPath,
    built_in: &Node,
    faults: &mut Collector<'_>,
) -> Fits {
    let Some(entries) = entries_of(node, path, faults) else {
        return false;
    };
    entries.retain(|name, value| {
        let below = path.join(name);
        if conform(value, inner, &below, built_in, faults) {
            return true;
        }
        // A limit or a route that is no table at all: the rest goes on without it.
        false
    });
    true
}

fn kinds_of(
    node: &mut Node,
    default: Option<&'static str>,
    kinds: &'static [Kind],
    path: &KeyPath,
    built_in: &Node,
    faults: &mut Collector<'_>,
) -> Fits {
    let table = node.clone_places();
    let names = || kinds.iter().map(|kind| kind.name);
    let Some(entries) = entries_of(node, path, faults) else {
        return false;
    };
    let at = path.join("kind");
    let known: Vec<_> = names().map(|name| format!("\"{name}\"")).collect();
    let known = known.join(" or ");
    let named = |name: &str| kinds.iter().find(|known| known.name == name);
    let found = match entries.remove("kind") {
        Some(kind) => {
            let name = kind.text().unwrap_or_default().to_owned();
            named(&name).or_else(|| {
                let near = nearest(&name, names());
                let hint = near.map_or_else(String::new, |n| format!("; did you mean \"{n}\"?"));
                let message = format!("`{}` is no kind; write {known}{hint}", literal(&kind.value));
                faults.broken(&kind, &at, Show::Value, message);
                near.and_then(named)
            })
        }
        None => default.and_then(named).or_else(|| {
            faults.missing(&table, &at, format!("missing; write `kind = {known}`"));
            kinds.first().filter(|_| kinds.len() == 1)
        }),
    };
    // What belongs to a kind that nobody can guess cannot be judged.
    let Some(kind) = found else {
        return false;
    };
    let kin = Kin {
        own: kind.name,
        all: kinds,
    };
    section_of_kind(node, kind.keys, &kin, path, built_in, faults);
    if let Value::Table(entries) = &mut node.value {
        let name = Node::absent(Value::Text(kind.name.to_owned()));
        entries.insert("kind".to_owned(), name);
    }
    true
}

fn list(
    node: &mut Node,
    inner: &'static Shape,
    path: &KeyPath,
    built_in: &Node,
    faults: &mut Collector<'_>,
) -> Fits {
    let Value::List(elements) = &mut node.value else {
        let message = format!(
            "{} where a list is needed; write it in brackets, such as [\"a\", \"b\"]",
            node.value.what()
        );
        faults.broken(node, path, shown(inner), message);
        return false;
    };
    let mut fits = true;
    for (index, element) in elements.iter_mut().enumerate() {
        fits &= conform(element, inner, &path.at(index), built_in, faults);
    }
    fits
}

fn one_or_more(
    node: &mut Node,
    most: usize,
    inner: &'static Shape,
    path: &KeyPath,
    built_in: &Node,
    faults: &mut Collector<'_>,
) -> Fits {
    let Value::List(elements) = &node.value else {
        return conform(node, inner, path, built_in, faults);
    };
    let length = elements.len();
    if (1..=most).contains(&length) {
        return list(node, inner, path, built_in, faults);
    }
    let message = format!("{length} elements in this list; write 1 to {most}, or leave it out");
    faults.broken(node, path, shown(inner), message);
    false
}

/// A value as it would be written, for messages.
fn literal(value: &Value) -> String {
    match value {
        Value::Text(text) => text.clone(),
        Value::Whole(number) => number.to_string(),
        Value::Flag(flag) => flag.to_string(),
        other => other.what().to_owned(),
    }
}

fn scalar(value: &Value, shape: &Shape) -> Result<(), String> {
    let written = literal(value);
    match shape {
        Shape::Length { zero } => {
            let length = parse_duration(&written).map_err(|e| format!("`{written}` is {e}"))?;
            if length.is_zero() && !zero {
                return Err(format!(
                    "`{written}` is no time at all; it must be above zero"
                ));
            }
            is_text(value)
        }
        Shape::Rate => {
            written
                .parse::<Rate>()
                .map_err(|e| not_by_the_calendar(&e))?;
            is_text(value)
        }
        Shape::Size => {
            let read: Result<Size, PlainError> =
                Size::deserialize(written.as_str().into_deserializer());
            read.map_err(|e| e.to_string())?;
            is_text(value)
        }
        Shape::Whole { min, max } => match value {
            Value::Whole(number) if (min..=max).contains(&number) => Ok(()),
            Value::Other(what) => Err(format!(
                "{what} does not fit; a whole number from {min} to {max} is needed"
            )),
            _ => Err(format!(
                "`{written}` does not fit; a whole number from {min} to {max} is needed"
            )),
        },
        Shape::Flag => match value {
            Value::Flag(_) => Ok(()),
            _ => Err(format!("`{written}` is no flag; write true or false")),
        },
        Shape::Choice(words) => choice(&written, words),
        Shape::Form(check) => is_text(value).and_then(|()| check(&written)),
        Shape::Cost => match value {
            Value::Text(_) | Value::Whole(_) => {
                let read = written.parse::<Costing>();
                read.map(drop).map_err(|e| e.to_string())
            }
            _ => Err(CostError::of(&written).to_string()),
        },
        _ => is_text(value),
    }
}

/// Why a text is no rate; where it is one by the calendar, which kind takes it.
fn not_by_the_calendar(error: &RateError) -> String {
    match error {
        RateError::Window(window, _) if window.parse::<CalendarUnit>().is_ok() => {
            format!(
                "window `{window}`: only kind = \"fixed_window\" goes by the calendar; write a duration, such as \"1s\" or \"1d\""
            )
        }
        error => error.to_string(),
    }
}

fn is_text(value: &Value) -> Result<(), String> {
    match value {
        Value::Text(_) => Ok(()),
        other => Err(format!(
            "{} where a text is needed; write it in quotes",
            other.what()
        )),
    }
}

fn choice(written: &str, words: &[&'static str]) -> Result<(), String> {
    if words.contains(&written) {
        return Ok(());
    }
    let quoted: Vec<_> = words.iter().map(|word| format!("\"{word}\"")).collect();
    let hint = nearest(written, words.iter().copied())
        .map_or_else(String::new, |near| format!("; did you mean \"{near}\"?"));
    Err(format!(
        "`{written}` is not possible; write {}{hint}",
        quoted.join(" or ")
    ))
}
