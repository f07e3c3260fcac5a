//! Secrets: read from the operator's place, and never shown.
//!
//! A secret is in the configuration or in a file: `password_file = "/run/secrets/redis"`, or
//! `"credential:redis"` for the file `redis` in the directory of systemd's credentials
//! (`$CREDENTIALS_DIRECTORY`). One line break at the end of a file does not count. Files are read
//! at each call, so the next connection uses a changed secret.
//!
//! Secrets that templates name (the table `[secrets]`) are files only. Where a command needs no secrets, or shows what
//! a call would send, each of them is [`HIDDEN`], and its file is not read.
//!
//! A test of a configuration needs no secrets, but shows where they go: there they are made up
//! ([`Secrets::are_made_up`]), and no file is read.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use secrecy::SecretString;

use super::path::KeyPath;

/// The prefix of a path that names a systemd credential.
pub(super) const CREDENTIAL: &str = "credential:";
/// No secret is larger; a wrong path (a device, a dump) must not fill the memory.
const MAX_SECRET: u64 = 64 * 1024;

/// In place of a secret that is not shown.
pub const HIDDEN: &str = "***";

/// Why a secret cannot be read. No variant has the secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file cannot be read.
    #[error("`{path}` cannot be read: {source}")]
    Unreadable {
        path: PathBuf,
        source: std::io::Error,
    },
    /// The file is empty, too large, or no text.
    #[error("`{path}` holds no secret: it must be a text of 1 byte to 64 KiB")]
    Unusable { path: PathBuf },
    /// `credential:NAME` without systemd's directory.
    #[error(
        "`{0}` names a systemd credential, but $CREDENTIALS_DIRECTORY is not set; add LoadCredential= to the unit, or write a path"
    )]
    NoDirectory(String),
    /// `credential:` with a path instead of a name.
    #[error("`{0}` is no name of a credential; write credential:NAME without slashes")]
    BadName(String),
    /// Neither or both of a value and a file: loading refuses this.
    #[error("exactly one of `{0}` and `{0}_file` is needed")]
    Choice(&'static str),
}

/// Which secrets a command needs: the operator may not be allowed to read the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Needs {
    #[default]
    All,
    /// The secrets of one section, such as `rabbitmq`.
    Section(&'static str),
    Nothing,
    /// None, and no certificate either: nothing is connected, and a made-up word stands for each secret.
    MadeUp,
}

/// Finds and reads files with secrets.
#[derive(Clone, Debug, Default)]
pub struct Secrets {
    credentials: Option<PathBuf>,
    needs: Needs,
    /// The files of the secrets that templates name.
    named: BTreeMap<String, PathBuf>,
}

impl Secrets {
    /// `credentials` is the value of `$CREDENTIALS_DIRECTORY`, if it is set.
    #[must_use]
    pub const fn new(credentials: Option<PathBuf>) -> Self {
        Self {
            credentials,
            needs: Needs::All,
            named: BTreeMap::new(),
        }
    }

    /// Only those that a command needs: the others need not exist.
    #[must_use]
    pub(super) const fn limited_to(mut self, needs: Needs) -> Self {
        self.needs = needs;
        self
    }

    /// Whether no file is read, and a word stands for each secret.
    #[must_use]
    pub const fn are_made_up(&self) -> bool {
        matches!(self.needs, Needs::MadeUp)
    }

    /// With the files of the secrets that templates name.
    #[must_use]
    pub(super) fn naming(mut self, named: BTreeMap<String, PathBuf>) -> Self {
        self.named = named;
        self
    }

    /// The files of the secrets that templates name.
    #[must_use]
    pub const fn named(&self) -> &BTreeMap<String, PathBuf> {
        &self.named
    }

    /// Whether those of all sections are needed.
    #[must_use]
    pub const fn are_complete(&self) -> bool {
        matches!(self.needs, Needs::All)
    }

    /// Whether the secret that this key names is needed.
    pub(super) fn wants(&self, key: &KeyPath) -> bool {
        match self.needs {
            Needs::All => true,
            Needs::Section(section) => key.steps().first().is_some_and(|first| first == section),
            Needs::Nothing | Needs::MadeUp => false,
        }
    }

    /// The file that `path` stands for. An error: it names a credential, and there is no directory for credentials.
    fn locate(&self, path: &Path) -> Result<PathBuf, SecretError> {
        let Some(name) = path.to_str().and_then(|path| path.strip_prefix(CREDENTIAL)) else {
            return Ok(path.to_owned());
        };
        let text = || path.display().to_string();
        if name.is_empty() || name.contains('/') || name == ".." || name == "." {
            return Err(SecretError::BadName(text()));
        }
        let directory = self.credentials.as_ref();
        directory
            .map(|directory| directory.join(name))
            .ok_or_else(|| SecretError::NoDirectory(text()))
    }

    /// The secret in a file, without the line break at its end.
    ///
    /// # Errors
    /// When the file cannot be read, or holds no text of a sensible size.
    pub fn read(&self, path: &Path) -> Result<SecretString, SecretError> {
        let file = self.locate(path)?;
        let unusable = || SecretError::Unusable { path: file.clone() };
        let unreadable = |source| SecretError::Unreadable {
            path: file.clone(),
            source,
        };
        if fs::metadata(&file).map_err(unreadable)?.is_dir() {
            return Err(unusable());
        }
        let mut bytes = Vec::new();
        let opened = fs::File::open(&file).map_err(unreadable)?;
        opened
            .take(MAX_SECRET + 1)
            .read_to_end(&mut bytes)
            .map_err(unreadable)?;
        if bytes.len() as u64 > MAX_SECRET {
            return Err(unusable());
        }
        let text = String::from_utf8(bytes).map_err(|_| unusable())?;
        let line = text.strip_suffix('\n').unwrap_or(&text);
        let secret = line.strip_suffix('\r').unwrap_or(line);
        if secret.is_empty() {
            return Err(unusable());
        }
        Ok(SecretString::from(secret))
    }

    /// The secret in a file, if one is named.
    ///
    /// # Errors
    /// Like [`Secrets::read`].
    pub fn optional(&self, path: Option<&Path>) -> Result<Option<SecretString>, SecretError> {
        path.map(|path| self.read(path)).transpose()
    }
}
