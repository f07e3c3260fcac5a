//! After a panic, on whatever thread or task, the daemon stops in order and exits with 1: no
//! process stays up without working, and none looks successful to the service manager.
//!
//! The program has no switch that makes it panic. Here the whole of `sluiced run` runs in a process
//! of the test program itself, which panics beside it when a file orders it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use sluiced::cli::run::{self, RunArgs};

use super::{config, filled};
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route, get};
use crate::support::recorder::{Recorder, Reply};
use crate::support::wait::{eventually, eventually_async};

/// The configuration of a process that is to panic; absent where tests run as usual.
const CONFIG: &str = "CONFIG_OF_A_PANIC";

/// The file that says what is to panic.
fn order(config: &Path) -> PathBuf {
    config.with_file_name("panic")
}

/// A daemon that will panic.
fn doomed(text: &str) -> Daemon {
    Daemon::start_with(text, |command| {
        let config = PathBuf::from(command.get_args().last().unwrap());
        let log = File::options()
            .append(true)
            .open(config.with_file_name("log"));
        *command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "daemon::panics::the_process_that_panics"])
            .arg("--nocapture")
            .env(CONFIG, config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.unwrap());
    })
}

#[test]
fn the_process_that_panics() {
    let Some(config) = std::env::var_os(CONFIG).map(PathBuf::from) else {
        return;
    };
    let told = order(&config);
    let panic_as_told = async move {
        let what = loop {
            match std::fs::read_to_string(&told) {
                Ok(what) => break what,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        match what.as_str() {
            "task" => panic!("a task of the shared runtime"),
            _ => drop(std::thread::spawn(|| panic!("a thread of a library"))),
        }
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.spawn(panic_as_told);
    let args = RunArgs {
        config: vec![config],
        fresh: false,
        log_level: None,
    };
    let exit = runtime.block_on(run::run(&args, &mut std::io::stderr(), false));
    std::process::exit(exit.unwrap().code().into());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_ends_with_1_after_the_calls_in_flight() {
    for what in ["task", "thread"] {
        let queue = format!("panic-{what}");
        let broker = filled(&queue, 40).await;
        let slowly = |_: &_| Reply {
            latency: Duration::from_secs(2),
            ..Reply::status(202)
        };
        let downstream = Recorder::start(slowly).await;
        let route = Route::new(&queue, downstream.address);
        let mut daemon = doomed(&config(&queue, vec![route]).text());
        daemon.ready().await;
        let admin = daemon.admin().await;
        eventually(LONG, "calls under way", || downstream.count() >= 5).await;
        assert_eq!(get(admin, "/healthz").0, 200);
        std::fs::write(order(&daemon.config()), what).unwrap();
        eventually(LONG, "not alive", || get(admin, "/healthz").0 == 503).await;
        assert_eq!(daemon.ended().await.code(), Some(1), "{}", daemon.log());
        daemon.complaints(&["a panic", "failed: it ended", NEW_SCHEDULE]);
        let log = daemon.log();
        assert!(log.contains(&format!("a {what} of ")), "{log}");
        assert!(log.contains("nothing was under way any more"), "{log}");
        // No call was cut off: messages that were called are acknowledged, and the rest are back
        // in the queue.
        let left = 40 - u32::try_from(downstream.count()).unwrap();
        eventually_async(LONG, "all the others are ready", || async {
            broker.counts(&queue).await == Some((left, 0))
        })
        .await;
    }
}
