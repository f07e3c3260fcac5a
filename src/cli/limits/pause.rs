//! `sluiced limits pause` and `resume`; `sluiced routes pause` and `resume` do the same with the pause of a route
//! (`ports::policies::pause_of`).

use std::io::Write;
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use serde_json::json;

use super::{LimitsLocation, NameArgs, Refusal, length, operator, write_in_force};
use crate::cli::shell;
use sluiced_core::rate::Span;
use sluiced_core::schedule::FREEZE_MAX;
use sluiced_core::time::StoreTime;
use sluiced_ports::policies::PolicyOf;

/// The arguments of `sluiced limits pause`.
#[derive(Args, Clone, Debug)]
pub struct PauseLimitArgs {
    /// The limit
    #[arg(add = shell::limits())]
    name: String,
    #[command(flatten)]
    pausing: PauseOptions,
}

/// For how long something is paused, and where that is said.
#[derive(Args, Clone, Debug)]
pub(in crate::cli) struct PauseOptions {
    /// How long, such as 10m; without it until resumed (366 days at most)
    #[arg(long = "for", value_name = "DURATION", value_parser = length)]
    length: Option<Duration>,
    /// Until when, such as 2026-11-28T06:00:00Z
    #[arg(long, value_name = "TIME", conflicts_with = "length")]
    until: Option<Timestamp>,
    #[command(flatten)]
    pub(in crate::cli) location: LimitsLocation,
}

/// What is paused or resumed.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) struct PauseTarget<'a> {
    /// `limit` or `route`.
    pub(in crate::cli) what: &'static str,
    pub(in crate::cli) name: &'a str,
    pub(in crate::cli) policy: PolicyOf<'a>,
}

pub(super) async fn pause(
    args: &PauseLimitArgs,
    out: &mut (impl Write + Send),
) -> Result<(), Refusal> {
    let opened = args.pausing.location.open().await?;
    let limit = PauseTarget {
        what: "limit",
        name: &args.name,
        policy: opened.policy(&args.name).await?,
    };
    limit.pause(&args.pausing, out).await
}

pub(super) async fn resume(args: &NameArgs, out: &mut (impl Write + Send)) -> Result<(), Refusal> {
    let opened = args.location.open().await?;
    let limit = PauseTarget {
        what: "limit",
        name: &args.name,
        policy: opened.policy(&args.name).await?,
    };
    limit.resume(args.location.json, out).await
}

impl PauseTarget<'_> {
    pub(in crate::cli) async fn pause(
        self,
        pausing: &PauseOptions,
        out: &mut (impl Write + Send),
    ) -> Result<(), Refusal> {
        let Self { what, name, policy } = self;
        let length = match pausing.until {
            Some(until) => Some(left(until, policy.inspect().await?.now)?),
            None => pausing.length,
        };
        let paused = policy
            .pause(length.unwrap_or(FREEZE_MAX), &operator())
            .await?;
        let (update, until) = paused.ok_or_else(|| self.unused())?;
        if pausing.location.json {
            let output = json!({ "name": name, "paused_until": until.to_string(), "version": update.updates });
            writeln!(out, "{output:#}")?;
            return Ok(());
        }
        let how = match (pausing.until, length) {
            (Some(until), _) => format!("until {until}"),
            (None, Some(length)) => format!("for {}", Span(length)),
            (None, None) => format!("until `sluiced {what}s resume {name}`"),
        };
        writeln!(out, "{name}: paused {how}")?;
        Ok(write_in_force(&update, out)?)
    }

    pub(in crate::cli) async fn resume(
        self,
        as_json: bool,
        out: &mut (impl Write + Send),
    ) -> Result<(), Refusal> {
        let name = self.name;
        let resumed = self.policy.resume(&operator()).await?;
        let (update, was_held) = resumed.ok_or_else(|| self.unused())?;
        if as_json {
            let output = json!({ "name": name, "resumed": was_held, "version": update.updates });
            writeln!(out, "{output:#}")?;
        } else if was_held {
            writeln!(out, "{name}: resumed")?;
            write_in_force(&update, out)?;
        } else {
            writeln!(out, "{name}: it was neither paused nor frozen")?;
        }
        Ok(())
    }

    fn unused(self) -> Refusal {
        let Self { what, name, .. } = self;
        Refusal::Failed(format!(
            "no replica has used a {what} `{name}` yet; a Redis that lost its state learns of it within 20 s"
        ))
    }
}

/// From `now` until then.
fn left(until: Timestamp, now: StoreTime) -> Result<Duration, Refusal> {
    let micros = u64::try_from(until.as_microsecond()).unwrap_or_default();
    match StoreTime::from_micros(micros).since(now) {
        Duration::ZERO => Err(Refusal::Arguments(format!("--until {until}: that is over"))),
        left if left > FREEZE_MAX => Err(Refusal::Arguments(format!(
            "--until {until}: a pause lasts {} at most; without --until it has no end",
            Span(FREEZE_MAX)
        ))),
        left => Ok(left),
    }
}
