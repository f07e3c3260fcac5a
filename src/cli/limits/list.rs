//! `sluiced limits list`: a line for each limit.

use std::io::Write;

use clap::Args;
use serde_json::Value;

use super::text::{ago, as_json, differ, differing, kind, left, main_value, short, state_word};
use super::{Location, Refusal};
use crate::ports::policy::Inspection;

/// The arguments of `sluiced limits list`.
#[derive(Args, Clone, Debug)]
pub struct ListArgs {
    #[command(flatten)]
    location: Location,
}

struct Listed {
    name: String,
    file: String,
    found: Inspection,
}

const HEAD: [&str; 6] = ["LIMIT", "KIND", "IN FORCE", "VERSION", "SINCE", "STATE"];

pub(super) async fn run(args: &ListArgs, out: &mut (impl Write + Send)) -> Result<(), Refusal> {
    let opened = args.location.open().await?;
    let Some(settings) = opened.settings() else {
        return Err(Refusal::Arguments(
            "list needs --config: the names of the limits stand there".to_owned(),
        ));
    };
    let mut lines = Vec::new();
    for name in settings.limits.keys() {
        lines.push(Listed {
            name: name.clone(),
            file: opened.file(name),
            found: opened.store(name).await?.inspect(name).await?,
        });
    }
    if args.location.json {
        let all = lines.iter().map(|l| as_json(&l.name, &l.file, &l.found));
        writeln!(out, "{:#}", Value::from(all.collect::<Vec<_>>()))?;
    } else {
        write(&lines, out)?;
    }
    Ok(())
}

fn write(lines: &[Listed], out: &mut impl Write) -> Result<(), Refusal> {
    let rows: Vec<_> = lines.iter().map(row).collect();
    let mut widths = HEAD.map(str::len);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: [&str; 6]| {
        let cells = cells.iter().zip(widths);
        let text: String = cells
            .map(|(cell, width)| format!("{cell:<width$}  "))
            .collect();
        text.trim_end().to_owned()
    };
    writeln!(out, "{}", line(HEAD))?;
    for row in &rows {
        writeln!(out, "{}", line(row.each_ref().map(String::as_str)))?;
    }
    writeln!(out)?;
    for text in lines.iter().flat_map(remarks) {
        writeln!(out, "{text}")?;
    }
    Ok(())
}

fn row(line: &Listed) -> [String; 6] {
    let name = line.name.clone();
    let state = state_word(&line.found).to_owned();
    let Some(policy) = &line.found.policy else {
        let kind = kind(&line.file).to_owned();
        let none = || "-".to_owned();
        return [
            name,
            kind,
            main_value(&line.file),
            none(),
            none(),
            "not running yet".to_owned(),
        ];
    };
    let mut in_force = main_value(&policy.text);
    if let Some(left) = left(&policy.text, line.found.now) {
        in_force = format!("{in_force} {left}");
    }
    [
        name,
        kind(&policy.text).to_owned(),
        in_force,
        format!("{} {}", policy.updates, policy.origin.name()),
        ago(policy.changed.since(), line.found.now),
        state,
    ]
}

/// The replicas of the limit, and those whose file differs.
fn remarks(line: &Listed) -> Vec<String> {
    if line.found.policy.is_none() {
        return Vec::new();
    }
    let (name, found) = (&line.name, &line.found);
    let differing = differing(found);
    let count = found.replicas.len();
    let replicas = if count == 1 { "replica" } else { "replicas" };
    let mut all = vec![match differing.len() {
        0 => format!("{name}: {count} {replicas}"),
        some => format!("{name}: {count} {replicas}, {some} with another file:"),
    }];
    // A fleet with an old file would fill the screen with the same line.
    for (replica, file) in differing.iter().take(5) {
        all.push(format!("  {replica}  {}", short(file)));
    }
    if differing.len() > 5 {
        all.push(format!(
            "  and {} more; see `limits show {name}`",
            differing.len() - 5
        ));
    }
    if let Some(policy) = found
        .policy
        .as_ref()
        .filter(|s| differ(&s.text, &line.file))
    {
        all.push(format!("  this file says {}", short(&line.file)));
        all.push(format!("  in force is    {}", short(&policy.text)));
    }
    all
}
