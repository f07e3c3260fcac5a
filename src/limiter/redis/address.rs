//! Where a server of Redis is, as URLs, Sentinels and cluster nodes tell it.

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
    /// that of `teller`.
    pub(super) fn told(text: &str, teller: &Self) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse().ok()?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Some(Self {
            host: Self::or_own(host, teller),
            port,
        })
    }

    /// A node that does not know its own name says nothing or `?`: it is where it was asked.
    pub(super) fn or_own(host: &str, teller: &Self) -> Arc<str> {
        match host {
            "" | "?" => Arc::clone(&teller.host),
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
        let teller = Address::new("10.0.0.1", 6379);
        let told = |text| Address::told(text, &teller).map(|address| address.to_string());
        assert_eq!(told("10.0.0.2:7000").as_deref(), Some("10.0.0.2:7000"));
        assert_eq!(told(":7000").as_deref(), Some("10.0.0.1:7000"));
        assert_eq!(told("?:7000").as_deref(), Some("10.0.0.1:7000"));
        assert_eq!(
            told("2001:db8::1:7000").as_deref(),
            Some("[2001:db8::1]:7000")
        );
        assert_eq!(
            told("node.internal:7000").as_deref(),
            Some("node.internal:7000")
        );
        for text in ["", "host", "host:", "host:70000"] {
            assert_eq!(told(text), None, "{text}");
        }
    }
}
