//! Callers over a socket of the machine: how many permits a second, how late they come, and what ten thousand that wait
//! cost.
//!
//! The time from a slot to the answer is what is missing of `use_within_ms` there. The way of the answer to the caller is
//! less than a whole round trip of another request at the same time, which is measured, too: the sum is a bound.

#![allow(clippy::print_stdout, reason = "results are its output")]

#[path = "../tests/it/support/mod.rs"]
mod support;

mod common;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use common::daemon::program;
use common::table::{Table, headline, percentile};
use common::watched::Watched;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use support::caller::Client;
use support::redis::RedisServer;
use tokio::task::JoinSet;
use tokio::time::Instant;

const RATE: u64 = 5_000;
/// So many ask at a time.
const CLIENTS: usize = 64;
const LENGTH: Duration = Duration::from_secs(10);
/// 15 of them may pass before a call leaves, and 5 are the caller's.
const HEADROOM: f64 = 20.0;
const WAITING: usize = 10_000;
const PAIRS: usize = 3;

fn main() -> ExitCode {
    headline(&format!(
        "{CLIENTS} callers over a unix socket ask as fast as they are answered, limit {RATE}/1s, {LENGTH:?} a run"
    ));
    let most = getrlimit(Resource::Nofile).maximum;
    let files = Rlimit {
        current: most,
        maximum: most,
    };
    setrlimit(Resource::Nofile, files).expect("as many files as are allowed");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(measure());
    ExitCode::SUCCESS
}

async fn measure() {
    let redis = RedisServer::start();
    let dir = tempfile::tempdir().expect("a directory");
    let (fast, slow) = (dir.path().join("fast.sock"), dir.path().join("slow.sock"));
    let daemon = start(dir.path(), &redis, &fast, &slow);
    let mut table = Table::new(&[
        "run",
        "that wait",
        "permits/s",
        "of the limit",
        "answer p50",
        "answer p99",
        "round trip p99",
        "sum",
        "peak memory",
    ]);
    let mut first = Client::at_path(&fast).await;
    first.ask(&json!({"wait": "20s"})).await.granted();
    let mut waiting = JoinSet::new();
    for run in 1..=2 * PAIRS {
        if run == PAIRS + 1 {
            wait_for(&mut waiting, &slow).await;
        }
        let seen = load(&fast).await;
        let rate = seen.late.len() as f64 / LENGTH.as_secs_f64();
        let late = |percent| percentile(&seen.late, percent);
        let trip = percentile(&seen.trips, 99);
        table.row(&[
            run.to_string(),
            waiting.len().to_string(),
            format!("{rate:.0}"),
            format!("{:.1} %", 100.0 * rate / RATE as f64),
            format!("{:.2} ms", late(50)),
            format!("{:.2} ms", late(99)),
            format!("{trip:.2} ms"),
            format!("{:.2} ms", late(99) + trip),
            format!("{} MiB", daemon.peak_memory() / 1024 / 1024),
        ]);
    }
    table.print();
}

fn start(dir: &Path, redis: &RedisServer, fast: &Path, slow: &Path) -> Watched {
    let text = format!(
        "[redis]\nurl = \"{}\"\nfleet = \"bench\"\n[admin]\nlisten = \"\"\n[log]\nlevel = \"warn\"\n[service]\ngrace = \"10m\"\n\
         [limits.provider]\nkind = \"paced\"\nrate = \"{RATE}/1s\"\nheadroom = \"{HEADROOM}ms\"\n\
         [limits.hourly]\nkind = \"concurrency\"\nlimit = 1\nlease = \"1h\"\n\
         [callers.fast]\nlisten = \"unix:{}\"\nlimits = [\"provider\"]\n\
         [callers.slow]\nlisten = \"unix:{}\"\nlimits = [\"hourly\"]\nmax_wait = \"10m\"\nends_after = \"10m\"\nmax_waiting = {}\n",
        redis.url(),
        fast.display(),
        slow.display(),
        WAITING + 100,
    );
    let config = dir.join("callers.toml");
    std::fs::write(&config, text).expect("a configuration");
    let config = config.to_str().expect("a path in UTF-8");
    Watched::start(
        program(),
        &["run", "--config", config],
        &[],
        dir.join("log"),
    )
}

/// What the callers saw.
#[derive(Default)]
struct Seen {
    /// From each slot to its answer, in milliseconds.
    late: Vec<f64>,
    /// Of requests that wait for nothing, in milliseconds.
    trips: Vec<f64>,
}

async fn load(socket: &Path) -> Seen {
    let end = Instant::now() + LENGTH;
    let mut asking = JoinSet::new();
    for _ in 0..CLIENTS {
        asking.spawn(ask_until(end, socket.to_owned()));
    }
    let mut trips = Vec::new();
    let mut probe = Client::at_path(socket).await;
    while Instant::now() < end {
        let began = Instant::now();
        probe.end("0000000000000001", "").await;
        trips.push(began.elapsed().as_secs_f64() * 1e3);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Seen {
        late: asking.join_all().await.concat(),
        trips,
    }
}

async fn ask_until(end: Instant, socket: PathBuf) -> Vec<f64> {
    let mut client = Client::at_path(&socket).await;
    let ask = json!({"wait": "5s"});
    let mut late = Vec::new();
    while Instant::now() < end {
        let answer = client.ask(&ask).await;
        answer.granted();
        let left = answer.body["use_within_ms"].as_f64();
        late.push(HEADROOM - left.expect("a number"));
    }
    late
}

/// Ten thousand connections whose requests wait for one limit.
async fn wait_for(waiting: &mut JoinSet<Value>, socket: &Path) {
    let mut first = Client::at_path(socket).await;
    first.ask(&json!({"wait": "20s"})).await.granted();
    for _ in 0..WAITING {
        let mut client = Client::at_path(socket).await;
        waiting.spawn(async move { client.ask(&json!({"wait": "10m"})).await.body });
    }
    // All of them are asked by then.
    tokio::time::sleep(Duration::from_secs(2)).await;
}
