//! What an error of Redis means: for the connection, and for the caller.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::ports::store::StoreError;

/// How errors name this store.
pub(super) const STORE: &str = "Redis";

/// An error of Redis, sorted by what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The connection is of no use any more: rebuild it.
    Broken,
    /// The server cannot answer at present, on any connection.
    Busy,
    /// It will answer the same again until an operator changes something.
    Refused,
    /// It does not let this connection in (any more): a new one may have the right password.
    LockedOut,
    /// Another node of the cluster serves this key: nothing has run, and the connection is fine.
    Moved,
}

impl Fault {
    /// Whether the connection is to be replaced.
    pub(super) const fn ends_connection(self) -> bool {
        matches!(self, Self::Broken | Self::LockedOut)
    }
}

/// Codes of replies that go away by themselves. The crate has no names for some of them.
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
pub(super) fn fault(error: &RedisError) -> Fault {
    match error.kind() {
        // A former master after a failover: the new one is behind the same name.
        ErrorKind::Server(ServerErrorKind::ReadOnly) => Fault::Broken,
        ErrorKind::Server(ServerErrorKind::Moved) => Fault::Moved,
        ErrorKind::Io | ErrorKind::Parse => Fault::Broken,
        ErrorKind::AuthenticationFailed => Fault::LockedOut,
        _ => match error.code() {
            Some(code) if PASSING.contains(&code) => Fault::Busy,
            Some("ERR")
                if error
                    .detail()
                    .is_some_and(|d| d.contains("max number of clients")) =>
            {
                Fault::Busy
            }
            Some("NOAUTH" | "WRONGPASS") => Fault::LockedOut,
            _ => Fault::Refused,
        },
    }
}

/// The error for the caller, without `secrets`.
pub(super) fn store_error<'a>(
    error: &RedisError,
    secrets: impl Iterator<Item = &'a str>,
) -> StoreError {
    let reason = hide(text(error), secrets);
    match fault(error) {
        Fault::Broken | Fault::Busy | Fault::Moved => unreachable(&reason),
        Fault::Refused | Fault::LockedOut => refused(&reason),
    }
}

/// It may be different later.
pub(super) fn unreachable(reason: &str) -> StoreError {
    StoreError::Unreachable {
        store: STORE,
        reason: reason.to_owned(),
    }
}

/// It stays like this until an operator changes something.
pub(super) fn refused(reason: &str) -> StoreError {
    StoreError::Refused {
        store: STORE,
        reason: reason.to_owned(),
    }
}

/// The server's own words if it said any: the crate writes the codes in its own way.
fn text(error: &RedisError) -> String {
    if error.kind() == ErrorKind::AuthenticationFailed {
        // The crate keeps the server's words (WRONGPASS) to itself.
        return "the user or the password is wrong, or the user is switched off".to_owned();
    }
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        // The error for what cannot be read at all has several lines.
        _ => error.to_string().trim_end().replace('\n', ", "),
    }
}

/// Redis quotes the arguments of a command that it does not know, the password of `AUTH` too.
fn hide<'a>(text: String, secrets: impl Iterator<Item = &'a str>) -> String {
    secrets
        .filter(|secret| !secret.is_empty())
        .fold(text, |text, secret| text.replace(secret, "***"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_that_redis_quotes_is_hidden() {
        let text = "unknown command 'AUTH', with args beginning with: 'hunter2'";
        let hidden = hide(text.to_owned(), ["other", "hunter2"].into_iter());
        assert!(!hidden.contains("hunter2"), "{hidden}");
        assert_eq!(hide("plain".to_owned(), [""].into_iter()), "plain");
    }

    #[test]
    fn errors_are_sorted_by_what_to_do_about_them() {
        let io = RedisError::from(std::io::Error::other("gone"));
        assert_eq!(fault(&io), Fault::Broken);
        let read_only = RedisError::from((ServerErrorKind::ReadOnly.into(), "a replica"));
        assert_eq!(fault(&read_only), Fault::Broken);
        let loading = RedisError::from((ServerErrorKind::BusyLoading.into(), "loading"));
        assert_eq!(fault(&loading), Fault::Busy);
        let busy = redis::make_extension_error("BUSY".to_owned(), None);
        assert_eq!(fault(&busy), Fault::Busy);
        let wrong = redis::make_extension_error("WRONGTYPE".to_owned(), None);
        assert_eq!(fault(&wrong), Fault::Refused);
        assert!(!store_error(&wrong, std::iter::empty()).is_transient());
        let moved = RedisError::from((ServerErrorKind::Moved.into(), "elsewhere"));
        assert_eq!(fault(&moved), Fault::Moved);
        assert!(store_error(&moved, std::iter::empty()).is_transient());
    }
}
