//! `sluiced limits set NAME rate=300/1s`: new values of a limit for the whole fleet.
//!
//! The values are read and checked like a configuration with them. So nothing that `sluiced check` would
//! refuse can be set. More than twice the value of the file is probably a mistake: the operator must confirm
//! it, or use `--yes`.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::show::short_policy;
use super::{LimitsLocation, OpenLimits, Refusal, length, operator, unused_limit, write_change};
use crate::cli::exit::{agrees, variables};
use crate::cli::shell;
use crate::wire::kind;
use sluiced_core::policy::{ADAPTED, LimitPolicy, PolicyUpdate, ending, ends};
use sluiced_core::rate::{Span, parse_duration};
use sluiced_core::time::micros;
use sluiced_core::version::PolicyVersion;
use sluiced_ports::store::CompletedUpdate;
use sluiced_settings::text::WindowRate;
use sluiced_settings::types::Limit;
use sluiced_settings::{self as settings, Extra, policy};

/// Another operator may change the same limit at the same time. After this many tries, give up.
const TRIES: usize = 3;

/// The arguments of `sluiced limits set`.
#[derive(Args, Clone, Debug)]
pub struct SetArgs {
    /// The limit
    #[arg(add = shell::limits())]
    name: String,
    /// New values, such as rate=300/1s headroom=10ms, or rate=50% of the file's; the others stay as they are
    #[arg(required = true, value_name = "NAME=VALUE")]
    values: Vec<String>,
    /// How long, such as 30m; then the file counts again. Without it until the next change
    #[arg(long = "for", value_name = "DURATION", value_parser = length)]
    length: Option<Duration>,
    /// Do not ask, even if a value is more than twice that of the file
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    location: LimitsLocation,
}

pub(super) async fn run(
    args: &SetArgs,
    out: &mut (impl Write + Send),
    mut prompt: Option<&mut (dyn Write + Send)>,
) -> Result<(), Refusal> {
    let opened = args.location.open().await?;
    let policy = opened.policy(&args.name).await?;
    let values = args.values.join(" ");
    let asked = policy::words(&values).map_err(|why| Refusal::Arguments(why.to_string()))?;
    let by = operator();
    let mut agreed = args.yes;
    for _ in 0..TRIES {
        let found = policy.inspect().await?;
        let (before, replaces) = base(&opened, &args.name, found.policy.as_ref())?;
        // The file of this configuration; without one, the last that a replica read.
        let mut file = opened.file(&args.name);
        if let (true, Some(policy)) = (file.is_empty(), &found.policy) {
            file.clone_from(&policy.file);
        }
        let amounts = shares(&asked, &file)?;
        let changes: Vec<_> = amounts.iter().map(|(n, value)| (*n, &**value)).collect();
        let mut after = updated(&opened, &args.name, &before, &changes)?.policy_line();
        check_division(&args.name, &before, &after)?;
        if !agreed && let Some(grown) = more_than_twice(&file, &after) {
            agree(&args.name, &grown, prompt.take())?;
            agreed = true;
        }
        if let Some(length) = args.length {
            after = ending(&after, found.now + length);
        }
        let update = PolicyUpdate {
            replaces,
            text: &after,
            file: &file,
            by: &by,
        };
        if let Some(update) = policy.set(&update, None).await? {
            return Ok(write(args, &update, [&before, &after, &file], out)?);
        }
    }
    Err(Refusal::Failed(format!(
        "other commands keep changing `{}`; nothing was set",
        args.name
    )))
}

/// Writes what was set; policies are those before, after and of the file.
fn write(
    args: &SetArgs,
    update: &CompletedUpdate,
    [before, after, file]: [&str; 3],
    out: &mut impl Write,
) -> io::Result<()> {
    let (name, old_policy, new_policy) = (&args.name, short_policy(before), short_policy(after));
    if args.location.json {
        let length = args.length.map(micros);
        let output = json!({ "name": name, "before": old_policy, "in_force": new_policy, "version": update.updates, "for_us": length });
        return writeln!(out, "{output:#}");
    }
    write_change(name, [&old_policy, &new_policy], update, out)?;
    if let Some(length) = args.length {
        let (length, file) = (Span(length), short_policy(file));
        writeln!(out, "for {length}; then the file counts again: {file}")?;
    } else if ends(before).1.is_some() {
        writeln!(
            out,
            "for good: the end that was set with --for before is gone"
        )?;
    }
    Ok(())
}

/// The requested values, with shares of the file's values computed: `rate=50%`.
fn shares<'a>(asked: &[(&'a str, &'a str)], file: &str) -> Result<Vec<(&'a str, String)>, Refusal> {
    let of = policy::keys_of(file).unwrap_or_default();
    let resolved = asked.iter().map(|&(name, text)| {
        let Some(digits) = text.strip_suffix('%') else {
            return Ok((name, text.to_owned()));
        };
        let wrong = |why: &str| Refusal::Arguments(format!("{name}={text}: {why}"));
        let percent = digits
            .parse::<u64>()
            .ok()
            .filter(|n| (1..=1_000).contains(n))
            .ok_or_else(|| wrong("write whole percents from 1% to 1000%"))?;
        let (_, value) = of
            .iter()
            .find(|(file_key, _)| *file_key == name)
            .ok_or_else(|| wrong("the file has no such value to take a share of"))?;
        let (amount, rest) = value.split_at(value.find('/').unwrap_or(value.len()));
        let units = amount
            .parse::<u64>()
            .map_err(|_| wrong("a share is taken of a rate or of a whole number"))?;
        let share = (units.saturating_mul(percent) / 100).max(1);
        Ok((name, format!("{share}{rest}")))
    });
    resolved.collect()
}

/// The values that are more than twice those of the file: `rate=4000/1s, the file says 400/1s`.
fn more_than_twice(file: &str, after: &str) -> Option<String> {
    let (before, after) = (policy::keys_of(file).ok()?, policy::keys_of(after).ok()?);
    let grown = after.iter().find_map(|(name, value)| {
        let (_, old) = before.iter().find(|(file_key, _)| file_key == name)?;
        let (new, old_amount) = (amount(value)?, amount(old)?);
        let allows = matches!(
            *name,
            "rate" | "capacity" | "refill" | "limit" | "borrow" | "burst"
        );
        (allows && new > 2.0 * old_amount).then(|| format!("{name}={value}, the file says {old}"))
    });
    let shorter = || {
        let of = |words: &[(&str, &str)]| {
            let value = words.iter().find(|(name, _)| *name == "interval")?.1;
            Some((parse_duration(value).ok()?, value.to_owned()))
        };
        let ((old, old_text), (new, text)) = (of(&before)?, of(&after)?);
        (new * 2 < old).then(|| format!("interval={text}, the file says {old_text}"))
    };
    grown.or_else(shorter)
}

/// Units a second of a rate, or a number.
fn amount(value: &str) -> Option<f64> {
    let rate = value.parse::<WindowRate>().ok();
    rate.map(WindowRate::per_second)
        .or_else(|| value.parse().ok())
}

/// Asks the operator, who agrees by typing the name of the limit.
fn agree(name: &str, grown: &str, prompt: Option<&mut (dyn Write + Send)>) -> Result<(), Refusal> {
    let Some(prompt) = prompt else {
        return Err(Refusal::Arguments(format!(
            "{grown}: that is more than twice as much; add --yes if it is meant"
        )));
    };
    let question = format!("{grown}: that is more than twice as much. Type `{name}` to set it: ");
    match agrees(&question, name, prompt)? {
        true => Ok(()),
        false => Err(Refusal::Failed("nothing was set".to_owned())),
    }
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
        (None, _) => Err(unused_limit(name, "; use --config")),
    }
}

/// Refuses values that the running replicas could not use: they would take no slots under them.
pub(super) fn check_division(name: &str, in_force: &str, after: &str) -> Result<(), Refusal> {
    match policy::divided_otherwise(in_force, after) {
        None => Ok(()),
        Some(key) => Err(Refusal::Failed(format!(
            "`{name}` would have another {key} than the running replicas have, and under that they would send nothing: {key} changes with a file, once most replicas were restarted with it"
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
    // A rate that `adaptive` changed, and an end of the earlier policy, are replaced as well.
    let mut words = policy::keys_of(before).map_err(|why| Refusal::Failed(why.to_string()))?;
    if let Some((name, _)) = changes
        .iter()
        .find(|(name, _)| [ADAPTED, "until"].contains(name))
    {
        return Err(Refusal::Arguments(format!(
            "`{name}` is not for operators: sluiced writes it; set the rate, or how long with --for"
        )));
    }
    words.retain(|(key, _)| changes.iter().all(|(name, _)| name != key));
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
    // Without the word it is 1, and a file without it may give another one at another rate.
    let is_said = words.iter().any(|(key, _)| *key == "max_cost");
    if unchangeable.is_none() && kind(before) == "paced" && !is_said {
        words.push(("max_cost", "1"));
    }
    let limit = limit_of_words(opened, name, &words)?;
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
pub(super) fn limit_of_words(
    opened: &OpenLimits,
    name: &str,
    words: &[(&str, &str)],
) -> Result<Limit, Refusal> {
    let extra = Extra {
        name: "the arguments".to_owned(),
        text: document(name, words, opened.loaded.is_none()),
    };
    // With --redis no file and no variable is meant, though SLUICED_CONFIG may name one.
    let (files, env) = match &opened.loaded {
        Some(_) => (&*opened.location.config, variables().collect()),
        None => (&[][..], Vec::new()),
    };
    let loaded = settings::load_with(
        settings::Needs::Section("redis"),
        files,
        Some(extra),
        env.into_iter(),
    )
    .map_err(Refusal::Values)?;
    let limit = loaded.settings.limits.get(name).cloned();
    limit.ok_or_else(|| Refusal::Failed(format!("there is no limit `{name}`")))
}

/// The values as a configuration; with everything that a configuration needs, if there is no other.
fn document(name: &str, words: &[(&str, &str)], alone: bool) -> String {
    let value = |text: &str| match (text.parse::<i64>(), text.parse::<bool>()) {
        (Ok(number), _) => json!(number),
        (_, Ok(yes)) => json!(yes),
        _ => json!(text),
    };
    let words = words.iter().map(|(key, text)| (*key, value(text)));
    let mut root = json!({ "limits": { name: words.collect::<BTreeMap<_, _>>() } });
    if alone {
        let downstream = json!({ "kind": "http", "url": "http://127.0.0.1/" });
        root["routes"] =
            json!({ "any": { "queue": "any", "limits": [name], "downstream": downstream } });
    }
    let document = toml::Table::try_from(root);
    document.expect("there is no null in it").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_twice_as_much_in_the_same_time_is_found() {
        let asks = |file: &str, after: &str| {
            let of = |rate: &str| format!("kind=fixed_window rate={rate}");
            more_than_twice(&of(file), &of(after)).is_some()
        };
        for (file, after) in [
            ("400/1s", "801/1s"),
            ("400/1s", "400/100ms"),
            ("1000/month", "2001/month"),
            ("1000/month", "1000/day"),
            ("1000/1d", "84/hour"),
            ("1000/day", "90000/month"),
        ] {
            assert!(asks(file, after), "{file} -> {after}");
        }
        for (file, after) in [
            ("400/1s", "800/1s"),
            ("400/1s", "8000/10s"),
            ("1000/month", "2000/month"),
            ("1000/day", "1000/month"),
            ("1000/day", "30000/month"),
            ("1000/hour", "48000/1d"),
        ] {
            assert!(!asks(file, after), "{file} -> {after}");
        }
    }
}
