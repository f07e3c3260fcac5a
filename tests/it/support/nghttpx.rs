//! A front of HTTP/2 that others wrote: nghttpx, of nghttp2, before a provider that speaks HTTP/1.1.

use std::net::{Ipv4Addr, SocketAddr};

use rustix::process::{Pid, Signal, kill_process};

use super::machine;
use super::port::free_port;
use super::process::{PrivateProcess, scratch};

/// Passes calls on. Killed when dropped.
#[derive(Debug)]
pub struct Nghttpx {
    address: SocketAddr,
    _process: PrivateProcess,
    dir: tempfile::TempDir,
}

impl Nghttpx {
    /// Without TLS, before this server.
    #[must_use]
    pub fn start(before: SocketAddr) -> Self {
        machine::share();
        let dir = scratch("sluiced-nghttpx-");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let (host, port) = (before.ip(), before.port());
        let script = format!(
            "exec nghttpx --conf=/dev/null --accesslog-file=/dev/null --pid-file={}/pid \
             '-f127.0.0.1,{};no-tls' '-b{host},{port}'",
            dir.path().display(),
            address.port()
        );
        let process = PrivateProcess::listening("nghttpx", &script, dir.path(), address);
        Self {
            address,
            _process: process,
            dir,
        }
    }

    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its configuration is read again: a new worker takes over, and the old one says goodbye (GOAWAY) on its
    /// connections and ends once their calls have.
    pub fn reload(&self) {
        let pid = std::fs::read_to_string(self.dir.path().join("pid")).expect("its process id");
        let pid = pid.trim().parse().ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a process id"), Signal::HUP).expect("it runs");
    }

    /// How often a worker took over.
    #[must_use]
    pub fn reloads(&self) -> usize {
        let log = std::fs::read_to_string(self.dir.path().join("output.log")).expect("its log");
        log.matches("Reloading configuration").count()
    }
}
