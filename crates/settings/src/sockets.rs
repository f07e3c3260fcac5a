//! Where callers ask: sockets of this machine, addresses, and sockets that systemd opened.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error as _};

use super::text::TextError;

/// A listener for callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenOn {
    /// A socket of this machine, at an absolute path.
    Unix(PathBuf),
    /// A socket that systemd opened, by its `FileDescriptorName`.
    Systemd(String),
    /// `HOST:PORT`.
    Tcp(String),
}

const FORMS: &str = "write \"unix:/run/sluiced/callers.sock\", an address such as \"127.0.0.1:9470\", or \"systemd:NAME\"";
/// The path of a socket has 108 bytes, its end included (unix(7)).
const MAX_PATH: usize = 107;

impl FromStr for ListenOn {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let wrong = |why: &str| Err(TextError(format!("`{text}` {why}; {FORMS}")));
        if let Some(path) = text.strip_prefix("unix:") {
            return match (path.starts_with('/'), path.len() <= MAX_PATH) {
                (true, true) => Ok(Self::Unix(path.into())),
                (true, false) => wrong("is longer than a socket's path may be (107 bytes)"),
                (false, _) => wrong("is no absolute path"),
            };
        }
        if let Some(name) = text.strip_prefix("systemd:") {
            let fine = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
            return match !name.is_empty() && name.chars().all(fine) {
                true => Ok(Self::Systemd(name.to_owned())),
                false => wrong("names no socket of systemd"),
            };
        }
        let place = text.rsplit_once(':');
        let is_place = place.is_some_and(|(host, port)| {
            let letters = |c: char| c.is_ascii_alphanumeric() || "-.:[]".contains(c);
            !host.is_empty() && host.chars().all(letters) && port.parse::<u16>().is_ok()
        });
        match is_place {
            true => Ok(Self::Tcp(text.to_owned())),
            false => wrong("is no place to listen at"),
        }
    }
}

impl<'de> Deserialize<'de> for ListenOn {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

impl fmt::Display for ListenOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Systemd(name) => write!(f, "systemd:{name}"),
            Self::Tcp(place) => f.write_str(place),
        }
    }
}

impl ListenOn {
    /// Whether only programs of this machine reach it, as far as the text says.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Unix(_) | Self::Systemd(_) => true,
            Self::Tcp(place) => {
                let before_port = place.rsplit_once(':').map_or("", |(host, _)| host);
                let host = before_port.trim_matches(['[', ']']);
                let address = host.parse::<IpAddr>();
                host == "localhost" || address.is_ok_and(|address| address.is_loopback())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_socket_an_address_or_a_name_of_systemd() {
        for (text, is_local) in [
            ("unix:/run/sluiced/callers.sock", true),
            ("systemd:callers", true),
            ("127.0.0.1:9470", true),
            ("[::1]:9470", true),
            ("localhost:9470", true),
            ("0.0.0.0:9470", false),
            ("callers.internal:9470", false),
        ] {
            let read: ListenOn = text.parse().expect(text);
            assert_eq!(read.to_string(), text);
            assert_eq!(read.is_local(), is_local, "{text}");
        }
        let long = format!("unix:/{}", "x".repeat(107));
        for wrong in [
            "",
            "unix:",
            "unix:run/x",
            "systemd:",
            "systemd:a b",
            "9470",
            "host:",
            "host:99999",
            ":9470",
            &long,
        ] {
            let why = wrong.parse::<ListenOn>().expect_err(wrong).to_string();
            assert!(why.contains("write \"unix:/run"), "{why}");
        }
    }
}
