//! Signals, and how a command ends: its exit code, and why it was refused; the signals that stop it, and
//! SIGHUP, which reads the configuration again while the daemon runs.
//!
//! On SIGHUP limits take their new values at once, for the whole fleet (`core::policy`). Everything else
//! needs a restart, and the log names it. A wrong configuration changes nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{error, info, warn};

use super::check::{fitting, report};
use crate::wire::{self, Policies};
use sluiced_settings::{self as settings, Faults, KeyPath, Loaded, Needs, Severity, nearest};
use sluiced_telemetry::notify::Notifier;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// All is well.
    Done,
    /// It failed while running.
    Failed,
    /// The arguments make no sense. (Most of these faults are found by clap, with the same code.)
    WrongArguments,
    /// A list was sent, and some of its messages are in the leftover file instead.
    Leftover,
    /// The configuration is wrong: `EX_CONFIG` of sysexits.h.
    WrongConfiguration,
}

impl Exit {
    /// The process' exit code.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::WrongArguments => 2,
            Self::Leftover => 3,
            Self::WrongConfiguration => 78,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// Why a command was refused or failed.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The configuration is wrong.
    Faults(Faults),
    /// A configuration with the new values would be wrong.
    Values(Faults),
    /// The arguments make no sense here.
    Arguments(String),
    Failed(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Faults(faults) | Self::Values(faults) => faults.fmt(f),
            Self::Arguments(why) | Self::Failed(why) => f.write_str(why),
        }
    }
}

/// The exit code of a command. Writes why it was refused, if it was.
pub(super) fn exit(
    command: &str,
    done: Result<Exit, Refusal>,
    err: &mut impl Write,
    colour: bool,
) -> io::Result<Exit> {
    let mut said = |exit, why| writeln!(err, "sluiced {command}: {why}").map(|()| exit);
    match done {
        Ok(exit) => Ok(exit),
        Err(Refusal::Faults(faults)) => {
            report(&faults, err, colour)?;
            Ok(Exit::WrongConfiguration)
        }
        Err(Refusal::Values(faults)) => {
            report(&faults, err, colour)?;
            Ok(Exit::WrongArguments)
        }
        Err(Refusal::Arguments(why)) => said(Exit::WrongArguments, why),
        Err(Refusal::Failed(why)) => said(Exit::Failed, why),
    }
}

/// Any other error is a failure, with its own text.
impl<E: std::error::Error> From<E> for Refusal {
    fn from(error: E) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Refuses an option beside `--config`, which it stands in for. An option that is written wins over a configuration that
/// only the environment names.
pub(super) fn only_one_of(option: &str, is_given: bool, config: &[PathBuf]) -> Result<(), Refusal> {
    let of_environment = std::env::var_os("SLUICED_CONFIG").map(PathBuf::from);
    let is_written = !config.is_empty() && config != of_environment.as_slice();
    match is_given && is_written {
        true => Err(Refusal::Arguments(format!(
            "{option} stands in for --config; write one of them"
        ))),
        false => Ok(()),
    }
}

/// The configuration of a command that needs these secrets.
pub(super) fn loaded(
    needs: Needs,
    files: &[PathBuf],
    env: impl Iterator<Item = (String, String)>,
) -> Result<Loaded, Refusal> {
    settings::load_with(needs, files, None, env).map_err(Refusal::Faults)
}

/// What the configuration has under a name. Refuses one that is not there, and offers the nearest.
pub(super) fn named<'a, T>(
    what: &str,
    name: &str,
    all: &'a BTreeMap<String, T>,
) -> Result<(&'a str, &'a T), Refusal> {
    if let Some((name, found)) = all.get_key_value(name) {
        return Ok((name, found));
    }
    let known = || all.keys().map(String::as_str);
    let hint = match nearest(name, known()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("there are: {}", known().collect::<Vec<_>>().join(", ")),
    };
    Err(Refusal::Arguments(format!(
        "there is no {what} `{name}`; {hint}"
    )))
}

/// Asks an operator, who agrees by typing `word`.
pub(super) fn agrees(
    question: &str,
    word: &str,
    prompt: &mut (impl Write + ?Sized),
) -> io::Result<bool> {
    write!(prompt, "{question}")?;
    prompt.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(answer.trim() == word)
}

/// The signals that ask a command to stop: SIGTERM of a supervisor, SIGINT of a person. They no longer end
/// the process once this exists.
pub(super) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next one.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Reads the configuration again.
#[derive(Debug)]
pub struct Reloads {
    files: Vec<PathBuf>,
    /// The running configuration, without the limits of later reloads.
    loaded: Loaded,
    policies: Arc<Policies>,
    notifier: Notifier,
}

impl Reloads {
    /// Ready for the first one.
    #[must_use]
    pub const fn new(
        files: Vec<PathBuf>,
        loaded: Loaded,
        policies: Arc<Policies>,
        notifier: Notifier,
    ) -> Self {
        Self {
            files,
            loaded,
            policies,
            notifier,
        }
    }

    /// Reloads at every signal, for as long as it is polled.
    pub async fn run(self, mut hangups: Signal) {
        while hangups.recv().await.is_some() {
            self.notifier.reloading();
            self.reload();
            self.notifier.ready();
        }
    }

    fn reload(&self) {
        let new = settings::load(&self.files, std::env::vars());
        let new = match fitting(new, wire::misfits) {
            Ok(new) => new,
            Err(faults) => {
                let faults = faults.all().iter();
                for fault in faults.filter(|fault| fault.severity == Severity::Error) {
                    error!("{fault}");
                }
                error!("the configuration is wrong; the one before is kept");
                return;
            }
        };
        for warning in new.warnings.all() {
            warn!("{warning}");
        }
        let fixed = changed(&self.loaded, &new);
        if !fixed.is_empty() {
            warn!("needs a restart: {}", fixed.join(", "));
        }
        self.policies.reload(&new.settings);
        info!("configuration reloaded");
    }
}

/// The keys with other values that need a restart.
fn changed(old: &Loaded, new: &Loaded) -> Vec<String> {
    let values = |loaded: &Loaded| -> BTreeMap<KeyPath, u64> {
        let all = loaded.origins.all().iter();
        all.map(|value| (value.path.clone(), value.digest))
            .collect()
    };
    let (before, after) = (values(old), values(new));
    let mut keys: Vec<_> = before.keys().chain(after.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter()
        .filter(|key| before.get(key) != after.get(key) && !is_live(key, old, new))
        .map(ToString::to_string)
        .collect()
}

/// Whether the key belongs to the policy of a limit that runs already and has the same kind.
fn is_live(key: &KeyPath, old: &Loaded, new: &Loaded) -> bool {
    let [section, name, term] = key.steps() else {
        return false;
    };
    let limits = |loaded: &Loaded| loaded.settings.limits.get(name).cloned();
    section == "limits"
        && limits(old).zip(limits(new)).is_some_and(|(old, new)| {
            old.kind() == new.kind() && new.policy_names().contains(&term.as_str())
        })
}
