//! URLs as logs, faults and `check --print` may show them.

use std::fmt;

/// Shows a URL without its credentials: `amqp://guest:***@127.0.0.1:5672/%2f`.
///
/// It works on the text alone and hides too much rather than too little, because a URL with a
/// typing error may be shown as well.
#[derive(Clone, Copy)]
pub(super) struct Redacted<'a>(pub(super) &'a str);

impl fmt::Debug for Redacted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Redacted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (main, query) = match self.0.split_once(['?', '#']) {
            // A password may hold an unescaped question mark.
            Some((_, rest)) if rest.contains('@') => (self.0, None),
            Some((main, query)) => (main, Some(query)),
            None => (self.0, None),
        };
        let Some((scheme, rest)) = main.split_once("://") else {
            return f.write_str("***");
        };
        if scheme.contains('@') {
            return f.write_str("***");
        }
        write!(f, "{scheme}://")?;
        match rest.rsplit_once('@') {
            Some((user, host)) => {
                match user.split_once(':') {
                    Some((user, _)) => write!(f, "{user}:***@{host}")?,
                    None => write!(f, "***@{host}")?,
                };
            }
            None if is_host(rest) => f.write_str(rest)?,
            // Perhaps `user:password` without its host.
            None => f.write_str("***")?,
        }
        match query {
            Some(query) => redact_query(f, query),
            None => Ok(()),
        }
    }
}

/// Whether the part up to the path is a host, perhaps with a port.
fn is_host(rest: &str) -> bool {
    let authority = rest.split('/').next().unwrap_or_default();
    if authority.starts_with('[') || authority.contains("{{") {
        return true;
    }
    authority
        .split_once(':')
        .is_none_or(|(_, port)| port.chars().all(|c| c.is_ascii_digit()))
}

/// Keys of a query whose values are no secrets.
const HARMLESS: [&str; 6] = [
    "heartbeat",
    "connection_timeout",
    "channel_max",
    "frame_max",
    "db",
    "protocol",
];

fn redact_query(f: &mut fmt::Formatter<'_>, query: &str) -> fmt::Result {
    for (i, pair) in query.split('&').enumerate() {
        f.write_str(if i == 0 { "?" } else { "&" })?;
        match pair.split_once('=') {
            Some((name, _)) if !HARMLESS.contains(&name) => write!(f, "{name}=***")?,
            Some(_) => f.write_str(pair)?,
            None => f.write_str("***")?,
        }
    }
    Ok(())
}
