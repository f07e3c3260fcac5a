//! `sluiced limits adopt NAME`: the file of this configuration counts at once.
//!
//! A changed file counts once more than half of the replicas have it (`core::policy`). An operator that does not want
//! to wait for the rollout says so here. This sets the values of the file, as `sluiced limits set` does: replicas that
//! still have the old file change nothing back, and once most have the new one, it counts as a file.

use std::io::{self, Write};

use serde_json::json;

use super::set::check_division;
use super::show::short_policy;
use super::{NameArgs, Refusal, operator, unused_limit, write_change};
use crate::wire::kind;
use sluiced_core::policy::{PolicyUpdate, as_written};
use sluiced_ports::store::PresentReplica;

pub(super) async fn run(args: &NameArgs, out: &mut (impl Write + Send)) -> Result<(), Refusal> {
    let (name, opened) = (&args.name, args.location.open().await?);
    let policy = opened.policy(name).await?;
    let file = opened.file(name);
    if file.is_empty() {
        let why = "the values come from a file: write --config FILE instead of --redis";
        return Err(Refusal::Arguments(why.to_owned()));
    }
    let found = policy.inspect().await?;
    let before = found.policy.ok_or_else(|| {
        unused_limit(
            name,
            ": the first replica that starts with this file sets it",
        )
    })?;
    let (old_kind, new_kind) = (kind(&before.text), kind(&file));
    if old_kind != new_kind {
        return Err(Refusal::Failed(format!(
            "the file makes `{name}` a {new_kind} limit, and in force is a {old_kind} one: the kind changes once most replicas have the file"
        )));
    }
    check_division(name, &before.text, &file)?;
    let (old_policy, new_policy) = (short_policy(&before.text), short_policy(&file));
    let as_json = |version: u64| {
        let output = json!({ "name": name, "before": old_policy, "in_force": new_policy, "version": version });
        format!("{output:#}")
    };
    if as_written(&before.text) == as_written(&file) {
        match args.location.json {
            true => writeln!(out, "{}", as_json(before.updates))?,
            false => writeln!(out, "{name}: this file is in force already")?,
        }
        return Ok(());
    }
    let update = PolicyUpdate {
        replaces: before.version,
        text: &file,
        file: &before.file,
        by: &operator(),
    };
    let updated = policy.set(&update, None).await?.ok_or_else(|| {
        Refusal::Failed(format!(
            "another command changed `{name}` at the same time; nothing was set"
        ))
    })?;
    if args.location.json {
        writeln!(out, "{}", as_json(updated.updates))?;
        return Ok(());
    }
    write_change(name, [&old_policy, &new_policy], &updated, out)?;
    warn_of_other_files(&found.replicas, &file, out)?;
    Ok(())
}

fn warn_of_other_files(
    replicas: &[PresentReplica],
    file: &str,
    out: &mut impl Write,
) -> io::Result<()> {
    let differ = replicas.iter();
    let others = differ.filter(|replica| as_written(&replica.file) != as_written(file));
    match others.count() {
        0 => Ok(()),
        count => writeln!(
            out,
            "{count} of {} replicas have another file: finish the rollout, or this value stays as an operator's",
            replicas.len()
        ),
    }
}
