//! Why a command did not do what it was asked to do, and its exit code.

use std::io::{self, Write};

use super::check::report;
use super::exit::Exit;
use crate::ports::pace::StoreError;
use crate::queue::rabbit::RabbitError;
use crate::settings::{Faults, nearest};
use crate::wire::WireError;

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

/// The exit code of a command. Tells the operator why it was refused, if it was.
pub(super) fn exit(
    command: &str,
    done: Result<Exit, Refusal>,
    err: &mut impl Write,
    colour: bool,
) -> io::Result<Exit> {
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
        Err(Refusal::Arguments(why)) => {
            writeln!(err, "sluiced {command}: {why}")?;
            Ok(Exit::WrongArguments)
        }
        Err(Refusal::Failed(why)) => {
            writeln!(err, "sluiced {command}: {why}")?;
            Ok(Exit::Failed)
        }
    }
}

impl From<WireError> for Refusal {
    fn from(error: WireError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<RabbitError> for Refusal {
    fn from(error: RabbitError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
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
