//! The configuration of an HTTP downstream, with its secrets read.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::ports::secret::Secret;
use crate::ports::tls::ClientCertificate;
use crate::settings::types::{Http, Outcomes};
use crate::telemetry::traces::RouteTraces;
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

/// Everything an HTTP downstream is made of. The fields mean what they mean in
/// `settings::types::Http`.
#[derive(Clone)]
pub struct HttpOptions {
    pub url: String,
    pub method: String,
    pub headers: BTreeMap<String, String>,
    pub body: Option<String>,
    pub auth: Option<ResolvedAuth>,
    pub timeout: Duration,
    pub connect_timeout: Duration,
    pub idle_timeout: Duration,
    pub warm_connections: u16,
    pub ca_file: Option<PathBuf>,
    /// Ours, where the server asks for one.
    pub certificate: Option<ClientCertificate>,
    pub outcomes: Outcomes,
    pub keep_answer: bool,
    pub throttle_wait: Duration,
    pub max_throttle_wait: Duration,
    /// Where calls are exported as spans.
    pub traces: Option<RouteTraces>,
}

impl HttpOptions {
    /// As configured, with the credentials `auth` instead of the files that hold them.
    #[must_use]
    pub fn from_settings(http: &Http, auth: Option<ResolvedAuth>) -> Self {
        Self {
            url: http.url.clone(),
            method: http.method.clone(),
            headers: http.headers.clone(),
            body: http.body.clone(),
            auth,
            timeout: http.timeout.get(),
            connect_timeout: http.connect_timeout.get(),
            idle_timeout: http.idle_timeout.get(),
            warm_connections: http.warm_connections,
            ca_file: http.ca_file.clone(),
            certificate: None,
            outcomes: http.outcomes.clone(),
            keep_answer: http.keep_answer,
            throttle_wait: http.throttle_wait.get(),
            max_throttle_wait: http.max_throttle_wait.get(),
            traces: None,
        }
    }
}

impl fmt::Debug for HttpOptions {
    /// Neither the URL, header values nor the body: keys of an API hide in all of them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpOptions")
            .field("method", &self.method)
            .field("headers", &self.headers.keys())
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
