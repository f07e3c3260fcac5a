//! `sluiced routes`: pauses and resumes one route on every replica, while the other routes of its limits go on.
//!
//! A pause goes to the store, and from there to the replicas (`pipeline::policies::pause`). No replica is called
//! directly; one that is away, or starts meanwhile, gets the pause when it comes.

use std::io::Write;

use clap::{Args, Subcommand};
use serde_json::json;

use super::exit::{Exit, Refusal, find_named};
use super::limits::pause::{PauseOptions, PauseTarget};
use super::limits::{LimitsLocation, OpenLimits};
use super::shell;
use super::text::{state_in_words, table};
use crate::wire::StoredLimit;
use sluiced_ports::policies::{PolicyOf, pause_of};
use sluiced_ports::store::Family;

/// The arguments of `sluiced routes`.
#[derive(Args, Clone, Debug)]
pub struct RoutesArgs {
    #[command(subcommand)]
    pub command: RoutesCommand,
}

/// What to do.
#[derive(Subcommand, Clone, Debug)]
pub enum RoutesCommand {
    /// All routes of a configuration and its callers, and whether an operator paused them
    List(ListRoutesArgs),
    /// Send nothing of a route until resumed, or for a while: its messages wait in their queue
    Pause(PauseRouteArgs),
    /// End a pause
    Resume(ResumeArgs),
}

/// The arguments of `sluiced routes list`.
#[derive(Args, Clone, Debug)]
pub struct ListRoutesArgs {
    #[command(flatten)]
    location: LimitsLocation,
}

/// The arguments of `sluiced routes pause`.
#[derive(Args, Clone, Debug)]
pub struct PauseRouteArgs {
    /// The route
    #[arg(add = shell::routes())]
    name: String,
    #[command(flatten)]
    pausing: PauseOptions,
}

/// The arguments of `sluiced routes resume`.
#[derive(Args, Clone, Debug)]
pub struct ResumeArgs {
    /// The route
    #[arg(add = shell::routes())]
    name: String,
    #[command(flatten)]
    location: LimitsLocation,
}

/// Runs a command, and writes what it finds to `out`.
pub(super) async fn run(args: &RoutesArgs, out: &mut (impl Write + Send)) -> Result<Exit, Refusal> {
    match &args.command {
        RoutesCommand::List(args) => list(args, out).await?,
        RoutesCommand::Pause(args) => {
            let (opened, key) = open(&args.pausing.location, &args.name).await?;
            let route = route(&opened, &args.name, &key);
            route.pause(&args.pausing, out).await?;
        }
        RoutesCommand::Resume(args) => {
            let (opened, key) = open(&args.location, &args.name).await?;
            let route = route(&opened, &args.name, &key);
            route.resume(args.location.json, out).await?;
        }
    }
    Ok(Exit::Done)
}

/// The store, and the name of the pause of a route. A route that the configuration does not have is refused.
async fn open(location: &LimitsLocation, name: &str) -> Result<(OpenLimits, String), Refusal> {
    let opened = location.open().await?;
    if let Some(settings) = opened.settings() {
        find_named("route", name, &settings.shown())?;
    }
    Ok((opened, pause_of(name)))
}

fn route<'a>(opened: &'a OpenLimits, name: &'a str, key: &'a str) -> PauseTarget<'a> {
    PauseTarget {
        what: "route",
        name,
        policy: PolicyOf::new(&*opened.store, Family::Paced, key),
    }
}

async fn list(args: &ListRoutesArgs, out: &mut (impl Write + Send)) -> Result<(), Refusal> {
    let opened = args.location.open().await?;
    let loaded =
        opened.require_configuration("list needs --config: the names of the routes stand there")?;
    let mut all = Vec::new();
    for (name, shown_route) in loaded.settings.shown() {
        let key = pause_of(&name);
        let found = route(&opened, &name, &key).policy.inspect().await?;
        let is_known = found.policy.is_some();
        let stored = StoredLimit { found, lost: None };
        let state = match is_known {
            true => state_in_words(&stored.state()),
            false => "not running yet".to_owned(),
        };
        all.push((name, shown_route.source, state));
    }
    if args.location.json {
        let entries = all
            .iter()
            .map(|(name, queue, state)| json!({ "name": name, "queue": queue, "state": state }));
        let list = serde_json::Value::from(entries.collect::<Vec<_>>());
        writeln!(out, "{list:#}")?;
        return Ok(());
    }
    let rows = all
        .into_iter()
        .map(|(name, queue, state)| [name, queue, state]);
    table(["ROUTE", "QUEUE", "STATE"], &[], rows, out)?;
    Ok(())
}
