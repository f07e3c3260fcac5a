//! The daemons of a demo on real servers: child processes that are stopped and waited for.

use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use futures::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::scratch::{Scratch, tail};
use crate::settings;

/// How long a replica may take to stop by itself.
const STOPPING: Duration = Duration::from_secs(20);
/// So much of a replica's log is shown when it failed.
const LOG_LINES: usize = 5;

/// A running replica.
#[derive(Debug)]
pub(super) struct Replica {
    pub(super) name: String,
    child: Child,
    log: PathBuf,
}

impl Replica {
    /// Starts this very program as a daemon with the given configuration.
    pub(super) fn start(scratch: &Scratch, name: &str, config: &str) -> io::Result<Self> {
        let file = name.replace(' ', "-");
        let config = scratch.write(&format!("{file}.toml"), config.as_bytes())?;
        let (log, output) = scratch.create(&format!("{file}.log"))?;
        let mut command = Command::new(std::env::current_exe()?);
        // Only the file counts: what is set for a daemon of the user's must not change this one.
        for (variable, _) in std::env::vars_os() {
            let ours = variable.to_string_lossy().starts_with(settings::PREFIX);
            if ours || variable == "NOTIFY_SOCKET" {
                command.env_remove(&variable);
            }
        }
        let child = command
            .args(["run", "--config"])
            .arg(config)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            // Ctrl-C reaches the demo only, which then stops its replicas in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log,
        })
    }

    /// How it ended, if it has.
    pub(super) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Asks it to stop. Does nothing if it has ended.
    pub(super) fn terminate(&self) -> io::Result<()> {
        let pid = self
            .child
            .id()
            .and_then(|id| Pid::from_raw(id.cast_signed()));
        match pid {
            Some(pid) => Ok(kill_process(pid, Signal::TERM)?),
            None => Ok(()),
        }
    }

    /// Ends it like a power cut: it can write nothing more.
    pub(super) async fn kill(&mut self) -> io::Result<()> {
        self.child.kill().await
    }

    /// Waits until it has stopped, and kills it if that takes too long.
    pub(super) async fn stopped(&mut self) -> io::Result<Option<ExitStatus>> {
        if let Ok(status) = timeout(STOPPING, self.child.wait()).await {
            return status.map(Some);
        }
        self.child.kill().await?;
        Ok(None)
    }

    /// The end of its log.
    pub(super) fn log_tail(&self) -> String {
        tail(&self.log, LOG_LINES)
    }
}

/// All replicas of a run.
#[derive(Debug, Default)]
pub(super) struct Fleet {
    pub(super) replicas: Vec<Replica>,
}

impl Fleet {
    /// Stops all of them, at the same time. Those that had to be killed are named.
    pub(super) async fn stop(&mut self) -> io::Result<Vec<String>> {
        let stops = self.replicas.iter_mut().map(async |replica| {
            replica.terminate()?;
            let stopped = replica.stopped().await?;
            Ok(stopped.is_none().then(|| replica.name.clone()))
        });
        let killed: io::Result<Vec<_>> = join_all(stops).await.into_iter().collect();
        self.replicas.clear();
        Ok(killed?.into_iter().flatten().collect())
    }
}
