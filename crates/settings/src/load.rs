//! Loading: layers, shapes, types, checks; every fault at once.
//!
//! The layers are the files in turn, then variables. Routes get what `defaults` has for them. Values that do not fit
//! the table of keys are reported and replaced by a stand-in, and the defaults are added. Then serde makes the types.
//! The checks across keys run even if there were faults, and report nothing about stand-ins.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::checks;
use super::fault::{Fault, Faults, Severity};
use super::path::KeyPath;
use super::reading::collector::Collector;
use super::reading::conform::conform;
use super::reading::layers::Layers;
use super::reading::{defaults, variables};
use super::secrets::{Needs, Secrets};
use super::shown::show::Origins;
use super::types::{AwsVariables, ROOT, Settings};

/// No configuration is larger; a wrong path must not fill the memory.
const MAX_FILE: u64 = 4 * 1024 * 1024;

/// A configuration that can be run.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub settings: Settings,
    /// The effective values and where each was written.
    pub origins: Origins,
    /// Values that are probably mistakes.
    pub warnings: Faults,
    /// Reads the files that `…_file` keys name.
    pub secrets: Secrets,
}

impl Loaded {
    /// Errors that only a backend could find, each with its key, at the places of these keys.
    #[must_use]
    pub fn faults(&self, found: impl IntoIterator<Item = (KeyPath, String)>) -> Faults {
        let fault = |(path, message)| Fault::at(self.origins.near(&path), &path, message);
        Faults::new(found.into_iter().map(fault).collect())
    }
}

/// Loads the layers: the files in their order, then `SLUICED__…` of `env`.
///
/// # Errors
/// Every fault that was found, with the warnings.
pub fn load(
    files: &[PathBuf],
    env: impl Iterator<Item = (String, String)>,
) -> Result<Loaded, Faults> {
    load_with(Needs::All, files, None, env)
}

/// Variables that lead other programs to a proxy.
const PROXIES: [&str; 3] = ["HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"];

/// A text with precedence over all files and variables: the arguments of a command.
#[derive(Clone, Debug)]
pub struct Extra {
    /// The text's name in faults.
    pub name: String,
    pub text: String,
}

/// Like [`load`], for a command that `needs` only some of the secrets. With one more layer above all others, if there
/// is an extra text.
///
/// # Errors
/// Every fault that was found, with the warnings.
pub fn load_with(
    needs: Needs,
    files: &[PathBuf],
    extra: Option<Extra>,
    env: impl Iterator<Item = (String, String)>,
) -> Result<Loaded, Faults> {
    let Environment {
        ours,
        of_aws,
        credentials,
        proxy,
    } = Environment::sort(env);
    let secrets = Secrets::new(credentials).limited_to(needs);
    let mut layers = Layers::default();
    for file in files {
        layers.add_file(file.display().to_string(), read(file));
    }
    variables::add(&mut layers, &ours);
    if let Some(Extra { name, text }) = extra {
        layers.add_file(name, Ok(text));
    }
    let mut root = layers.merged();
    let mut faults = Collector::new(layers);
    defaults::give(&mut root, &mut faults);
    conform(&mut root, &ROOT, &KeyPath::default(), &mut faults);
    // An error means that the table and the types disagree, which tests exclude. Its reason may quote a
    // secret.
    let mut settings: Result<Settings, _> = serde_path_to_error::deserialize(root.clone());
    if let Ok(settings) = &mut settings {
        settings.derive_defaults();
        settings.find_aws(&of_aws.into_iter().collect());
    }
    match &settings {
        Ok(settings) => checks::run(settings, &secrets, proxy.as_deref(), &mut faults),
        Err(error) => faults.whole(format!(
            "{}: the table and the types disagree",
            error.path()
        )),
    }
    let origins = Origins::of(&root, &faults.layers);
    let warnings = faults.finish();
    match settings {
        Ok(settings) if warnings.count(Severity::Error) == 0 => Ok(Loaded {
            secrets: secrets.naming(settings.secrets.clone()),
            settings,
            origins,
            warnings,
        }),
        _ => Err(warnings),
    }
}

/// The variables that matter.
#[derive(Default)]
struct Environment {
    ours: BTreeMap<String, String>,
    of_aws: Vec<(String, String)>,
    /// Where systemd has put credentials.
    credentials: Option<PathBuf>,
    /// The name of a variable that leads other programs to a proxy.
    proxy: Option<String>,
}

impl Environment {
    fn sort(env: impl Iterator<Item = (String, String)>) -> Self {
        let mut sorted = Self::default();
        for (name, value) in env {
            if name == "CREDENTIALS_DIRECTORY" {
                sorted.credentials = Some(PathBuf::from(value));
            } else if PROXIES.contains(&&*name.to_ascii_uppercase()) && !value.is_empty() {
                sorted.proxy = Some(name);
            } else if AwsVariables::know(&name) {
                sorted.of_aws.push((name, value));
            } else if name.starts_with(variables::FAMILY) {
                sorted.ours.insert(name, value);
            }
        }
        sorted
    }
}

fn read(file: &Path) -> Result<String, String> {
    let unreadable = |e: std::io::Error| format!("the file cannot be read: {e}");
    let facts = fs::metadata(file).map_err(unreadable)?;
    if facts.is_dir() {
        return Err("this is a directory; name a file".to_owned());
    }
    // A device has no length.
    let opened = fs::File::open(file).map_err(unreadable)?;
    let mut bytes = Vec::new();
    let read = opened.take(MAX_FILE + 1).read_to_end(&mut bytes);
    read.map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err("the file is larger than 4 MiB: this is no configuration".to_owned());
    }
    String::from_utf8(bytes).map_err(|_| "the file is no text in UTF-8".to_owned())
}
