//! A limit that does not bind: how much of a bare consume-POST-ack loop's throughput is left.
//!
//! The bare loop and sluiced take turns on the same private RabbitMQ, Redis and provider. The
//! provider's stamps say how long the messages took; the kernel says how much processor time.

#![allow(clippy::print_stdout, reason = "results are its output")]

#[path = "../tests/support/mod.rs"]
mod support;

mod common;

use std::process::ExitCode;
use std::time::Duration;

use common::bare;
use common::daemon::{Daemon, RemoteProvider};
use common::table::{Table, headline, median};
use common::watched::{Watched, wait_for};
use lapin::BasicProperties;
use support::broker::Broker;
use support::rabbit::Rabbit;
use support::redis::RedisServer;

const MESSAGES: usize = 20_000;
const PREFETCH: u16 = 500;
/// Unless an argument that is a number says otherwise.
const PAIRS: usize = 8;
/// Far above what two processors can do.
const RATE: &str = "100000/1s";
const BOUND: Duration = Duration::from_secs(60);

/// What one run came to.
struct Run {
    /// Messages a second.
    throughput: f64,
    /// Processor time of the consumer, in microseconds a message.
    processor: f64,
}

struct Ground {
    dir: tempfile::TempDir,
    rabbit: Rabbit,
    redis: RedisServer,
    provider: RemoteProvider,
    runtime: tokio::runtime::Runtime,
}

fn main() -> ExitCode {
    if let Some(code) = bare::run_if_told() {
        return code;
    }
    headline(&format!(
        "{MESSAGES} small messages, prefetch {PREFETCH}, one consumer, limit {RATE} (does not bind)"
    ));
    let dir = tempfile::tempdir().expect("a directory");
    let ground = Ground {
        provider: RemoteProvider::start(dir.path(), RATE),
        dir,
        rabbit: Rabbit::start(),
        redis: RedisServer::start(),
        runtime: tokio::runtime::Runtime::new().expect("a runtime"),
    };
    let mut table = Table::new(&[
        "pair",
        "bare loop",
        "sluiced",
        "ratio",
        "bare µs CPU",
        "sluiced µs CPU",
    ]);
    let mut ratios = Vec::new();
    let pairs = std::env::args()
        .find_map(|argument| argument.parse().ok())
        .unwrap_or(PAIRS);
    for pair in 1..=pairs {
        let bare = ground.measure(&format!("bare-{pair}"), |queue| ground.bare(queue));
        let ours = ground.measure(&format!("ours-{pair}"), |queue| ground.sluiced(queue));
        let ratio = ours.throughput / bare.throughput;
        ratios.push(ratio);
        table.row(&[
            pair.to_string(),
            format!("{:.0}/s", bare.throughput),
            format!("{:.0}/s", ours.throughput),
            format!("{ratio:.2}"),
            format!("{:.0}", bare.processor),
            format!("{:.0}", ours.processor),
        ]);
    }
    table.print();
    let (least, most) = ratios
        .iter()
        .fold((f64::MAX, 0.0_f64), |(least, most), ratio| {
            (least.min(*ratio), most.max(*ratio))
        });
    println!(
        "\nratio: median {:.2}, least {least:.2}, most {most:.2} (wanted: at least 0.90)",
        median(&ratios)
    );
    ExitCode::SUCCESS
}

impl Ground {
    fn bare(&self, queue: &str) -> Watched {
        bare::start(
            self.dir.path(),
            queue,
            &self.rabbit.url(),
            queue,
            &self.provider.url(),
            PREFETCH,
        )
    }

    fn sluiced(&self, queue: &str) -> Watched {
        let daemon = Daemon {
            rabbitmq: &self.rabbit.url(),
            redis: &self.redis.url(),
            queue,
            url: &self.provider.url(),
            rate: RATE,
            prefetch: PREFETCH,
            more: &[],
        };
        daemon.start(self.dir.path(), queue)
    }

    /// Fills a new queue, lets a consumer empty it, and looks at the provider's books.
    fn measure(&self, queue: &str, start: impl FnOnce(&str) -> Watched) -> Run {
        let broker = self.runtime.block_on(async {
            let broker = Broker::connect(&self.rabbit.url()).await;
            broker.declare(queue, "quorum").await;
            let messages = (0..MESSAGES).map(|number| {
                let body =
                    format!(r#"{{"id":"m-{number:06}","to":"+4915550123456","text":"hello"}}"#);
                (body.into_bytes(), BasicProperties::default())
            });
            broker.publish(queue, messages).await;
            broker
        });
        // The broker writes its segments for a moment after the last confirm.
        std::thread::sleep(Duration::from_millis(500));
        self.provider.reset();
        let consumer = start(queue);
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
        let processor = consumer.processor_time();
        consumer.stop();
        let left = self.runtime.block_on(broker.counts(queue));
        if left.is_none_or(|(ready, _)| ready > 0) || report["repeated"] != 0 {
            println!("{queue}: left {left:?}, repeated {}", report["repeated"]);
        }
        self.runtime.block_on(broker.delete(queue));
        let took = report["duration_us"].as_f64().expect("a duration");
        Run {
            throughput: (MESSAGES - 1) as f64 / took * 1e6,
            processor: processor.as_micros() as f64 / MESSAGES as f64,
        }
    }
}
