//! The layer of `SLUICED__…` variables.
//!
//! A variable names its key with `__` between the steps: `SLUICED__ROUTES__SMS__MAX_HOLD`. Each becomes a layer
//! for `config`. Two things `config` cannot do. Names of variables have no case, and only letters, digits and `_`, so a
//! step is matched to the names of limits and routes in the files. And the table of keys says how the text is read (a
//! list is split at commas). A variable that names no key is a fault, and so is one that would name a key if two
//! underscores stood between its steps. None is ignored.

use std::collections::BTreeMap;

use config::{Map, Value};

use super::collector::Collector;
use super::conform::read;
use super::fault::KeyPath;
use super::fault::Place;
use super::schema::{Shape, nearest};
use super::tree::{Layer, Written, entries};
use super::types::ROOT;

/// What every variable of ours starts with.
pub const PREFIX: &str = "SLUICED__";
/// What every variable starts with that may be ours. Kubernetes sets such variables, too, for a service
/// `sluiced`.
pub(super) const FAMILY: &str = "SLUICED_";

/// What each variable says, in the names that the files have.
pub(super) fn layers(
    files: &Value,
    variables: &BTreeMap<String, String>,
    faults: &mut Collector,
) -> Vec<Layer> {
    let mut layers = Vec::new();
    for (name, text) in variables {
        match key_of(files, name) {
            Ok(Some((path, shape))) => {
                let written = Written::Variable(name.clone());
                let value = read(text, shape, |kind| written.value(kind));
                let nest = |value, step: &String| written.value(Map::from([(step.clone(), value)]));
                let layer = path.steps().iter().rev().fold(value, nest);
                faults.note(&layer, &KeyPath::default());
                layers.push(Layer(layer));
            }
            Ok(None) => {}
            Err(message) => faults.whole(Place::Variable(name.clone()), message),
        }
    }
    layers
}

/// The key that a variable names; `None`: it is meant for another program. Or what is wrong with its name.
fn key_of(files: &Value, name: &str) -> Result<Option<(KeyPath, &'static Shape)>, String> {
    let lower = name.to_lowercase();
    let words = lower.split('_').skip(1).filter(|word| !word.is_empty());
    let mut keys = Vec::new();
    let top = (KeyPath::default(), &ROOT);
    possible(Some(files), top, &words.collect::<Vec<_>>(), &mut keys);
    let is_exact = |(path, _): &&(KeyPath, _)| spelt(path) == name.to_uppercase();
    let exact: Vec<_> = keys.iter().filter(is_exact).collect();
    match exact[..] {
        [(path, shape)] if !shape.is_table() => return Ok(Some((path.clone(), *shape))),
        [(_, shape)] => {
            let key = steps(shape).next().unwrap_or("<name>").to_uppercase();
            return Err(format!(
                "this is a table; set one of its keys, such as {name}__{key}"
            ));
        }
        [] => {}
        ref several => {
            let mut names = Vec::from_iter(several.iter().flat_map(|(path, _)| path.steps()));
            names.retain(|name| !several.iter().all(|(path, _)| path.steps().contains(name)));
            let mut names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
            names.sort();
            let names = names.join(", ");
            return Err(format!(
                "it fits more than one name ({names}); set it in a file"
            ));
        }
    }
    let meant = keys.iter().find(|(_, shape)| !shape.is_table());
    if let Some((path, _)) = meant {
        let right = spelt(path);
        return Err(format!(
            "no key has this name; write two underscores between its steps: {right}"
        ));
    }
    let ours = lower.strip_prefix(&PREFIX.to_lowercase());
    ours.map_or(Ok(None), |steps| Err(unknown(steps)))
}

/// All keys and tables below `at` that these words name, however they are put together to steps.
fn possible(
    table: Option<&Value>,
    at: (KeyPath, &'static Shape),
    words: &[&str],
    found: &mut Vec<(KeyPath, &'static Shape)>,
) {
    if words.is_empty() {
        found.push(at);
        return;
    }
    let (path, shape) = at;
    for end in 1..=words.len() {
        let (step, rest) = (words[..end].join("_"), &words[end..]);
        let Some(below) = shape.below(&step) else {
            continue;
        };
        let entries = table.and_then(entries).into_iter().flatten();
        let is_meant = |name: &str| flat(name) == step && shape.below(name).is_some();
        let mut written = entries.filter(|(name, _)| is_meant(name)).peekable();
        if written.peek().is_none() {
            // A name that is new. That of a header has hyphens where a variable can only have underscores.
            let is_header = matches!((shape, below), (Shape::Named { .. }, Shape::Hidden(_)));
            let hyphens = if is_header { "-" } else { "_" };
            let new = path.join(&step.replace('_', hyphens));
            possible(None, (new, below), rest, found);
        }
        for (name, value) in written {
            possible(Some(value), (path.join(name), below), rest, found);
        }
    }
}

/// The variable of a key.
fn spelt(path: &KeyPath) -> String {
    let steps: Vec<_> = path.steps().iter().map(|step| flat(step)).collect();
    format!("{PREFIX}{}", steps.join("__").to_uppercase())
}

/// A name with the characters that a variable can have.
fn flat(name: &str) -> String {
    let other = |c: char| !c.is_ascii_alphanumeric();
    name.to_lowercase().replace(other, "_")
}

/// What to say of a variable that names no key.
fn unknown(name: &str) -> String {
    let mut shape = &ROOT;
    let all: Vec<_> = name.split("__").collect();
    for (i, step) in all.iter().enumerate() {
        match shape.below(step).filter(|_| !step.is_empty()) {
            Some(below) => shape = below,
            None => {
                let Some(near) = nearest(step, steps(shape)) else {
                    break;
                };
                let right = [&all[..i], &[near], &all[i + 1..]].concat();
                let right = right.join("__").to_uppercase();
                return format!("no key has this name; did you mean {PREFIX}{right}?");
            }
        }
    }
    "no key has this name; write SLUICED__<TABLE>__<KEY>, such as SLUICED__REDIS__URL".to_owned()
}

/// The names that a table of this shape may have, whatever its kind.
fn steps(shape: &Shape) -> impl Iterator<Item = &'static str> {
    let kind = matches!(shape, Shape::Kinds { .. }).then_some("kind");
    kind.into_iter().chain(shape.keys().map(|key| key.name))
}
