//! How a command begins and ends: its configuration, the signals that stop it, why it was refused, its exit code.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::check::report;
use sluiced_settings::{self as settings, Faults, Loaded, Needs, nearest};

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// All is well.
    Done,
    /// The command failed while running.
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
    let mut write_refusal = |exit, why| writeln!(err, "sluiced {command}: {why}").map(|()| exit);
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
        Err(Refusal::Arguments(why)) => write_refusal(Exit::WrongArguments, why),
        Err(Refusal::Failed(why)) => write_refusal(Exit::Failed, why),
    }
}

/// Any other error is a failure, with its own text.
impl<E: std::error::Error> From<E> for Refusal {
    fn from(error: E) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Refuses an option beside `--config`, which it stands in for. An option that is written wins over a configuration
/// that only the environment names.
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

/// The variables of the environment. One whose name is no UTF-8 is none of ours; of a value that is none, what can be
/// read.
pub(super) fn variables() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        Some((name, value.to_string_lossy().into_owned()))
    })
}

/// Refuses to write to a file that was read.
pub(super) fn writes_over_no_input<'a>(
    option: &str,
    output: &Path,
    inputs: impl IntoIterator<Item = &'a PathBuf>,
) -> Result<(), Refusal> {
    let Ok(output) = fs::canonicalize(output) else {
        return Ok(());
    };
    let is_it = |path: &&PathBuf| fs::canonicalize(path).is_ok_and(|path| path == output);
    match inputs.into_iter().find(is_it) {
        Some(input) => Err(Refusal::Arguments(format!(
            "{option} {} is one of the files that are read: name another file for the results",
            input.display()
        ))),
        None => Ok(()),
    }
}

/// The configuration of a command that needs these secrets.
pub(super) fn load_configuration(
    needs: Needs,
    files: &[PathBuf],
    env: impl Iterator<Item = (String, String)>,
) -> Result<Loaded, Refusal> {
    settings::load_with(needs, files, None, env).map_err(Refusal::Faults)
}

/// What the configuration has under a name. Refuses one that is not there, and offers the nearest.
pub(super) fn find_named<'a, T>(
    what: &str,
    name: &str,
    all: &'a BTreeMap<String, T>,
) -> Result<(&'a str, &'a T), Refusal> {
    if let Some((name, found)) = all.get_key_value(name) {
        return Ok((name, found));
    }
    let known_names = || all.keys().map(String::as_str);
    let hint = match nearest(name, known_names()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!(
            "there are: {}",
            known_names().collect::<Vec<_>>().join(", ")
        ),
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
