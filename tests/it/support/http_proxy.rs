//! An HTTP proxy that others wrote: tinyproxy.

use std::net::{Ipv4Addr, SocketAddr};

use super::machine;
use super::port::free_port;
use super::process::{PrivateProcess, scratch};

/// A proxy that opens connections (CONNECT) for one user. Killed when dropped.
#[derive(Debug)]
pub struct HttpProxy {
    port: u16,
    _process: PrivateProcess,
    dir: tempfile::TempDir,
}

impl HttpProxy {
    pub const USER: &str = "sluiced";
    pub const PASSWORD: &str = "s3cret";

    /// With more lines of its configuration, of which later ones count.
    #[must_use]
    pub fn start(lines: &str) -> Self {
        machine::share();
        let dir = scratch("sluiced-proxy-");
        let port = free_port();
        let file = dir.path().join("tinyproxy.conf");
        let (user, password) = (Self::USER, Self::PASSWORD);
        let text = format!(
            "Port {port}\nListen 127.0.0.1\nTimeout 600\nMaxClients 200\nLogLevel Connect\n\
             BasicAuth {user} {password}\n{lines}"
        );
        std::fs::write(&file, text).expect("the configuration of a private proxy");
        let script = format!("exec tinyproxy -d -c {}", file.display());
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let process = PrivateProcess::listening("proxy", &script, dir.path(), address);
        Self {
            port,
            _process: process,
            dir,
        }
    }

    /// For the key `proxy`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}@127.0.0.1:{}", Self::USER, self.port)
    }

    /// How many connections it was asked for, by its log.
    #[must_use]
    pub fn asked(&self) -> usize {
        let log = std::fs::read_to_string(self.dir.path().join("output.log"));
        log.expect("its log").matches("CONNECT ").count()
    }

    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }
}
