//! Limits in Redis, shared by every replica.
//!
//! `store` is what the pipeline holds: paced limits, breakers and status there, keyed limits in `limits`, and policies
//! in `policies`. All of them call `scripts` through `connection`, which leads
//! to the one `server`, the primary that `sentinel` names, or the node of a `cluster`. How a
//! connection is opened is in `access`; what an error means, in `fault`; notices of the replicas to
//! each other, in `notices`.

mod access;
mod batch;
mod cluster;
mod connection;
mod facts;
mod fault;
mod limits;
mod notices;
mod policies;
mod probe;
mod rights;
mod scripts;
mod sentinel;
mod server;
mod slots;
mod store;

use secrecy::SecretString;

use crate::ports::connect::Tls;
use crate::ports::secret::Secret;
use crate::settings::types::{Redis, Settings};

pub use self::policies::RedisPolicies;
pub use self::probe::{Report, probe};
pub use self::scripts::Family;
pub use self::store::RedisStore;

/// The settings of Redis, and the secrets and certificates that they name.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    pub settings: Redis,
    /// Replaces the password of the URLs; read anew for each connection.
    pub password: Option<Secret>,
    /// The password of `sentinel_user`.
    pub sentinel_password: Option<Secret>,
    /// Only with `rediss://` (a crypto provider of rustls must be installed).
    pub tls: Tls,
    /// Some limits count by key, so that a warning is due if a restart loses the counts.
    pub keyed: bool,
}

impl RedisOptions {
    /// One server, with the timeouts of `default.toml`.
    #[must_use]
    pub fn single(url: impl Into<SecretString>, prefix: impl Into<String>) -> Self {
        Self::from(Redis {
            url: url.into(),
            prefix: prefix.into(),
            ..Settings::default().redis
        })
    }

    /// The channel on which the replicas of a fleet send each other notices.
    fn channel(&self) -> String {
        format!("{}:notices", self.settings.prefix)
    }
}

/// Neither credentials nor certificates besides those of the URLs.
impl From<Redis> for RedisOptions {
    fn from(settings: Redis) -> Self {
        Self {
            settings,
            password: None,
            sentinel_password: None,
            tls: Tls::default(),
            keyed: false,
        }
    }
}
