//! Messages to the service manager (systemd): ready, stopping, a status line, and still alive.
//!
//! The watchdog is fed only while every loop runs ([`Health::stuck`]), so a process that runs but
//! does not work is restarted. It is fed even while RabbitMQ or Redis are away, because a restart
//! would not bring them back.
//!
//! The message format and `WATCHDOG_USEC` come from sd-notify. The socket is made here, because
//! that crate's socket blocks when the manager does not read, and supports no abstract addresses.

use std::env;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::health::Health;
use sluiced_core::rate::Span;

/// How often the status line is checked when there is no watchdog to feed.
const STATUS_EVERY: Duration = Duration::from_millis(500);
/// On top of the grace: the last settlements, closing queues and connections, returning units, leaving the fleet, and
/// exporting spans have bounds of about 13 s together.
const STOP_MARGIN: Duration = Duration::from_secs(20);

/// A way to the service manager, or none. Copies are the same.
#[derive(Clone, Debug, Default)]
pub struct Notifier {
    socket: Option<Arc<UnixDatagram>>,
    watchdog: Option<Duration>,
}

impl Notifier {
    /// As configured by `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`. Without the first, all
    /// methods do nothing. A socket that cannot be used is logged, and the process runs without it.
    #[must_use]
    pub fn from_env() -> Self {
        let Some(name) = env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Self::default();
        };
        Self::to(&name, sd_notify::watchdog_enabled()).unwrap_or_else(|error| {
            tracing::warn!(%error, "the service manager's NOTIFY_SOCKET cannot be used");
            Self::default()
        })
    }

    /// To the socket `name` (a path, or `@` and an abstract name), with a watchdog that must be
    /// fed within `watchdog`.
    ///
    /// # Errors
    /// When there is no such socket.
    pub fn to(name: &OsStr, watchdog: Option<Duration>) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.connect_addr(&address(name)?)?;
        Ok(Self {
            socket: Some(Arc::new(socket)),
            watchdog: watchdog.filter(|watchdog| !watchdog.is_zero()),
        })
    }

    /// The start is done. Do not delay this until RabbitMQ and Redis are there: readiness is
    /// for that, and a start that takes too long is killed.
    pub fn ready(&self) {
        self.send(&[NotifyState::Ready]);
    }

    /// The configuration is being read again; [`Notifier::ready`] ends it. With the monotonic time,
    /// as `Type=notify-reload` requires.
    pub fn reloading(&self) {
        // Without a monotonic clock the manager gets no message.
        if let Ok(now) = NotifyState::monotonic_usec_now() {
            self.send(&[NotifyState::Reloading, now]);
        }
    }

    /// The end has begun and takes up to `grace`. Asks for that much time, so that a `grace`
    /// beyond the unit's `TimeoutStopSec` works too.
    pub fn stopping(&self, grace: Duration) {
        let length = (grace + STOP_MARGIN).as_micros();
        let status = format!("Stopping: finishing calls for up to {}", Span(grace));
        self.send(&[
            NotifyState::Stopping,
            NotifyState::ExtendTimeoutUsec(u32::try_from(length).unwrap_or(u32::MAX)),
            NotifyState::Status(&status),
        ]);
    }

    /// Sets the line that `systemctl status` shows.
    pub fn status(&self, line: &str) {
        // A newline would start another assignment.
        let line = line.replace(['\n', '\r'], " ");
        self.send(&[NotifyState::Status(&line)]);
    }

    /// Feeds the watchdog while every loop runs, and keeps the status line up to date. It must run
    /// until the end of the process, also while it stops; ends with `stop`.
    pub async fn watch(&self, health: Health, stop: CancellationToken) {
        if self.socket.is_none() {
            return;
        }
        // Three chances within the time, and a status that is never old.
        let every = self
            .watchdog
            .map_or(STATUS_EVERY, |watchdog| (watchdog / 3).min(STATUS_EVERY))
            .max(Duration::from_millis(1));
        let mut tick = tokio::time::interval(every);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut shown = None;
        while stop.run_until_cancelled(tick.tick()).await.is_some() {
            if self.watchdog.is_some() && health.stuck().is_empty() {
                self.send(&[NotifyState::Watchdog]);
            }
            let line = summary(&health);
            if shown.as_ref() != Some(&line) {
                self.status(&line);
                shown = Some(line);
            }
        }
    }

    /// Never blocks. A message that the manager does not take is lost; the watchdog is fed again
    /// soon.
    fn send(&self, states: &[NotifyState<'_>]) {
        let Some(socket) = &self.socket else {
            return;
        };
        let mut text = String::new();
        for state in states {
            if writeln!(text, "{state}").is_err() {
                return;
            }
        }
        if let Err(error) = socket.send(text.as_bytes()) {
            tracing::debug!(%error, "the service manager did not take a notification");
        }
    }
}

/// The state in one line. Without durations, so that it changes only when something happens.
fn summary(health: &Health) -> String {
    let missing = health.missing();
    if missing.is_empty() {
        return "Ready".to_owned();
    }
    let parts: Vec<String> = missing
        .iter()
        .map(|missing| format!("{} ({})", missing.name, missing.reason))
        .collect();
    format!("Not ready: {}", parts.join(", "))
}

fn address(name: &OsStr) -> io::Result<SocketAddr> {
    #[cfg(target_os = "linux")]
    if let [b'@', rest @ ..] = name.as_bytes() {
        use std::os::linux::net::SocketAddrExt;
        return SocketAddr::from_abstract_name(rest);
    }
    SocketAddr::from_pathname(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluiced_core::time::Mono;
    use sluiced_ports::clock;

    /// A service manager for the test.
    struct Listener {
        socket: tokio::net::UnixDatagram,
        path: std::path::PathBuf,
        _dir: tempfile::TempDir,
    }

    impl Listener {
        fn start() -> Self {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let path = dir.path().join("notify");
            let socket = tokio::net::UnixDatagram::bind(&path).expect("a socket");
            Self {
                socket,
                path,
                _dir: dir,
            }
        }

        fn notifier(&self, watchdog: Option<Duration>) -> Notifier {
            Notifier::to(self.path.as_os_str(), watchdog).expect("the socket is there")
        }

        /// The next message, within a bound.
        async fn next(&self) -> String {
            let mut buffer = [0; 512];
            let length =
                tokio::time::timeout(Duration::from_secs(10), self.socket.recv(&mut buffer))
                    .await
                    .expect("a message in time")
                    .expect("a message");
            String::from_utf8_lossy(&buffer[..length]).into_owned()
        }

        /// Whether a message that contains `wanted` comes within `bound`.
        async fn says(&self, wanted: &str, bound: Duration) -> bool {
            tokio::time::timeout(bound, async { while self.next().await != wanted {} })
                .await
                .is_ok()
        }
    }

    #[tokio::test]
    async fn ready_stopping_and_status_reach_the_manager() {
        let listener = Listener::start();
        let notifier = listener.notifier(None);
        notifier.ready();
        assert_eq!(listener.next().await, "READY=1\n");
        notifier.status("two\nlines");
        assert_eq!(listener.next().await, "STATUS=two lines\n");
        notifier.stopping(Duration::from_secs(25));
        assert_eq!(
            listener.next().await,
            "STOPPING=1\nEXTEND_TIMEOUT_USEC=45000000\nSTATUS=Stopping: finishing calls for up to 25s\n"
        );
    }

    #[tokio::test]
    async fn the_watchdog_is_fed_while_loops_turn_and_starves_when_one_is_stuck() {
        let listener = Listener::start();
        let notifier = listener.notifier(Some(Duration::from_millis(30)));
        let health = Health::default();
        let watched = health.watch_loop("sms");
        let stop = CancellationToken::new();
        let task = tokio::spawn({
            let (notifier, health, stop) = (notifier, health.clone(), stop.clone());
            async move { notifier.watch(health, stop).await }
        });
        assert_eq!(listener.next().await, "WATCHDOG=1\n");
        assert_eq!(listener.next().await, "STATUS=Ready\n");
        assert_eq!(listener.next().await, "WATCHDOG=1\n");

        // The last beat of the loop was long ago: after that status no feed may follow.
        watched.beat(Mono::from_micros(0));
        let stuck = "STATUS=Not ready: loop sms (stuck)\n";
        assert!(listener.says(stuck, Duration::from_secs(10)).await);
        assert!(
            !listener
                .says("WATCHDOG=1\n", Duration::from_millis(200))
                .await
        );

        watched.beat(clock::now());
        assert!(listener.says("WATCHDOG=1\n", Duration::from_secs(10)).await);
        stop.cancel();
        task.await.expect("the watch ends when it is stopped");
    }

    #[tokio::test]
    async fn a_manager_that_does_not_read_never_blocks_us() {
        let listener = Listener::start();
        let notifier = listener.notifier(None);
        for _ in 0..10_000 {
            notifier.status("again");
        }
        assert_eq!(listener.next().await, "STATUS=again\n");
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn an_abstract_socket_works_too() {
        use std::os::linux::net::SocketAddrExt;

        let name = format!("sluiced-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let socket = UnixDatagram::bind_addr(&address).expect("a socket");
        let notifier = Notifier::to(OsStr::new(&format!("@{name}")), None).expect("it is there");
        notifier.ready();
        let mut buffer = [0; 64];
        socket
            .set_read_timeout(Some(Duration::from_secs(10)))
            .expect("a timeout");
        let length = socket.recv(&mut buffer).expect("a message");
        assert_eq!(&buffer[..length], b"READY=1\n");
    }

    /// The environment belongs to a whole process, so this test runs itself again as a child
    /// that has one like a service's.
    #[tokio::test]
    async fn the_environment_of_a_service_is_understood() {
        const CHILD: &str = "SLUICED_TEST_NOTIFY_CHILD";
        if env::var_os(CHILD).is_some() {
            let notifier = Notifier::from_env();
            assert_eq!(notifier.watchdog, Some(Duration::from_secs(30)));
            notifier.ready();
            return;
        }
        let listener = Listener::start();
        let child = tokio::process::Command::new(env::current_exe().expect("this program"))
            .args([
                "--exact",
                concat!(
                    module_path!(),
                    "::the_environment_of_a_service_is_understood"
                )
                .trim_start_matches("sluiced_telemetry::"),
            ])
            .env(CHILD, "1")
            .env("NOTIFY_SOCKET", &listener.path)
            .env("WATCHDOG_USEC", "30000000")
            .env_remove("WATCHDOG_PID")
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(Duration::from_secs(60), child)
            .await
            .expect("the child ends in time")
            .expect("the child starts");
        assert!(output.status.success(), "{output:?}");
        assert_eq!(listener.next().await, "READY=1\n");
    }

    #[tokio::test]
    async fn without_a_manager_nothing_happens() {
        let notifier = Notifier::default();
        notifier.ready();
        notifier.stopping(Duration::from_secs(1));
        let health = Health::default();
        notifier.watch(health, CancellationToken::new()).await;
    }
}
