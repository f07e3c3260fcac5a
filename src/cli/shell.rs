//! Output for shells. `sluiced man`: the manual, made from the text of `--help`. `sluiced completions`: the
//! script with which a shell completes commands, options, and names of limits and routes.
//!
//! Names are those of a configuration, so no script can have them. The script runs the program with the words
//! so far, and the program prints what may come next. The configuration is the one that these words name,
//! otherwise `SLUICED_CONFIG`.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::env::Shells;
use clap_complete::{ArgValueCandidates, CompleteEnv, CompletionCandidate, Shell};
use clap_mangen::Man;

use super::exit::{Exit, variables};
use sluiced_settings::types::Settings;
use sluiced_settings::{self as settings, Needs};

const NAME: &str = env!("CARGO_PKG_NAME");
/// Set by the script, to the name of the shell.
const VARIABLE: &str = "SLUICED_COMPLETE";
/// Stands before the words so far.
const WORDS: &str = "--";

/// zsh runs the file of a completion at its first use, to define the function. The file must then call the completer
/// itself; otherwise the first use in a shell completes nothing.
const ZSH_FIRST: &str =
    "[[ ${funcstack[1]} == _sluiced ]] && _clap_dynamic_completer_sluiced \"$@\"\n";

/// The arguments of `sluiced completions`.
#[derive(Args, Clone, Debug)]
pub struct CompletionsArgs {
    /// The shell that reads it
    pub shell: Shell,
}

/// Writes the script to `out`.
///
/// # Errors
/// When `out` cannot be written to.
pub(super) fn completions(args: &CompletionsArgs, out: &mut impl Write) -> io::Result<Exit> {
    let shell = args.shell.to_string();
    let shells = Shells::builtins();
    let unknown = || io::Error::other(format!("{shell} is not known"));
    let completer = shells.completer(&shell).ok_or_else(unknown)?;
    completer.write_registration(VARIABLE, NAME, NAME, NAME, out)?;
    if args.shell == Shell::Zsh {
        out.write_all(ZSH_FIRST.as_bytes())?;
    }
    Ok(Exit::Done)
}

/// For the script of a shell: prints what may come next in `command`, and ends the process.
pub(super) fn answer(command: fn() -> Command) {
    CompleteEnv::with_factory(command).var(VARIABLE).complete();
}

/// The limits of the configuration, for an argument that names one.
pub(super) fn limits() -> ArgValueCandidates {
    ArgValueCandidates::new(|| names(|settings| settings.limits.into_keys().collect()))
}

/// The routes of the configuration, for an argument that names one.
pub(super) fn routes() -> ArgValueCandidates {
    ArgValueCandidates::new(|| names(|settings| settings.shown().into_keys().collect()))
}

/// None if the configuration is wrong: a completion cannot show faults.
fn names(of: fn(Settings) -> Vec<String>) -> Vec<CompletionCandidate> {
    let words = std::env::args_os().skip_while(|word| word != WORDS);
    let mut files = configurations(words);
    if files.is_empty() {
        files.extend(std::env::var_os("SLUICED_CONFIG").map(PathBuf::from));
    }
    let loaded = settings::load_with(Needs::Nothing, &files, None, variables());
    let names = loaded.map_or_else(|_| Vec::new(), |loaded| of(loaded.settings));
    names.into_iter().map(CompletionCandidate::new).collect()
}

/// The files that `--config` names. Bash makes three words of `--config=FILE`.
fn configurations(words: impl Iterator<Item = OsString>) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut words = words.filter(|word| word != "=");
    while let Some(word) = words.next() {
        let file = word
            .to_str()
            .and_then(|word| word.strip_prefix("--config="));
        if let Some(file) = file {
            files.push(file.into());
        } else if word == "--config" {
            files.extend(words.next().map(PathBuf::from));
        }
    }
    files
}

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
pub(super) fn man(args: &ManArgs, command: Command, out: &mut impl Write) -> io::Result<Exit> {
    let Some(directory) = &args.directory else {
        return Man::new(command).render(out).map(|()| Exit::Done);
    };
    let written =
        fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(command, directory));
    let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", directory.display()));
    written.map(|()| Exit::Done).map_err(named)
}
