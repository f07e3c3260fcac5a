//! The layer of `SLUICED__…` variables.
//!
//! A variable names its key with `__` between the steps: `SLUICED__ROUTES__SMS__MAX_HOLD`. Names
//! of variables know no case, and no characters but letters, digits and `_`; so a step is matched
//! to the names of limits and routes that the files have, and the schema says how the text is to
//! be read (a list is split at commas). A variable that fits nothing is a fault, never ignored.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::conform;
use super::fault::Collector;
use super::layers::Layers;
use super::path::KeyPath;
use super::schema::{Shape, nearest};
use super::tree::{Node, Value};
use super::types::ROOT;

/// What every variable of ours starts with.
pub const PREFIX: &str = "SLUICED__";

/// Adds what the variables say. `root` is what the files say, for the names in it.
pub(super) fn add(
    layers: &mut Layers,
    root: &Node,
    variables: &BTreeMap<String, String>,
    faults: &mut Collector<'_>,
) {
    for (name, text) in variables {
        let origin: Arc<str> = Arc::from(name.as_str());
        match resolve(root, &name[PREFIX.len()..]) {
            Ok((path, shape)) if !shape.is_table() => {
                let value = conform::read(text, shape, |value| Node::variable(value, &origin));
                layers.add(nest(path.steps(), &origin, value));
            }
            Ok((_, shape)) => {
                let key = steps(shape).next().unwrap_or("<name>").to_uppercase();
                let message =
                    format!("this is a table; set one of its keys, such as {name}__{key}");
                faults.variable(name, message);
            }
            Err(Misfit::Ambiguous(names)) => {
                let message = format!("it fits more than one name ({names}); set it in a file");
                faults.variable(name, message);
            }
            Err(Misfit::Unknown) => {
                let known = known_names(root);
                let near = nearest(name, known.iter().map(String::as_str));
                let hint = near.map_or_else(
                    || format!("write {PREFIX}<TABLE>__<KEY>, such as SLUICED__REDIS__URL"),
                    |near| format!("did you mean {}?", near.to_uppercase()),
                );
                faults.variable(name, format!("no key has this name; {hint}"));
            }
        }
    }
}

enum Misfit {
    Unknown,
    Ambiguous(String),
}

/// The key that a variable names.
fn resolve(root: &Node, name: &str) -> Result<(KeyPath, &'static Shape), Misfit> {
    let mut shape: &'static Shape = &ROOT;
    let mut at = Some(root);
    let mut path = KeyPath::default();
    for step in name.split("__") {
        let step = step.to_lowercase();
        if step.is_empty() {
            return Err(Misfit::Unknown);
        }
        let step = match shape {
            Shape::Named { of, .. } => chosen_name(at, &step, of)?,
            _ => step,
        };
        shape = shape.below(&step).ok_or(Misfit::Unknown)?;
        at = at.and_then(|node| node.entries()?.get(&step));
        path = path.join(&step);
    }
    Ok((path, shape))
}

/// The name in the files that a step of a variable stands for, or a new one.
fn chosen_name(table: Option<&Node>, step: &str, inner: &Shape) -> Result<String, Misfit> {
    let names: Vec<&String> = table
        .and_then(Node::entries)
        .into_iter()
        .flat_map(|entries| entries.keys())
        .filter(|name| flat(name) == flat(step))
        .collect();
    match names[..] {
        // A header: its name has hyphens where a variable can only have underscores.
        [] if matches!(inner, Shape::Hidden) => Ok(step.replace('_', "-")),
        [] => Ok(step.to_owned()),
        [name] => Ok(name.clone()),
        _ => {
            let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
            Err(Misfit::Ambiguous(names.join(", ")))
        }
    }
}

/// A name as far as a variable can tell it.
fn flat(name: &str) -> String {
    name.chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_lowercase()
            } else {
                '_'
            }
        })
        .collect()
}

/// The names of all keys that the present limits and routes have, in lower case.
fn known_names(root: &Node) -> Vec<String> {
    let mut names = Vec::new();
    gather(&ROOT, Some(root), &PREFIX.to_lowercase(), &mut names);
    names
}

/// The names that a table of this shape may have, whatever its kind.
fn steps(shape: &Shape) -> impl Iterator<Item = &'static str> {
    let kind = matches!(shape, Shape::Kinds { .. }).then_some("kind");
    kind.into_iter().chain(shape.keys().map(|key| key.name))
}

fn gather(shape: &'static Shape, node: Option<&Node>, prefix: &str, names: &mut Vec<String>) {
    let chosen = node.and_then(Node::entries).into_iter().flatten();
    let steps: Vec<String> = match shape {
        Shape::Named { .. } => chosen.map(|(name, _)| name.clone()).collect(),
        _ => steps(shape).map(str::to_owned).collect(),
    };
    for step in steps {
        let Some(below) = shape.below(&step) else {
            continue;
        };
        let name = format!("{prefix}{}", flat(&step));
        if below.is_table() {
            let child = node.and_then(|node| node.entries()?.get(&step));
            gather(below, child, &format!("{name}__"), names);
        } else {
            names.push(name);
        }
    }
}

fn nest(steps: &[String], origin: &Arc<str>, value: Node) -> Node {
    match steps {
        [] => value,
        [first, rest @ ..] => {
            let entries = BTreeMap::from([(first.clone(), nest(rest, origin, value))]);
            Node::variable(Value::Table(entries), origin)
        }
    }
}
