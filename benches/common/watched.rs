//! A child process that cannot outlive the benchmark.
//!
//! A shell starts it and then reads a pipe. The pipe ends when the benchmark drops its end or dies
//! in any way, SIGKILL included; the shell then asks the child to stop, and kills it if it does
//! not. Nothing runs in between that could disturb a measurement.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use rustix::process::{Pid, Signal, kill_process};

/// Started in the background, so that the shell stays to watch; its id is the first line.
const SCRIPT: &str = r#"
exec 3<&0 </dev/null
out=$1
shift
"$@" >"$out" 2>&1 3<&- &
child=$!
echo "$child"
cat <&3 >/dev/null
kill -TERM "$child" 2>/dev/null || exit 0
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    kill -0 "$child" 2>/dev/null || exit 0
    sleep 0.5
done
kill -KILL "$child"
"#;

/// A process that was started here.
#[derive(Debug)]
pub struct Watched {
    watcher: Child,
    pid: Pid,
    output: PathBuf,
}

impl Watched {
    /// Starts `program` with its output in the file `output`.
    pub fn start(
        program: &Path,
        arguments: &[&str],
        env: &[(&str, String)],
        output: PathBuf,
    ) -> Self {
        // So that it can be read from the first moment.
        File::create(&output).expect("a file for the output of a child");
        let mut command = Command::new("sh");
        // Variables for a daemon of the user must not change the one that is measured.
        for (variable, _) in std::env::vars_os() {
            if variable.to_string_lossy().starts_with("SLUICED__") || variable == "NOTIFY_SOCKET" {
                command.env_remove(&variable);
            }
        }
        let mut watcher = command
            .args(["-c", SCRIPT, "watcher"])
            .arg(&output)
            .arg(program)
            .args(arguments)
            .envs(env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("a shell to watch a child");
        let mut line = String::new();
        let stdout = watcher.stdout.take().expect("the watcher's output");
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("the watcher says the child's id");
        let pid = line.trim().parse().ok().and_then(Pid::from_raw);
        Self {
            watcher,
            pid: pid.expect("a process id"),
            output,
        }
    }

    /// Its output so far.
    pub fn output(&self) -> String {
        std::fs::read_to_string(&self.output).unwrap_or_default()
    }

    /// The first line that it writes, waited for.
    pub fn first_line(&self) -> String {
        let mut line = None;
        wait_for(Duration::from_secs(20), "a first line of output", || {
            line = self
                .output()
                .split_once('\n')
                .map(|(line, _)| line.to_owned());
            line.is_some()
        });
        line.expect("it was waited for")
    }

    /// Whether it has not ended.
    pub fn runs(&self) -> bool {
        // The third field, behind the name in brackets, is the state; a zombie has ended.
        std::fs::read_to_string(self.proc("stat"))
            .ok()
            .and_then(|stat| {
                stat.rsplit_once(") ")
                    .map(|(_, rest)| !rest.starts_with('Z'))
            })
            .unwrap_or(false)
    }

    /// The most memory that was resident at any time.
    pub fn peak_memory(&self) -> u64 {
        let status = std::fs::read_to_string(self.proc("status")).expect("it runs");
        let peak = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        peak.and_then(|kib| kib.trim().parse::<u64>().ok())
            .expect("the kernel says VmHWM")
            * 1024
    }

    /// Processor time used so far, by all threads together.
    pub fn processor_time(&self) -> Duration {
        let stat = std::fs::read_to_string(self.proc("stat")).expect("it runs");
        let (_, rest) = stat.rsplit_once(") ").expect("a name in brackets");
        let ticks: u64 = rest
            .split_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|field| field.parse::<u64>().ok())
            .sum();
        // The kernel counts in ticks of 10 ms towards programs, whatever it uses itself.
        Duration::from_millis(ticks * 10)
    }

    /// Asks it to stop and waits until it has; its whole output.
    pub fn stop(self) -> String {
        if self.runs() {
            kill_process(self.pid, Signal::TERM).expect("it can be signalled");
        }
        wait_for(Duration::from_secs(30), "the end of a child", || {
            !self.runs()
        });
        self.output()
    }

    /// Waits until it ends by itself; its whole output.
    pub fn ended(self, bound: Duration) -> String {
        wait_for(bound, "the end of a child", || !self.runs());
        self.output()
    }

    fn proc(&self, file: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{file}", self.pid.as_raw_nonzero()))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        drop(self.watcher.stdin.take());
        drop(self.watcher.wait());
    }
}

/// Waits for a condition. Panics with `what` after `bound`.
pub fn wait_for(bound: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let end = SystemTime::now() + bound;
    while !condition() {
        assert!(SystemTime::now() < end, "not within {bound:?}: {what}");
        sleep(Duration::from_millis(5));
    }
}
