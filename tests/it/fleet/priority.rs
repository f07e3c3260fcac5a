//! One in a hundred messages is urgent, while bulk has a backlog and the limit is used up.
//!
//! The time from publishing an urgent message to its call is printed; the bench `latency` measures it.
//! The tests assert how many of the backlog were called meanwhile: that depends little on how fast
//! the machine is.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use sluiced_core::time::Mono;
use sluiced_ports::clock;
use sluiced_provider::{Behaviour, Provider};
use tokio::time::sleep;

use crate::support::broker::Broker;
use crate::support::daemon::LONG;
use crate::support::daemon::{Config, Daemon, NEW_SCHEDULE, Route};
use crate::support::machine;
use crate::support::rabbit::Rabbit;
use crate::support::redis::RedisServer;
use crate::support::soak::at_length;
use crate::support::wait::eventually;

const RATE: u64 = 400;
/// A replica has its slots in runs, and the runs of all fill the horizon: a message that comes right
/// after one waits for the next, which is a little more than the horizon away. With a reserve none does.
const SHORT: &str = "60ms";
/// No two of them at the same point of any cycle.
const EVERY: Duration = Duration::from_millis(163);
/// In its turn in the queue an urgent one would wait for all of these: as many are added as were called.
const BACKLOG: usize = 6_000;

/// This many of bulk may be called between the confirm of an urgent one and its call: those of two seconds.
const MOST: usize = 2 * RATE as usize;

/// Where the broker stands still for seconds (its disk is slow), what it delivered before goes on:
/// this many messages for each of three replicas. All of them together are fewer than [`MOST`].
const PREFETCH: usize = 100;

/// A test: which queue the urgent messages are in, and the limit.
struct Scene {
    name: &'static str,
    /// Their queue, with that much more of the route's keys; bulk's too if there is no other.
    urgent: (&'static str, &'static str),
    bulk: Option<&'static str>,
    /// How far ahead slots are leased.
    horizon: &'static str,
    /// More of the limit's keys.
    keys: &'static str,
}

/// When an urgent message was published, and when the broker had confirmed it.
struct Published {
    at: Mono,
    confirmed: Mono,
}

/// How long an urgent message took from its publish to its call, and how many bulk messages were
/// called after the broker had confirmed it: a disk that stands still keeps it out of the queue before.
struct Passed {
    took: Duration,
    overtaken_by: usize,
}

impl Scene {
    fn config(&self, provider: &Provider) -> String {
        let route = |(queue, keys): (&str, &str)| {
            let mut route = Route::new(queue, provider.address());
            route.keys = format!("queue_type = \"classic\"\nprefetch = {PREFETCH}\n{keys}");
            route
        };
        let bulk = self.bulk.map(|queue| route((queue, "")));
        let config = Config {
            rabbit: Some(Rabbit::shared().url()),
            redis: Some(RedisServer::shared().url()),
            prefix: self.name.to_owned(),
            rate: format!("{RATE}/1s"),
            headroom: "15ms",
            horizon: self.horizon,
            routes: std::iter::once(route(self.urgent)).chain(bulk).collect(),
            tables: String::new(),
        };
        let limit = format!("horizon = \"{}\"\n", self.horizon);
        let text = config
            .text()
            .replace(&limit, &format!("{limit}{}", self.keys));
        text.replace("x-caller =", "x-key = \"{{ body.id }}\", x-caller =")
    }

    /// Publishes this many urgent messages while bulk flows, and waits for their calls.
    async fn send(&self, urgent: usize) -> Vec<Passed> {
        machine::two();
        let behaviour = Behaviour::judging(format!("{RATE}/1s").parse().unwrap());
        let provider = Provider::start("127.0.0.1:0".parse().unwrap(), behaviour).unwrap();
        let broker = Broker::connect(&Rabbit::shared().url()).await;
        let queue = self.urgent.0;
        let queues: BTreeSet<_> = std::iter::once(queue).chain(self.bulk).collect();
        for queue in &queues {
            let mut arguments = FieldTable::default();
            arguments.insert("x-max-priority".into(), AMQPValue::LongLongInt(9));
            broker.declare_with(queue, "classic", arguments).await;
        }
        let bulk = |numbers: Range<usize>| numbers.map(|n| message(&format!("b{n}"), 0));
        let of_bulk = self.bulk.unwrap_or(queue);
        let mut backlog = BACKLOG;
        broker.publish(of_bulk, bulk(0..backlog)).await;
        let text = self.config(&provider);
        let replicas: Vec<_> = (0..3).map(|_| Daemon::start_with(&text, |_| {})).collect();
        let flows = || provider.live().unique > RATE;
        eventually(LONG, "bulk flows", flows).await;

        let mut published = Vec::new();
        for number in 0..urgent {
            // The time between the publishes makes them one in a hundred.
            sleep(EVERY).await;
            let at = clock::now();
            let message = message(&format!("u{number}"), 9);
            broker.publish(queue, [message]).await;
            let confirmed = clock::now();
            published.push(Published { at, confirmed });
            let wanted = BACKLOG + provider.live().unique as usize;
            broker.publish(of_bulk, bulk(backlog..wanted)).await;
            backlog = wanted;
        }
        let came = || passed(&published, &provider.keyed());
        eventually(LONG, "all urgent ones are sent", || came().len() == urgent).await;
        for replica in replicas {
            replica.stop(&[NEW_SCHEDULE]).await;
        }
        let live = provider.live();
        assert!(
            live.unique < backlog as u64,
            "bulk had a backlog to the end"
        );
        assert_eq!(live.over, 0);
        for queue in queues {
            broker.delete(queue).await;
        }
        came()
    }

    async fn passes_the_backlog(&self) {
        let urgent = at_length(20, 100);
        let passed = self.send(urgent).await;
        let mut took: Vec<_> = passed.iter().map(|one| one.took).collect();
        took.sort_unstable();
        let at = |percent: usize| took[(took.len() * percent).div_ceil(100) - 1];
        let overtaken_by = passed.iter().map(|one| one.overtaken_by).max().unwrap();
        eprintln!(
            "{}: p50 {:?}, p90 {:?}, p99 {:?}, at most {overtaken_by} of bulk in between",
            self.name,
            at(50),
            at(90),
            at(99)
        );
        assert!(overtaken_by <= MOST, "{overtaken_by} of bulk in between");
    }
}

/// The urgent ones among the calls.
fn passed(published: &[Published], calls: &[(Mono, Box<str>)]) -> Vec<Passed> {
    let urgent = calls.iter().enumerate().filter_map(|(place, (at, id))| {
        let published = &published[id.strip_prefix('u')?.parse::<usize>().ok()?];
        let before = calls[..place].iter().rev();
        let between = before.take_while(|(at, _)| *at > published.confirmed);
        Some(Passed {
            took: at.since(published.at),
            overtaken_by: between.filter(|(_, id)| id.starts_with('b')).count(),
        })
    });
    urgent.collect()
}

fn message(id: &str, priority: u8) -> (Vec<u8>, BasicProperties) {
    let body = format!("{{\"id\":\"{id}\"}}");
    let properties = BasicProperties::default().with_priority(priority);
    (body.into_bytes(), properties)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_queue_with_priorities() {
    let scene = Scene {
        name: "urgent-queue",
        urgent: ("urgent-queue", ""),
        bulk: None,
        horizon: SHORT,
        keys: "",
    };
    scene.passes_the_backlog().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_a_route_of_its_own() {
    let scene = Scene {
        name: "urgent-route",
        urgent: ("urgent-route", "priority = 9\n"),
        bulk: Some("urgent-route-bulk"),
        horizon: SHORT,
        keys: "",
    };
    scene.passes_the_backlog().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_a_route_of_its_own_with_a_reserve() {
    let scene = Scene {
        name: "urgent-reserve",
        urgent: ("urgent-reserve", "priority = 9\n"),
        bulk: Some("urgent-reserve-bulk"),
        horizon: "120ms",
        keys: "reserve = \"20%\"\n",
    };
    scene.passes_the_backlog().await;
}
