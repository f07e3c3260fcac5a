//! `sluiced limits`: the current policy of each limit, for the whole fleet while it runs.
//!
//! Every update goes to the store, and from there to the replicas (`core::policy`). No replica is
//! called directly; one that is away gets the update when it comes back.

mod adopt;
pub(super) mod key;
pub(super) mod pause;
mod set;
mod show;

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use secrecy::SecretString;
use serde_json::json;

use self::key::WaitReasons;
use super::exit::{Exit, Refusal, find_named, load_configuration, only_one_of, variables};
use super::shell;
use super::text::counted;
use crate::wire;
use sluiced_core::limits::generation::ClosedReason;
use sluiced_core::rate::{Span, parse_duration};
use sluiced_core::schedule::FREEZE_MAX;
use sluiced_ports::policies::PolicyOf;
use sluiced_ports::store::{CompletedUpdate, Family, Store};
use sluiced_settings::types::{LimitBackend, Settings};
use sluiced_settings::{Loaded, Needs};
use sluiced_status::Replica;

/// The arguments of `sluiced limits`.
#[derive(Args, Clone, Debug)]
pub struct LimitsArgs {
    #[command(subcommand)]
    pub command: LimitsCommand,
}

/// What to do.
#[derive(Subcommand, Clone, Debug)]
pub enum LimitsCommand {
    /// All limits of a configuration: their current values, set by which file or operator, which replicas differ
    List(show::ListLimitsArgs),
    /// Everything about one limit, or the state of one of its keys
    Show(show::ShowLimitArgs),
    /// Set new values of a limit, such as rate=300/1s
    Set(set::SetArgs),
    /// Let the values of this configuration's file count at once, although most replicas have another file
    Adopt(NameArgs),
    /// Let nothing pass until resumed, or for a while
    Pause(pause::PauseLimitArgs),
    /// End a pause, or a freeze that a downstream asked for
    Resume(NameArgs),
    /// Open a keyed limit at once that waits because Redis lost its state, or forgive what one of its keys owes
    Open(OpenArgs),
}

/// The arguments of `sluiced limits open`.
#[derive(Args, Clone, Debug)]
pub struct OpenArgs {
    /// The limit
    #[arg(add = shell::limits())]
    name: String,
    /// The key whose debt is forgiven, if the limit has keys: the text that its template makes of a message
    key: Option<String>,
    #[command(flatten)]
    location: LimitsLocation,
}

/// The arguments of `sluiced limits resume` and `sluiced limits adopt`.
#[derive(Args, Clone, Debug)]
pub struct NameArgs {
    /// The limit
    #[arg(add = shell::limits())]
    name: String,
    #[command(flatten)]
    location: LimitsLocation,
}

/// Where the limits are.
#[derive(Args, Clone, Debug)]
pub struct LimitsLocation {
    /// A configuration file, as for `sluiced run`; may repeat
    #[arg(
        long,
        env = "SLUICED_CONFIG",
        value_name = "FILE",
        required_unless_present = "redis"
    )]
    config: Vec<PathBuf>,
    /// Without a configuration: `redis://user:password@host:port/db`
    #[arg(long, value_name = "URL")]
    redis: Option<SecretString>,
    /// With --redis: what every key there starts with
    #[arg(
        long,
        value_name = "PREFIX",
        default_value = "sluiced",
        requires = "redis"
    )]
    prefix: String,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// The store, and the configuration if there is one.
pub(super) struct OpenLimits {
    pub(super) store: Arc<dyn Store>,
    /// `None`: only the store is known.
    loaded: Option<Loaded>,
    location: LimitsLocation,
}

/// Runs a command, and writes what it finds to `out`. An operator is asked on `prompt`, if there is one.
pub(super) async fn run(
    args: &LimitsArgs,
    out: &mut (impl Write + Send),
    prompt: Option<&mut (dyn Write + Send)>,
) -> Result<Exit, Refusal> {
    match &args.command {
        LimitsCommand::List(args) => show::list(args, out).await?,
        LimitsCommand::Show(args) => show::show(args, out).await?,
        LimitsCommand::Set(args) => set::run(args, out, prompt).await?,
        LimitsCommand::Adopt(args) => adopt::run(args, out).await?,
        LimitsCommand::Pause(args) => pause::pause(args, out).await?,
        LimitsCommand::Resume(args) => pause::resume(args, out).await?,
        LimitsCommand::Open(args) => open(args, out).await?,
    }
    Ok(Exit::Done)
}

impl LimitsLocation {
    /// The location of a configuration.
    pub(super) fn of(config: Vec<PathBuf>) -> Self {
        Self {
            config,
            redis: None,
            prefix: String::new(),
            json: false,
        }
    }

    pub(super) async fn open(&self) -> Result<OpenLimits, Refusal> {
        only_one_of("--redis", self.redis.is_some(), &self.config)?;
        let (options, loaded) = if let Some(url) = &self.redis {
            let mut options = wire::redis_at(url.clone());
            options.settings.prefix.clone_from(&self.prefix);
            (options, None)
        } else {
            let needs = Needs::Section("redis");
            let loaded = load_configuration(needs, &self.config, variables())?;
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
            store: wire::store(&options).await?,
            loaded,
            location: self.clone(),
        })
    }
}

impl OpenLimits {
    /// The configuration. Refused without one, with what to do.
    pub(super) fn require_configuration(&self, why: &str) -> Result<&Loaded, Refusal> {
        let loaded = self.loaded.as_ref();
        loaded.ok_or_else(|| Refusal::Arguments(why.to_owned()))
    }

    /// The states of the replicas.
    pub(super) async fn replicas(&self) -> Result<Vec<Replica>, Refusal> {
        Ok(wire::replicas(&*self.store).await?)
    }

    pub(super) fn settings(&self) -> Option<&Settings> {
        self.loaded.as_ref().map(|loaded| &loaded.settings)
    }

    /// The policy of a limit in the file. Empty if there is no file.
    fn file(&self, limit: &str) -> String {
        let configured = self.settings().and_then(|s| s.limits.get(limit));
        configured.map_or_else(String::new, |limit| limit.policy_line())
    }

    /// The policy of a limit. A name that the file does not have is refused; without a file the store knows whether the
    /// limit is paced or keyed.
    pub(super) async fn policy<'a>(&'a self, limit: &'a str) -> Result<PolicyOf<'a>, Refusal> {
        let of = |family| PolicyOf::new(&*self.store, family, limit);
        if let Some(settings) = self.settings() {
            return Ok(of(wire::family(
                find_named("limit", limit, &settings.limits)?.1,
            )));
        }
        let keyed = of(Family::Keyed);
        Ok(match keyed.inspect().await?.policy {
            Some(_) => keyed,
            None => of(Family::Paced),
        })
    }
}

/// How long a change may last.
fn length(text: &str) -> Result<Duration, String> {
    match parse_duration(text).map_err(|wrong| wrong.to_string())? {
        length if length > FREEZE_MAX => Err(format!(
            "it lasts {} at most; without --for it has no end",
            Span(FREEZE_MAX)
        )),
        length => Ok(length),
    }
}

/// Ends the wait of a keyed limit whose state was lost, and forgives what a key owes.
async fn open(args: &OpenArgs, out: &mut (impl Write + Send)) -> Result<(), Refusal> {
    let (name, opened) = (&args.name, args.location.open().await?);
    let policy = opened.policy(name).await?;
    let found = policy.inspect().await?;
    let paused = found
        .policy
        .as_ref()
        .and_then(|policy| policy.paused_until(found.now));
    let lost = key::closed_by_loss(&opened, name, &found)
        .await?
        .map(|(_, why)| why);
    let why = paused.map(|_| ClosedReason::Paused).or(lost);
    let key = args.key.as_deref();
    if key.is_some() {
        key::check_may_owe(&opened, name, &found)?;
    }
    // Only a `once` limit counts by queue.
    let state = key::look_up(&opened, name, None, key, &found).await?;
    let waited = match &state {
        Some(state) => state.forgive(&*opened.store, name).await?,
        None => WaitReasons::default(),
    };
    // The notice comes last: replicas ask again at once. A paused limit is not opened: a loss may hide behind the
    // pause.
    let at = match paused {
        Some(_) => None,
        None => Some(policy.open().await?.ok_or_else(|| unused_limit(name, ""))?),
    };
    let at = at.map(|at| at.to_string());
    if args.location.json {
        let output = json!({ "name": name, "was_closed": why == Some(ClosedReason::Lost), "opened": at,
            "forgiven_units": waited.owed, "forgot_quota": waited.quota });
        writeln!(out, "{output:#}")?;
        return Ok(());
    }
    write_opened(name, waited, why, out)?;
    Ok(())
}

/// Writes what was forgiven and what was opened.
fn write_opened(
    name: &str,
    waited: WaitReasons,
    why: Option<ClosedReason>,
    out: &mut impl Write,
) -> io::Result<()> {
    if waited.owed > 0 {
        let units = counted(waited.owed, "unit");
        writeln!(
            out,
            "{name}: forgiven: {units} that calls used beyond their costs"
        )?;
    }
    if waited.quota {
        writeln!(
            out,
            "{name}: forgotten: what the downstream said is left of its quota"
        )?;
    }
    match why {
        None if waited != WaitReasons::default() => {}
        Some(ClosedReason::Lost) => writeln!(out, "{name}: open, whatever was lost before")?,
        Some(ClosedReason::Paused) => writeln!(
            out,
            "{name}: nothing was opened; it is paused, and `sluiced limits resume {name}` ends that"
        )?,
        Some(ClosedReason::Guard) => writeln!(
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

fn unused_limit(name: &str, hint: &str) -> Refusal {
    Refusal::Failed(format!("no replica has used a limit `{name}` yet{hint}"))
}

/// Writes the values of a limit before and after an update, and when it applies.
fn write_change(
    name: &str,
    [was, is]: [&str; 2],
    update: &CompletedUpdate,
    out: &mut impl Write,
) -> io::Result<()> {
    writeln!(out, "{name}: {was}")?;
    writeln!(out, "{:>width$}  {is}", "->", width = name.len())?;
    write_in_force(update, out)
}

/// Writes when an update applies.
fn write_in_force(update: &CompletedUpdate, out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "version {}, in force on every replica within a second",
        update.updates
    )
}

/// The operator: the user of this machine, for logs and for other operators.
fn operator() -> String {
    let user = ["SUDO_USER", "USER", "LOGNAME"]
        .iter()
        .find_map(|name| std::env::var(name).ok())
        .unwrap_or_else(|| format!("uid{}", rustix::process::getuid().as_raw()));
    let host = rustix::system::uname();
    format!("{user}@{}", host.nodename().to_string_lossy())
}
