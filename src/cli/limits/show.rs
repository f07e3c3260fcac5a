//! `sluiced limits show NAME`: everything about one limit. `sluiced limits show NAME KEY`: what it has
//! left for one key; a limit without keys shows the units that it has left at once. Changes nothing.

use std::io::Write;

use clap::Args;

use super::key;
use super::text::{adapted, as_json, differ, differing, followed, kind, left, short, updated_by};
use super::{Location, Refusal};
use crate::cli::completions;
use crate::cli::text::state;
use crate::core::rate::Span;
use crate::ports::policy::Inspection;

/// The arguments of `sluiced limits show`.
#[derive(Args, Clone, Debug)]
pub struct ShowArgs {
    /// The limit
    #[arg(add = completions::limits())]
    name: String,
    /// The key: the text that its template makes of a message
    key: Option<String>,
    #[command(flatten)]
    location: Location,
}

pub(super) async fn run(args: &ShowArgs, out: &mut (impl Write + Send)) -> Result<(), Refusal> {
    let opened = args.location.open().await?;
    opened.known(&args.name)?;
    let found = opened.store(&args.name).await?.inspect(&args.name).await?;
    let file = opened.file(&args.name);
    let left = key::look_up(&opened, &args.name, args.key.as_deref(), &found).await?;
    if args.location.json {
        let mut all = as_json(&args.name, &file, &found);
        if let Some(left) = &left {
            all["units"] = left.as_json();
        }
        writeln!(out, "{all:#}")?;
        return Ok(());
    }
    write(&args.name, &file, &found, out)?;
    if let Some(left) = &left {
        left.write(out)?;
    }
    Ok(())
}

fn write(name: &str, file: &str, found: &Inspection, out: &mut impl Write) -> Result<(), Refusal> {
    let Some(policy) = &found.policy else {
        writeln!(out, "{name}: no replica has used it yet")?;
        if !file.is_empty() {
            writeln!(out, "  this file     {}", short(file))?;
        }
        return Ok(());
    };
    writeln!(out, "{name} ({})", kind(&policy.text))?;
    let mut line = |label: &str, text: &str| writeln!(out, "  {label:<12}  {text}");
    line("in force", &short(&policy.text))?;
    if let Some(rate) = adapted(&policy.text) {
        line(
            "lowered to",
            &format!("{rate}, as the downstream allows (adaptive)"),
        )?;
    }
    if let Some(parts) = followed(&policy.text) {
        let (all, late, way) = (Span(parts.all()), Span(parts.late), Span(parts.way));
        line(
            "headroom",
            &format!(
                "{all}: {late} for calls that leave late, {way} for how much their way varies"
            ),
        )?;
    }
    if let Some(left) = left(&policy.text, found.now) {
        line("ends", &format!("{left}; then the file counts again"))?;
    }
    line(
        "version",
        &format!("{}, {}", policy.updates, updated_by(policy, found.now)),
    )?;
    line("state", &state(found))?;
    if !file.is_empty() {
        let differs = if differ(file, &policy.text) {
            &short(file)
        } else {
            "the same"
        };
        line("this file", differs)?;
    }
    if differ(&policy.file, &policy.text) {
        line("last file", &short(&policy.file))?;
    }
    let differing = differing(found);
    let agree = found.replicas.len() - differing.len();
    let others = if differing.is_empty() {
        String::new()
    } else {
        format!(", and {} with another file:", differing.len())
    };
    line(
        "replicas",
        &format!("{agree} with this in their file{others}"),
    )?;
    for (replica, file) in differing {
        line("", &format!("{replica}  {}", short(file)))?;
    }
    Ok(())
}
