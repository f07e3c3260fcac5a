//! The address of a server: what the configuration, a redirection or a map of a cluster names.

use std::fmt;
use std::sync::Arc;

/// A host, by name or number, and its port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Address {
    pub(super) host: Arc<str>,
    pub(super) port: u16,
}

impl Address {
    pub(super) fn new(host: &str, port: u16) -> Self {
        Self {
            host: Arc::from(host),
            port,
        }
    }

    /// `host:port` as redirections write it: IPv6 without brackets, and no host at all if it is
    /// that of `asked`.
    pub(super) fn redirected(text: &str, asked: &Self) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse().ok()?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Some(Self {
            host: Self::or_own(host, asked),
            port,
        })
    }

    /// A node that does not know its own name reports nothing or `?`: its address is the one that was
    /// asked.
    pub(super) fn or_own(host: &str, asked: &Self) -> Arc<str> {
        match host {
            "" | "?" => Arc::clone(&asked.host),
            host => Arc::from(host),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirections_are_read() {
        let asked = Address::new("10.0.0.1", 6379);
        let address = |text| Address::redirected(text, &asked).map(|address| address.to_string());
        assert_eq!(address("10.0.0.2:7000").as_deref(), Some("10.0.0.2:7000"));
        assert_eq!(address(":7000").as_deref(), Some("10.0.0.1:7000"));
        assert_eq!(address("?:7000").as_deref(), Some("10.0.0.1:7000"));
        assert_eq!(
            address("2001:db8::1:7000").as_deref(),
            Some("[2001:db8::1]:7000")
        );
        assert_eq!(
            address("node.internal:7000").as_deref(),
            Some("node.internal:7000")
        );
        for text in ["", "host", "host:", "host:70000"] {
            assert_eq!(address(text), None, "{text}");
        }
    }
}
