//! An HTTP proxy that others wrote: tinyproxy.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use tokio::time::Instant;

use super::machine;
use super::port::free_port;
use super::process::{PrivateProcess, scratch};

const BOOT: Duration = Duration::from_secs(30);

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
        let process =
            PrivateProcess::start(&script, std::iter::empty::<(&str, &str)>(), dir.path());
        let end = Instant::now() + BOOT;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        while TcpStream::connect_timeout(&address, BOOT).is_err() {
            let log = std::fs::read_to_string(dir.path().join("output.log"));
            assert!(Instant::now() < end, "no proxy: {log:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
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
