//! How much memory a replica uses, and how soon after its start it makes its first call.

#![allow(clippy::print_stdout, reason = "results are its output")]

#[path = "../tests/it/support/mod.rs"]
mod support;

mod common;

use std::time::{Duration, SystemTime};

use common::daemon::{Daemon, program};
use common::table::{Table, headline, median, percentile};
use common::watched::{Watched, wait_for};
use lapin::BasicProperties;
use sluiced_provider::{Behaviour, Expect, Provider};
use support::broker::Broker;
use support::rabbit::Rabbit;
use support::redis::RedisServer;

const RATE: &str = "400/1s";
const PREFETCH: u16 = 500;
const BACKLOG: usize = 6_000;
const STARTS: usize = 7;

struct Ground {
    dir: tempfile::TempDir,
    rabbit: Rabbit,
    redis: RedisServer,
    provider: Provider,
}

fn main() {
    headline(&format!(
        "one replica, limit {RATE}, prefetch {PREFETCH}, a backlog of {BACKLOG} messages of 200 bytes"
    ));
    let rate = RATE.parse().expect("a rate");
    let address = "127.0.0.1:0".parse().expect("an address");
    let ground = Ground {
        dir: tempfile::tempdir().expect("a directory"),
        rabbit: Rabbit::start(),
        redis: RedisServer::start(),
        provider: Provider::start(address, Behaviour::judging(rate)).expect("a provider"),
    };
    ground.fill();
    let mut table = Table::new(&["first call after", "median", "least", "most"]);
    ground.start_times(
        &mut table,
        "a start on an empty Redis (behind the guard)",
        true,
    );
    ground.start_times(&mut table, "a start on a schedule that is known", false);
    table.print();

    let (calls, peak) = ground.backlog();
    let mib = peak as f64 / 1024.0 / 1024.0;
    println!(
        "\npeak of resident memory after {calls} calls: {mib:.1} MiB \
         (wanted: under 40 MiB, first call within 0.3 s)"
    );
    let version = Watched::start(
        program(),
        &["--version"],
        &[],
        ground.dir.path().join("version"),
    );
    println!("{}", version.ended(Duration::from_secs(5)).trim());
}

impl Ground {
    fn fill(&self) {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let broker = Broker::connect(&self.rabbit.url()).await;
            broker.declare("work", "quorum").await;
            // The starts use some; messages that are given back count again.
            let messages = (0..BACKLOG + STARTS * 200).map(|number| {
                let text = "x".repeat(150);
                let body = format!(r#"{{"id":"m-{number:06}","text":"{text}"}}"#);
                (body.into_bytes(), BasicProperties::default())
            });
            broker.publish("work", messages).await;
        });
    }

    fn start(&self, name: &str) -> Watched {
        let daemon = Daemon {
            rabbitmq: &self.rabbit.url(),
            redis: &self.redis.url(),
            queue: "work",
            url: &format!("http://{}/send", self.provider.address()),
            rate: RATE,
            prefetch: PREFETCH,
            more: &[],
            results: None,
        };
        daemon.start(self.dir.path(), name)
    }

    /// From before the fork to the first arrival, which includes the shell that watches.
    fn start_times(&self, table: &mut Table, what: &str, fresh: bool) {
        let mut times = Vec::new();
        for number in 0..STARTS {
            if fresh {
                redis::cmd("FLUSHALL")
                    .query::<()>(&mut self.redis.connection())
                    .expect("Redis forgets");
            }
            self.provider.reset();
            let begin = SystemTime::now();
            let replica = self.start(&format!("start-{fresh}-{number}"));
            wait_for(Duration::from_secs(10), "a first call", || {
                self.provider.live().calls > 0
            });
            let seen = begin.elapsed().expect("no step of the clock");
            // It was noticed a little later than it came: the calls since then show by how
            // much.
            let report = self.provider.report(&Expect::Nothing);
            let since = Duration::from_micros(report.duration_us);
            times.push(seen.saturating_sub(since).as_secs_f64() * 1e3);
            replica.stop();
        }
        let cell = |percent| format!("{:.0} ms", percentile(&times, percent));
        table.row(&[
            what.to_owned(),
            format!("{:.0} ms", median(&times)),
            cell(0),
            cell(100),
        ]);
    }

    fn backlog(&self) -> (u64, u64) {
        self.provider.reset();
        let replica = self.start("backlog");
        wait_for(Duration::from_secs(60), "the backlog's end", || {
            std::thread::sleep(Duration::from_millis(100));
            self.provider.live().calls >= BACKLOG as u64
        });
        let peak = replica.peak_memory();
        replica.stop();
        (self.provider.live().calls, peak)
    }
}
