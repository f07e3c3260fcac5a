//! Loading: layers, shapes, types, checks; every fault at once.
//!
//! The layers are the files in turn, then variables, merged into one tree that knows where each value was
//! written. The table of keys replaces what is wrong by stand-ins, remembers it, and adds the defaults; serde
//! then makes the types, and the checks across keys run even if there were faults, silent about stand-ins.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::checks;
use super::collector::Collector;
use super::conform::conform;
use super::env;
use super::fault::{Fault, Faults, Severity};
use super::path::KeyPath;
use super::secrets::Secrets;
use super::show::Origins;
use super::tree::{self, Node, Source, Sources, Syntax};
use super::types::{ROOT, Settings};

/// No configuration is larger; a wrong path must not fill the memory.
const MAX_FILE: u64 = 4 * 1024 * 1024;

/// A configuration that can be run.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub settings: Settings,
    /// The effective values and where each was written.
    pub origins: Origins,
    /// What is probably not as meant.
    pub warnings: Faults,
    /// Reads what `…_file` keys name.
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
    load_with(None, files, None, env)
}

/// For a command that needs no secrets at all.
pub const NO_SECTION: &str = "";

/// A text that counts like a file after all others.
#[derive(Clone, Debug)]
pub struct Extra {
    /// What faults in it call it.
    pub name: String,
    pub text: String,
}

/// As [`load`], for a command that needs the secrets of one section only: an operator may not read those
/// of the others. With one more layer above the files, if there is an extra text. No section: the secrets
/// of all.
///
/// # Errors
/// Every fault that was found, with the warnings.
pub fn load_with(
    section: Option<&'static str>,
    files: &[PathBuf],
    extra: Option<Extra>,
    env: impl Iterator<Item = (String, String)>,
) -> Result<Loaded, Faults> {
    let mut variables = BTreeMap::new();
    let mut credentials = None;
    for (name, value) in env {
        if name == "CREDENTIALS_DIRECTORY" {
            credentials = Some(PathBuf::from(value));
        } else if name.starts_with(env::FAMILY) {
            variables.insert(name, value);
        }
    }
    let secrets = Secrets::new(credentials).of(section);
    let (sources, unreadable) = read_all(files, extra);
    let mut faults = Collector::new(&sources);
    for (source, reason) in unreadable {
        faults.whole(Some(source), reason);
    }
    let loaded = assemble(&sources, &variables, &mut faults);
    let (root, settings) = loaded.map_or_else(
        |message| {
            faults.whole(None, message);
            (Node::table(), None)
        },
        |(root, settings)| (root, Some(settings)),
    );
    if let Some(settings) = &settings {
        checks::run(settings, &root, &secrets, &mut faults);
    }
    let origins = Origins::of(&root, &faults);
    let faults = faults.finish();
    match settings {
        Some(settings) if faults.count(Severity::Error) == 0 => Ok(Loaded {
            settings,
            origins,
            warnings: faults,
            secrets,
        }),
        _ => Err(faults),
    }
}

/// The texts of all layers that are files; a file that cannot be read is empty, with the reason.
fn read_all(files: &[PathBuf], extra: Option<Extra>) -> (Sources, Vec<(usize, String)>) {
    let mut unreadable = Vec::new();
    let read = |(number, file): (usize, &PathBuf)| Source {
        name: file.display().to_string(),
        text: read(file).unwrap_or_else(|reason| {
            unreadable.push((number, reason));
            String::new()
        }),
    };
    let mut sources: Vec<_> = files.iter().enumerate().map(read).collect();
    sources.extend(extra.map(|Extra { name, text }| Source { name, text }));
    (Sources(sources), unreadable)
}

fn read(file: &Path) -> Result<String, String> {
    let unreadable = |e: std::io::Error| format!("the file cannot be read: {e}");
    let facts = fs::metadata(file).map_err(unreadable)?;
    if facts.is_dir() {
        return Err("this is a directory; name a file".to_owned());
    }
    if facts.len() > MAX_FILE {
        return Err("the file is larger than 4 MiB: this is no configuration".to_owned());
    }
    let bytes = fs::read(file).map_err(unreadable)?;
    String::from_utf8(bytes).map_err(|_| "the file is no text in UTF-8".to_owned())
}

/// The tree of all layers and the settings in it. An error means that our own table and types disagree,
/// which tests exclude.
fn assemble(
    sources: &Sources,
    variables: &BTreeMap<String, String>,
    faults: &mut Collector<'_>,
) -> Result<(Node, Settings), String> {
    let mut root = Node::table();
    for (number, source) in sources.0.iter().enumerate() {
        let (layer, errors) = tree::parse(number, &source.text);
        if errors.is_empty() {
            root.merge(layer);
        } else if let Some(rest) = salvage(layer, &errors, number, &source.text, faults) {
            root.merge(rest);
        }
    }
    env::add(&mut root, variables, faults);
    conform(&mut root, &ROOT, &KeyPath::default(), faults);
    let settings = serde_path_to_error::deserialize(root.plain());
    // The reason may quote a secret; the path is enough to find what is wrong with our own table.
    let settings =
        settings.map_err(|error| format!("{}: the table and the types disagree", error.path()))?;
    Ok((root, settings))
}

/// Reports the syntax errors of a file. What else was read of it is kept for the checks of shapes,
/// unless a header is damaged: then it is unknown to which table a key belongs.
fn salvage(
    mut layer: Node,
    errors: &[Syntax],
    number: usize,
    text: &str,
    faults: &mut Collector<'_>,
) -> Option<Node> {
    let mut lines = Vec::new();
    let mut headers = false;
    let mut last = None;
    for error in errors {
        let at = error.span.start;
        let start = text[..at].rfind('\n').map_or(0, |at| at + 1);
        let end = text[at..].find('\n').map_or(text.len(), |end| at + end);
        let line = text[start..end].trim_start();
        headers |= !line.contains('=') || line.starts_with('[');
        // One line, one complaint, and one for the same again below: the parser's next ones
        // follow from the first.
        if !lines.contains(&(start..end)) && last != Some(&error.message) {
            faults.syntax(number, error);
        }
        last = Some(&error.message);
        lines.push(start..end);
    }
    layer.prune(&lines);
    (!headers).then_some(layer)
}
