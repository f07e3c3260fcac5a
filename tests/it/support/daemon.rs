//! The program as a process: configured by a file, watched by its log and its admin listener.
//!
//! Every line of a daemon's log must be JSON, and a line of level WARN or ERROR that the test did
//! not declare fails the test.

mod config;

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::time::sleep;

use super::machine;
use super::process::Leash;
use super::wait::{eventually, within};
pub use config::{Config, Route};

/// Long enough for anything on a busy machine.
pub const LONG: Duration = Duration::from_secs(60);

/// The log line of a schedule that was not used before.
pub const NEW_SCHEDULE: &str = "the schedule was lost";

/// The log line of an answer that means "not now".
pub const THROTTLED: &str = "the downstream throttles";

/// The program that is tested: that of this build, or the one that `TESTED_SLUICED` names, such as a release.
fn tested() -> OsString {
    std::env::var_os("TESTED_SLUICED").unwrap_or_else(|| env!("CARGO_BIN_EXE_sluiced").into())
}

/// The program with its arguments, and nothing of the environment that would change it.
#[must_use]
pub fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(tested());
    for (variable, _) in std::env::vars_os() {
        let name = variable.to_string_lossy();
        let ours =
            name.starts_with("SLUICED__") || name.starts_with("OTEL_") || name.starts_with("AWS_");
        let proxy = name.to_ascii_uppercase().ends_with("_PROXY");
        if ours || proxy || variable == "NOTIFY_SOCKET" {
            command.env_remove(&variable);
        }
    }
    command.args(arguments).stdin(Stdio::null());
    command
}

/// A running daemon, killed when dropped.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    _leash: Leash,
    log: PathBuf,
    admin: Option<SocketAddr>,
    _dir: tempfile::TempDir,
}

/// A busy machine may log these wherever limits are asked: a round trip to Redis, or the time until a call left, took
/// longer than the headroom allows. Tests about these warnings wait for them.
const SLOW: &[&str] = &[
    "permits run out before their calls leave",
    "permits or slots ran out before their calls left",
];

/// How long RabbitMQ may take. A busy machine stands still for longer than an operator would wait, so this is a minute
/// where a test does not say otherwise.
const PATIENT: [&str; 2] = ["connect_timeout", "confirm_timeout"];

impl Daemon {
    #[must_use]
    pub fn start(config: &Config) -> Self {
        Self::start_with(&config.text(), |_| {})
    }

    /// With that file, after `change` of the command.
    #[must_use]
    pub fn start_with(text: &str, change: impl FnOnce(&mut Command)) -> Self {
        Self::launch(text, |command| command, change)
    }

    /// By a command of its own that ends in becoming the program: `unshare`, for example.
    #[must_use]
    pub fn start_by(text: &str, launcher: &[&str]) -> Self {
        let within = |program: Command| {
            let mut command = Command::new(launcher[0]);
            command.args(&launcher[1..]).arg(program.get_program());
            command.args(program.get_args()).stdin(Stdio::null());
            let removed = program.get_envs().filter(|(_, value)| value.is_none());
            for (name, _) in removed {
                command.env_remove(name);
            }
            command
        };
        Self::launch(text, within, |_| {})
    }

    fn launch(
        text: &str,
        by: impl FnOnce(Command) -> Command,
        change: impl FnOnce(&mut Command),
    ) -> Self {
        machine::share();
        let dir = tempfile::tempdir().unwrap();
        let config = file(dir.path(), "sluiced.toml", text);
        let log = dir.path().join("log");
        let output = File::create(&log).unwrap();
        let mut command = program(&["run", "--config"]);
        command.arg(&config);
        let mut command = by(command);
        let with_rabbit = text.contains("[rabbitmq]\n");
        for key in PATIENT
            .iter()
            .filter(|key| with_rabbit && !text.contains(*key))
        {
            let variable = format!("SLUICED__RABBITMQ__{}", key.to_uppercase());
            command.env(variable, "1m");
        }
        command.stdout(output.try_clone().unwrap()).stderr(output);
        change(&mut command);
        let child = command.spawn().expect("the program starts");
        Self {
            _leash: Leash::on(&child),
            child,
            log,
            admin: None,
            _dir: dir,
        }
    }

    /// Its process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its configuration file.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self._dir.path().join("sluiced.toml")
    }

    /// How many threads of the AMQP client it has.
    #[must_use]
    pub fn client_threads(&self) -> usize {
        let names = self
            .proc("task")
            .map(|task| std::fs::read_to_string(task.join("comm")));
        let ours = |name: &std::io::Result<String>| {
            name.as_ref()
                .is_ok_and(|name| name.starts_with("lapin-io-loop"))
        };
        names.filter(ours).count()
    }

    /// How many sockets it has open.
    #[must_use]
    pub fn sockets(&self) -> usize {
        let files = self
            .proc("fd")
            .filter_map(|file| std::fs::read_link(file).ok());
        files
            .filter(|file| file.to_string_lossy().starts_with("socket:"))
            .count()
    }

    /// Bytes of memory that it has now (`VmRSS`), or had at most (`VmHWM`).
    #[must_use]
    pub fn memory(&self, which: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("the process runs");
        let mut fields = status.lines().filter_map(|line| line.split_once(':'));
        let (_, size) = fields.find(|(name, _)| *name == which).expect(which);
        let kib = size.trim().trim_end_matches(" kB").parse::<u64>();
        kib.expect("KiB") << 10
    }

    fn proc(&self, folder: &str) -> impl Iterator<Item = PathBuf> {
        let folder = format!("/proc/{}/{folder}", self.child.id());
        let entries = std::fs::read_dir(folder).expect("the process runs");
        entries.filter_map(|entry| Some(entry.ok()?.path()))
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).expect("a process id");
        kill_process(pid, signal).expect("it is not waited for yet");
    }

    /// Its whole log so far.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// The end of its log, for a test that fails.
    fn last_lines(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(100)..].join("\n")
    }

    /// Its series that are not zero, without histograms, for a test that fails.
    fn last_figures(&self) -> String {
        let at = self.told_admin();
        let page = at.map_or_else(String::new, |at| get(at, "/metrics").1);
        let told = |line: &&str| {
            let skipped = line.starts_with('#') || line.contains("_bucket{");
            line.starts_with("sluiced_") && !skipped && !line.ends_with(" 0")
        };
        page.lines().filter(told).collect::<Vec<_>>().join("\n")
    }

    /// The lines of its log that contain `text`.
    #[must_use]
    pub fn said(&self, text: &str) -> usize {
        self.log()
            .lines()
            .filter(|line| line.contains(text))
            .count()
    }

    pub async fn says(&self, text: &str) {
        let what = format!("a line with `{text}`");
        let seen = tokio::time::timeout(LONG, async {
            eventually(LONG * 2, &what, || self.said(text) > 0).await;
        });
        assert!(seen.await.is_ok(), "no {what} in\n{}", self.log());
    }

    /// Waits until it ends.
    pub async fn ended(&mut self) -> ExitStatus {
        let ended = tokio::time::timeout(LONG, async {
            loop {
                if let Some(status) = self.child.try_wait().unwrap() {
                    return status;
                }
                sleep(Duration::from_millis(5)).await;
            }
        });
        let ended = ended.await;
        ended.unwrap_or_else(|_| panic!("not ended within {LONG:?}\n{}", self.log()))
    }

    #[must_use]
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Kills it without a clean stop; warnings and errors other than `declared` fail the test.
    pub async fn kill(mut self, declared: &[&str]) {
        self.signal(Signal::KILL);
        self.ended().await;
        self.complaints(declared);
    }

    /// Stops it: it must end with 0, and have logged nothing but what is `declared`. Its log.
    pub async fn stop(mut self, declared: &[&str]) -> String {
        self.signal(Signal::TERM);
        self.stopped(declared).await
    }

    /// Waits until it ends by itself, without an error.
    pub async fn stopped(&mut self, declared: &[&str]) -> String {
        let status = self.ended().await;
        assert_eq!(status.code(), Some(0), "{status}\n{}", self.log());
        self.complaints(declared);
        self.log()
    }

    /// Fails if it logged WARN or ERROR about anything but `declared`, or wrote anything but
    /// JSON.
    pub fn complaints(&self, declared: &[&str]) {
        let log = self.log();
        for line in log.lines() {
            let Ok(entry) = serde_json::from_str::<Value>(line) else {
                panic!("no JSON: {line}\nin\n{log}");
            };
            let level = entry["level"].as_str();
            let known = declared.iter().chain(SLOW).any(|text| line.contains(text));
            assert!(
                matches!(level, Some("INFO" | "DEBUG")) || known,
                "undeclared: {line}\nin\n{log}"
            );
        }
    }

    /// Where it serves its metrics.
    pub async fn admin(&mut self) -> SocketAddr {
        if let Some(address) = self.admin {
            return address;
        }
        self.says("serving /metrics").await;
        let address = self.told_admin().expect("its address");
        self.admin = Some(address);
        address
    }

    fn told_admin(&self) -> Option<SocketAddr> {
        let log = std::fs::read_to_string(&self.log).ok()?;
        let line = log.lines().find(|line| line.contains("serving /metrics"))?;
        let entry: Value = serde_json::from_str(line).ok()?;
        entry["address"].as_str()?.parse().ok()
    }

    /// A page of its admin listener.
    pub async fn page(&mut self, path: &str) -> (u16, String) {
        get(self.admin().await, path)
    }

    /// Waits until it is ready.
    pub async fn ready(&mut self) {
        let address = self.admin().await;
        let ready = tokio::time::timeout(
            LONG,
            eventually(LONG * 2, "ready", || get(address, "/readyz").0 == 200),
        );
        assert!(
            ready.await.is_ok(),
            "not ready: {}\n{}",
            get(address, "/readyz").1,
            self.log()
        );
    }

    /// The value of a series such as `sluiced_used_units_total{limit="provider"}`.
    pub async fn metric(&mut self, series: &str) -> f64 {
        let (_, page) = self.page("/metrics").await;
        value_of(series, &page).unwrap_or_else(|| panic!("no {series} in\n{page}"))
    }

    /// Waits until a series has at least this value. Where nothing was counted yet, there may be none.
    pub async fn until_metric(&mut self, series: &str, least: f64) {
        let has_it = async {
            while value_of(series, &self.page("/metrics").await.1).is_none_or(|value| value < least)
            {
                sleep(Duration::from_millis(10)).await;
            }
        };
        within(LONG, &format!("{series} is {least}"), has_it).await;
    }
}

fn value_of(series: &str, page: &str) -> Option<f64> {
    let mut lines = page.lines();
    let value = lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    Some(value.trim().parse().expect("a number"))
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let config = self.config();
            eprintln!("{}:\n{}", config.display(), self.last_lines());
            eprintln!("{}", self.last_figures());
        }
        if let Ok(None) = self.child.try_wait() {
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }
}

/// Status and body; status 0 if nothing answers.
#[must_use]
pub fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let ask = || {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        std::io::Result::Ok(answer)
    };
    let Ok(answer) = ask() else {
        return (0, String::new());
    };
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status.unwrap_or(0), body.to_owned())
}

/// Writes a file next to others of the test.
#[must_use]
pub fn file(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    // Some hold a secret.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}
