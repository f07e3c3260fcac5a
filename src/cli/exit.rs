//! How a command ends: its exit code, why it was refused, and the signals that ask it to stop.

use std::io::{self, Write};
use std::process::ExitCode;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::check::report;
use crate::settings::{Faults, nearest};

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

/// Why a command did not do what it was asked to do.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The configuration is wrong.
    Faults(Faults),
    /// A configuration with what was to be set would be wrong.
    Values(Faults),
    /// The arguments make no sense here.
    Arguments(String),
    Failed(String),
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

/// Any fault on the way is a failure, in its own words.
impl<E: std::error::Error> From<E> for Refusal {
    fn from(error: E) -> Self {
        Self::Failed(error.to_string())
    }
}

/// A hint for a name that is not among the known ones.
pub(super) fn did_you_mean<'a>(
    name: &str,
    known: impl Iterator<Item = &'a String> + Clone,
) -> String {
    match nearest(name, known.clone().map(String::as_str)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => {
            let known: Vec<&str> = known.map(String::as_str).collect();
            format!("there are: {}", known.join(", "))
        }
    }
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
