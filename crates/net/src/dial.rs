//! What clients of a downstream need to connect, whatever the protocol: the credentials that settings name, TLS, why no
//! connection came about, and how long a handshake takes (`handshake`).

mod handshake;

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::{fmt, io};

use rustls::ClientConfig;

use super::connect::{ClientCertificate, Secret, TlsError, causes, client_config, find, why};

pub use self::handshake::{timed_handshake, timed_handshake_through};

/// A key of the downstream's configuration that cannot be used as it is. Only a changed
/// configuration helps.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {why}")]
pub struct Misconfigured {
    /// The key below `[routes.NAME.downstream]`: `url`, `headers.X-Tenant`, `outcomes` …
    pub key: String,
    /// What is wrong, and what would be valid. Never a secret.
    pub why: String,
}

impl Misconfigured {
    /// `key` cannot be used, because of `why`.
    #[must_use]
    pub fn new(key: impl Into<String>, why: impl fmt::Display) -> Self {
        Self {
            key: key.into(),
            why: why.to_string(),
        }
    }
}

/// The secrets that the settings of a downstream name, read from wherever they are kept.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// The password, the token, or the key of signatures.
    pub secret: Option<Secret>,
    /// Ours, where the server asks for one.
    pub certificate: Option<ClientCertificate>,
    /// The password of the proxy's user.
    pub proxy: Option<Secret>,
    /// Secrets that templates name.
    pub named: BTreeMap<String, Secret>,
}

impl Credentials {
    /// The secret that the settings under `key` need.
    ///
    /// # Errors
    /// When there is none.
    pub fn secret(&self, key: &str) -> Result<&Secret, Misconfigured> {
        let secret = self.secret.as_ref();
        secret.ok_or_else(|| Misconfigured::new(key, "its secret is missing"))
    }
}

/// TLS that trusts `ca_file` and, if `native`, the system's certificates; with the client certificate if the server
/// asks for one.
///
/// # Errors
/// When certificates are missing or cannot be used.
pub fn tls(
    ca_file: Option<&Path>,
    ours: Option<&ClientCertificate>,
    native: bool,
) -> Result<ClientConfig, Misconfigured> {
    let unreadable = |path: &Path, error| {
        let why = format_args!("{} cannot be read: {error}", path.display());
        Misconfigured::new("ca_file", why)
    };
    let read = |path: &Path| std::fs::read(path).map_err(|error| unreadable(path, error));
    let ca = ca_file.map(read).transpose()?;
    client_config(ca.as_deref(), ours, native).map_err(|error| {
        let key = match error {
            TlsError::Authority(_) => "ca_file",
            TlsError::NoAuthority => "url",
            TlsError::Certificate(_) => "cert_file",
        };
        Misconfigured::new(key, error)
    })
}

/// Why no connection came about, for a person.
#[must_use]
pub fn connect_detail(error: &(dyn Error + 'static)) -> String {
    if causes(error).any(|cause| cause.to_string().starts_with("dns error")) {
        // It was resolved, and its addresses may not be used.
        let refused =
            find::<io::Error>(error).filter(|io| io.kind() == io::ErrorKind::PermissionDenied);
        return refused.map_or_else(
            || "the host's name cannot be resolved".to_owned(),
            ToString::to_string,
        );
    }
    match find::<io::Error>(error) {
        Some(io) => why(io).unwrap_or_else(|| format!("no connection: {io}")),
        None => causes(error).last().map_or_else(
            || "no connection".to_owned(),
            |last| format!("no connection: {last}"),
        ),
    }
}
