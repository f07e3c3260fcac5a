//! A private server process that cannot outlive the tests.
//!
//! The server runs in a process group of its own, next to a watcher shell that reads a pipe. The
//! pipe ends when the test drops its end or dies in any way, SIGKILL included; the watcher then
//! kills the whole group. So a server in a `static`, which is never dropped, ends too.
//!
//! A program under test is a child of the test itself, which reads its exit code. It is kept on a
//! [`Leash`]: one more watcher knows the running processes by their ids, and kills them when the
//! test process has ended. The same watcher then removes the directories of the servers.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use rustix::fs::statvfs;
use tempfile::TempDir;
use tokio::time::Instant;

/// Where memory is mounted as a file system.
const MEMORY: &str = "/dev/shm";
/// How much must be free there: a broker keeps its queues in it, and refuses messages when it is nearly
/// full.
const ROOM: u64 = 2 << 30;

/// How long a small server may take to listen.
const BOOT: Duration = Duration::from_secs(30);

/// A directory for a server, in memory if there is room.
///
/// A server's writes to a disk take as long as others keep the disk busy: beside a compiler a broker
/// stood still for two seconds in a single fsync of the log that all its queues share. A test of how
/// much of a limit was used would then measure the speed of the disk. No promise of the program
/// depends on the disk: a server that is killed finds its files again either way.
#[must_use]
pub fn scratch(prefix: &str) -> TempDir {
    let room = statvfs(MEMORY).is_ok_and(|free| free.f_bavail * free.f_frsize >= ROOM);
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix(prefix);
    let in_memory = room.then(|| builder.tempdir_in(MEMORY).ok()).flatten();
    let dir =
        in_memory.unwrap_or_else(|| builder.tempdir().expect("a directory for a private server"));
    tell("leaves", dir.path().display());
    dir
}

/// Commands that run until this is dropped or the test process ends.
#[derive(Debug)]
pub struct PrivateProcess {
    watcher: Child,
}

impl PrivateProcess {
    /// Starts `script` (shell; it puts commands that run side by side into the background),
    /// with its output in `output.log` in `dir`. Can be started again with the same `dir`.
    #[must_use]
    pub fn start<K, V>(script: &str, env: impl IntoIterator<Item = (K, V)>, dir: &Path) -> Self
    where
        K: AsRef<OsStr>,
        V: AsRef<OsStr>,
    {
        let out = File::options()
            .create(true)
            .append(true)
            .open(dir.join("output.log"))
            .expect("the log file of a private server");
        let err = out.try_clone().expect("a second handle of the log file");
        // The servers get no stdin, so only the watcher holds the reading end of the pipe.
        let watched = format!(
            "exec 3<&0 </dev/null\n\
             {{ {script}\n}} 3<&- &\n\
             cat <&3 >/dev/null\n\
             kill -KILL 0\n"
        );
        let watcher = Command::new("sh")
            .arg("-c")
            .arg(watched)
            .envs(env)
            .stdin(Stdio::piped())
            .stdout(out)
            .stderr(err)
            .process_group(0)
            .spawn()
            .expect("a shell to watch a private server");
        Self { watcher }
    }

    /// The same, without more variables; returns once it listens at `address`. `name` is for the error.
    #[must_use]
    pub fn listening(name: &str, script: &str, dir: &Path, address: SocketAddr) -> Self {
        let process = Self::start(script, std::iter::empty::<(&str, &str)>(), dir);
        let end = Instant::now() + BOOT;
        while TcpStream::connect_timeout(&address, BOOT).is_err() {
            let log = std::fs::read_to_string(dir.join("output.log"));
            assert!(Instant::now() < end, "no {name}: {log:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        process
    }

    /// Kills it and waits until it has ended.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        drop(self.watcher.stdin.take());
        // The watcher kills itself last, with its group.
        drop(self.watcher.wait());
    }
}

impl Drop for PrivateProcess {
    fn drop(&mut self) {
        self.end();
    }
}

/// A child that does not outlive the test process. Ends, by itself, when it is dropped: drop it after
/// the child was waited for.
#[derive(Debug)]
pub struct Leash(u32);

/// Reads which processes run, which have ended, and which directories the servers leave. When the test
/// process ends, the other end of its stdin is closed. Then it kills the processes that run, and removes
/// the directories once the watchers of the servers, which noticed the same end, have had time to kill
/// those.
static HOLDER: LazyLock<Mutex<Child>> = LazyLock::new(|| {
    let script = "running=\n\
        while read -r what which; do\n\
        case $what in\n\
        runs) running=\"$running $which\" ;;\n\
        ended)\n\
        others=\n\
        for one in $running; do [ \"$one\" = \"$which\" ] || others=\"$others $one\"; done\n\
        running=$others ;;\n\
        leaves) set -- \"$@\" \"$which\" ;;\n\
        esac\n\
        done\n\
        for one in $running; do kill -KILL \"$one\"; done\n\
        sleep 1\n\
        rm -rf -- \"$@\"\n";
    let shell = Command::new("sh")
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .expect("a shell to watch programs under test");
    Mutex::new(shell)
});

impl Leash {
    /// On a child that runs.
    #[must_use]
    pub fn on(child: &Child) -> Self {
        tell("runs", child.id());
        Self(child.id())
    }
}

impl Drop for Leash {
    fn drop(&mut self) {
        tell("ended", self.0);
    }
}

fn tell(what: &str, which: impl std::fmt::Display) {
    let line = format!("{what} {which}\n");
    let mut holder = HOLDER.lock().unwrap();
    let stdin = holder.stdin.as_mut().expect("it was asked for");
    let told = stdin.write_all(line.as_bytes());
    told.expect("the shell that watches programs under test reads");
}
