//! The limit, kept by a fleet whose provider is far away: two replicas at 100 a second, with several headrooms.
//!
//! The way is a device of its own process (`way/far.py`), so handshakes travel as far as calls, and the
//! kernel stamps calls after it. It needs root and a network of its own: this program starts itself again in
//! a new namespace. If that is impossible, it prints that and ends.
//!
//! A row with a fixed headroom takes 1,500 messages, unless there is a number as an argument; with `auto`, up
//! to eight times as many. Any other argument selects rows by a part of their names.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "results are its output"
)]

#[path = "../tests/it/support/mod.rs"]
mod support;

mod common;

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::time::Duration;

use common::daemon::program;
use common::table::{Table, headline};
use common::watched::{Watched, wait_for};
use lapin::BasicProperties;
use sluiced_core::rate::Rate;
use sluiced_core::time::Mono;
use sluiced_ports::clock;
use sluiced_provider::{Behaviour, Provider};
use sluiced_simulation::window::Tally;
use support::broker::Broker;
use support::proxy::{Mode, Proxy};
use support::rabbit::Rabbit;
use support::redis::RedisServer;

const RATE: &str = "100/1s";
const MESSAGES: u32 = 1_500;
const REPLICAS: usize = 2;
/// By then a headroom that follows the way has adjusted, at the start and after a change.
const FOUND: Duration = Duration::from_secs(5);
/// Set in the process that is in a network of its own.
const INSIDE: &str = "WAY_BENCH_INSIDE";

/// The way in one direction, in milliseconds: the minimum, and by how much it varies.
type Way = (u32, u32);

const NEAR: Way = (0, 0);
const FAR: Way = (10, 20);

struct Case {
    name: &'static str,
    headroom: &'static str,
    way: Way,
    /// The way after a third of the messages.
    then: Option<Way>,
    /// A proxy on this host ends the connections, and the way is behind it. The provider refuses what is over the
    /// limit.
    proxied: bool,
    /// This many times the messages of a case.
    times: u32,
}

impl Case {
    const fn of(name: &'static str, headroom: &'static str, way: Way, times: u32) -> Self {
        Self {
            name,
            headroom,
            way,
            then: None,
            proxied: false,
            times,
        }
    }
}

const CASES: [Case; 8] = [
    Case::of("5 ms, near", "5ms", NEAR, 1),
    Case::of("5 ms, 10 to 30 ms", "5ms", FAR, 1),
    Case::of("40 ms, 10 to 30 ms", "40ms", FAR, 1),
    Case::of("90 ms, 10 to 30 ms", "90ms", FAR, 1),
    Case::of("auto, near", "auto", NEAR, 8),
    Case::of("auto, 10 to 30 ms", "auto", FAR, 4),
    Case {
        then: Some((20, 10)),
        ..Case::of("auto, 4 to 6, then 20 to 30 ms", "auto", (4, 2), 6)
    },
    Case {
        proxied: true,
        ..Case::of("auto, 10 to 30 ms behind a TCP proxy", "auto", FAR, 4)
    },
];

fn main() -> ExitCode {
    if std::env::var_os(INSIDE).is_none() {
        return start_inside();
    }
    let asked = std::env::args().find_map(|argument| argument.parse().ok());
    let messages = asked.unwrap_or(MESSAGES);
    ip(&["link", "set", "lo", "up"]);
    headline(&format!(
        "{REPLICAS} replicas at {RATE}, the provider behind a way that varies; each direction"
    ));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut ground = Ground::start();
    let mut table = Table::new(&[
        "headroom and way",
        "messages",
        "too early",
        "but for 5 s",
        "used %",
        "used % at the end",
        "headroom then",
    ]);
    for case in CASES.iter().filter(|case| is_wanted(case)) {
        let count = messages * case.times;
        let run = runtime.block_on(ground.run(case, count));
        let seen = Seen::new(&run, messages as usize);
        table.row(&[
            case.name.to_owned(),
            count.to_string(),
            seen.early.to_string(),
            seen.early_later.to_string(),
            percent(seen.used),
            percent(seen.used_last),
            run.print(case),
        ]);
    }
    println!();
    table.print();
    ExitCode::SUCCESS
}

/// Starts this program again, in a new network, if that is possible.
fn start_inside() -> ExitCode {
    let can = Command::new("unshare")
        .args([
            "-n",
            "sh",
            "-c",
            "command -v ip python3 && : <>/dev/net/tun",
        ])
        .output();
    if !can.is_ok_and(|tried| tried.status.success()) {
        println!("not measured: it needs root, /dev/net/tun, unshare, ip and python3");
        return ExitCode::SUCCESS;
    }
    let failed = Command::new("unshare")
        .arg("-n")
        .arg(std::env::current_exe().expect("the path of this benchmark"))
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1")
        .exec();
    println!("{failed}");
    ExitCode::FAILURE
}

fn is_wanted(case: &Case) -> bool {
    // `cargo bench` adds `--bench`.
    let words = std::env::args().skip(1);
    let mut words = words.filter(|word| !word.starts_with('-') && word.parse::<u32>().is_err());
    words.next().is_none_or(|word| case.name.contains(&word))
}

fn ip(arguments: &[&str]) {
    let done = Command::new("ip").args(arguments).status().expect("ip");
    assert!(done.success(), "ip {arguments:?}");
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.2}", share * 100.0))
}

/// The process of the network device.
struct Far {
    process: Child,
    lines: ChildStdin,
}

impl Far {
    fn start() -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/way/far.py");
        let mut process = Command::new("python3")
            .args([script, "0", "0"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let lines = process.stdin.take().expect("its stdin");
        let said = process.stdout.take().expect("its stdout");
        let up = BufReader::new(said).lines().next();
        assert!(up.is_some_and(|line| line.is_ok()), "the device is not up");
        Self { process, lines }
    }

    fn set(&mut self, (least, spread): Way) {
        writeln!(self.lines, "{least} {spread}").expect("it reads");
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        // It would also end with its stdin when this process is gone.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

struct Ground {
    dir: tempfile::TempDir,
    rabbit: Rabbit,
    redis: RedisServer,
    provider: Provider,
    /// This one refuses what is over the limit.
    strict: Provider,
    far: Far,
}

/// The result of a case.
struct Run {
    /// In their order.
    arrivals: Vec<Mono>,
    /// When the way changed.
    changed: Option<Mono>,
    /// The logs of the replicas.
    logs: Vec<String>,
}

impl Ground {
    fn start() -> Self {
        let rate = RATE.parse().expect("a rate");
        let any = "0.0.0.0:0".parse().expect("an address");
        Self {
            dir: tempfile::tempdir().expect("a directory"),
            rabbit: Rabbit::start(),
            redis: RedisServer::start(),
            far: Far::start(),
            provider: Provider::start(any, Behaviour::judging(rate)).expect("a provider"),
            strict: {
                let judging = Behaviour::judging(rate);
                let enforce = true;
                let strict = Behaviour { enforce, ..judging };
                Provider::start(any, strict).expect("a provider")
            },
        }
    }

    async fn run(&mut self, case: &Case, count: u32) -> Run {
        let queue = case.name.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        let broker = Broker::connect(&self.rabbit.url()).await;
        broker.declare(&queue, "quorum").await;
        let messages = (0..count).map(|_| (b"{}".to_vec(), BasicProperties::default()));
        broker.publish(&queue, messages).await;
        self.far.set(case.way);
        let provider = if case.proxied {
            &self.strict
        } else {
            &self.provider
        };
        provider.reset();
        let port = provider.address().port();
        let proxy = Proxy::to(port).await;
        let (least, spread) = case.way;
        let ms = |ms: u32| Duration::from_millis(ms.into());
        proxy.set(Mode::Delay(ms(least), ms(spread)));
        let address = if case.proxied {
            proxy.address().to_string()
        } else {
            format!("10.99.0.2:{port}")
        };
        let replicas = self.replicas(&queue, case.headroom, &address);
        let all = u64::from(count);
        let bound = Duration::from_secs(30 + all / 50);
        let mut changed = None;
        wait_for(bound, "all messages at the provider", || {
            let calls = provider.live().calls;
            if let Some(then) = case.then.filter(|_| changed.is_none() && calls > all / 3) {
                changed = Some(clock::now());
                self.far.set(then);
            }
            std::thread::sleep(Duration::from_millis(50));
            calls >= all
        });
        // The last calls are judged a moment after they came.
        std::thread::sleep(Duration::from_secs(1));
        let arrivals = provider.keyed().iter().map(|(at, _)| *at).collect();
        let logs = replicas.into_iter().map(Watched::stop).collect();
        broker.delete(&queue).await;
        Run {
            arrivals,
            changed,
            logs,
        }
    }

    fn replicas(&self, queue: &str, headroom: &str, address: &str) -> Vec<Watched> {
        let start = |number| {
            let name = format!("{queue}-{number}");
            let config = self.dir.path().join(format!("{name}.toml"));
            std::fs::write(&config, self.config(queue, headroom, address))
                .expect("a configuration");
            let config = config.to_str().expect("a path in UTF-8");
            let output = self.dir.path().join(format!("{name}.log"));
            Watched::start(program(), &["run", "--config", config], &[], output)
        };
        (1..=REPLICAS).map(start).collect()
    }

    /// Each case has a queue and keys in Redis of its own.
    fn config(&self, queue: &str, headroom: &str, address: &str) -> String {
        let mut text = String::new();
        write!(
            text,
            "[rabbitmq]\nurls = [\"{}\"]\n[redis]\nurl = \"{}\"\nprefix = \"{queue}\"\n\
             [admin]\nlisten = \"\"\n[log]\nlevel = \"info\"\n\
             [limits.provider]\nkind = \"paced\"\nrate = \"{RATE}\"\nheadroom = \"{headroom}\"\n\
             [routes.bench]\nqueue = \"{queue}\"\nlimits = [\"provider\"]\n\
             [routes.bench.downstream]\nkind = \"http\"\nurl = \"http://{address}/send\"\n\
             [routes.bench.downstream.headers]\nx-key = \"any\"\n",
            self.rabbit.url(),
            self.redis.url(),
        )
        .expect("writing to a String cannot fail");
        text
    }
}

impl Run {
    /// When the headroom was changed and why, and warnings. Returns the last headroom.
    fn print(&self, case: &Case) -> String {
        println!("{}", case.name);
        let lines = (1..).zip(&self.logs).flat_map(|(number, log)| {
            let events = log
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok());
            events.map(move |event: serde_json::Value| (number, event))
        });
        // Each replica logs each change.
        let follows = |number: usize, event: &serde_json::Value| {
            number == 1 && event["message"] == "the limit has changed"
        };
        let mut lines: Vec<_> = lines
            .filter(|(number, event)| follows(*number, event) || event["level"] != "INFO")
            .collect();
        lines.sort_by_key(|(_, event)| event["timestamp"].to_string());
        let mut headroom = case.headroom.to_owned();
        for (number, event) in &lines {
            let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
            println!(
                "  {} replica {number}: {} {} {}",
                text("timestamp"),
                text("message"),
                text("to"),
                text("by")
            );
            if follows(*number, event) {
                headroom = text("to");
            }
        }
        headroom
    }
}

/// The judgement of a run.
struct Seen {
    early: usize,
    /// Those of them that are not within five seconds of the start or of the change.
    early_later: usize,
    used: Option<f64>,
    /// The share over the last messages, as many as in a case with a fixed headroom.
    used_last: Option<f64>,
}

impl Seen {
    fn new(run: &Run, last: usize) -> Self {
        let rate: Rate = RATE.parse().expect("a rate");
        let arrivals = &run.arrivals;
        let early = early(arrivals, rate);
        let start = arrivals.first().copied().unwrap_or_default();
        let finding = |at: Mono, from: Mono| at >= from && at.since(from) < FOUND;
        let later = early.iter().filter(|at| {
            !finding(**at, start) && !run.changed.is_some_and(|from| finding(**at, from))
        });
        let used = |arrivals: &[Mono]| {
            let mut tally = Tally::new(rate);
            arrivals.iter().for_each(|at| tally.record(*at));
            tally.usage().used()
        };
        Self {
            early: early.len(),
            early_later: later.count(),
            used: used(arrivals),
            used_last: used(&arrivals[arrivals.len().saturating_sub(last)..]),
        }
    }
}

/// The times of the calls that came too early.
fn early(arrivals: &[Mono], rate: Rate) -> Vec<Mono> {
    let mut tally = Tally::new(rate);
    let is_early = |at: &&Mono| {
        let before = tally.usage().over;
        tally.record(**at);
        tally.usage().over > before
    };
    arrivals.iter().filter(is_early).copied().collect()
}
