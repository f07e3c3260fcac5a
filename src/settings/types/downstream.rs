//! What a route calls, and what its answers mean.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use secrecy::SecretString;
use serde::Deserialize;

use crate::settings::secrets::Redacted;
use crate::settings::text::Length;

#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Downstream {
    Http(Box<Http>),
}

/// An HTTP call per message. `url`, header values and `body` are minijinja templates over `body`
/// (parsed as JSON, only if a template asks for it), `headers`, `properties`, `routing_key`,
/// `exchange`, `message_id`, `route`, `attempt`.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Http {
    pub url: String,
    #[serde(default = "defaults::method")]
    pub method: String,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Absent: the message's body, untouched.
    pub body: Option<String>,
    pub auth: Option<Auth>,
    /// From the slot to the end of the answer.
    #[serde(default = "defaults::timeout")]
    pub timeout: Length,
    #[serde(default = "defaults::connect_timeout")]
    pub connect_timeout: Length,
    /// How long a call usually takes: the default prefetch and a check follow from it.
    #[serde(default = "defaults::latency")]
    pub latency: Length,
    /// Connections opened before the first slot.
    #[serde(default = "defaults::warm_connections")]
    pub warm_connections: u16,
    /// Idle connections are closed after this; keep it below the server's own limit.
    #[serde(default = "defaults::idle_timeout")]
    pub idle_timeout: Length,
    /// Trusted in addition to the system's certificates (PEM).
    pub ca_file: Option<PathBuf>,
    #[serde(default)]
    pub outcomes: Outcomes,
    /// How long a throttled answer without `Retry-After` freezes the limit.
    #[serde(default = "defaults::throttle_wait")]
    pub throttle_wait: Length,
    /// A `Retry-After` beyond this is cut to it.
    #[serde(default = "defaults::max_throttle_wait")]
    pub max_throttle_wait: Length,
}

impl fmt::Debug for Http {
    /// Never the values of headers nor the body, for providers take keys in both.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http")
            .field("url", &Redacted(&self.url))
            .field("method", &self.method)
            .field("headers", &self.headers.keys())
            .field("body", &self.body.as_ref().map(String::len))
            .field("auth", &self.auth)
            .field("timeout", &self.timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("latency", &self.latency)
            .field("warm_connections", &self.warm_connections)
            .field("idle_timeout", &self.idle_timeout)
            .field("ca_file", &self.ca_file)
            .field("outcomes", &self.outcomes)
            .field("throttle_wait", &self.throttle_wait)
            .field("max_throttle_wait", &self.max_throttle_wait)
            .finish()
    }
}

/// Which answers mean what. Entries are codes (`"409"`), classes (`"5xx"`), or `"timeout"` and
/// `"connection"` for no answer; a code beats a class. What nothing names: 2xx accepted, 429
/// throttled, 503 throttled if it says `Retry-After` and else transient, 408/425/5xx, timeouts
/// and connection errors transient, everything else permanent.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Outcomes {
    pub accepted: Vec<String>,
    pub throttled: Vec<String>,
    pub transient: Vec<String>,
    pub permanent: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Auth {
    Basic(Basic),
    Bearer(Bearer),
}

/// Exactly one of `password` and `password_file`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Basic {
    pub user: String,
    pub password: Option<SecretString>,
    pub password_file: Option<PathBuf>,
}

/// Exactly one of `token` and `token_file`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bearer {
    pub token: Option<SecretString>,
    pub token_file: Option<PathBuf>,
}

mod defaults {
    use std::time::Duration;

    use super::Length;

    pub(super) fn method() -> String {
        "POST".to_owned()
    }
    pub(super) const fn timeout() -> Length {
        Length(Duration::from_secs(10))
    }
    pub(super) const fn connect_timeout() -> Length {
        Length(Duration::from_secs(5))
    }
    pub(super) const fn latency() -> Length {
        Length(Duration::from_millis(250))
    }
    pub(super) const fn warm_connections() -> u16 {
        4
    }
    pub(super) const fn idle_timeout() -> Length {
        Length(Duration::from_secs(50))
    }
    pub(super) const fn throttle_wait() -> Length {
        Length(Duration::from_secs(1))
    }
    pub(super) const fn max_throttle_wait() -> Length {
        Length(Duration::from_secs(3600))
    }
}
