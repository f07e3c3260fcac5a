//! How a command ended, as an exit code.

use std::process::ExitCode;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// All is well.
    Done,
    /// It failed while running.
    Failed,
    /// The arguments make no sense (what clap answers itself).
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
