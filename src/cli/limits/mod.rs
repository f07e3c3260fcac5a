//! `sluiced limits`: what is in force for each limit, live, for the whole fleet.
//!
//! Every update goes to the store, and from there to the replicas (`core::policy`). No replica is
//! called directly; one that is away gets the update when it comes back.

mod change;
pub(super) mod key;
mod list;
mod set;
mod show;
mod text;

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use secrecy::SecretString;

use super::exit::Exit;
use super::refusal::{Refusal, did_you_mean};
use crate::limiter::redis::RedisOptions;
use crate::ports::policy::PolicyStore;
use crate::settings::types::{LimitBackend, Settings};
use crate::settings::{self, Loaded};
use crate::status::Replica;
use crate::wire::{self, PolicyStores};

/// The arguments of `sluiced limits`.
#[derive(Args, Clone, Debug)]
pub struct LimitsArgs {
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// All limits of a configuration: what is in force, set by which file or operator, which replicas differ
    List(list::ListArgs),
    /// Everything about one limit, or the state of one of its keys
    Show(show::ShowArgs),
    /// Put new values of a limit in force, such as rate=300/1s
    Set(set::SetArgs),
    /// Let nothing pass until resumed, or for a while
    Pause(change::PauseArgs),
    /// End a pause, or a freeze that a downstream asked for
    Resume(change::ResumeArgs),
    /// Let a keyed limit pass again at once that waits because Redis lost its state
    Open(change::OpenArgs),
}

/// Where the limits are.
#[derive(Args, Clone, Debug)]
pub struct Location {
    /// A configuration file, as for `sluiced run`; may repeat
    #[arg(
        long,
        env = "SLUICED_CONFIG",
        value_name = "FILE",
        required_unless_present = "redis"
    )]
    config: Vec<PathBuf>,
    /// Without a configuration: `redis://user:password@host:port/db`
    #[arg(long, value_name = "URL", conflicts_with = "config")]
    redis: Option<SecretString>,
    /// With --redis: what every key there starts with
    #[arg(
        long,
        value_name = "PREFIX",
        default_value = "sluiced",
        conflicts_with = "config"
    )]
    prefix: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The store, and the configuration if there is one.
pub(super) struct OpenLimits {
    options: RedisOptions,
    stores: PolicyStores,
    /// `None`: only the store is known.
    loaded: Option<Loaded>,
    location: Location,
}

/// Runs a command, and writes what it finds to `out`. An operator is asked on `prompt`, if there is one.
pub(super) async fn run(
    args: &LimitsArgs,
    out: &mut (impl Write + Send),
    prompt: Option<&mut (dyn Write + Send)>,
) -> Result<Exit, Refusal> {
    match &args.command {
        Command::List(args) => list::run(args, out).await?,
        Command::Show(args) => show::run(args, out).await?,
        Command::Set(args) => set::run(args, out, prompt).await?,
        Command::Pause(args) => change::pause(args, out).await?,
        Command::Resume(args) => change::resume(args, out).await?,
        Command::Open(args) => change::open(args, out).await?,
    }
    Ok(Exit::Done)
}

impl Location {
    /// That of a configuration.
    pub(super) fn of(config: Vec<PathBuf>) -> Self {
        Self {
            config,
            redis: None,
            prefix: String::new(),
            json: false,
        }
    }

    pub(super) async fn open(&self) -> Result<OpenLimits, Refusal> {
        let (options, loaded) = if let Some(url) = &self.redis {
            let mut options = wire::redis_at(url.clone());
            options.settings.prefix.clone_from(&self.prefix);
            (options, None)
        } else {
            let loaded = settings::load_with(Some("redis"), &self.config, None, std::env::vars());
            let loaded = loaded.map_err(Refusal::Faults)?;
            if loaded.settings.backend.limits == LimitBackend::Memory {
                return Err(Refusal::Failed(
                    "these limits are kept in the process that runs (`backend.limits = \
                     \"memory\"`), and no other process can reach them"
                        .to_owned(),
                ));
            }
            (wire::redis_of(&loaded)?, Some(loaded))
        };
        Ok(OpenLimits {
            stores: wire::policies(&options).await?,
            options,
            loaded,
            location: self.clone(),
        })
    }
}

impl OpenLimits {
    pub(super) const fn loaded(&self) -> Option<&Loaded> {
        self.loaded.as_ref()
    }

    /// How the replicas are.
    pub(super) async fn replicas(&self) -> Result<Vec<Replica>, Refusal> {
        Ok(wire::replicas(&self.options).await?)
    }

    fn settings(&self) -> Option<&Settings> {
        self.loaded.as_ref().map(|loaded| &loaded.settings)
    }

    /// The policy of a limit in the file. Empty if there is no file.
    fn file(&self, limit: &str) -> String {
        let limit = self.settings().and_then(|s| s.limits.get(limit));
        limit.map_or_else(String::new, |limit| limit.policy_line())
    }

    /// Where a limit stands: it is paced, or keyed. Without a file the store knows.
    pub(super) async fn store(&self, limit: &str) -> Result<&dyn PolicyStore, Refusal> {
        let PolicyStores { paced, keyed } = &self.stores;
        let kind = self.settings().and_then(|s| s.limits.get(limit));
        let is_paced = match kind {
            Some(kind) => kind.as_paced().is_some(),
            None => keyed.inspect(limit).await?.policy.is_none(),
        };
        Ok(if is_paced { &**paced } else { &**keyed })
    }

    /// Refuses a name that the file does not have, and offers the nearest one.
    fn known(&self, limit: &str) -> Result<(), Refusal> {
        let Some(settings) = self.settings() else {
            return Ok(());
        };
        if settings.limits.contains_key(limit) {
            return Ok(());
        }
        let hint = did_you_mean(limit, settings.limits.keys());
        Err(Refusal::Arguments(format!(
            "there is no limit `{limit}`; {hint}"
        )))
    }
}
