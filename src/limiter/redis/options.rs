//! Where Redis is and how it is run, as the configuration says.

use std::time::Duration;

use secrecy::SecretString;

use crate::ports::secret::Secret;
use crate::ports::tls::Tls;

/// Where Redis is and how long it may take.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    pub servers: Servers,
    /// Replaces the user of the URLs.
    pub user: Option<String>,
    /// Replaces the password of the URLs; read anew for each connection.
    pub password: Option<Secret>,
    /// Only with `rediss://` (a crypto provider of rustls must be installed).
    pub tls: Tls,
    /// What every key and channel starts with.
    pub prefix: String,
    /// The bound on finding a server and, again, on connecting to it, TLS and authentication
    /// included.
    pub connect_timeout: Duration,
    /// The bound on every call.
    pub response_timeout: Duration,
    /// Some limits count by key, so that a warning is due if a restart loses the counts.
    pub keyed: bool,
}

impl RedisOptions {
    /// The usual bounds, and neither credentials nor certificates besides those of the URLs.
    #[must_use]
    pub fn new(servers: Servers, prefix: impl Into<String>) -> Self {
        Self {
            servers,
            user: None,
            password: None,
            tls: Tls::default(),
            prefix: prefix.into(),
            connect_timeout: Duration::from_secs(2),
            response_timeout: Duration::from_millis(500),
            keyed: false,
        }
    }

    /// The channel where the replicas of a fleet tell each other.
    pub(super) fn channel(&self) -> String {
        format!("{}:notices", self.prefix)
    }

    /// As [`RedisOptions::new`], for one server.
    #[must_use]
    pub fn single(url: impl Into<SecretString>, prefix: impl Into<String>) -> Self {
        Self::new(Servers::Single(url.into()), prefix)
    }
}

/// The servers by how they are run. URLs are `redis://user:password@host:port/db`, or `rediss://`
/// for TLS; where there are several, they differ in nothing but host and port.
#[derive(Clone, Debug)]
pub enum Servers {
    /// One server, or an address that always leads to the primary.
    Single(SecretString),
    /// The Sentinels know the primary. The database of their URLs is that of the limits.
    Sentinel {
        urls: Vec<SecretString>,
        /// How the Sentinels call the group of servers.
        service: String,
        /// Our user at the Sentinels themselves.
        user: Option<String>,
        password: Option<Secret>,
    },
    /// Some nodes of a cluster, to ask for all others.
    Cluster(Vec<SecretString>),
}
