//! `sluiced limits set NAME rate=300/1s`: new values of a limit for the whole fleet.
//!
//! The values are read and checked as a configuration with them would be. So nothing comes into
//! force that `sluiced check` would refuse.

use std::io::Write;

use clap::Args;
use serde_json::json;

use super::change::operator;
use super::text::{kind, short};
use super::{Location, OpenLimits, Refusal};
use crate::core::policy::{LimitPolicy, PolicyUpdate, PolicyVersion};
use crate::settings::types::Limit;
use crate::settings::{self, Extra, policy};

/// Another operator may change the same limit at the same time. After this many tries, give up.
const TRIES: usize = 3;

/// The arguments of `sluiced limits set`.
#[derive(Args, Clone, Debug)]
pub struct SetArgs {
    /// The limit
    name: String,
    /// What shall be in force, such as rate=300/1s headroom=10ms; the rest stays as it is
    #[arg(required = true, value_name = "NAME=VALUE")]
    values: Vec<String>,
    #[command(flatten)]
    location: Location,
}

pub(super) async fn run(args: &SetArgs, out: &mut (impl Write + Send)) -> Result<(), Refusal> {
    let opened = args.location.open().await?;
    opened.known(&args.name)?;
    let store = opened.store(&args.name).await?;
    let changes = args.values.join(" ");
    let changes = policy::words(&changes).map_err(|why| Refusal::Arguments(why.to_string()))?;
    let by = operator();
    for _ in 0..TRIES {
        let policy = store.inspect(&args.name).await?.policy;
        let (before, over) = base(&opened, &args.name, policy.as_ref())?;
        let limit = updated(&opened, &args.name, &before, &changes)?;
        let after = limit.policy_line();
        let update = PolicyUpdate {
            over,
            text: &after,
            file: &opened.file(&args.name),
            by: &by,
        };
        let set = store.set(&args.name, update).await?;
        let Some(update) = set else {
            continue;
        };
        if args.location.json {
            let said = json!({ "name": args.name, "before": short(&before), "in_force": short(&after), "version": update.updates });
            writeln!(out, "{said:#}")?;
        } else {
            writeln!(out, "{}: {}", args.name, short(&before))?;
            writeln!(
                out,
                "{:>width$}  {}",
                "->",
                short(&after),
                width = args.name.len()
            )?;
            writeln!(
                out,
                "version {}, in force on every replica within a second",
                update.updates
            )?;
        }
        return Ok(());
    }
    Err(Refusal::Failed(format!(
        "other commands keep changing `{}`; nothing was set",
        args.name
    )))
}

/// The policy to start from, and its version.
fn base(
    opened: &OpenLimits,
    name: &str,
    policy: Option<&LimitPolicy>,
) -> Result<(String, PolicyVersion), Refusal> {
    match (policy, opened.file(name)) {
        (Some(policy), _) => Ok((policy.text.clone(), policy.version)),
        (None, file) if !file.is_empty() => Ok((file, PolicyVersion::NONE)),
        (None, _) => Err(Refusal::Failed(format!(
            "no replica has used a limit `{name}` yet; use --config"
        ))),
    }
}

/// The limit with the changes, if a configuration with it is a good one.
fn updated(
    opened: &OpenLimits,
    name: &str,
    before: &str,
    changes: &[(&str, &str)],
) -> Result<Limit, Refusal> {
    let mut words = policy::words(before).map_err(|why| Refusal::Failed(why.to_string()))?;
    words.retain(|(known, _)| changes.iter().all(|(name, _)| name != known));
    if changes.iter().any(|(name, _)| *name == "kind") {
        return Err(Refusal::Arguments(
            "the kind of a limit cannot be changed while the fleet runs".to_owned(),
        ));
    }
    let kept = opened.settings().and_then(|s| s.limits.get(name));
    let fixed =
        |(value, _): &&(&str, &str)| kept.is_some_and(|l| !l.policy_names().contains(value));
    let unchangeable = changes.iter().find(fixed).map(|(value, _)| *value);
    words.extend(changes);
    let limit = configured(opened, name, &words)?;
    // A name that no limit has was reported before, with the nearest known name.
    if let Some(value) = unchangeable {
        return Err(Refusal::Arguments(format!(
            "`{value}` of a {} limit cannot be changed while the fleet runs, only {}; write it into the file and restart",
            kind(before),
            limit.policy_names().join(", ")
        )));
    }
    Ok(limit)
}

/// The limit as a configuration with these values has it.
pub(super) fn configured(
    opened: &OpenLimits,
    name: &str,
    words: &[(&str, &str)],
) -> Result<Limit, Refusal> {
    let extra = Extra {
        name: "the arguments".to_owned(),
        text: document(name, words, opened.loaded.is_none()),
    };
    let loaded = settings::load_with(
        Some("redis"),
        &opened.location.config,
        Some(extra),
        std::env::vars(),
    );
    let loaded = loaded.map_err(Refusal::Values)?;
    let limit = loaded.settings.limits.get(name).cloned();
    limit.ok_or_else(|| Refusal::Failed(format!("there is no limit `{name}`")))
}

/// The values as a configuration; with all that a configuration needs, if there is no other.
fn document(name: &str, words: &[(&str, &str)], alone: bool) -> String {
    let table = |words: &[(&str, &str)]| {
        let value = |text: &str| match (text.parse::<i64>(), text.parse::<bool>()) {
            (Ok(number), _) => toml::Value::Integer(number),
            (_, Ok(yes)) => toml::Value::Boolean(yes),
            _ => toml::Value::String(text.to_owned()),
        };
        let pairs = words
            .iter()
            .map(|(name, text)| ((*name).to_owned(), value(text)));
        toml::Value::Table(pairs.collect())
    };
    let nested = |outer: &str, inner: toml::Value| {
        toml::Value::Table(toml::Table::from_iter([(outer.to_owned(), inner)]))
    };
    let mut root = toml::Table::new();
    root.insert("limits".to_owned(), nested(name, table(words)));
    if alone {
        let downstream = table(&[("kind", "http"), ("url", "http://127.0.0.1/")]);
        let mut route = toml::Table::from_iter([
            ("queue".to_owned(), toml::Value::from("any")),
            ("downstream".to_owned(), downstream),
        ]);
        route.insert("limits".to_owned(), toml::Value::from(vec![name]));
        root.insert(
            "routes".to_owned(),
            nested("any", toml::Value::Table(route)),
        );
    }
    root.to_string()
}
