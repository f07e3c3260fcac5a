//! `sluiced completions`: the script by which a shell completes commands and options.

use std::io::{self, Write};

use clap::{Args, Command};
use clap_complete::Shell;

const NAME: &str = env!("CARGO_PKG_NAME");

/// The arguments of `sluiced completions`.
#[derive(Args, Clone, Debug)]
pub struct CompletionsArgs {
    /// The shell that reads it
    pub shell: Shell,
}

/// Writes the script for `command` to `out`.
///
/// # Errors
/// When `out` cannot be written to.
pub fn run(args: &CompletionsArgs, command: &Command, out: &mut impl Write) -> io::Result<()> {
    // Hidden commands would be offered too.
    let visible = command.get_subcommands().filter(|one| !one.is_hide_set());
    let mut shown = Command::new(NAME)
        .version(env!("CARGO_PKG_VERSION"))
        .subcommands(visible.cloned());
    // By way of memory: it panics where it cannot write, and a reader may close the pipe.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut shown, NAME, &mut script);
    out.write_all(&script)
}
