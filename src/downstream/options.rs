//! What an HTTP downstream needs besides its settings, and what can be wrong with these.

use std::fmt;

use crate::ports::secret::Secret;
use crate::ports::tls::ClientCertificate;
use crate::template::{Template, Templates};

/// Credentials, read from wherever they are kept.
#[derive(Clone, Debug)]
pub enum ResolvedAuth {
    /// `Authorization: Basic`, RFC 7617. The user has no colon.
    Basic { user: String, password: Secret },
    /// `Authorization: Bearer`, RFC 6750.
    Bearer { token: Secret },
}

impl ResolvedAuth {
    /// The password or the token, to be read again once it is refused.
    pub(super) const fn secret(&self) -> &Secret {
        match self {
            Self::Basic { password, .. } => password,
            Self::Bearer { token } => token,
        }
    }
}

/// A key of the downstream's configuration that cannot be used as it is. Only a changed
/// configuration helps.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {why}")]
pub struct Misconfigured {
    /// The key below `[routes.NAME.downstream]`: `url`, `headers.X-Tenant`, `outcomes` …
    pub key: String,
    /// What is wrong, and what would be right. Never a secret.
    pub why: String,
}

impl Misconfigured {
    pub(super) fn new(key: impl Into<String>, why: impl fmt::Display) -> Self {
        Self {
            key: key.into(),
            why: why.to_string(),
        }
    }
}

/// Compiles what is configured as `key`; errors about a message call it `what`.
pub(super) fn compile(
    templates: &mut Templates,
    what: &str,
    key: &str,
    text: &str,
) -> Result<Template, Misconfigured> {
    let compiled = templates.add(what, text);
    compiled.map_err(|wrong| Misconfigured::new(key, wrong))
}

/// The secrets that the settings of an HTTP downstream name, read.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    pub auth: Option<ResolvedAuth>,
    /// Ours, where the server asks for one.
    pub certificate: Option<ClientCertificate>,
}
