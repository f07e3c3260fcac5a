//! A private Redis server on a port of its own.

use std::process::Command;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use super::machine;
use super::port::{free_port, released};
use super::process::{PrivateProcess, scratch};

const BOOT: Duration = Duration::from_secs(30);

/// A server that is killed with the test process.
#[derive(Debug)]
pub struct RedisServer {
    dir: tempfile::TempDir,
    port: u16,
    arguments: String,
    /// Its clock is the test's.
    clocked: bool,
    password: Option<String>,
    process: Mutex<Option<PrivateProcess>>,
}

impl RedisServer {
    /// The server that all tests share, started at first use.
    pub fn shared() -> &'static Self {
        machine::share();
        static SERVER: OnceLock<RedisServer> = OnceLock::new();
        SERVER.get_or_init(Self::start)
    }

    /// A server of its own, ready for connections.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with("", None)
    }

    /// One whose clock the test can step.
    #[must_use]
    pub fn start_clocked() -> Self {
        Self::new("", None, true)
    }

    /// A server that belongs to a cluster, of itself alone. The port that a node would choose itself for the
    /// others may be in the clients' range.
    #[must_use]
    pub fn start_clustered() -> Self {
        let bus = free_port();
        Self::start_with(&format!("--cluster-enabled yes --cluster-port {bus}"), None)
    }

    /// As [`RedisServer::start`], with further arguments (shell words) and a password.
    #[must_use]
    pub fn start_with(arguments: &str, password: Option<&str>) -> Self {
        Self::new(arguments, password, false)
    }

    fn new(arguments: &str, password: Option<&str>, clocked: bool) -> Self {
        machine::share();
        let dir = scratch("sluiced-redis-");
        let password_argument = password.map_or_else(String::new, |p| format!("--requirepass {p}"));
        let server = Self {
            dir,
            port: free_port(),
            arguments: format!("{arguments} {password_argument}"),
            clocked,
            password: password.map(str::to_owned),
            process: Mutex::new(None),
        };
        if clocked {
            server.step_to(0.0);
        }
        server.boot();
        server
    }

    /// Where clients connect to, with the password.
    #[must_use]
    pub fn url(&self) -> String {
        let password = self
            .password
            .as_ref()
            .map_or_else(String::new, |password| format!(":{password}@"));
        format!("redis://{password}127.0.0.1:{}/0", self.port)
    }

    /// The same with another password.
    #[must_use]
    pub fn url_with(&self, password: &str) -> String {
        format!("redis://:{password}@127.0.0.1:{}/0", self.port)
    }

    /// Starts the server again after [`RedisServer::kill`], on the same port and directory.
    pub fn boot(&self) {
        released(self.port);
        let script = format!(
            "redis-server --port {} --bind 127.0.0.1 --dir . --save '' {}",
            self.port, self.arguments
        );
        let script = format!(
            "cd '{}' && {}{script}",
            self.dir.path().display(),
            self.clock()
        );
        let none: [(&str, &str); 0] = [];
        let process = PrivateProcess::start(&script, none, self.dir.path());
        *self.process.lock().unwrap() = Some(process);
        let end = std::time::SystemTime::now() + BOOT;
        while !self.is_ready() {
            assert!(
                std::time::SystemTime::now() < end,
                "Redis did not start; its output:\n{}",
                std::fs::read_to_string(self.dir.path().join("output.log")).unwrap_or_default()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Its clock is this many seconds ahead of the true time from now on, or behind it.
    pub fn step_to(&self, seconds: f64) {
        let (file, new) = (self.dir.path().join("clock"), self.dir.path().join("new"));
        std::fs::write(&new, format!("{seconds:+.3}")).unwrap();
        std::fs::rename(new, file).unwrap();
    }

    /// What makes the clock the test's: Debian's package faketime.
    fn clock(&self) -> String {
        if !self.clocked {
            return String::new();
        }
        // With the allocator of libc: that of Redis asks for the time before faketime is ready.
        let lib = "/lib/$(uname -m)-linux-gnu";
        let library = format!("\"/usr{lib}/faketime/libfaketime.so.1 {lib}/libc.so.6\"");
        let file = self.dir.path().join("clock");
        format!(
            "LD_PRELOAD={library} DONT_FAKE_MONOTONIC=1 FAKETIME_NO_CACHE=1 FAKETIME_TIMESTAMP_FILE='{}' ",
            file.display()
        )
    }

    /// Kills the server without a clean stop.
    pub fn kill(&self) {
        if let Some(process) = self.process.lock().unwrap().take() {
            process.stop();
        }
    }

    /// A blocking connection for the test itself.
    #[must_use]
    pub fn connection(&self) -> redis::Connection {
        self.try_connection().expect("a private Redis that runs")
    }

    /// One question over a connection of its own. Sentinels close all connections of a server that
    /// they promote, so an error may mean nothing.
    pub fn ask<T: redis::FromRedisValue>(&self, question: &redis::Cmd) -> redis::RedisResult<T> {
        question.query(&mut self.try_connection()?)
    }

    /// What the server reports about itself; empty while it cannot be asked.
    #[must_use]
    pub fn info(&self) -> String {
        self.ask(&redis::cmd("INFO")).unwrap_or_default()
    }

    /// Where it listens.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// A file of its directory, for example its snapshot (`dump.rdb`).
    #[must_use]
    pub fn file(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    /// The process of the server, to pause it.
    #[must_use]
    pub fn pid(&self) -> u32 {
        let info: redis::InfoDict = redis::cmd("INFO")
            .arg("server")
            .query(&mut self.connection())
            .unwrap();
        info.get("process_id").expect("INFO names the process")
    }

    fn try_connection(&self) -> redis::RedisResult<redis::Connection> {
        let connection =
            redis::Client::open(self.url())?.get_connection_with_timeout(Duration::from_secs(2))?;
        connection.set_read_timeout(Some(Duration::from_secs(10)))?;
        Ok(connection)
    }

    fn is_ready(&self) -> bool {
        self.try_connection()
            .and_then(|mut connection| redis::cmd("PING").query::<String>(&mut connection))
            .is_ok()
    }
}

/// A process that is paused until this is dropped.
#[derive(Debug)]
pub struct Paused(u32);

impl Paused {
    /// Pauses the process `pid`.
    #[must_use]
    pub fn new(pid: u32) -> Self {
        signal("-STOP", pid);
        Self(pid)
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        signal("-CONT", self.0);
    }
}

fn signal(name: &str, pid: u32) {
    let done = Command::new("kill").arg(name).arg(pid.to_string()).status();
    assert!(
        done.is_ok_and(|status| status.success()),
        "kill {name} {pid}"
    );
}
