//! The configuration as plain data, after loading and before wiring.
//!
//! Every duration carries its unit, every secret hides itself, and what depends on something else
//! (a prefetch that follows the rate) is an `Option` here and resolved by a method.

mod downstream;
mod limit;
mod route;

use std::collections::BTreeMap;
use std::path::PathBuf;

use secrecy::SecretString;
use serde::Deserialize;

use super::text::Length;

pub use downstream::{Auth, Basic, Bearer, Downstream, Http, Outcomes};
pub use limit::{
    Concurrency, Counted, Counting, FixedWindow, Gcra, Limit, LostState, Paced, SlidingLog, Start,
    TokenBucket, WindowStart,
};
pub use route::{
    MAX_LIMITS, MAX_PRIORITY, OnDenied, OnExpired, OnInvalid, QueueType, Retry, Route,
};

/// Everything.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    pub rabbitmq: RabbitMq,
    pub redis: Redis,
    pub admin: Admin,
    pub log: Log,
    pub service: Service,
    pub backend: Backend,
    pub embedded: Embedded,
    #[serde(default)]
    pub limits: BTreeMap<String, Limit>,
    #[serde(default)]
    pub routes: BTreeMap<String, Route>,
}

/// Where queues and limits live.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Backend {
    pub queue: QueueBackend,
    pub limits: LimitBackend,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueBackend {
    Rabbitmq,
    /// A file or stdin of newline-delimited JSON; the run ends when all is settled.
    Embedded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitBackend {
    Redis,
    /// This process alone.
    Memory,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RabbitMq {
    /// Several: a cluster; each connection attempt takes the next one.
    pub urls: Vec<SecretString>,
    /// Replaces the password in every URL.
    pub password_file: Option<PathBuf>,
    /// Trusted in addition to the system's certificates (PEM).
    pub ca_file: Option<PathBuf>,
    pub heartbeat: Length,
    pub connect_timeout: Length,
    /// How long a publisher confirm may take.
    pub confirm_timeout: Length,
    /// The broker's `consumer_timeout`: how long it lets a delivery stay unacknowledged.
    pub ack_timeout: Length,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Redis {
    pub mode: RedisMode,
    /// One server; see [`Redis::addresses`].
    pub url: SecretString,
    /// The Sentinels, or some nodes of the cluster.
    #[serde(default)]
    pub urls: Vec<SecretString>,
    /// How the Sentinels call the group of servers.
    pub sentinel_service: Option<String>,
    pub sentinel_user: Option<String>,
    pub sentinel_password_file: Option<PathBuf>,
    /// Replaces the user of the URLs.
    pub user: Option<String>,
    /// Replaces the password of the URLs.
    pub password_file: Option<PathBuf>,
    /// Trusted in addition to the system's certificates (PEM).
    pub ca_file: Option<PathBuf>,
    /// Our own certificate (PEM), for servers that ask for one, and its key.
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    /// What every key starts with.
    pub prefix: String,
    pub connect_timeout: Length,
    pub response_timeout: Length,
}

/// How Redis is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RedisMode {
    /// One server, or an address that always leads to the primary.
    Single,
    /// A primary with replicas, watched by Sentinels.
    Sentinel,
    Cluster,
}

impl Redis {
    /// Where to connect to: `urls` if there are any, else `url` alone.
    #[must_use]
    pub fn addresses(&self) -> &[SecretString] {
        if self.urls.is_empty() {
            std::slice::from_ref(&self.url)
        } else {
            &self.urls
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Admin {
    /// Empty: no listener.
    pub listen: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// A level, or a filter of tracing-subscriber such as `info,sluiced::queue=debug`.
    pub level: String,
    pub format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// Human on a terminal, JSON otherwise.
    Auto,
    Human,
    Json,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// How long calls that were started may take to finish after SIGTERM.
    pub grace: Length,
}

/// The queue in this process, for `backend.queue = "embedded"`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Embedded {
    /// A file of newline-delimited JSON; `-` is stdin.
    pub input: PathBuf,
    /// Where what was not delivered is written, with the reason.
    pub leftover: PathBuf,
}
