//! The layer of `SLUICED__…` variables.
//!
//! A variable names its key with `__` between the steps: `SLUICED__ROUTES__SMS__MAX_HOLD`. Names
//! of variables know no case, and no characters but letters, digits and `_`; so a step is matched
//! to the names of limits and routes that the files have, and the schema says how the text is to
//! be read (a list is split at commas). A variable that fits nothing is a fault, never ignored. So is one
//! whose words name a key, but not with two underscores between the steps.

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
/// What those start with that may be meant for us. Kubernetes, too, sets such variables for a service
/// `sluiced`.
pub(super) const FAMILY: &str = "SLUICED_";

/// Lays what the variables say over what the files say; the names in the files count.
pub(super) fn add(
    root: &mut Node,
    variables: &BTreeMap<String, String>,
    faults: &mut Collector<'_>,
) {
    for (name, text) in variables {
        let origin: Arc<str> = Arc::from(name.as_str());
        let respelt = || {
            respelt(root, name).map(|right| {
                format!("no key has this name; write two underscores between its steps: {right}")
            })
        };
        let Some(below) = name.strip_prefix(PREFIX) else {
            if let Some(message) = respelt() {
                faults.variable(name, message);
            }
            continue;
        };
        match resolve(root, below) {
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
            Err(message) => faults.variable(name, respelt().unwrap_or(message)),
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
    let known = named(table, step).map(|(name, _)| name);
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

/// The entries of a table that a step of a variable may stand for.
fn named<'a>(table: Option<&'a Node>, step: &str) -> impl Iterator<Item = (&'a String, &'a Node)> {
    let entries = table.and_then(Node::entries).into_iter().flatten();
    entries.filter(move |(name, _)| flat(name) == flat(step))
}

/// The name that a variable should have, if its words in their order name a key in some other spelling.
fn respelt(root: &Node, name: &str) -> Option<String> {
    let lower = name.to_lowercase();
    let words = lower.split('_').skip(1).filter(|word| !word.is_empty());
    let steps = parted(Some(root), &ROOT, &words.collect::<Vec<_>>())?;
    let right = format!("{PREFIX}{}", steps.join("__").to_uppercase());
    (right != name).then_some(right)
}

/// Words put together to the steps of a key.
fn parted(table: Option<&Node>, shape: &Shape, words: &[&str]) -> Option<Vec<String>> {
    if words.is_empty() {
        return (!shape.is_table()).then(Vec::new);
    }
    let split = |at| (words[..at].join("_"), &words[at..]);
    let mut steps: Vec<_> = (1..=words.len()).map(split).collect();
    // A name may be any word: first those that are there.
    steps.sort_by_key(|(step, _)| named(table, step).next().is_none());
    steps.into_iter().find_map(|(step, rest)| {
        let below = shape.below(&step)?;
        let table = named(table, &step).next().map(|(_, node)| node);
        let rest = parted(table, below, rest)?;
        Some([vec![step], rest].concat())
    })
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
