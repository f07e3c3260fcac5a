//! Programs that ask for permits of a limit and make their calls themselves, beside replicas that consume a queue.

mod admitted;
mod asks;
mod hostile;
mod libraries;
mod migration;
mod scripts;
mod shared;
mod workers;

use std::path::{Path, PathBuf};

use crate::support::caller::Client;
use crate::support::daemon::Daemon;
use crate::support::redis::RedisServer;

/// A daemon with callers, and no queue.
struct Alone {
    daemon: Daemon,
    socket: PathBuf,
    _dir: tempfile::TempDir,
}

impl Alone {
    /// `limits`: their tables. `callers`: the keys of the callers' table besides listen.
    async fn start(name: &str, limits: &str, callers: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("callers.sock");
        let mut daemon = Daemon::start_with(&text(name, &socket, limits, callers), |_| {});
        daemon.ready().await;
        Self {
            daemon,
            socket,
            _dir: dir,
        }
    }

    /// Waits until this many requests wait or are under way.
    async fn holds(&mut self, count: f64) {
        let held = "sluiced_held{route=\"callers.web\"}";
        self.daemon.until_metric(held, count).await;
    }

    async fn client(&self) -> Client {
        Client::at_path(&self.socket).await
    }
}

fn text(name: &str, socket: &Path, limits: &str, callers: &str) -> String {
    on(&RedisServer::shared().url(), name, socket, limits, callers)
}

fn on(redis: &str, name: &str, socket: &Path, limits: &str, callers: &str) -> String {
    let socket = socket.display();
    format!(
        "[redis]\nurl = \"{redis}\"\nprefix = \"{name}\"\nfleet = \"{name}\"\nresponse_timeout = \"5s\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[service]\ngrace = \"1m\"\n{limits}\n\
         [callers.web]\nlisten = \"unix:{socket}\"\n{callers}\n"
    )
}
