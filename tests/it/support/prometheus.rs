//! A real Prometheus with a configuration of the test.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::port::free_port;
use super::process::Leash;

/// Killed when dropped.
#[derive(Debug)]
pub struct Prometheus {
    port: u16,
    process: Child,
    _leash: Leash,
    _data: tempfile::TempDir,
}

impl Prometheus {
    /// `None`: there is none on this machine.
    #[must_use]
    pub fn start(config: &Path) -> Option<Self> {
        let data = tempfile::tempdir().unwrap();
        let port = free_port();
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", data.path().display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        Some(Self {
            port,
            _leash: Leash::on(&process),
            process,
            _data: data,
        })
    }

    /// The answer of its API, once there is one.
    #[must_use]
    pub fn ask(&self, path: &str) -> Option<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .ok()?;
        // In version 1.0 the answer ends with the connection.
        write!(stream, "GET {path} HTTP/1.0\r\nhost: x\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }

    /// How many series a query finds.
    #[must_use]
    pub fn found(&self, query: &str) -> usize {
        let query: String = url::form_urlencoded::byte_serialize(query.as_bytes()).collect();
        let answer = self.ask(&format!("/api/v1/query?query={query}"));
        let answer = answer.unwrap_or_default();
        answer["data"]["result"].as_array().map_or(0, Vec::len)
    }

    /// The state of its rules.
    #[must_use]
    pub fn rules(&self) -> Vec<Value> {
        let rules = self.ask("/api/v1/rules").unwrap_or_default();
        let groups = rules["data"]["groups"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let rules = groups.iter().filter_map(|group| group["rules"].as_array());
        rules.flatten().cloned().collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
