//! Workers of libraries that others wrote, which ask for permits as `docs/callers.md` shows: the programs of
//! `tests/interop/callers`. Where `tests/interop/install` did not run, a test prints a note and tests nothing.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::support::process::{PrivateProcess, scratch};

/// A library, by commands of a shell in `tests/interop/callers`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Library {
    pub(super) name: &'static str,
    /// Succeeds where it is installed.
    is_there: &'static str,
    /// Publishes as many messages as its last argument says.
    publish: &'static str,
    /// Runs a worker.
    work: &'static str,
}

pub(super) const CELERY: Library = Library {
    name: "celery",
    is_there: "test -x ../venv/bin/celery",
    publish: "../venv/bin/python celery_worker.py send",
    work: "../venv/bin/celery -A celery_worker worker -n \"$CALLER\" --pool threads -c 8 \
           --without-gossip --without-mingle",
};

/// The same without a key.
pub(super) const CELERY_PACED: Library = Library {
    publish: "../venv/bin/python celery_worker.py paced",
    ..CELERY
};

pub(super) const DRAMATIQ: Library = Library {
    name: "dramatiq",
    is_there: "test -x ../venv/bin/dramatiq",
    publish: "../venv/bin/python dramatiq_worker.py",
    work: "../venv/bin/dramatiq -p 1 -t 8 dramatiq_worker",
};

pub(super) const BULLMQ: Library = Library {
    name: "bullmq",
    is_there: "test -d ../node_modules/bullmq",
    publish: "node bullmq_worker.js",
    work: "node bullmq_worker.js",
};

pub(super) const SIDEKIQ: Library = Library {
    name: "sidekiq",
    is_there: "ruby -e 'require \"sidekiq\"' 2>/dev/null",
    publish: "ruby sidekiq_worker.rb",
    work: "sidekiq -r ./sidekiq_worker.rb -q \"$QUEUE\" -c 8",
};

/// What the programs read from their environment.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) sockets: Vec<PathBuf>,
    pub(super) provider: std::net::SocketAddr,
    /// The URL of RabbitMQ or Redis.
    pub(super) broker: String,
    pub(super) queue: String,
    /// The name that the provider hears.
    pub(super) caller: String,
}

/// A worker that runs, until it is dropped.
#[derive(Debug)]
pub(super) struct Worker {
    process: Option<PrivateProcess>,
    dir: TempDir,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/callers")
}

impl Library {
    /// Whether it can be tested; otherwise says so.
    pub(super) fn is_there(&self) -> bool {
        let mut command = Command::new("sh");
        command.args(["-c", self.is_there]).current_dir(folder());
        let is_there = command.status().is_ok_and(|status| status.success());
        if !is_there {
            let name = self.name;
            eprintln!("not tested: run tests/interop/install, which installs {name}");
        }
        is_there
    }

    /// Publishes this many messages, from number 0 on.
    pub(super) async fn publish(&self, place: &Place, count: u64) {
        let mut command = Command::new("sh");
        let script = format!("exec {} {count}", self.publish);
        command.args(["-c", &script]).current_dir(folder());
        command.envs(place.variables());
        let output = tokio::task::spawn_blocking(move || command.output());
        let output = output.await.unwrap().unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
    }

    pub(super) fn start(&self, place: &Place) -> Worker {
        let dir = scratch("sluiced-worker-");
        let script = format!("cd '{}' && exec {}", folder().display(), self.work);
        let process = PrivateProcess::start(&script, place.variables(), dir.path());
        Worker {
            process: Some(process),
            dir,
        }
    }
}

impl Place {
    fn variables(&self) -> Vec<(&'static str, String)> {
        let mut sockets = String::new();
        for socket in &self.sockets {
            let colon = if sockets.is_empty() { "" } else { ":" };
            write!(sockets, "{colon}{}", socket.display()).unwrap();
        }
        vec![
            ("SLUICED_SOCKETS", sockets),
            ("PROVIDER", self.provider.to_string()),
            ("BROKER", self.broker.clone()),
            ("QUEUE", self.queue.clone()),
            ("CALLER", self.caller.clone()),
            ("PYTHONDONTWRITEBYTECODE", "1".to_owned()),
        ]
    }
}

impl Worker {
    /// What it printed.
    pub(super) fn output(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("output.log")).unwrap_or_default()
    }

    /// Kills it (SIGKILL).
    pub(super) fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            process.stop();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let output = self.output();
            let lines: Vec<_> = output.lines().collect();
            eprintln!("{}", lines[lines.len().saturating_sub(60)..].join("\n"));
        }
    }
}
