//! `sluiced config`: what a configuration may say.

use std::io::{self, Write};

use clap::Subcommand;

use crate::settings;

/// What to show.
#[derive(Subcommand, Clone, Copy, Debug)]
pub enum ConfigCommand {
    /// Every key with its default and what it does
    Default,
    /// The JSON schema, for editors
    Schema,
}

/// Writes it to `out`.
///
/// # Errors
/// When `out` cannot be written to.
pub fn run(command: ConfigCommand, out: &mut impl Write) -> io::Result<()> {
    match command {
        ConfigCommand::Default => out.write_all(settings::reference().as_bytes()),
        ConfigCommand::Schema => writeln!(out, "{:#}", settings::json_schema()),
    }
}
