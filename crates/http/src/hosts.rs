//! Which hosts a message may lead a call to.
//!
//! Problem: where the URL is from the message (a customer's webhook), a publisher could lead calls to servers that only
//! this machine reaches: its own admin port, a database, the metadata of a cloud. A name that looks harmless may lead
//! there too, and the answer to a look-up may change between two of them.
//!
//! So the host must be one of `allowed_hosts`, and an address that is not public is used only for a host that stands
//! there itself. Addresses are looked at where the connection is opened, after the look-up that is used.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use http::Uri;
use http::uri::Scheme;

use sluiced_ports::downstream::UnfitReason;

/// The port of its scheme.
pub(super) fn usual_port(uri: &Uri) -> u16 {
    if uri.scheme() == Some(&Scheme::HTTPS) {
        443
    } else {
        80
    }
}

/// The hosts that may be called. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct AllowedHosts(Arc<[Pattern]>);

#[derive(Debug)]
struct Pattern {
    host: HostMatch,
    /// `None`: the port of the scheme.
    port: Option<u16>,
}

#[derive(Debug, PartialEq, Eq)]
enum HostMatch {
    Any,
    /// All names that end with this, which begins with a dot.
    Below(String),
    One(String),
}

impl AllowedHosts {
    /// By the patterns of the settings.
    pub(crate) fn new(patterns: &[String]) -> Self {
        Self(patterns.iter().map(|text| Pattern::new(text)).collect())
    }

    /// # Errors
    /// When it may not be called. The reason shows nothing of the message.
    pub(crate) fn check(&self, uri: &Uri) -> Result<(), UnfitReason> {
        let refused = |why: &str| UnfitReason {
            what: "url".to_owned(),
            why: why.to_owned(),
        };
        let host = uri.host().unwrap_or_default().to_ascii_lowercase();
        let bare = host.trim_end_matches('.').trim_matches(['[', ']']);
        let usual = usual_port(uri);
        let port = uri.port_u16().unwrap_or(usual);
        // A host that stands in the list itself may be private, so no wider pattern adds a port to it.
        let is_named = self.0.iter().any(|pattern| pattern.is_of(bare));
        let fits = |pattern: &Pattern| {
            let has = if is_named {
                pattern.is_of(bare)
            } else {
                pattern.host.has(bare)
            };
            has && pattern.port.unwrap_or(usual) == port
        };
        if !self.0.iter().any(fits) {
            return Err(refused(
                "leads to a host or a port that is not in allowed_hosts",
            ));
        }
        match bare.parse() {
            Ok(address) if !self.may_connect(bare, address) => Err(refused(
                "leads to an address that is not public; only one that stands in allowed_hosts itself is called",
            )),
            _ => Ok(()),
        }
    }

    /// Whether a connection to this address may be opened, which the host's name led to.
    pub(super) fn may_connect(&self, host: &str, address: IpAddr) -> bool {
        let lower = host.to_ascii_lowercase();
        let name = lower.trim_end_matches('.');
        is_public(address) || self.0.iter().any(|pattern| pattern.is_of(name))
    }
}

impl Pattern {
    fn new(text: &str) -> Self {
        let with_port = text
            .rsplit_once(':')
            .filter(|(name, _)| !name.contains(':') || name.ends_with(']'));
        let (name, port) = with_port.map_or((text, None), |(name, port)| (name, port.parse().ok()));
        let host = match name.strip_prefix('*') {
            Some("") => HostMatch::Any,
            Some(below) => HostMatch::Below(below.to_owned()),
            None => HostMatch::One(name.trim_matches(['[', ']']).to_owned()),
        };
        Self { host, port }
    }
}

impl Pattern {
    /// Whether it names this host itself.
    fn is_of(&self, host: &str) -> bool {
        matches!(&self.host, HostMatch::One(only) if only == host)
    }
}

impl HostMatch {
    fn has(&self, host: &str) -> bool {
        match self {
            Self::Any => true,
            // An address is below no name.
            Self::Below(end) => host.ends_with(end) && host.parse::<IpAddr>().is_err(),
            Self::One(only) => only == host,
        }
    }
}

/// Whether an address is one of the public internet (IANA's registries of special addresses, RFC 6890 and its updates).
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => match inner(address) {
            Some(inner) => is_public_v4(inner),
            None => is_public_v6(address),
        },
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_special = matches!(
        (a, b, c),
        // This network, loopback, and what is kept for later or for all.
        (0 | 127 | 240..=255, _, _)
            // Private; shared by customers of a provider (RFC 6598); link-local, with the metadata of clouds.
            | (10, _, _)
            | (172, 16..=31, _)
            | (192, 168, _)
            | (100, 64..=127, _)
            | (169, 254, _)
            // Of protocols; documentation; benchmarks; old relays.
            | (192, 0, 0 | 2)
            | (198, 51, 100)
            | (203, 0, 113)
            | (198, 18..=19, _)
            | (192, 88, 99)
            // Multicast.
            | (224..=239, _, _)
    );
    !is_special
}

/// The address of IPv4 that one of IPv6 leads to: mapped, compatible, NAT64 (RFC 6052), 6to4 (RFC 3056).
fn inner(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let parts = address.segments();
    let of = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match parts {
        [0, 0, 0, 0, 0, 0xffff | 0, high, low] => Some(of(high, low)),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(of(high, low)),
        [0x2002, high, low, ..] => Some(of(high, low)),
        _ => None,
    }
}

/// Global unicast (2000::/3) without documentation and protocols.
const fn is_public_v6(address: Ipv6Addr) -> bool {
    let parts = address.segments();
    let is_global = parts[0] & 0xe000 == 0x2000;
    let is_special = matches!(
        parts,
        [0x2001, 0xdb8 | 0..=0x1ff, ..] | [0x3fff, 0..=0xfff, ..]
    );
    is_global && !is_special
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(patterns: &[&str], url: &str) -> bool {
        let patterns: Vec<_> = patterns.iter().map(|text| (*text).to_owned()).collect();
        let uri = url.parse().expect("a URL");
        AllowedHosts::new(&patterns).check(&uri).is_ok()
    }

    #[test]
    fn hosts_and_ports_are_those_of_the_list() {
        let list = ["*.example.com", "hooks.example.org:8443", "10.0.0.5"];
        for (url, allowed) in [
            ("https://a.example.com/x", true),
            ("https://a.b.EXAMPLE.com./x", true),
            ("http://a.example.com/x", true),
            ("https://a.example.com:8443/x", false),
            ("https://example.com/x", false),
            ("https://notexample.com/x", false),
            ("https://example.com.evil.net/x", false),
            ("https://hooks.example.org:8443/x", true),
            ("https://hooks.example.org/x", false),
            ("http://10.0.0.5/x", true),
            ("http://10.0.0.6/x", false),
        ] {
            assert_eq!(allows(&list, url), allowed, "{url}");
        }
    }

    #[test]
    fn any_host_is_any_public_one() {
        for (url, allowed) in [
            ("https://shop.example/x", true),
            ("https://8.8.8.8/x", true),
            ("https://[2606:4700::1111]/x", true),
            ("http://127.0.0.1/x", false),
            ("http://2130706433/x", true),
            ("http://169.254.169.254/latest/meta-data", false),
            ("http://100.100.100.200/x", false),
            ("http://192.168.1.1/x", false),
            ("http://[::1]/x", false),
            ("http://[::ffff:127.0.0.1]/x", false),
            ("http://[::ffff:8.8.8.8]/x", true),
            ("http://[64:ff9b::7f00:1]/x", false),
            ("http://[2002:a00:1::]/x", false),
            ("http://[fe80::1]/x", false),
            ("http://[fd00:ec2::254]/x", false),
            ("http://[ff02::1]/x", false),
            ("http://[2001:db8::1]/x", false),
        ] {
            assert_eq!(allows(&["*"], url), allowed, "{url}");
        }
    }

    /// A private host is called at the ports that stand beside it, whatever else is allowed.
    #[test]
    fn a_wider_pattern_adds_no_port_to_a_host_of_the_list() {
        let list = ["*", "*:9000", "hooks.internal:8443", "10.0.0.5:8443"];
        for (url, allowed) in [
            ("https://hooks.internal:8443/x", true),
            ("http://hooks.internal/x", false),
            ("http://hooks.internal:9000/x", false),
            ("http://10.0.0.5:8443/x", true),
            ("http://10.0.0.5/x", false),
            ("http://shop.example:9000/x", true),
        ] {
            assert_eq!(allows(&list, url), allowed, "{url}");
        }
    }

    /// A resolver may read `2130706433` or `0x7f.1` as an address: it is looked at after the look-up.
    #[test]
    fn what_a_name_leads_to_counts() {
        let any = AllowedHosts::new(&["*".to_owned(), "intern.example".to_owned()]);
        let private = IpAddr::from([10, 1, 2, 3]);
        assert!(!any.may_connect("shop.example", private));
        assert!(any.may_connect("Intern.example", private));
        assert!(any.may_connect("shop.example", IpAddr::from([9, 9, 9, 9])));
    }
}
