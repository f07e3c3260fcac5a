//! Tenants share the limit over the whole fleet, whatever stands in front of the queue.

use std::collections::BTreeMap;
use std::time::Duration;

use lapin::BasicProperties;
use sluiced::core::time::Mono;
use sluiced::proof::provider::{Behaviour, Expect, Provider, Report};

use super::{PATIENCE, TURN};
use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, NEW_SCHEDULE, Route, program};
use crate::support::rabbit::Rabbit;
use crate::support::redis::RedisServer;
use crate::support::still::Still;
use crate::support::wait::eventually;

/// A call may be so late.
const HEADROOM: Duration = Duration::from_millis(50);
/// What the headroom leaves.
const LEFT: f64 = 1.0 / 1.05;

/// Messages of tenants, published in this order.
type Backlog = Vec<(usize, usize)>;

/// Replicas that share fairly, and who they call.
struct Fair {
    name: &'static str,
    rate: u64,
    /// Of the route, beside `fair_by`.
    keys: &'static str,
    provider: Provider,
    broker: Broker,
    replicas: Vec<Daemon>,
    /// Of each tenant, published so far.
    published: BTreeMap<usize, usize>,
}

impl Fair {
    async fn prepare(name: &'static str, rate: u64, keys: &'static str) -> Self {
        let behaviour = Behaviour::judging(format!("{rate}/1s").parse().unwrap());
        let provider = Provider::start("127.0.0.1:0".parse().unwrap(), behaviour).unwrap();
        let broker = Broker::connect(&Rabbit::shared().url()).await;
        broker.declare(name, "quorum").await;
        Self {
            name,
            rate,
            keys,
            provider,
            broker,
            replicas: Vec::new(),
            published: BTreeMap::new(),
        }
    }

    async fn publish(&mut self, backlog: &Backlog) {
        let mut messages = Vec::new();
        for &(tenant, count) in backlog {
            for _ in 0..count {
                let number = self.published.entry(tenant).or_default();
                let id = id(tenant, *number);
                let body = format!("{{\"id\":\"{id}\",\"tenant\":\"t{tenant}\"}}");
                messages.push((body.into_bytes(), BasicProperties::default()));
                *number += 1;
            }
        }
        self.broker.publish(self.name, messages).await;
    }

    fn replica(&self, place: usize) -> Daemon {
        self.replica_with(place, "fair_by = \"{{ body.tenant }}\"\n")
    }

    fn replica_with(&self, place: usize, fair: &str) -> Daemon {
        let mut route = Route::new(self.name, self.provider.address());
        route.caller = format!("replica {place}");
        route.keys = format!("{fair}{}", self.keys);
        let config = Config {
            rabbit: Some(Rabbit::shared().url()),
            redis: Some(RedisServer::shared().url()),
            prefix: self.name.to_owned(),
            rate: format!("{}/1s", self.rate),
            headroom: "50ms",
            horizon: "200ms",
            routes: vec![route],
            tables: String::new(),
        };
        let named = "x-key = \"{{ body.tenant }}\", x-caller =";
        Daemon::start_with(&config.text().replace("x-caller =", named), |_| {})
    }

    fn count(&self) -> u64 {
        self.published.values().sum::<usize>() as u64
    }

    async fn arrived(&self, count: u64) {
        let what = format!("{count} messages arrived");
        let seen = tokio::time::timeout(
            PATIENCE,
            eventually(PATIENCE * 2, &what, || self.provider.live().unique >= count),
        );
        if seen.await.is_err() {
            let logs: Vec<_> = self.replicas.iter().map(Daemon::log).collect();
            let queues = ["-q", "list_queues", "name", "messages_ready"];
            let queues =
                Rabbit::shared().ctl(&[&queues[..], &["messages_unacknowledged"]].concat());
            panic!(
                "not {what}: {:?}\n{queues}\n{}",
                self.provider.live(),
                logs.join("\n\n")
            );
        }
    }

    /// Waits for the rest and stops everything: nothing over, nothing lost, nothing left behind.
    async fn finish(mut self, declared: &[&str]) -> (Report, Vec<(Mono, usize)>) {
        self.arrived(self.count()).await;
        if self.provider.live().over > 0 {
            for replica in &mut self.replicas {
                let (_, page) = replica.page("/metrics").await;
                let told = page.lines().filter(|line| {
                    ["lateness", "missed", "clock", "guarded"]
                        .iter()
                        .any(|part| line.contains(part))
                });
                eprintln!("{}\n", told.collect::<Vec<_>>().join("\n"));
            }
        }
        for replica in self.replicas.drain(..) {
            replica.stop(declared).await;
        }
        let all = self.published.iter();
        let ids = all.flat_map(|(tenant, count)| (0..*count).map(|n| id(*tenant, n)));
        let report = self.provider.report(&Expect::Ids(ids.collect()));
        assert_eq!((report.over, report.lost), (0, Some(0)), "{report:?}");
        assert_eq!(report.unexpected, 0, "{report:?}");
        for queue in (0..8).map(|space| format!("{}.parked.{space}", self.name)) {
            let counts = self.broker.counts(&queue).await;
            assert_eq!(counts.map_or(0, |counts| counts.0), 0, "{queue}");
        }
        let calls = self.provider.keyed().into_iter();
        let calls = calls.map(|(at, key)| (at, key[1..].parse().unwrap()));
        (report, calls.collect())
    }
}

fn id(tenant: usize, number: usize) -> String {
    format!("{tenant}-{number}")
}

/// From the first call of the last tenant that shows up until the first one has a tenth of its calls
/// left: the last few of a tenant are not on every replica.
fn together(calls: &[(Mono, usize)], tenants: std::ops::Range<usize>) -> (Mono, Mono) {
    let of = |tenant: usize| -> Vec<_> {
        let own = calls.iter().filter(|(_, of)| *of == tenant);
        own.map(|(at, _)| *at).collect()
    };
    let own: Vec<_> = tenants.map(of).collect();
    let first = own.iter().map(|calls| calls[0]).max().unwrap();
    let last = own.iter().map(|calls| calls[calls.len() * 9 / 10]).min();
    (first, last.unwrap())
}

/// Calls of each tenant from `start` to `end`.
fn shares(calls: &[(Mono, usize)], (start, end): (Mono, Mono)) -> BTreeMap<usize, f64> {
    let mut shares = BTreeMap::new();
    for (_, tenant) in calls.iter().filter(|(at, _)| (start..end).contains(at)) {
        *shares.entry(*tenant).or_default() += 1.0;
    }
    shares
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_times_the_backlog_in_front_leaves_the_others_their_share() {
    const OTHERS: usize = 100;
    let _turn = TURN.lock().await;
    let mut fair = Fair::prepare("fair", 400, "").await;
    fair.publish(&vec![(0, 100 * OTHERS)]).await;
    // In an order of no pattern: each comes a while after the one before it, by a step that has no
    // factor in common with their number.
    let order = (0..9 * OTHERS).map(|n| (1 + (n * 7 + n / 9) % 9, 1));
    fair.publish(&order.collect()).await;
    let still = Still::watch(fair.provider.clock());
    fair.replicas = (0..3).map(|place| fair.replica(place)).collect();
    let (report, calls) = fair.finish(&[NEW_SCHEDULE]).await;
    let still = still.end().and_then(HEADROOM);
    assert_eq!(report.repeated, 0, "{report:?}");

    let (start, end) = together(&calls, 1..10);
    let shares = shares(&calls, (start, end));
    eprintln!("{shares:?} from {start:?} to {end:?}");
    let fair_share = shares.values().sum::<f64>() / 10.0;
    assert!(fair_share >= 60.0, "enough to tell: {shares:?}");
    for tenant in 1..10 {
        let share = shares[&tenant] / fair_share;
        assert!((0.95..=1.05).contains(&share), "{tenant}: {shares:?}");
    }
    // Then the one has all of it.
    let alone: Vec<_> = calls.iter().filter(|(at, _)| *at > end).collect();
    let others = alone.iter().filter(|(_, tenant)| *tenant != 0).count();
    let last = alone.last().unwrap().0;
    let calls = alone.iter().map(|(at, _)| *at);
    let used = still.pace(calls, end, last) / 400.0 / LEFT;
    eprintln!("{} alone, {others} others among them: {used}", alone.len());
    assert!(
        used >= 0.97,
        "{used} of what the headroom leaves; it stood still at {:?}",
        stood_still(&alone)
    );
}

/// When nothing came for 50 ms and more, and for how long.
fn stood_still(calls: &[&(Mono, usize)]) -> Vec<(Mono, Duration)> {
    let gaps = calls.windows(2);
    let gaps = gaps.map(|pair| (pair[0].0, pair[1].0.since(pair[0].0)));
    gaps.filter(|(_, gap)| *gap >= Duration::from_millis(50))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weights_are_shares() {
    let _turn = TURN.lock().await;
    let keys = "weights = { t1 = 3 }\n";
    let mut fair = Fair::prepare("fair-weights", 400, keys).await;
    fair.publish(&vec![(0, 2_000), (1, 900)]).await;
    fair.replicas = (0..3).map(|place| fair.replica(place)).collect();
    let (report, calls) = fair.finish(&[NEW_SCHEDULE]).await;
    assert_eq!(report.repeated, 0, "{report:?}");
    let shares = shares(&calls, together(&calls, 1..2));
    eprintln!("{shares:?}");
    let share = shares[&1] / (shares[&0] + shares[&1]);
    assert!((0.7125..=0.7875).contains(&share), "{shares:?}");
}

/// What a replica has parked, safely.
async fn parked(replica: &mut Daemon, name: &str) -> f64 {
    let series = format!("sluiced_settled_total{{route=\"{name}\",verdict=\"parked\"}}");
    replica.metric(&series).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_killed_while_it_parks_loses_nothing() {
    let _turn = TURN.lock().await;
    let name = "fair-killed";
    let mut fair = Fair::prepare(name, 400, "").await;
    let others = (0..450).map(|n| (1 + n % 9, 1));
    fair.publish(&std::iter::once((0, 3_500)).chain(others).collect())
        .await;
    fair.replicas = (0..3).map(|place| fair.replica(place)).collect();
    for place in [0, 2] {
        fair.replicas[place].ready().await;
        while parked(&mut fair.replicas[place], name).await < 100.0 {
            tokio::task::yield_now().await;
        }
        let next = fair.replica(place);
        let old = std::mem::replace(&mut fair.replicas[place], next);
        old.kill(&[NEW_SCHEDULE]).await;
    }
    let (report, _) = fair.finish(&[NEW_SCHEDULE]).await;
    // Copies that were confirmed and calls that were made, and not yet acknowledged.
    assert!(report.repeated <= 400, "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_stays_parked_when_tenants_do_not_share_any_more() {
    let _turn = TURN.lock().await;
    let name = "fair-off";
    let mut fair = Fair::prepare(name, 400, "").await;
    fair.publish(&vec![(0, 4_000), (1, 100)]).await;
    fair.replicas = (0..2).map(|place| fair.replica(place)).collect();
    fair.replicas[0].ready().await;
    while parked(&mut fair.replicas[0], name).await < 500.0 {
        tokio::task::yield_now().await;
    }
    for replica in fair.replicas.drain(..) {
        replica.stop(&[NEW_SCHEDULE]).await;
    }
    fair.keys = "";
    fair.replicas = (0..2).map(|place| fair.replica_with(place, "")).collect();
    let first = &fair.replicas[0];
    first
        .says("parked queues of an earlier configuration")
        .await;
    let mut check = program(&["check", "--connect", "--config"]);
    let said = check.arg(first.config()).output().unwrap();
    let said = String::from_utf8([said.stdout, said.stderr].concat()).unwrap();
    assert!(said.contains("stand parked in fair-off.parked."), "{said}");
    let (report, _) = fair.finish(&[NEW_SCHEDULE]).await;
    assert_eq!(report.repeated, 0, "{report:?}");
}
