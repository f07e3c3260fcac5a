//! A private primary with a replica, watched by three Sentinels.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use super::machine;
use super::port::free_port;
use super::process::{PrivateProcess, scratch};
use super::redis::RedisServer;

const BOOT: Duration = Duration::from_secs(60);
/// The Sentinels' name of the group of servers.
pub const SERVICE: &str = "mymaster";

/// The servers and the Sentinels that watch them.
#[derive(Debug)]
pub struct SentinelGroup {
    pub primary: RedisServer,
    pub replica: RedisServer,
    pub sentinels: Vec<Sentinel>,
}

/// One Sentinel.
#[derive(Debug)]
pub struct Sentinel {
    dir: tempfile::TempDir,
    port: u16,
    password: Option<String>,
    _process: PrivateProcess,
}

impl SentinelGroup {
    /// The group that all tests share, started at first use.
    pub fn shared() -> &'static Self {
        machine::share();
        static GROUP: OnceLock<SentinelGroup> = OnceLock::new();
        GROUP.get_or_init(|| Self::start(None))
    }

    /// A group of its own that is ready for a failover. The password is for servers and, reversed,
    /// for Sentinels.
    #[must_use]
    pub fn start(password: Option<&str>) -> Self {
        let auth = password.map_or_else(String::new, |p| format!("--masterauth {p}"));
        let common = format!("--repl-diskless-sync-delay 0 {auth}");
        let primary = RedisServer::start_with(&common, password);
        let follow = format!("--replicaof 127.0.0.1 {} {common}", primary.port());
        let replica = RedisServer::start_with(&follow, password);
        wait("the replica follows", || {
            replica.info().contains("master_link_status:up")
        });
        let sentinels: Vec<_> = (0..3)
            .map(|_| Sentinel::start(&primary, password))
            .collect();
        let this = Self {
            primary,
            replica,
            sentinels,
        };
        wait("the Sentinels know each other", || {
            this.sentinels.iter().all(|sentinel| {
                let said = sentinel.primary();
                let is = |name: &str, value: &str| said.get(name).is_some_and(|v| v == value);
                is("num-other-sentinels", "2") && is("num-slaves", "1") && is("flags", "master")
            })
        });
        this
    }

    /// The Sentinels' addresses.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        let all = self.sentinels.iter();
        all.map(|one| format!("redis://127.0.0.1:{}", one.port))
            .collect()
    }
}

impl Sentinel {
    fn start(primary: &RedisServer, password: Option<&str>) -> Self {
        let dir = scratch("sluiced-sentinel-");
        let port = free_port();
        let own = password.map(|password| password.chars().rev().collect::<String>());
        let mut text = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\n\
             sentinel monitor {SERVICE} 127.0.0.1 {} 2\n\
             sentinel down-after-milliseconds {SERVICE} 1000\n\
             sentinel failover-timeout {SERVICE} 3000\n",
            dir.path().display(),
            primary.port(),
        );
        if let (Some(password), Some(own)) = (password, &own) {
            text.push_str(&format!(
                "sentinel auth-pass {SERVICE} {password}\nrequirepass {own}\n\
                 sentinel sentinel-pass {own}\n"
            ));
        }
        std::fs::write(dir.path().join("sentinel.conf"), text).expect("a file");
        let script = format!(
            "cd '{}' && redis-server sentinel.conf --sentinel",
            dir.path().display()
        );
        let none: [(&str, &str); 0] = [];
        let process = PrivateProcess::start(&script, none, dir.path());
        let this = Self {
            port,
            password: own,
            _process: process,
            dir,
        };
        wait("a Sentinel answers", || !this.primary().is_empty());
        this
    }

    /// What it reports about the primary; empty while it does not answer.
    #[must_use]
    pub fn primary(&self) -> HashMap<String, String> {
        let password = self.password.as_ref();
        let password = password.map_or_else(String::new, |password| format!(":{password}@"));
        let url = format!("redis://{password}127.0.0.1:{}", self.port);
        let asked = || {
            let client = redis::Client::open(url.as_str())?;
            let mut connection = client.get_connection_with_timeout(Duration::from_secs(2))?;
            connection.set_read_timeout(Some(Duration::from_secs(10)))?;
            let mut question = redis::cmd("SENTINEL");
            question.arg("MASTER").arg(SERVICE).query(&mut connection)
        };
        asked().unwrap_or_default()
    }

    /// Its output.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("output.log")).unwrap_or_default()
    }
}

fn wait(what: &str, ready: impl Fn() -> bool) {
    let end = SystemTime::now() + BOOT;
    while !ready() {
        assert!(SystemTime::now() < end, "not within {BOOT:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
