//! A private RabbitMQ server on ports of its own, with its own epmd. What an administrator does and sees is in `admin`.

mod admin;

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::Instant;

use super::authority::Authority;
use super::machine;
use super::port::{free_port, released};
use super::process::{PrivateProcess, scratch};

/// A signal has reached all threads by then.
const STOPPED: Duration = Duration::from_secs(10);
const BIN: &str = "/usr/lib/rabbitmq/bin";
/// An Erlang node boots slowly on a busy machine.
const BOOT: Duration = Duration::from_secs(180);

/// A server that is killed with the test process.
#[derive(Debug)]
pub struct Rabbit {
    dir: tempfile::TempDir,
    port: u16,
    /// With TLS, if it has that.
    secure_port: Option<u16>,
    env: Vec<(String, String)>,
    process: Mutex<Option<PrivateProcess>>,
}

impl Rabbit {
    /// The server that all tests share, started at first use.
    pub fn shared() -> &'static Self {
        machine::share();
        static SERVER: OnceLock<Rabbit> = OnceLock::new();
        SERVER.get_or_init(Self::start)
    }

    /// A server of its own, ready for connections.
    #[must_use]
    pub fn start() -> Self {
        let server = Self::absent();
        server.boot();
        server
    }

    /// The same, with the management API on a port of its own, which is returned.
    #[must_use]
    pub fn start_managed() -> (Self, u16) {
        let port = free_port();
        let lines = format!("management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {port}\n");
        (Self::started(&lines, "rabbitmq_management"), port)
    }

    /// The same, with a plugin.
    #[must_use]
    pub fn start_with(plugin: &str) -> Self {
        Self::started("", plugin)
    }

    fn started(lines: &str, plugin: &str) -> Self {
        let server = Self::with(None, lines);
        std::fs::write(server.dir.path().join("plugins"), format!("[{plugin}].\n"))
            .expect("the plugins of a private RabbitMQ");
        server.boot();
        server
    }

    /// Where it listens.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The same, with TLS beside its plain port: the authority has signed for a server.
    #[must_use]
    pub fn start_secure(authority: &Authority) -> Self {
        Self::start_asking(authority, false)
    }

    /// The same; if it `asks`, only clients with a certificate of that authority may connect by TLS.
    #[must_use]
    pub fn start_asking(authority: &Authority, asks: bool) -> Self {
        let verify = if asks { "verify_peer" } else { "verify_none" };
        let port = free_port();
        let file = |name| authority.file(name).display().to_string();
        let server = Self::with(
            Some(port),
            &format!(
                "listeners.ssl.default = 127.0.0.1:{port}\n\
                 ssl_options.cacertfile = {}\n\
                 ssl_options.certfile = {}\n\
                 ssl_options.keyfile = {}\n\
                 ssl_options.verify = {verify}\n\
                 ssl_options.fail_if_no_peer_cert = {asks}\n",
                file("ca.pem"),
                file("server.pem"),
                file("server.key"),
            ),
        );
        server.boot();
        server
    }

    /// Three servers that are one broker. The first one must not be killed: it has the only epmd.
    #[must_use]
    pub fn cluster() -> [Self; 3] {
        let epmd = free_port().to_string();
        let nodes = [(); 3].map(|()| {
            let mut node = Self::absent();
            let port = node
                .env
                .iter_mut()
                .find(|(name, _)| name == "ERL_EPMD_PORT");
            port.expect("it has one").1.clone_from(&epmd);
            node.write_cookie();
            node.boot();
            node
        });
        for node in &nodes[1..] {
            node.stop_app();
            node.ctl(&["join_cluster", &nodes[0].name()]);
            node.start_app();
        }
        nodes
    }

    /// The cookie that nodes and their tools show each other: the same for all nodes of a cluster.
    fn write_cookie(&self) {
        let cookie = self.dir.path().join(".erlang.cookie");
        std::fs::write(&cookie, "sluiced").expect("a file for the cookie");
        let secret = std::fs::Permissions::from_mode(0o400);
        std::fs::set_permissions(cookie, secret).expect("its owner may");
    }

    /// The name of the node.
    #[must_use]
    pub fn name(&self) -> String {
        format!("sluiced-{}@localhost", self.port)
    }

    /// A server that was never started: only its address is known. See [`Rabbit::boot`].
    #[must_use]
    pub fn absent() -> Self {
        Self::with(None, "")
    }

    /// With more lines of its configuration.
    fn with(secure_port: Option<u16>, lines: &str) -> Self {
        machine::share();
        let dir = scratch("sluiced-rabbit-");
        let port = free_port();
        Self {
            env: environment(&dir, port, lines),
            dir,
            port,
            secure_port,
            process: Mutex::new(None),
        }
    }

    /// Where clients connect to.
    #[must_use]
    pub fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port)
    }

    /// The same with TLS.
    #[must_use]
    pub fn secure_url(&self) -> String {
        let port = self.secure_port.expect("it was started with TLS");
        format!("amqps://guest:guest@127.0.0.1:{port}/%2f")
    }

    /// Starts the server, also again after [`Rabbit::kill`], with the same data and port.
    pub fn boot(&self) {
        released(self.port);
        let script = format!("epmd -port \"$ERL_EPMD_PORT\" & {BIN}/rabbitmq-server");
        let process = PrivateProcess::start(&script, self.env.clone(), self.dir.path());
        *self.process.lock().unwrap() = Some(process);
        let end = std::time::SystemTime::now() + BOOT;
        while !self.is_ready() {
            assert!(
                std::time::SystemTime::now() < end,
                "RabbitMQ did not start; its output:\n{}",
                std::fs::read_to_string(self.log()).unwrap_or_default()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Kills the server without a clean stop.
    pub fn kill(&self) {
        if let Some(process) = self.process.lock().unwrap().take() {
            process.stop();
        }
    }

    /// Pauses the server: it reads nothing and answers nothing until the guard is dropped, even by a test
    /// that fails, because other tests use the server later. It can still be killed.
    #[must_use]
    pub fn freeze(&self) -> Frozen<'_> {
        let frozen = Frozen(self);
        self.signal(Signal::STOP).expect("the server runs");
        // The signal is only sent: threads that run go on until each of them has seen it.
        let end = Instant::now() + STOPPED;
        while !self.stands().expect("the server runs") {
            assert!(Instant::now() < end, "it does not stop");
            std::thread::sleep(Duration::from_millis(1));
        }
        frozen
    }

    /// Whether each of its threads is stopped.
    fn stands(&self) -> std::io::Result<bool> {
        let threads = format!("/proc/{}/task", self.pid()?.as_raw_pid());
        for thread in std::fs::read_dir(threads)? {
            // A thread may end meanwhile.
            let Ok(stat) = std::fs::read_to_string(thread?.path().join("stat")) else {
                continue;
            };
            // Its name is in brackets, and may contain brackets itself.
            let state = stat
                .rsplit_once(") ")
                .map(|(_, rest)| rest.starts_with('T'));
            if state != Some(true) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn pid(&self) -> std::io::Result<Pid> {
        let pid = std::fs::read_to_string(self.dir.path().join("pid"))?;
        let pid = pid.trim().parse().ok().and_then(Pid::from_raw);
        pid.ok_or_else(|| std::io::ErrorKind::InvalidData.into())
    }

    fn signal(&self, signal: Signal) -> std::io::Result<()> {
        Ok(kill_process(self.pid()?, signal)?)
    }

    /// Runs `rabbitmqctl` against this server; panics if it fails. A server that takes connections already may
    /// still be starting on a busy machine: then it is asked again.
    pub fn ctl(&self, arguments: &[&str]) -> String {
        let end = std::time::SystemTime::now() + BOOT;
        loop {
            let output: Output = Command::new(format!("{BIN}/rabbitmqctl"))
                .args(arguments)
                .envs(self.env.clone())
                .output()
                .expect("rabbitmqctl can be run");
            let said = String::from_utf8_lossy(&output.stdout);
            if output.status.success() {
                return said.into_owned();
            }
            let why = String::from_utf8_lossy(&output.stderr);
            let starts = why.contains("requires the 'rabbit' app to be running");
            assert!(
                starts && std::time::SystemTime::now() < end,
                "rabbitmqctl {arguments:?}: {said}{why}"
            );
        }
    }

    /// The lines of its log that contain `text`; it has only warnings and errors.
    #[must_use]
    pub fn said(&self, text: &str) -> usize {
        let log = std::fs::read(self.log()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        log.lines().filter(|line| line.contains(text)).count()
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("output.log")
    }

    /// A broker that greets with `connection.start` has its listener and its database up.
    pub fn is_ready(&self) -> bool {
        use std::io::{Read, Write};
        let Ok(mut stream) = std::net::TcpStream::connect(("127.0.0.1", self.port)) else {
            return false;
        };
        let mut first = [0_u8; 1];
        stream
            .set_read_timeout(Some(Duration::from_secs(5)))
            .and_then(|()| stream.write_all(b"AMQP\x00\x00\x09\x01"))
            .and_then(|()| stream.read_exact(&mut first))
            .is_ok()
            && first == [1]
    }
}

fn environment(dir: &tempfile::TempDir, port: u16, lines: &str) -> Vec<(String, String)> {
    let path = |name: &str| dir.path().join(name).display().to_string();
    std::fs::write(
        dir.path().join("rabbitmq.conf"),
        format!(
            "listeners.tcp.default = 127.0.0.1:{port}\n\
             disk_free_limit.absolute = 50MB\n\
             vm_memory_high_watermark.absolute = 2GB\n\
             log.console = true\nlog.console.level = warning\n{lines}"
        ),
    )
    .expect("the configuration of a private RabbitMQ");
    std::fs::write(dir.path().join("plugins"), "[].\n").expect("the plugins of a private RabbitMQ");
    [
        ("HOME", dir.path().display().to_string()),
        ("RABBITMQ_NODENAME", format!("sluiced-{port}@localhost")),
        ("RABBITMQ_NODE_PORT", port.to_string()),
        ("RABBITMQ_DIST_PORT", free_port().to_string()),
        ("ERL_EPMD_PORT", free_port().to_string()),
        ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
        ("RABBITMQ_CONFIG_FILE", path("rabbitmq.conf")),
        ("RABBITMQ_CONF_ENV_FILE", path("none.conf")),
        ("RABBITMQ_ENABLED_PLUGINS_FILE", path("plugins")),
        ("RABBITMQ_MNESIA_BASE", path("data")),
        ("RABBITMQ_LOG_BASE", path("log")),
        ("RABBITMQ_PID_FILE", path("pid")),
        // Two schedulers that do not spin: the tests need the machine too.
        (
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
            "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none".to_owned(),
        ),
        ("ERL_CRASH_DUMP_SECONDS", "0".to_owned()),
        ("LANG", "C.UTF-8".to_owned()),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect()
}

/// A server that stands still.
pub struct Frozen<'a>(&'a Rabbit);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        // It may have been killed meanwhile.
        drop(self.0.signal(Signal::CONT));
    }
}
