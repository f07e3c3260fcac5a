//! `sluiced config`: all keys of a configuration, and a first one.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};

use super::exit::Exit;
use sluiced_settings as settings;

/// What to show.
#[derive(Subcommand, Clone, Debug)]
pub enum ConfigCommand {
    /// A commented start for a kind of provider: few keys, each with its reason
    Init(InitArgs),
    /// Every key with its default and what it does
    Default,
    /// The JSON schema, for editors
    Schema,
}

/// The arguments of `sluiced config init`.
#[derive(Args, Clone, Debug)]
pub struct InitArgs {
    /// What is called
    #[arg(long)]
    pub kind: Start,
    /// Write it to this file, which must not exist yet, instead of printing it
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// A kind of provider.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// SMS: a rate for the account and one for each sender, in segments
    Sms,
    /// SMS over SMPP: a rate for the account, in segments
    Smpp,
    /// E-mail: a rate, a quota a day, patience with failures
    Email,
    /// Webhooks: servers that state no limit and may be away for hours
    Webhook,
    /// Language models: requests a minute and tokens a minute, by what each call really used
    Llm,
    /// No rate for the account, only one for each key
    Unpaced,
}

impl Start {
    const fn text(self) -> &'static str {
        match self {
            Self::Sms => include_str!("../../config/init/sms.toml"),
            Self::Smpp => include_str!("../../config/init/smpp.toml"),
            Self::Email => include_str!("../../config/init/email.toml"),
            Self::Webhook => include_str!("../../config/init/webhook.toml"),
            Self::Llm => include_str!("../../config/init/llm.toml"),
            Self::Unpaced => include_str!("../../config/init/unpaced.toml"),
        }
    }
}

/// Writes it to `out`, or to the file that is named.
///
/// # Errors
/// When it cannot be written, or there is such a file already.
pub fn run(command: &ConfigCommand, out: &mut impl Write) -> io::Result<Exit> {
    let written = match command {
        ConfigCommand::Init(args) => match &args.output {
            None => out.write_all(args.kind.text().as_bytes()),
            Some(file) => {
                create(file, args.kind.text())?;
                let file = file.display();
                writeln!(
                    out,
                    "wrote {file}; write your own values, then: sluiced check --connect --config {file}"
                )
            }
        },
        ConfigCommand::Default => out.write_all(settings::reference().as_bytes()),
        ConfigCommand::Schema => writeln!(out, "{:#}", settings::json_schema()),
    };
    written.map(|()| Exit::Done)
}

fn create(file: &Path, text: &str) -> io::Result<()> {
    let created = File::create_new(file).and_then(|mut file| file.write_all(text.as_bytes()));
    created.map_err(|error| {
        let why = match error.kind() {
            io::ErrorKind::AlreadyExists => "it exists already, and is left as it is".to_owned(),
            _ => error.to_string(),
        };
        io::Error::new(error.kind(), format!("{}: {why}", file.display()))
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::wire;
    use sluiced_settings::{Loaded, Severity};

    /// The effective values, without their places.
    fn values(loaded: &Loaded) -> Vec<(String, String)> {
        let all = loaded.origins.all().iter();
        all.map(|one| (one.path.to_string(), one.value.clone()))
            .collect()
    }

    fn loaded(text: &str) -> Option<Loaded> {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("start.toml");
        std::fs::write(&file, text).expect("a file");
        // One has a password, which a start may have.
        let ours = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&file, ours).expect("our file");
        settings::load(&[file], std::iter::empty()).ok()
    }

    #[test]
    fn a_start_loads_without_a_warning_and_gives_a_reason_for_each_key() {
        for start in Start::value_variants() {
            let text = start.text();
            let all = loaded(text).unwrap_or_else(|| panic!("{start:?} is wrong"));
            assert_eq!(all.warnings.all(), [], "{start:?}");
            assert_eq!(wire::misfits(&all).count(Severity::Error), 0, "{start:?}");
            let lines: Vec<_> = text.lines().collect();
            let is_key = |line: &str| line.starts_with(|c: char| c.is_ascii_lowercase());
            for (number, line) in lines.iter().enumerate().filter(|(_, line)| is_key(line)) {
                let above = lines[number - 1];
                assert!(above.starts_with("# "), "{start:?}: no reason for {line}");
            }
        }
    }

    /// It has no value that equals its default, except the addresses of the servers.
    #[test]
    fn a_start_differs_from_the_defaults_only_where_it_says_so() {
        for start in Start::value_variants() {
            let text = start.text();
            let all = values(&loaded(text).expect("it loads"));
            let keys = text.lines().filter(|line| line.contains(" = "));
            let written = keys.filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()));
            for line in written.filter(|line| !line.contains("127.0.0.1")) {
                let without = loaded(&text.replacen(&format!("{line}\n"), "", 1));
                let same = without.is_some_and(|without| values(&without) == all);
                assert!(!same, "{start:?}: {line} is the default");
            }
        }
    }
}
