//! `sluiced config`: all keys of a configuration, and a first one.

mod starts;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use self::starts::Texts;
pub use self::starts::{Kind, Provider};
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
    /// The kind of downstream
    #[arg(
        long,
        required_unless_present = "provider",
        conflicts_with = "provider"
    )]
    pub kind: Option<Kind>,
    /// The provider that is called: writes its documented limits, authentication and answers
    #[arg(long)]
    pub provider: Option<Provider>,
    /// Write it to this file, which must not exist yet, instead of printing it; with tests of it and the schema for
    /// editors beside it
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

impl InitArgs {
    fn texts(&self) -> Option<Texts> {
        let provider = self.provider.map(Provider::texts);
        provider.or_else(|| self.kind.map(Kind::texts))
    }
}

/// The name of the schema beside a configuration. Editors with Taplo or Even Better TOML read it.
const SCHEMA: &str = "sluiced.schema.json";

/// Writes it to `out`, or to the file that is named.
///
/// # Errors
/// When it cannot be written, or there is such a file already.
pub fn run(command: &ConfigCommand, out: &mut impl Write) -> io::Result<Exit> {
    match command {
        ConfigCommand::Init(args) => {
            // The arguments have one of both.
            let Some(texts) = args.texts() else {
                return Ok(Exit::WrongArguments);
            };
            match &args.output {
                None => out.write_all(texts.configuration.as_bytes())?,
                Some(file) => start(file, texts, out)?,
            }
        }
        ConfigCommand::Default => out.write_all(settings::reference().as_bytes())?,
        ConfigCommand::Schema => writeln!(out, "{:#}", settings::json_schema())?,
    }
    Ok(Exit::Done)
}

/// Writes a configuration, its tests, and the schema. The schema is made by this version, so one that is there is
/// replaced.
fn start(file: &Path, texts: Texts, out: &mut impl Write) -> io::Result<()> {
    let (tests, schema) = (
        file.with_extension("tests.toml"),
        file.with_file_name(SCHEMA),
    );
    if file.file_name() == schema.file_name() {
        let taken = io::Error::other("the schema for editors gets this name; choose another");
        return Err(failed(file, taken));
    }
    for path in [file, &tests] {
        if path.exists() {
            return Err(failed(path, io::ErrorKind::AlreadyExists.into()));
        }
    }
    create(
        file,
        &format!("#:schema ./{SCHEMA}\n{}", texts.configuration),
    )?;
    create(&tests, texts.tests)?;
    let text = format!("{:#}\n", settings::json_schema());
    fs::write(&schema, text).map_err(|error| failed(&schema, error))?;
    let (file, tests, schema) = (file.display(), tests.display(), schema.display());
    writeln!(
        out,
        "wrote {file}, {tests} with tests of it, and {schema} for editors\n\
         write your own values in both, then: sluiced test --config {file} {tests}\n\
         and: sluiced check --connect --config {file}"
    )
}

fn create(path: &Path, text: &str) -> io::Result<()> {
    let created = File::create_new(path).and_then(|mut file| file.write_all(text.as_bytes()));
    created.map_err(|error| failed(path, error))
}

fn failed(path: &Path, error: io::Error) -> io::Error {
    let why = match error.kind() {
        io::ErrorKind::AlreadyExists => "it exists already, and is left as it is".to_owned(),
        _ => error.to_string(),
    };
    io::Error::new(error.kind(), format!("{}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use clap::ValueEnum as _;

    use super::*;
    use crate::wire;
    use sluiced_settings::{Loaded, Needs, Severity};

    /// All starts, by their names.
    fn starts() -> Vec<(String, &'static str)> {
        let name = |value: &dyn std::fmt::Debug| format!("{value:?}");
        let kinds = Kind::value_variants().iter();
        let kinds = kinds.map(|kind| (name(kind), kind.texts().configuration));
        let providers = Provider::value_variants().iter();
        let providers = providers.map(|provider| (name(provider), provider.texts().configuration));
        kinds.chain(providers).collect()
    }

    fn is_key(line: &str) -> bool {
        let key = line.split_once(" = ").map(|(key, _)| key);
        let letter = |c: char| c.is_ascii_alphanumeric() || "_-\"".contains(c);
        key.is_some_and(|key| !key.is_empty() && key.chars().all(letter))
    }

    /// The effective values, without their places.
    fn values(loaded: &Loaded) -> Vec<(String, String)> {
        let all = loaded.origins.all().iter();
        all.map(|effective| (effective.path.to_string(), effective.value.clone()))
            .collect()
    }

    fn loaded(text: &str) -> Option<Loaded> {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("start.toml");
        fs::write(&file, text).expect("a file");
        // One has a password, which a start may have.
        let ours = fs::Permissions::from_mode(0o600);
        fs::set_permissions(&file, ours).expect("our file");
        settings::load_with(Needs::MadeUp, &[file], None, std::iter::empty()).ok()
    }

    #[test]
    fn a_start_loads_without_a_warning_and_gives_a_reason_for_each_key() {
        for (name, text) in starts() {
            let all = loaded(text).unwrap_or_else(|| panic!("{name} is wrong"));
            assert_eq!(all.warnings.all(), [], "{name}");
            assert_eq!(
                wire::backend_faults(&all).count(Severity::Error),
                0,
                "{name}"
            );
            let lines: Vec<_> = text.lines().collect();
            for (number, line) in lines.iter().enumerate().filter(|(_, line)| is_key(line)) {
                let above = lines[number - 1];
                assert!(above.starts_with("# "), "{name}: no reason for {line}");
            }
        }
    }

    /// A start has no value that equals its default, except the addresses of the servers.
    #[test]
    fn a_start_differs_from_the_defaults_only_where_it_says_so() {
        for (name, text) in starts() {
            let all = values(&loaded(text).expect("it loads"));
            let written = text.lines().filter(|line| is_key(line));
            for line in written.filter(|line| !line.contains("127.0.0.1")) {
                let without = loaded(&text.replacen(&format!("{line}\n"), "", 1));
                let same = without.is_some_and(|without| values(&without) == all);
                assert!(!same, "{name}: {line} is the default");
            }
        }
    }

    #[test]
    fn a_start_is_written_with_its_tests_and_the_schema_and_replaces_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("sms.toml");
        let args = || {
            ConfigCommand::Init(InitArgs {
                kind: None,
                provider: Some(Provider::Twilio),
                output: Some(file.clone()),
            })
        };
        let mut out = Vec::new();
        run(&args(), &mut out).expect("written");
        let said = String::from_utf8(out).expect("text");
        assert!(said.contains("sms.tests.toml with tests of it"), "{said}");
        let text = fs::read_to_string(&file).expect("written");
        assert!(
            text.starts_with("#:schema ./sluiced.schema.json\n# For Twilio"),
            "{text}"
        );
        let schema = fs::read(dir.path().join(SCHEMA)).expect("written");
        let schema: serde_json::Value = serde_json::from_slice(&schema).expect("JSON");
        assert_eq!(schema, settings::json_schema());
        fs::remove_file(&file).expect("removed");
        let why = run(&args(), &mut Vec::new()).expect_err("its tests are there");
        assert!(
            why.to_string()
                .ends_with("sms.tests.toml: it exists already, and is left as it is")
        );
        assert!(!file.exists(), "nothing was written");
    }
}
