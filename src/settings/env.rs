//! The layer of `SLUICED__…` variables.
//!
//! A variable names its key with `__` between the steps: `SLUICED__ROUTES__SMS__MAX_HOLD`. Names
//! of variables know no case, and no characters but letters, digits and `_`; so a step is matched
//! to the names of limits and routes that the files have, and the schema says how the text is to
//! be read (a list is split at commas). A variable that fits nothing is a fault, never ignored.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::collector::Collector;
use super::conform;
use super::path::KeyPath;
use super::schema::{Shape, nearest};
use super::tree::{Node, Value};
use super::types::ROOT;

/// What every variable of ours starts with.
pub const PREFIX: &str = "SLUICED__";

/// Lays what the variables say over what the files say; the names in the files count.
pub(super) fn add(
    root: &mut Node,
    variables: &BTreeMap<String, String>,
    faults: &mut Collector<'_>,
) {
    for (name, text) in variables {
        let origin: Arc<str> = Arc::from(name.as_str());
        match resolve(root, &name[PREFIX.len()..]) {
            Ok((path, shape)) if !shape.is_table() => {
                let value = conform::read(text, shape, |value| Node::variable(value, &origin));
                root.merge(nest(path.steps(), &origin, value));
            }
            Ok((_, shape)) => {
                let key = steps(shape).next().unwrap_or("<name>").to_uppercase();
                let message =
                    format!("this is a table; set one of its keys, such as {name}__{key}");
                faults.variable(name, message);
            }
            Err(message) => faults.variable(name, message),
        }
    }
}

/// The key that a variable names, or what is wrong with the name.
fn resolve(root: &Node, name: &str) -> Result<(KeyPath, &'static Shape), String> {
    let mut shape: &'static Shape = &ROOT;
    let mut at = Some(root);
    let mut path = KeyPath::default();
    let all: Vec<_> = name.split("__").map(str::to_lowercase).collect();
    for (i, step) in all.iter().enumerate() {
        let step = match shape {
            Shape::Named { of, .. } => chosen_name(at, step, of)?,
            _ => step.clone(),
        };
        shape = shape
            .below(&step)
            .filter(|_| !step.is_empty())
            .ok_or_else(|| {
                let near = nearest(&step, steps(shape)).map(|near| {
                    let right = [&all[..i], &[near.to_owned()], &all[i + 1..]].concat();
                    format!("did you mean {PREFIX}{}?", right.join("__").to_uppercase())
                });
                let example = "write SLUICED__<TABLE>__<KEY>, such as SLUICED__REDIS__URL";
                let hint = near.unwrap_or_else(|| example.to_owned());
                format!("no key has this name; {hint}")
            })?;
        at = at.and_then(|node| node.entries()?.get(&step));
        path = path.join(&step);
    }
    Ok((path, shape))
}

/// The name in the files that a step of a variable stands for, or a new one.
fn chosen_name(table: Option<&Node>, step: &str, of: &Shape) -> Result<String, String> {
    let known = table.and_then(Node::entries).into_iter().flatten();
    let known = known
        .map(|(name, _)| name)
        .filter(|name| flat(name) == flat(step));
    match known.collect::<Vec<_>>()[..] {
        // A header: its name has hyphens where a variable can only have underscores.
        [] if matches!(of, Shape::Hidden(_)) => Ok(step.replace('_', "-")),
        [] => Ok(step.to_owned()),
        [name] => Ok(name.clone()),
        ref names => {
            let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
            let names = names.join(", ");
            Err(format!(
                "it fits more than one name ({names}); set it in a file"
            ))
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

/// The names that a table of this shape may have, whatever its kind.
fn steps(shape: &Shape) -> impl Iterator<Item = &'static str> {
    let kind = matches!(shape, Shape::Kinds { .. }).then_some("kind");
    kind.into_iter().chain(shape.keys().map(|key| key.name))
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
