//! `sluiced man`: the manual, made of what `--help` says.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, Command};
use clap_mangen::Man;

/// The arguments of `sluiced man`.
#[derive(Args, Clone, Debug)]
pub struct ManArgs {
    /// Write a page for each command into this directory instead of printing that of `sluiced` itself
    #[arg(value_name = "DIR")]
    pub directory: Option<PathBuf>,
}

/// Writes the page of `command` to `out`, or all pages into the directory.
///
/// # Errors
/// When they cannot be written.
pub fn run(args: &ManArgs, command: Command, out: &mut impl Write) -> io::Result<()> {
    let Some(directory) = &args.directory else {
        return Man::new(command).render(out);
    };
    let written =
        fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(command, directory));
    let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", directory.display()));
    written.map_err(named)
}
