//! Compares the tree with the table of keys: reports every difference at once, and completes the
//! tree with the defaults.
//!
//! serde stops at the first fault, loses the place inside tagged tables and cannot suggest a name for a wrong
//! one. So it gets a valid tree: wrong values are replaced by a stand-in (the default, or an example), and
//! the checks across keys still cover the rest. The collector knows which keys have stand-ins, and no later
//! check reports anything about them.

use std::mem;
use std::time::Duration;

use config::{Value, ValueKind};

use super::collector::Collector;
use super::layers::{Table, parsed};
use crate::path::KeyPath;
use crate::schema::{KeySpec, Need, Shape, TableKind, nearest};
use crate::secrets::CREDENTIAL;
use crate::text::Length;
use crate::types::ABSENT;
use sluiced_core::rate::Span;

/// Whether a value may stay; if not, a stand-in replaces it.
type Fits = bool;

/// Checks `value` and everything below it, and adds the defaults.
pub(crate) fn conform(value: &mut Value, shape: &Shape, path: &KeyPath, faults: &mut Collector) {
    let mut walk = Conform {
        faults,
        part: false,
    };
    walk.any(value, shape, path);
}

/// A walk through the tree. When a step returns, wrong values below it are replaced already.
struct Conform<'a> {
    faults: &'a mut Collector,
    /// Whether it is below a [`Shape::Part`]: nothing is missing there, and nothing is completed.
    part: bool,
}

/// The kind of a table, and all kinds.
#[derive(Clone, Copy)]
struct Kin(&'static TableKind, &'static [TableKind]);

impl Conform<'_> {
    fn any(&mut self, value: &mut Value, shape: &Shape, path: &KeyPath) -> Fits {
        let fits = self.shaped(value, shape, path);
        fits.unwrap_or_else(|message| {
            self.faults.broken(path, message);
            false
        })
    }

    /// An error describes the fault of the value itself.
    fn shaped(&mut self, value: &mut Value, shape: &Shape, path: &KeyPath) -> Result<Fits, String> {
        match shape {
            Shape::Section(keys) => self.section(table(value, path)?, keys.iter(), None, path),
            // A limit or a route that is no table at all is left out.
            Shape::Named { of, .. } => {
                table(value, path)?.retain(|name, value| self.any(value, of, &path.join(name)));
            }
            Shape::Kinds { default, kinds } => {
                return Ok(self.kinds(table(value, path)?, *default, kinds, path));
            }
            Shape::Part { of, own, .. } => {
                let entries = table(value, path)?;
                for (name, instead) in *own {
                    if entries.remove(*name).is_some() {
                        let message = (*instead).to_owned();
                        self.faults.unknown(&path.join(name), message);
                    }
                }
                let outside = mem::replace(&mut self.part, true);
                let fits = self.any(value, of, path);
                self.part = outside;
                return Ok(fits);
            }
            // An empty text is none of the words: the default stands in for the whole list.
            Shape::List(of @ Shape::Choice(_)) => {
                return Ok(self.elements(list(value)?, of, path));
            }
            Shape::List(of) => drop(self.elements(list(value)?, of, path)),
            Shape::OneOrMore { of, .. } if !matches!(value.kind, ValueKind::Array(_)) => {
                let fits = self.any(value, of, path);
                value.kind = ValueKind::Array(vec![value.clone()]);
                return Ok(fits);
            }
            Shape::OneOrMore { most, of } => {
                let elements = list(value)?;
                let length = elements.len();
                if !(1..=*most).contains(&length) {
                    return Err(format!(
                        "{length} elements in this list; write 1 to {most}, or leave it out"
                    ));
                }
                return Ok(self.elements(elements, of, path));
            }
            _ => {
                no_credential(&value.kind, path)?;
                scalar(&value.kind, shape)?;
            }
        }
        Ok(true)
    }

    fn section(
        &mut self,
        entries: &mut Table,
        keys: impl Iterator<Item = &'static KeySpec> + Clone,
        kin: Option<Kin>,
        path: &KeyPath,
    ) {
        let known_names = keys.clone().map(|key| key.name);
        entries.retain(|name, _| {
            let fits = known_names.clone().any(|key| key == name);
            if !fits {
                let message = unknown(name, known_names.clone(), kin);
                self.faults.unknown(&path.join(name), message);
            }
            fits
        });
        for key in keys {
            let below = path.join(key.name);
            let fits = match (entries.get_mut(key.name), key.need) {
                (Some(value), _) => self.any(value, &key.shape, &below),
                (None, _) if self.part => true,
                (None, Need::Required(example)) => {
                    let message = missing(key, example, &below);
                    self.faults.missing(path, &below, message);
                    false
                }
                (None, _) => false,
            };
            if !fits {
                entries.remove(key.name);
                if let Some(value) = key.need.stand_in() {
                    let mut value = parsed(value);
                    self.any(&mut value, &key.shape, &below);
                    entries.insert(key.name.to_owned(), value);
                }
            }
        }
    }

    fn kinds(
        &mut self,
        entries: &mut Table,
        default: Option<&str>,
        kinds: &'static [TableKind],
        path: &KeyPath,
    ) -> Fits {
        let at = path.join("kind");
        let named = |name: &str| kinds.iter().find(|kind| kind.name == name);
        let names = kinds.iter().map(|kind| kind.name);
        let kind = match (entries.remove("kind"), default) {
            (Some(written), _) => {
                let name = literal(&written.kind);
                named(&name).or_else(|| {
                    let message = format!("`{name}` is no kind; {}", choices(&name, names.clone()));
                    self.faults.broken(&at, message);
                    nearest(&name, names).and_then(named)
                })
            }
            (None, Some(default)) => named(default),
            (None, None) => {
                let message = format!("missing; write `kind = {}`", one_of(names));
                self.faults.missing(path, &at, message);
                kinds.first().filter(|_| kinds.len() == 1)
            }
        };
        // If the kind cannot be guessed, its keys cannot be checked.
        let Some(kind) = kind else {
            return false;
        };
        self.section(entries, kind.keys(), Some(Kin(kind, kinds)), path);
        entries.insert("kind".to_owned(), kind.name.into());
        true
    }

    /// Whether all elements fit. A wrong one is replaced by an empty text.
    fn elements(&mut self, elements: &mut [Value], of: &Shape, path: &KeyPath) -> Fits {
        let mut all = true;
        for (index, element) in elements.iter_mut().enumerate() {
            if !self.any(element, of, &path.at(index)) {
                element.kind = "".into();
                all = false;
            }
        }
        all
    }
}

/// `credential:NAME` is the name of a file with a secret, and would be sent as it is where a text is meant.
fn no_credential(value: &ValueKind, path: &KeyPath) -> Result<(), String> {
    let ValueKind::String(text) = value else {
        return Ok(());
    };
    let is_file = |steps: &[String]| {
        let [first, .., last] = steps else {
            return false;
        };
        first == "secrets" || last.ends_with("_file")
    };
    if !text.starts_with(CREDENTIAL) || is_file(path.steps()) {
        return Ok(());
    }
    Err(format!(
        "this is the name of a file with a secret, and a text is meant here; write it in a key that ends with _file, or as NAME in [secrets] and {{{{ secret.NAME }}}} in a template (here stands `{CREDENTIAL}…`)"
    ))
}

fn table<'a>(value: &'a mut Value, path: &KeyPath) -> Result<&'a mut Table, String> {
    match &mut value.kind {
        ValueKind::Table(entries) => Ok(entries),
        other => Err(format!(
            "{} where a table is needed; write `[{path}]` and its keys below",
            what(other)
        )),
    }
}

fn list(value: &mut Value) -> Result<&mut Vec<Value>, String> {
    match &mut value.kind {
        ValueKind::Array(elements) => Ok(elements),
        other => Err(format!(
            "{} where a list is needed; write it in brackets, such as [\"a\", \"b\"]",
            what(other)
        )),
    }
}

/// The message for an unknown key.
fn unknown(
    name: &str,
    known: impl Iterator<Item = &'static str> + Clone,
    kin: Option<Kin>,
) -> String {
    let has = |kind: &&TableKind| kind.keys().any(|key| key.name == name);
    if let Some(Kin(own_kind, kinds)) = kin {
        let others: Vec<_> = kinds.iter().filter(has).map(|kind| kind.name).collect();
        if !others.is_empty() {
            let (own_kind, others) = (own_kind.name, others.join(", "));
            let why = ABSENT
                .iter()
                .find(|(kind, key, _)| (*kind, *key) == (own_kind, name))
                .map_or_else(String::new, |(.., why)| format!(", for {why}"));
            return format!(
                "the kind {own_kind} has no such key{why}; kinds that have it: {others}"
            );
        }
    }
    match nearest(name, known.clone()) {
        Some(near) => format!("unknown key; did you mean `{near}`?"),
        None => {
            let names: Vec<_> = known.collect();
            format!("unknown key; known here: {}", names.join(", "))
        }
    }
}

/// The message for a missing required key.
fn missing(key: &KeySpec, example: &str, path: &KeyPath) -> String {
    let name = key.name;
    if key.shape.is_table() {
        format!("missing; write a table `[{path}]`, or `{name} = {example}`")
    } else {
        format!("missing; write it, such as `{name} = {example}`")
    }
}

/// The valid words in place of a wrong one.
fn choices(wrong: &str, words: impl Iterator<Item = &'static str> + Clone) -> String {
    let near = nearest(wrong, words.clone());
    let hint = near.map_or_else(String::new, |near| format!("; did you mean \"{near}\"?"));
    format!("write {}{hint}", one_of(words))
}

fn one_of(words: impl Iterator<Item = &'static str>) -> String {
    let quoted: Vec<_> = words.map(|word| format!("\"{word}\"")).collect();
    quoted.join(" or ")
}

/// A value as it would be written, for messages.
pub(super) fn literal(value: &ValueKind) -> String {
    match value {
        ValueKind::String(_) | ValueKind::I64(_) | ValueKind::Boolean(_) => value.to_string(),
        other => what(other).to_owned(),
    }
}

/// The name of a kind of value, with its article.
pub(crate) const fn what(kind: &ValueKind) -> &'static str {
    match kind {
        ValueKind::String(_) => "a text",
        ValueKind::I64(_) => "a number",
        ValueKind::Boolean(_) => "a flag",
        ValueKind::Float(_) => "a number with a fraction",
        ValueKind::Array(_) => "a list",
        ValueKind::Table(_) => "a table",
        // TOML has dates, but no null.
        ValueKind::Nil => "a date",
        ValueKind::I128(_) | ValueKind::U64(_) | ValueKind::U128(_) => "a number beyond 64 bits",
    }
}

/// Whether a value that is neither table nor list has this shape, or what is wrong with it.
pub(crate) fn scalar(value: &ValueKind, shape: &Shape) -> Result<(), String> {
    let written = literal(value);
    match (shape, value) {
        (Shape::Whole(bounds), ValueKind::I64(number)) if bounds.contains(number) => Ok(()),
        (Shape::Whole(bounds), _) => {
            let quoted = match value {
                ValueKind::String(_) | ValueKind::I64(_) | ValueKind::Boolean(_) => {
                    format!("`{written}`")
                }
                _ => written.clone(),
            };
            let (min, max) = (bounds.start(), bounds.end());
            let fits = written.parse().is_ok_and(|number| bounds.contains(&number));
            let quotes = if fits { ", without quotes" } else { "" };
            Err(format!(
                "{quoted} does not fit; a whole number from {min} to {max} is needed{quotes}"
            ))
        }
        (Shape::Flag, ValueKind::Boolean(_)) => Ok(()),
        (Shape::Flag, _) => Err(format!("`{written}` is no flag; write true or false")),
        (Shape::Choice(words), _) if words.contains(&written.as_str()) => Ok(()),
        (Shape::Choice(words), _) => {
            let choices = choices(&written, words.iter().copied());
            Err(format!("`{written}` is not possible; {choices}"))
        }
        (Shape::WholeOr(_, form), _) => (form.check)(&written),
        (Shape::Length(bounds), _) => {
            let length: Length = written.parse().map_err(|e| format!("{e}"))?;
            bounded(&written, length.get(), *bounds.start(), *bounds.end())?;
            is_text(value)
        }
        (
            Shape::Text(form) | Shape::Hidden(form) | Shape::Url(form),
            ValueKind::String(_) | ValueKind::I64(_),
        ) => (form.check)(&written).and_then(|()| is_text(value)),
        _ => is_text(value),
    }
}

fn bounded(written: &str, length: Duration, min: Duration, max: Duration) -> Result<(), String> {
    if length >= min && length <= max {
        return Ok(());
    }
    Err(if length.is_zero() {
        format!("`{written}` is no time at all; it must be above zero")
    } else if min < Duration::from_micros(1) {
        format!("`{written}` is too long; write {} or less", Span(max))
    } else {
        format!(
            "`{written}` is out of range; write {} to {}",
            Span(min),
            Span(max)
        )
    })
}

fn is_text(value: &ValueKind) -> Result<(), String> {
    match value {
        ValueKind::String(_) => Ok(()),
        other => Err(format!(
            "{} where a text is needed; write it in quotes",
            what(other)
        )),
    }
}
