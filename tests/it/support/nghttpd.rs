//! A server of HTTP/2 that others wrote: nghttpd, of nghttp2.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};

use super::authority::Authority;
use super::machine;
use super::port::free_port;
use super::process::{PrivateProcess, scratch};

/// Takes calls at `/send`. Killed when dropped.
#[derive(Debug)]
pub struct Nghttpd {
    port: u16,
    _process: PrivateProcess,
    dir: tempfile::TempDir,
}

impl Nghttpd {
    /// With a certificate of this authority, or without TLS; with more options.
    #[must_use]
    pub fn start(authority: Option<&Authority>, options: &str) -> Self {
        machine::share();
        let dir = scratch("sluiced-nghttpd-");
        let port = free_port();
        std::fs::write(dir.path().join("send"), "taken").expect("a file to answer with");
        let tls = match authority {
            Some(authority) => {
                authority.server();
                let [key, certificate] =
                    ["server.key", "server.pem"].map(|name| authority.file(name));
                format!("{port} {} {}", key.display(), certificate.display())
            }
            None => format!("--no-tls {port}"),
        };
        let htdocs = dir.path().display();
        let script = format!("exec nghttpd -v -a 127.0.0.1 -d {htdocs} {options} {tls}");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let process = PrivateProcess::listening("nghttpd", &script, dir.path(), address);
        Self {
            port,
            _process: process,
            dir,
        }
    }

    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// All that it says of frames.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("output.log")).expect("its log")
    }

    /// How many requests it has read.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.log().matches(") :path: /send").count()
    }

    /// How many connections carried requests.
    #[must_use]
    pub fn connections(&self) -> usize {
        let log = self.log();
        let of_request = log.lines().filter(|line| line.contains(":path: /send"));
        let ids = of_request.filter_map(|line| line.split(']').next());
        ids.collect::<BTreeSet<_>>().len()
    }
}
