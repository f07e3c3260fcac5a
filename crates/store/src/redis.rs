//! Limits in Redis, shared by every replica, and what an error of Redis means.
//!
//! The pipeline uses `store`: it has paced limits, breakers and status, `limits` adds keyed limits and `policies` the
//! policies. All of them call `scripts` through `connection`, which leads to the one `server`, the primary that
//! `sentinels` name, or the node of a `cluster` that serves the `hash_slots` of the keys. How a connection is opened is
//! in `access` and `stream`; what is needed of a server, in `needs` and `info`; what `check` adds, in `probe`; notices
//! of the replicas to each other, in `notices`; the keys under which replicas sign headers, in `marks`.

mod access;
mod address;
mod batch;
mod cluster;
mod connection;
mod hash_slots;
mod info;
mod limits;
mod marks;
mod needs;
mod notices;
mod policies;
mod probe;
mod reply;
mod scripts;
mod sentinels;
mod server;
mod store;
mod stream;

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, RedisError, ServerErrorKind};
use secrecy::SecretString;

use sluiced_net::connect::{Secret, Tls, why};
use sluiced_ports::store::StoreError;
use sluiced_settings::types::{Redis, Settings};

pub use self::probe::{RedisFacts, probe};
pub use self::store::RedisStore;

/// The settings of Redis, and the secrets and certificates that they name.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// The table `[redis]`. Its URLs are read by [`RedisStore::connect`], and not before.
    pub settings: Redis,
    /// Replaces the password of the URLs; read again for each connection.
    pub password: Option<Secret>,
    /// The password of `sentinel_user`.
    pub sentinel_password: Option<Secret>,
    /// Only with `rediss://`.
    pub tls: Tls,
    /// Some limits count by key, so that a warning is due if a restart loses the counts.
    pub keyed: bool,
}

impl RedisOptions {
    /// One server, with the timeouts of `default.toml`. Nothing is checked here: a wrong URL is an error of
    /// [`RedisStore::connect`].
    #[must_use]
    pub fn single(url: impl Into<SecretString>, prefix: impl Into<String>) -> Self {
        Self::from(Redis {
            url: url.into(),
            prefix: prefix.into(),
            ..Settings::default().redis
        })
    }
}

/// Without credentials or certificates besides those of the URLs.
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

/// How errors name this store.
const STORE: &str = "Redis";

/// Errors of Redis, by what to do about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ErrorClass {
    /// The connection is of no use any more: rebuild it.
    Broken,
    /// The server cannot answer now, on any connection.
    Busy,
    /// The server will answer the same until an operator changes something.
    Refused,
    /// The server refuses this connection (by now): a new one may have the right password.
    LockedOut,
    /// Another node of the cluster serves this key: nothing has run, and the connection is fine.
    Moved,
}

impl ErrorClass {
    /// Whether the connection must be replaced.
    const fn ends_connection(self) -> bool {
        matches!(self, Self::Broken | Self::LockedOut)
    }
}

/// Codes of faults that pass by themselves. The crate has no names for some of them.
const PASSING: [&str; 8] = [
    "LOADING",
    // The slot is on its way to another node.
    "ASK",
    "BUSY",
    "TRYAGAIN",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "NOREPLICAS",
    // A disk that is full or slow for a while (`stop-writes-on-bgsave-error`).
    "MISCONF",
];

/// Sorts an error.
fn fault(error: &RedisError) -> ErrorClass {
    match error.kind() {
        // This server was the primary before a failover: another connection to the same name leads to the new one.
        ErrorKind::Server(ServerErrorKind::ReadOnly) => ErrorClass::Broken,
        ErrorKind::Server(ServerErrorKind::Moved) => ErrorClass::Moved,
        ErrorKind::Io | ErrorKind::Parse => ErrorClass::Broken,
        ErrorKind::AuthenticationFailed => ErrorClass::LockedOut,
        _ => match error.code() {
            Some(code) if PASSING.contains(&code) => ErrorClass::Busy,
            Some("ERR") => error.detail().map_or(ErrorClass::Refused, fault_of_text),
            Some("NOAUTH" | "WRONGPASS") => ErrorClass::LockedOut,
            _ => ErrorClass::Refused,
        },
    }
}

/// Sorts an error whose code says nothing. Redis before 7.0 and Dragonfly wrap an error of a command in a script:
/// `Error running script (call to f_…): @user_script:4: @user_script: 4: -READONLY You can't write …`.
fn fault_of_text(detail: &str) -> ErrorClass {
    let has_code = |code: &str| detail.contains(&format!("-{code} "));
    if has_code("READONLY") {
        ErrorClass::Broken
    } else if detail.contains("max number of clients") || PASSING.into_iter().any(has_code) {
        ErrorClass::Busy
    } else {
        ErrorClass::Refused
    }
}

/// The error for the caller, without `secrets`.
fn store_error<'a>(error: &RedisError, secrets: impl Iterator<Item = &'a str>) -> StoreError {
    let reason = hide(text(error), secrets);
    match fault(error) {
        ErrorClass::Broken | ErrorClass::Busy | ErrorClass::Moved => unreachable(&reason),
        ErrorClass::Refused | ErrorClass::LockedOut => refused(&reason),
    }
}

/// An error that may go away by itself.
fn unreachable(reason: &str) -> StoreError {
    StoreError::Unreachable {
        store: STORE,
        reason: reason.to_owned(),
    }
}

/// An error that stays until an operator changes something.
fn refused(reason: &str) -> StoreError {
    StoreError::Refused {
        store: STORE,
        reason: reason.to_owned(),
    }
}

/// There was no answer for this long.
const fn timed_out(waited: Duration) -> StoreError {
    StoreError::Timeout {
        store: STORE,
        waited,
    }
}

/// The server's own words if it said any: the crate writes the codes in its own way.
fn text(error: &RedisError) -> String {
    if error.kind() == ErrorKind::AuthenticationFailed {
        // The crate does not return the server's text (WRONGPASS).
        return "the user or the password is wrong, or the user is switched off".to_owned();
    }
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        // The error for a reply that cannot be read has several lines.
        _ => match io_error(error).map(|error| why(error).unwrap_or_else(|| error.to_string())) {
            Some(said) => said,
            None => error.to_string().trim_end().replace('\n', ", "),
        },
    }
}

/// The failure of a stream, which the crate wraps twice.
fn io_error(error: &RedisError) -> Option<&io::Error> {
    let wrapped = error.source()?;
    let inner = wrapped.downcast_ref::<Arc<dyn StdError + Send + Sync>>()?;
    inner.downcast_ref()
}

/// Redis quotes the arguments of a command that it does not know, the password of `AUTH` too.
fn hide<'a>(text: String, secrets: impl Iterator<Item = &'a str>) -> String {
    secrets
        .filter(|secret| !secret.is_empty())
        .fold(text, |text, secret| text.replace(secret, "***"))
}

#[cfg(test)]
mod tests;
