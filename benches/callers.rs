//! Callers over a socket of the machine: how many permits a second, how late they come, what ten thousand that wait
//! cost, and how a limit is used that callers share with the replicas of a queue.
//!
//! The time from a slot to the answer is what is missing of `use_within_ms` there. The way of the answer to the caller
//! is less than a whole round trip of another request at the same time, which is measured, too: the sum is a bound.

#![allow(clippy::print_stdout, reason = "results are its output")]

#[path = "../tests/it/support/mod.rs"]
mod support;

mod common;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::daemon::program;
use common::table::{Table, headline, percentile};
use common::watched::Watched;
use lapin::BasicProperties;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use sluiced_core::time::Mono;
use sluiced_ports::clock;
use sluiced_provider::{Behaviour, Expect, Provider, Report};
use support::broker::Broker;
use support::caller::Client;
use support::rabbit::Rabbit;
use support::redis::RedisServer;
use support::wait::eventually;
use tokio::task::JoinSet;
use tokio::time::Instant;

const RATE: u64 = 5_000;
/// This many ask at a time.
const CLIENTS: usize = 64;
const LENGTH: Duration = Duration::from_secs(10);
/// 15 of them may pass before a call leaves, and 5 are the caller's (`use_within`).
const HEADROOM: f64 = 20.0;
const WAITING: usize = 10_000;
const PAIRS: usize = 3;
/// The rate that a queue and callers share.
const SHARED: u64 = 400;
const QUEUED: u64 = 5_000;
/// How long a call of theirs may take to leave: the default, and more.
const WITHIN: [&str; 2] = ["2ms", "5ms"];

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
    match runtime.block_on(beside_a_queue()) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Two replicas with a backlog and the default headroom, and four callers that go first. Returns whether no window was
/// over and no message was lost.
async fn beside_a_queue() -> bool {
    let (rabbit, redis) = (Rabbit::start(), RedisServer::start());
    let dir = tempfile::tempdir().expect("a directory");
    let mut table = Table::new(&[
        "run",
        "use_within",
        "calls",
        "of callers",
        "over",
        "worst",
        "used %",
        "lost",
        "of the queue between",
        "longest gap",
    ]);
    println!("\n2 replicas with a queue, 4 urgent callers, {SHARED}/1s together, default headroom");
    let mut is_kept = true;
    for run in 0..PAIRS * WITHIN.len() {
        let within = WITHIN[run % WITHIN.len()];
        let name = format!("shared-{run}");
        let Shared {
            report,
            overtaken,
            longest_gap,
        } = shared(&name, within, &rabbit, &redis, dir.path()).await;
        is_kept &= report.over == 0 && report.lost == Some(0);
        let of_queue = report.callers.get("queue").copied().unwrap_or(0);
        table.row(&[
            (run + 1).to_string(),
            within.to_owned(),
            report.calls.to_string(),
            (report.calls - of_queue).to_string(),
            report.over.to_string(),
            report.worst.to_string(),
            format!("{:.1}", 100.0 * report.used.unwrap_or(0.0)),
            report.lost.unwrap_or(0).to_string(),
            overtaken.to_string(),
            format!("{:.0} ms", longest_gap.as_secs_f64() * 1e3),
        ]);
    }
    table.print();
    is_kept
}

/// What the provider saw of a run.
struct Shared {
    report: Report,
    /// This many messages of the queue were called between a question of a caller and its call, at most.
    overtaken: usize,
    /// Between two calls: one that is much longer than the others says that nothing was called for a while.
    longest_gap: Duration,
}

async fn shared(
    name: &str,
    within: &str,
    rabbit: &Rabbit,
    redis: &RedisServer,
    dir: &Path,
) -> Shared {
    let behaviour = Behaviour::judging(format!("{SHARED}/1s").parse().expect("a rate"));
    let provider = Provider::start("127.0.0.1:0".parse().expect("an address"), behaviour);
    let provider = provider.expect("a provider");
    let broker = Broker::connect(&rabbit.url()).await;
    broker.declare(name, "quorum").await;
    let messages = (0..QUEUED).map(|n| {
        let body = format!("{{\"id\":\"q{n}\"}}").into_bytes();
        (body, BasicProperties::default())
    });
    broker.publish(name, messages).await;
    let sockets = [0, 1].map(|n| dir.join(format!("{name}-{n}.sock")));
    let replicas = sockets.each_ref().map(|socket| {
        let text = format!(
            "[rabbitmq]\nurls = [\"{}\"]\n[redis]\nurl = \"{}\"\nprefix = \"{name}\"\n[admin]\nlisten = \"\"\n\
             [log]\nlevel = \"warn\"\n[limits.provider]\nrate = \"{SHARED}/1s\"\n\
             [routes.r]\nqueue = \"{name}\"\nlimits = [\"provider\"]\n[routes.r.downstream]\nkind = \"http\"\n\
             url = \"http://{}/send\"\nheaders = {{ x-caller = \"queue\", x-key = \"{{{{ body.id }}}}\" }}\n\
             [callers.web]\nlisten = \"unix:{}\"\nlimits = [\"provider\"]\npriority = 5\n\
             use_within = \"{within}\"\n",
            rabbit.url(),
            redis.url(),
            provider.address(),
            socket.display(),
        );
        let config = socket.with_extension("toml");
        std::fs::write(&config, text).expect("a configuration");
        let arguments = ["run", "--config", config.to_str().expect("a path in UTF-8")];
        Watched::start(program(), &arguments, &[], socket.with_extension("log"))
    });
    let flows = || provider.live().unique > SHARED;
    eventually(Duration::from_secs(60), "the queue flows", flows).await;
    let (mut working, stop) = (JoinSet::new(), Arc::new(AtomicBool::new(false)));
    for number in 0..4 {
        let (socket, address) = (sockets[number % 2].clone(), provider.address());
        let name = format!("w{number}");
        working.spawn(work(name, socket, address, Arc::clone(&stop)));
    }
    // They end while the queue has a backlog: without one there is no call for some slots.
    let enough = || provider.live().unique >= QUEUED * 9 / 10;
    eventually(Duration::from_secs(60), "most of it arrives", enough).await;
    stop.store(true, Ordering::Relaxed);
    let called = working.join_all().await.concat();
    let all = QUEUED + called.len() as u64;
    let arrived = || provider.live().unique >= all;
    eventually(Duration::from_secs(120), "the rest arrives", arrived).await;
    drop(replicas);
    let ids = (0..QUEUED).map(|n| format!("q{n}"));
    let ids = ids.chain(called.iter().map(|(id, _)| id.clone()));
    let report = provider.report(&Expect::Ids(ids.collect()));
    let calls = provider.keyed();
    let between = called.iter().map(|(id, asked)| {
        let place = calls.iter().position(|(_, known)| **known == **id);
        let before = calls[..place.unwrap_or(0)].iter().rev();
        let since = before.take_while(|(at, _)| at > asked);
        since.filter(|(_, id)| id.starts_with('q')).count()
    });
    let gaps = calls.windows(2).map(|pair| pair[1].0.since(pair[0].0));
    Shared {
        report,
        overtaken: between.max().unwrap_or(0),
        longest_gap: gaps.max().unwrap_or_default(),
    }
}

/// A program with messages of its own. Returns their ids, and when it asked for each.
async fn work(
    name: String,
    socket: PathBuf,
    provider: SocketAddr,
    stop: Arc<AtomicBool>,
) -> Vec<(String, Mono)> {
    let mut permits = Client::at_path(&socket).await;
    let mut provider = Client::at(provider).await;
    let mut called = Vec::new();
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        // The queue has its share, too.
        tokio::time::sleep(Duration::from_millis(41)).await;
        let asked = clock::now();
        permits.ask(&json!({"wait": "20s"})).await.granted();
        let id = format!("{name}-{number}");
        provider.call(&name, &id).await.expect("an answer");
        called.push((id, asked));
    }
    called
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
         [callers.fast]\nlisten = \"unix:{}\"\nlimits = [\"provider\"]\nuse_within = \"5ms\"\n\
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
