//! `sluiced limits pause NAME [--for 10m]` and `sluiced limits resume NAME`.

use std::io::Write;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::{Location, Refusal, key};
use crate::cli::completions;
use crate::core::limits::generation::Closing;
use crate::core::rate::{Span, parse_duration};
use crate::core::schedule::FREEZE_MAX;

/// The arguments of `sluiced limits pause`.
#[derive(Args, Clone, Debug)]
pub struct PauseArgs {
    /// The limit
    #[arg(add = completions::limits())]
    name: String,
    /// How long, such as 10m; without it until resumed (366 days at most)
    #[arg(long = "for", value_name = "DURATION", value_parser = length)]
    length: Option<Duration>,
    #[command(flatten)]
    location: Location,
}

/// The arguments of `sluiced limits resume`.
#[derive(Args, Clone, Debug)]
pub struct ResumeArgs {
    /// The limit
    #[arg(add = completions::limits())]
    name: String,
    #[command(flatten)]
    location: Location,
}

/// The arguments of `sluiced limits open`.
#[derive(Args, Clone, Debug)]
pub struct OpenArgs {
    /// The limit
    #[arg(add = completions::limits())]
    name: String,
    #[command(flatten)]
    location: Location,
}

fn length(text: &str) -> Result<Duration, String> {
    let length = parse_duration(text).map_err(|wrong| wrong.to_string())?;
    if length > FREEZE_MAX {
        return Err(format!(
            "a pause lasts {} at most; leave --for out to pause until resumed",
            Span(FREEZE_MAX)
        ));
    }
    Ok(length)
}

pub(super) async fn pause(args: &PauseArgs, out: &mut (impl Write + Send)) -> Result<(), Refusal> {
    let (name, opened) = (&args.name, args.location.open().await?);
    opened.known(name)?;
    let store = opened.store(name).await?;
    let length = args.length.unwrap_or(FREEZE_MAX);
    let paused = store.pause(name, length, &operator()).await?;
    let (update, until) = paused.ok_or_else(|| undeclared(name))?;
    if args.location.json {
        let said = json!({ "name": name, "paused_until_us": until.as_micros(), "version": update.updates });
        writeln!(out, "{said:#}")?;
        return Ok(());
    }
    let how = args.length.map_or_else(
        || format!("until `sluiced limits resume {name}`"),
        |length| format!("for {}", Span(length)),
    );
    writeln!(out, "{name}: paused {how}")?;
    writeln!(
        out,
        "version {}, in force on every replica within a second",
        update.updates
    )?;
    Ok(())
}

pub(super) async fn resume(
    args: &ResumeArgs,
    out: &mut (impl Write + Send),
) -> Result<(), Refusal> {
    let (name, opened) = (&args.name, args.location.open().await?);
    opened.known(name)?;
    let store = opened.store(name).await?;
    let resumed = store.resume(name).await?;
    let (update, was) = resumed.ok_or_else(|| undeclared(name))?;
    if args.location.json {
        let said = json!({ "name": name, "resumed": was, "version": update.updates });
        writeln!(out, "{said:#}")?;
    } else if was {
        writeln!(out, "{name}: resumed")?;
        writeln!(
            out,
            "version {}, in force on every replica within a second",
            update.updates
        )?;
    } else {
        writeln!(out, "{name}: it was neither paused nor frozen")?;
    }
    Ok(())
}

/// Ends the wait of a keyed limit whose state was lost.
pub(super) async fn open(args: &OpenArgs, out: &mut (impl Write + Send)) -> Result<(), Refusal> {
    let (name, opened) = (&args.name, args.location.open().await?);
    opened.known(name)?;
    let store = opened.store(name).await?;
    let found = store.inspect(name).await?;
    let why = key::closed(&opened, name, &found).await?;
    let at = store.open(name).await?.ok_or_else(|| undeclared(name))?;
    if args.location.json {
        let said = json!({ "name": name, "was_closed": why == Some(Closing::Lost), "opened_us": at.as_micros() });
        writeln!(out, "{said:#}")?;
        return Ok(());
    }
    match why {
        Some(Closing::Lost) => writeln!(out, "{name}: open, whatever was lost before")?,
        Some(Closing::Paused) => writeln!(
            out,
            "{name}: nothing was to be opened; it is paused, and `sluiced limits resume {name}` ends that"
        )?,
        Some(Closing::Guard) => writeln!(
            out,
            "{name}: nothing was to be opened; Redis is new or was restarted, and what replicas remember is known within seconds"
        )?,
        None => writeln!(
            out,
            "{name}: nothing was to be opened; it does not wait for anything that was lost"
        )?,
    }
    Ok(())
}

fn undeclared(name: &str) -> Refusal {
    Refusal::Failed(format!("no replica has used a limit `{name}` yet"))
}

/// The operator: the user of this machine, for logs and for other operators.
pub(super) fn operator() -> String {
    let user = ["SUDO_USER", "USER", "LOGNAME"];
    let user = user.iter().find_map(|name| std::env::var(name).ok());
    let user = user.unwrap_or_else(|| format!("uid{}", rustix::process::getuid().as_raw()));
    let host = rustix::system::uname();
    format!("{user}@{}", host.nodename().to_string_lossy())
}
