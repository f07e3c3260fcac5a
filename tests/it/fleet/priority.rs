//! One in a hundred messages is urgent: how long from publishing to its call, while bulk has a
//! backlog and the limit is used up.

use std::time::Duration;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use sluiced::core::time::Mono;
use sluiced::proof::provider::{Behaviour, Provider};
use tokio::time::sleep;

use super::TURN;
use crate::support::broker::Broker;
use crate::support::daemon::LONG;
use crate::support::daemon::{Config, Daemon, NEW_SCHEDULE, Route};
use crate::support::rabbit::Rabbit;
use crate::support::redis::RedisServer;
use crate::support::still::{Standstills, Still};
use crate::support::wait::eventually;

const RATE: u64 = 400;
/// A replica has its slots in runs, and the runs of all fill the horizon: whoever comes right after one
/// waits for the next, which is a little more than the horizon away. With a reserve nobody does.
const SHORT: &str = "60ms";
/// So many of them are judged, that one may be unlucky.
const URGENT: usize = 100;
/// So many more are published at most, for those during which the machine stood still.
const MORE: usize = 25;
/// A call may be so late.
const HEADROOM: Duration = Duration::from_millis(15);
/// No two of them at the same place of anything that goes round.
const EVERY: Duration = Duration::from_millis(163);
/// More than is sent while they are measured.
const BULK: usize = 9_000;

/// Where the urgent ones stand.
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

impl Scene {
    fn config(&self, provider: &Provider) -> String {
        let route = |(queue, keys): (&str, &str)| {
            let mut route = Route::new(queue, provider.address());
            route.keys = format!("queue_type = \"classic\"\n{keys}");
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

    /// Times from publishing to the call, in order of length; without those in which the machine stood
    /// still.
    async fn measure(&self) -> Vec<Duration> {
        let _turn = TURN.lock().await;
        let behaviour = Behaviour::judging(format!("{RATE}/1s").parse().unwrap());
        let provider = Provider::start("127.0.0.1:0".parse().unwrap(), behaviour).unwrap();
        let broker = Broker::connect(&Rabbit::shared().url()).await;
        let queue = self.urgent.0;
        for queue in std::iter::once(queue).chain(self.bulk) {
            let mut arguments = FieldTable::default();
            arguments.insert("x-max-priority".into(), AMQPValue::LongLongInt(9));
            broker.declare_with(queue, "classic", arguments).await;
        }
        let bulk = (0..BULK).map(|n| message(&format!("b{n}"), 0));
        broker.publish(self.bulk.unwrap_or(queue), bulk).await;
        let text = self.config(&provider);
        let replicas: Vec<_> = (0..3).map(|_| Daemon::start_with(&text, |_| {})).collect();
        let flows = || provider.live().unique > RATE;
        eventually(LONG, "bulk flows", flows).await;

        let clock = provider.clock();
        let still = Still::watch(clock);
        let mut published = Vec::new();
        // From publishing to the call, of those that were called.
        let spans = |published: &[Mono]| {
            let calls = provider.keyed().into_iter();
            let spans = calls.filter_map(|(at, key)| {
                let number: usize = key.strip_prefix('u')?.parse().ok()?;
                Some((published[number], at))
            });
            spans.collect::<Vec<_>>()
        };
        let stood = |spans: &[(Mono, Mono)], still: &Standstills| {
            let stood = spans.iter().filter(|(from, to)| still.touch(*from, *to));
            stood.count()
        };
        while published.len() < URGENT
            || published.len() < URGENT + stood(&spans(&published), &still.seen()).min(MORE)
        {
            // The distance of the publishes is what makes them one in a hundred.
            sleep(EVERY).await;
            published.push(clock.now());
            let message = message(&format!("u{}", published.len() - 1), 9);
            broker.publish(queue, [message]).await;
        }
        eventually(LONG, "all urgent ones are sent", || {
            spans(&published).len() >= published.len()
        })
        .await;
        assert!(
            provider.live().unique < BULK as u64,
            "bulk had a backlog to the end"
        );
        for replica in replicas {
            replica.stop(&[NEW_SCHEDULE]).await;
        }
        assert_eq!(provider.live().over, 0);
        for queue in std::iter::once(queue).chain(self.bulk) {
            broker.delete(queue).await;
        }
        let still = still.end().and_then(HEADROOM);
        let spans = spans(&published);
        let judged = spans.iter().filter(|(from, to)| !still.touch(*from, *to));
        let mut took: Vec<_> = judged.map(|(from, to)| to.since(*from)).collect();
        eprintln!("{} of {} count: {still:?}", took.len(), published.len());
        assert!(took.len() >= URGENT / 2, "too few to judge: {still:?}");
        took.sort_unstable();
        took
    }

    async fn is_quick(&self) {
        let took = self.measure().await;
        let at = |percent: usize| took[(took.len() * percent).div_ceil(100) - 1];
        // Of fewer than a hundred one may be unlucky too.
        let p99 = at(99).min(took[took.len() - 2]);
        eprintln!(
            "{}: p50 {:?}, p90 {:?}, p99 {p99:?}",
            self.name,
            at(50),
            at(90)
        );
        assert!(p99 < Duration::from_millis(100), "{took:?}");
    }
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
    scene.is_quick().await;
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
    scene.is_quick().await;
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
    scene.is_quick().await;
}
