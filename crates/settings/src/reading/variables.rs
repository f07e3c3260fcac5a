//! The variables `SLUICED__…`: which key each of them sets, and how its text is read.
//!
//! Two underscores stand between the steps of a key: `SLUICED__ROUTES__SMS__MAX_HOLD`. Names of variables
//! have no case, and only letters, digits and `_`, so a step is matched to the names of limits and routes in
//! the files. The table of keys decides how the text is read: a list is split at commas. A variable that
//! names no key is a fault, and so is one that would name a key with two underscores between its steps.

use std::collections::BTreeMap;

use config::{Value, ValueKind};

use super::layers::{Layers, entries, parsed};
use crate::fault::{Fault, Place};
use crate::path::KeyPath;
use crate::schema::{Shape, nearest};
use crate::types::ROOT;

/// The prefix of every variable of sluiced.
pub const PREFIX: &str = "SLUICED__";
/// The prefix of every variable that may be meant for sluiced. Kubernetes sets such variables, too, for
/// a service `sluiced`.
pub(crate) const FAMILY: &str = "SLUICED_";

/// Adds a layer for each variable of sluiced.
pub(crate) fn add(layers: &mut Layers, variables: &BTreeMap<String, String>) {
    let files = layers.merged();
    for (name, text) in variables {
        match key_of(&files, name) {
            Ok(Some(key)) => layers.add_variable(name, &key.path, read(text, key.shape)),
            Ok(None) => {}
            Err(message) => {
                let place = Place::Variable(name.clone());
                layers.faults.push(Fault::whole(place, message));
            }
        }
    }
}

/// The key that a variable names; `None`: it is meant for another program. The error is the fault of its
/// name.
fn key_of<'a>(files: &'a Value, variable: &str) -> Result<Option<Named<'a>>, String> {
    let top = Named {
        path: KeyPath::default(),
        shape: &ROOT,
        written: Some(files),
    };
    let name = variable.to_lowercase();
    let words = name.split('_').skip(1).filter(|word| !word.is_empty());
    let mut keys = top.keys(&words.collect::<Vec<_>>());
    let other = keys.first().map(Named::variable);
    keys.retain(|key| key.variable() == variable.to_uppercase());
    keys.sort_by(|a, b| a.path.cmp(&b.path));
    // Kinds of a table that have the same key read it in the same way.
    keys.dedup_by(|a, b| a.path == b.path);
    if let [one, other, ..] = &keys[..] {
        let (one, other) = (&one.path, &other.path);
        return Err(format!("it fits {one} and {other}; set it in a file"));
    }
    match (keys.pop(), other, name.strip_prefix(&PREFIX.to_lowercase())) {
        (Some(key), ..) => Ok(Some(key)),
        (None, Some(right), _) => Err(format!(
            "no key has this name; write two underscores between its steps: {right}"
        )),
        (None, None, Some(steps)) => Err(unknown(steps)),
        (None, None, None) => Ok(None),
    }
}

/// A key or a table that a variable may name.
struct Named<'a> {
    path: KeyPath,
    shape: &'static Shape,
    /// What the files have there.
    written: Option<&'a Value>,
}

impl<'a> Named<'a> {
    /// The keys that these words name, for any division into steps.
    fn keys(self, words: &[&str]) -> Vec<Self> {
        if words.is_empty() {
            let table = self.shape.is_table();
            return Vec::from_iter((!table).then_some(self));
        }
        let ends = 1..=words.len();
        let keys = ends.flat_map(|end| {
            let below = self.below(&words[..end].join("_")).into_iter();
            below.flat_map(move |named| named.keys(&words[end..]))
        });
        keys.collect()
    }

    /// The targets of a step: names in the files that read like it, otherwise a new one.
    fn below(&self, step: &str) -> Vec<Self> {
        let candidates = |name: &str, written| {
            let (path, shapes) = (self.path.join(name), self.shape.below(name));
            let named = shapes.into_iter().map(move |shape| Named {
                path: path.clone(),
                shape,
                written,
            });
            named.collect::<Vec<_>>()
        };
        let entries = self.written.and_then(entries).into_iter().flatten();
        let mut fitting: Vec<_> = entries
            .filter(|(name, _)| flat(name) == step)
            .flat_map(|(name, value)| candidates(name, Some(value)))
            .collect();
        if fitting.is_empty() {
            // A header's name has hyphens where a variable can only have underscores.
            let hyphen = match self.shape {
                Shape::Named {
                    of: Shape::Hidden(_),
                    ..
                } => "-",
                _ => "_",
            };
            fitting.extend(candidates(&step.replace('_', hyphen), None));
        }
        fitting
    }

    /// The variable that names it.
    fn variable(&self) -> String {
        let steps = self.path.steps().iter().map(|step| flat(step));
        variable_of(&steps.collect::<Vec<_>>())
    }
}

/// The message about a variable that names no key.
fn unknown(steps: &str) -> String {
    let mut shapes = vec![&ROOT];
    let corrected = steps.split("__").map(|step| {
        let known_keys = shapes.iter().flat_map(|shape| shape.keys());
        let right = match shapes[..] {
            [Shape::Named { .. }] => step,
            _ => nearest(step, known_keys.map(|key| key.name))?,
        };
        shapes = shapes.iter().flat_map(|shape| shape.below(right)).collect();
        Some(right.to_owned())
    });
    match corrected.collect::<Option<Vec<_>>>() {
        Some(right) if shapes.iter().any(|shape| !shape.is_table()) => {
            format!(
                "no key has this name; did you mean {}?",
                variable_of(&right)
            )
        }
        _ => "no key has this name; write SLUICED__<TABLE>__<KEY>, such as SLUICED__REDIS__URL"
            .to_owned(),
    }
}

fn variable_of(steps: &[String]) -> String {
    format!("{PREFIX}{}", steps.join("__").to_uppercase())
}

/// A name with the characters that a variable can have.
fn flat(name: &str) -> String {
    let other = |c: char| !c.is_ascii_alphanumeric();
    name.to_lowercase().replace(other, "_")
}

/// A plain text, for example of a variable, as the value that its key takes. A text that does not fit
/// stays a text, which the check of shapes reports.
pub(crate) fn read(text: &str, shape: &Shape) -> Value {
    let trimmed = text.trim();
    let kind = match shape {
        Shape::Whole(_) | Shape::WholeOr(..) => trimmed.parse().map(ValueKind::I64).ok(),
        Shape::Flag => trimmed.parse().map(ValueKind::Boolean).ok(),
        Shape::List(_) | Shape::OneOrMore { .. } => Some(elements(trimmed).into()),
        _ => None,
    };
    kind.unwrap_or_else(|| text.into()).into()
}

/// `a, b` or `["a", "b"]`.
fn elements(text: &str) -> Vec<String> {
    if let ValueKind::Array(list) = parsed(text).kind {
        return list.iter().map(ToString::to_string).collect();
    }
    text.split(',')
        .map(str::trim)
        .filter(|element| !element.is_empty())
        .map(ToOwned::to_owned)
        .collect()
}
