//! What a keyed limit costs: the same route with one paced limit, and with a keyed one beside it.
//!
//! Neither limit binds, so the figure is what is left of the throughput when every message has to
//! ask Redis by its key. The two take turns on the same servers.

#![allow(clippy::print_stdout, reason = "results are its output")]

#[path = "../tests/support/mod.rs"]
mod support;

mod common;

use std::process::ExitCode;
use std::time::Duration;

use common::daemon::{Daemon, RemoteProvider};
use common::table::{Table, headline, median};
use common::watched::wait_for;
use lapin::BasicProperties;
use support::broker::Broker;
use support::rabbit::Rabbit;
use support::redis::RedisServer;

const MESSAGES: usize = 20_000;
const KEYS: usize = 1_000;
const PREFETCH: u16 = 500;
/// Unless an argument that is a number says otherwise.
const PAIRS: usize = 8;
/// Far above what two processors can do.
const RATE: &str = "100000/1s";
const KEYED: (&str, &str) = (
    "recipient",
    "kind = \"gcra\"\nrate = \"5000/1s\"\nburst = 5000\nkey = \"{{ body.to }}\"\nlost_state = \"open\"",
);
const BOUND: Duration = Duration::from_secs(60);

struct Ground {
    dir: tempfile::TempDir,
    rabbit: Rabbit,
    redis: RedisServer,
    provider: RemoteProvider,
    runtime: tokio::runtime::Runtime,
}

fn main() -> ExitCode {
    headline(&format!(
        "{MESSAGES} small messages to {KEYS} recipients, prefetch {PREFETCH}, one consumer; no limit binds"
    ));
    let dir = tempfile::tempdir().expect("a directory");
    let ground = Ground {
        provider: RemoteProvider::start(dir.path(), RATE),
        dir,
        rabbit: Rabbit::start(),
        redis: RedisServer::start(),
        runtime: tokio::runtime::Runtime::new().expect("a runtime"),
    };
    let mut table = Table::new(&["pair", "paced alone", "with a keyed limit", "ratio"]);
    let mut ratios = Vec::new();
    let pairs = std::env::args()
        .find_map(|argument| argument.parse().ok())
        .unwrap_or(PAIRS);
    for pair in 1..=pairs {
        let paced = ground.throughput(&format!("paced-{pair}"), &[]);
        let keyed = ground.throughput(&format!("keyed-{pair}"), &[KEYED]);
        ratios.push(keyed / paced);
        table.row(&[
            pair.to_string(),
            format!("{paced:.0}/s"),
            format!("{keyed:.0}/s"),
            format!("{:.2}", keyed / paced),
        ]);
    }
    table.print();
    println!(
        "\nratio: median {:.2} (wanted: at least 0.60)",
        median(&ratios)
    );
    ExitCode::SUCCESS
}

impl Ground {
    /// Messages a second, by the provider's stamps.
    fn throughput(&self, queue: &str, more: &[(&str, &str)]) -> f64 {
        let broker = self.runtime.block_on(async {
            let broker = Broker::connect(&self.rabbit.url()).await;
            broker.declare(queue, "quorum").await;
            let messages = (0..MESSAGES).map(|number| {
                let to = number % KEYS;
                let body =
                    format!(r#"{{"id":"m-{number:06}","to":"+49155501{to:05}","text":"hello"}}"#);
                (body.into_bytes(), BasicProperties::default())
            });
            broker.publish(queue, messages).await;
            broker
        });
        // The broker writes its segments for a moment after the last confirm.
        std::thread::sleep(Duration::from_millis(500));
        self.provider.reset();
        let daemon = Daemon {
            rabbitmq: &self.rabbit.url(),
            redis: &self.redis.url(),
            queue,
            url: &self.provider.url(),
            rate: RATE,
            prefetch: PREFETCH,
            more,
        };
        let consumer = daemon.start(self.dir.path(), queue);
        let mut report = serde_json::Value::Null;
        wait_for(BOUND, "all messages at the provider", || {
            assert!(
                consumer.runs(),
                "the consumer ended:\n{}",
                consumer.output()
            );
            std::thread::sleep(Duration::from_millis(200));
            report = self.provider.report();
            report["unique"].as_u64() >= Some(MESSAGES as u64)
        });
        consumer.stop();
        self.runtime.block_on(broker.delete(queue));
        let took = report["duration_us"].as_f64().expect("a duration");
        (MESSAGES - 1) as f64 / took * 1e6
    }
}
