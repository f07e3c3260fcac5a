//! How fast a consumer sends a queue to the provider, with a limit far beyond the machine.
//!
//! The provider's stamps show how long the messages took; the kernel shows how much processor time.

use std::time::Duration;

use lapin::BasicProperties;

use super::daemon::{Daemon, RemoteProvider};
use super::watched::{Watched, wait_for};
use crate::support::broker::Broker;
use crate::support::rabbit::Rabbit;
use crate::support::redis::RedisServer;

/// In a queue.
pub const MESSAGES: usize = 20_000;
pub const PREFETCH: u16 = 500;
/// Far above what two processors can do.
pub const RATE: &str = "100000/1s";
/// The default, without a number as an argument.
const PAIRS: usize = 8;
const BOUND: Duration = Duration::from_secs(60);

/// The result of one run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Messages a second.
    pub throughput: f64,
    /// Processor time of the consumer, in microseconds a message.
    pub processor: f64,
}

/// Private servers and a provider.
#[derive(Debug)]
pub struct Ground {
    pub dir: tempfile::TempDir,
    pub rabbit: Rabbit,
    redis: RedisServer,
    pub provider: RemoteProvider,
    runtime: tokio::runtime::Runtime,
}

impl Ground {
    pub fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        Self {
            provider: RemoteProvider::start(dir.path(), RATE),
            dir,
            rabbit: Rabbit::start(),
            redis: RedisServer::start(),
            runtime: tokio::runtime::Runtime::new().expect("a runtime"),
        }
    }

    /// A daemon for a queue, which publishes a result of each message to a queue of results.
    pub fn with_results(&self, queue: &str) -> Watched {
        let results = format!("{queue}.results");
        self.runtime.block_on(async {
            let broker = Broker::connect(&self.rabbit.url()).await;
            broker.declare(&results, "quorum").await;
        });
        self.daemon(queue, &[], Some(&results))
    }

    /// A daemon for a queue, with further limits.
    pub fn sluiced(&self, queue: &str, more: &[(&str, &str)]) -> Watched {
        self.daemon(queue, more, None)
    }

    fn daemon(&self, queue: &str, more: &[(&str, &str)], results: Option<&str>) -> Watched {
        let daemon = Daemon {
            rabbitmq: &self.rabbit.url(),
            redis: &self.redis.url(),
            queue,
            url: &self.provider.url(),
            rate: RATE,
            prefetch: PREFETCH,
            more,
            results,
        };
        daemon.start(self.dir.path(), queue)
    }

    /// Fills a new queue with messages to this many recipients, lets a consumer empty it, and reads
    /// the provider's report.
    pub fn measure(
        &self,
        queue: &str,
        recipients: usize,
        start: impl FnOnce(&str) -> Watched,
    ) -> Run {
        let broker = self.runtime.block_on(self.fill(queue, recipients));
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

    async fn fill(&self, queue: &str, recipients: usize) -> Broker {
        let broker = Broker::connect(&self.rabbit.url()).await;
        broker.declare(queue, "quorum").await;
        let messages = (0..MESSAGES).map(|number| {
            let to = number % recipients;
            let body =
                format!(r#"{{"id":"m-{number:06}","to":"+49155501{to:05}","text":"hello"}}"#);
            (body.into_bytes(), BasicProperties::default())
        });
        broker.publish(queue, messages).await;
        broker
    }
}

/// How many pairs of runs the command line asks for.
pub fn pairs() -> usize {
    std::env::args()
        .find_map(|argument| argument.parse().ok())
        .unwrap_or(PAIRS)
}
