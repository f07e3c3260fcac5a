//! Why a command did not do what it was asked to do, and its exit code.

use std::io::{self, Write};

use super::check::report;
use super::exit::Exit;
use crate::ports::pace::StoreError;
use crate::queue::rabbit::RabbitError;
use crate::settings::Faults;
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

impl Refusal {
    /// Tells the operator, and answers the exit code.
    pub(super) fn report(
        self,
        command: &str,
        err: &mut impl Write,
        colour: bool,
    ) -> io::Result<Exit> {
        match self {
            Self::Faults(faults) => {
                report(&faults, err, colour)?;
                Ok(Exit::WrongConfiguration)
            }
            Self::Values(faults) => {
                report(&faults, err, colour)?;
                Ok(Exit::WrongArguments)
            }
            Self::Arguments(why) => {
                writeln!(err, "{command}: {why}")?;
                Ok(Exit::WrongArguments)
            }
            Self::Failed(why) => {
                writeln!(err, "{command}: {why}")?;
                Ok(Exit::Failed)
            }
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
