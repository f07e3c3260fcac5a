//! Several real replicas on real servers, judged where their calls arrive: whatever fails, no
//! window is over the limit and no message is lost.
//!
//! The machine that runs tests is busy, so the headroom is wide here; how little it can be is a
//! matter for benchmarks.
mod backlog;
mod budgets;
mod chains;
mod control;
mod fair;
mod faults;
mod flow;
mod keys;
mod pairs;
mod priority;

use std::time::Duration;

use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, Route};
use crate::support::rabbit::Rabbit;
use crate::support::redis::RedisServer;
use crate::support::wait::eventually;
use lapin::BasicProperties;
use sluiced::proof::provider::{Behaviour, Expect, Provider, Report};
use tokio::sync::{Mutex, MutexGuard};

/// One fleet at a time: they would only take the processor from each other, and a test may restart
/// the servers that all of them use.
static TURN: Mutex<()> = Mutex::const_new(());

const RATE: &str = "200/1s";
/// For everything to arrive, restarts of servers included.
const PATIENCE: Duration = Duration::from_secs(120);

/// Replicas, their provider and the messages they send.
struct Fleet {
    name: &'static str,
    rate: &'static str,
    count: u64,
    broker: Broker,
    provider: Provider,
    replicas: Vec<Daemon>,
    _turn: MutexGuard<'static, ()>,
}

impl Fleet {
    /// Starts `replicas` on a queue of `count` messages.
    async fn start(name: &'static str, replicas: usize, count: u64) -> Self {
        Self::start_at(RATE, name, replicas, count).await
    }

    async fn start_at(rate: &'static str, name: &'static str, replicas: usize, count: u64) -> Self {
        let turn = TURN.lock().await;
        let address = "127.0.0.1:0".parse().unwrap();
        let provider = Provider::start(address, Behaviour::judging(rate.parse().unwrap())).unwrap();
        let broker = Broker::connect(&Rabbit::shared().url()).await;
        broker.declare(name, "quorum").await;
        let messages = (1..=count).map(|n| {
            let body = format!("{{\"id\":\"{}\"}}", id(n));
            (body.into_bytes(), BasicProperties::default())
        });
        broker.publish(name, messages).await;
        let mut fleet = Self {
            name,
            rate,
            count,
            broker,
            provider,
            replicas: Vec::new(),
            _turn: turn,
        };
        fleet.replicas = (0..replicas).map(|place| fleet.replica(place)).collect();
        fleet
    }

    fn replica(&self, place: usize) -> Daemon {
        let mut route = Route::new(self.name, self.provider.address());
        route.caller = format!("replica {place}");
        // Few enough that every replica has some to send.
        route.keys = "prefetch = 100\n".to_owned();
        Daemon::start(&Config {
            rabbit: Some(Rabbit::shared().url()),
            redis: Some(RedisServer::shared().url()),
            prefix: self.name.to_owned(),
            rate: self.rate.to_owned(),
            headroom: "50ms",
            horizon: "200ms",
            routes: vec![route],
            tables: String::new(),
        })
    }

    /// Waits until so many messages have arrived.
    async fn arrived(&self, count: u64) {
        let what = format!("{count} messages arrived");
        let seen = tokio::time::timeout(
            PATIENCE,
            eventually(PATIENCE * 2, &what, || self.provider.live().unique >= count),
        );
        if seen.await.is_err() {
            let logs: Vec<_> = self.replicas.iter().map(Daemon::log).collect();
            panic!(
                "not {what}: {:?}\n{}",
                self.provider.live(),
                logs.join("\n\n")
            );
        }
    }

    /// With a connection of the test's own to a broker that was restarted.
    async fn reconnected(self) -> Self {
        Self {
            broker: Broker::connect(&Rabbit::shared().url()).await,
            ..self
        }
    }

    /// Waits for the rest, stops everything, and holds the run to its promises.
    async fn finish(mut self, declared: &[&str]) -> Report {
        self.arrived(self.count).await;
        let expect = Expect::Ids((1..=self.count).map(id).collect());
        let report = self.provider.report(&expect);
        if report.over > 0 {
            for replica in &mut self.replicas {
                let (_, page) = replica.page("/metrics").await;
                let told = page.lines().filter(|line| {
                    line.contains("lateness") || line.contains("missed") || line.contains("clock")
                });
                eprintln!("{}\n", told.collect::<Vec<_>>().join("\n"));
            }
        }
        for replica in self.replicas.drain(..) {
            replica.stop(declared).await;
        }
        let report = Report {
            // Nothing may come while they stop either.
            over: self.provider.report(&expect).over,
            ..report
        };
        assert_eq!(report.over, 0, "{report:?}");
        assert_eq!(report.lost, Some(0), "{report:?}");
        assert_eq!(report.unexpected, 0, "{report:?}");
        let dead = format!("{}.dead", self.name);
        assert_eq!(
            self.broker.counts(&dead).await.map_or(0, |counts| counts.0),
            0
        );
        report
    }
}

fn id(n: u64) -> String {
    format!("m-{n}")
}

/// Calls of scripts that Redis has counted.
fn script_calls() -> u64 {
    let text: String = redis::cmd("INFO")
        .arg("commandstats")
        .query(&mut RedisServer::shared().connection())
        .unwrap();
    text.lines()
        .filter_map(|line| line.strip_prefix("cmdstat_eval")?.split_once(":calls="))
        .filter_map(|(_, rest)| rest.split(',').next()?.parse::<u64>().ok())
        .sum()
}
