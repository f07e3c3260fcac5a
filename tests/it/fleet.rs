//! Several real replicas on real servers, judged where their calls arrive: whatever fails, no window is
//! over its limit and no message is lost.
//!
//! The tests assert what holds under any load: none over, none lost, none twice without a reason, order,
//! all delivered. Shares and percentiles are printed; the simulation asserts them, and the benches show
//! them. A fleet takes two shares of the machine, and has servers of its own where it breaks them.

mod amended;
mod binding;
pub(crate) mod control;
mod fair;
mod far;
mod flow;
mod http2;
mod judged;
mod keyed;
mod killed;
pub(crate) mod passwords;
mod priority;
mod smpp;
mod unpaced;
mod upgrade;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lapin::BasicProperties;
use sluiced_provider::{Behaviour, Expect, Provider, Report};

use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, Route};
use crate::support::machine;
use crate::support::rabbit::Rabbit;
use crate::support::redis::RedisServer;
use crate::support::wait::{eventually, eventually_async};

/// The time for everything to arrive, including restarts of servers.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The properties of a fleet, before it starts.
pub(crate) struct Plan {
    /// Of the queue and of the keys in Redis.
    pub(crate) name: &'static str,
    /// Of the limit `provider`, in the replicas' files.
    pub(crate) rate: &'static str,
    /// The provider judges by this; by the rate itself if there is none.
    pub(crate) judged: Option<Behaviour>,
    /// The limits of the route, and their tables where they are others than `provider`.
    pub(crate) limits: &'static [&'static str],
    pub(crate) tables: &'static str,
    /// More keys of the route, and of its downstream.
    pub(crate) keys: &'static str,
    pub(crate) downstream: &'static str,
    /// More keys of other tables: the text to replace in the replicas' files, and the new one.
    pub(crate) settings: Vec<(&'static str, String)>,
    /// A command that ends in becoming the replica; none, if it is empty.
    pub(crate) launcher: Vec<String>,
    /// The provider is called over SMPP.
    pub(crate) smpp: bool,
    /// How late a call may arrive after its slot.
    pub(crate) headroom: &'static str,
    /// The header `x-key`, a template, and more headers behind it: what `Provider::keyed` reports about a
    /// call besides its time. `REPLICA` is the name of the one that calls.
    pub(crate) marked: &'static str,
    /// Where the replicas keep the limit: in Redis, or each in its own memory.
    pub(crate) in_memory: bool,
    /// Servers of its own, because it breaks them.
    pub(crate) own_rabbit: Option<Arc<Rabbit>>,
    pub(crate) own_redis: bool,
    /// And the clock of Redis is the test's.
    pub(crate) clocked: bool,
    /// How much of the machine it takes.
    pub(crate) takes: fn(),
}

impl Plan {
    /// 200 calls a second, on the servers that all tests share.
    pub(crate) fn of(name: &'static str) -> Self {
        Self {
            name,
            rate: "200/1s",
            judged: None,
            limits: &["provider"],
            tables: "",
            // Few enough that every replica has some to send.
            keys: "prefetch = 100\n",
            downstream: "",
            settings: Vec::new(),
            launcher: Vec::new(),
            smpp: false,
            // The machine that runs tests is busy; benchmarks measure how small it can be.
            headroom: "50ms",
            marked: "{{ body.id }}",
            in_memory: false,
            own_rabbit: None,
            own_redis: false,
            clocked: false,
            takes: machine::two,
        }
    }

    /// A fleet without replicas and without messages.
    pub(crate) async fn prepare(self) -> Fleet {
        (self.takes)();
        let judged = self.judged.clone();
        let judged = judged.unwrap_or_else(|| Behaviour::judging(self.rate.parse().unwrap()));
        let provider = Provider::start("127.0.0.1:0".parse().unwrap(), judged).unwrap();
        let servers = Servers {
            rabbit: self.own_rabbit.clone(),
            redis: match (self.clocked, self.own_redis) {
                (true, _) => Some(RedisServer::start_clocked()),
                (false, own) => own.then(RedisServer::start),
            },
        };
        let broker = Broker::connect(&servers.rabbit().url()).await;
        broker.declare(self.name, "quorum").await;
        Fleet {
            plan: self,
            servers,
            broker,
            provider,
            via: Via::default(),
            replicas: Vec::new(),
            started: 0,
            ids: Vec::new(),
        }
    }

    /// With this many replicas on a queue of `count` messages.
    async fn start(self, replicas: usize, count: u64) -> Fleet {
        let mut fleet = self.prepare().await;
        fleet.publish((1..=count).map(|n| (id(n), "any"))).await;
        fleet.add(replicas);
        fleet
    }
}

/// The servers that all tests share, or a fleet's own.
pub(crate) struct Servers {
    pub(crate) rabbit: Option<Arc<Rabbit>>,
    pub(crate) redis: Option<RedisServer>,
}

/// Where replicas that start from now on find the servers, if not at their own addresses.
#[derive(Default)]
pub(crate) struct Via {
    pub(crate) rabbit: Option<String>,
    pub(crate) redis: Option<String>,
    pub(crate) provider: Option<SocketAddr>,
}

impl Servers {
    pub(crate) fn rabbit(&self) -> &Rabbit {
        self.rabbit.as_deref().unwrap_or_else(|| Rabbit::shared())
    }

    pub(crate) fn redis(&self) -> &RedisServer {
        self.redis.as_ref().unwrap_or_else(|| RedisServer::shared())
    }
}

/// Replicas, the provider that they call, and the messages that they send.
pub(crate) struct Fleet {
    pub(crate) plan: Plan,
    pub(crate) servers: Servers,
    pub(crate) broker: Broker,
    pub(crate) provider: Provider,
    pub(crate) via: Via,
    pub(crate) replicas: Vec<Daemon>,
    /// Replicas so far, including those that have ended: each has its own name.
    pub(crate) started: usize,
    /// Of all messages that were published.
    ids: Vec<String>,
}

impl Fleet {
    /// Messages, each with an id and a recipient.
    async fn publish(
        &mut self,
        messages: impl IntoIterator<Item = (String, impl std::fmt::Display)>,
    ) {
        let messages = messages.into_iter();
        let named = messages.map(|(id, to)| (id, format!("\"to\":\"{to}\"")));
        self.publish_with(named).await;
    }

    /// Messages with an id and other fields, as JSON.
    async fn publish_with(&mut self, messages: impl IntoIterator<Item = (String, String)>) {
        let mut bodies = Vec::new();
        for (id, fields) in messages {
            let body = format!("{{\"id\":\"{id}\",{fields}}}");
            bodies.push((body.into_bytes(), BasicProperties::default()));
            self.ids.push(id);
        }
        self.broker.publish(self.plan.name, bodies).await;
    }

    /// Starts more replicas.
    pub(crate) fn add(&mut self, replicas: usize) {
        for _ in 0..replicas {
            let replica = self.replica();
            self.replicas.push(replica);
        }
    }

    /// One more, named by when it started: `replica 0`, `replica 1`.
    pub(crate) fn replica(&mut self) -> Daemon {
        let caller = format!("replica {}", self.started);
        let calls = self.via.provider.unwrap_or_else(|| self.provider.address());
        let mut route = Route::new(self.plan.name, calls);
        route.caller.clone_from(&caller);
        route.smpp = self.plan.smpp;
        route.limits = self.plan.limits.to_vec();
        route.keys = self.plan.keys.to_owned();
        route.downstream = self.plan.downstream.to_owned();
        self.started += 1;
        let redis = || {
            let via = self.via.redis.clone();
            via.unwrap_or_else(|| self.servers.redis().url())
        };
        let redis = (!self.plan.in_memory).then(redis);
        let rabbit = self.via.rabbit.clone();
        let config = Config {
            rabbit: Some(rabbit.unwrap_or_else(|| self.servers.rabbit().url())),
            redis,
            prefix: self.plan.name.to_owned(),
            rate: self.plan.rate.to_owned(),
            headroom: self.plan.headroom,
            horizon: "200ms",
            routes: vec![route],
            tables: self.plan.tables.to_owned(),
        };
        let marked = self.plan.marked.replace("REPLICA", &caller);
        // A header, or the parameter that stands for it.
        let header = format!("x-key = \"{marked}\", x-caller =");
        let parameter = format!("0x1404 = \"{marked}\", 0x1403 =");
        let text = config.text().replace("x-caller =", &header);
        let text = text.replace("0x1403 =", &parameter);
        let settings = self.plan.settings.iter();
        let text = settings.fold(text, |text, (old, new)| text.replacen(old, new, 1));
        if self.plan.launcher.is_empty() {
            return Daemon::start_with(&text, |_| {});
        }
        let launcher: Vec<&str> = self.plan.launcher.iter().map(String::as_str).collect();
        Daemon::start_by(&text, &launcher)
    }

    /// Another replica starts in the place of one, which is returned.
    pub(crate) fn replace(&mut self, place: usize) -> Daemon {
        let next = self.replica();
        std::mem::replace(&mut self.replicas[place], next)
    }

    /// Waits until this many messages have arrived.
    async fn arrived(&self, count: u64) {
        let what = format!("{count} messages arrived");
        self.until(&what, || self.provider.live().unique >= count)
            .await;
    }

    /// Waits until this many calls have arrived, of messages that came before or not.
    async fn calls(&self, count: u64) {
        let what = format!("{count} calls arrived");
        self.until(&what, || self.provider.live().calls >= count)
            .await;
    }

    async fn until(&self, what: &str, arrived: impl FnMut() -> bool) {
        let seen = tokio::time::timeout(PATIENCE, eventually(PATIENCE * 2, what, arrived));
        if seen.await.is_err() {
            let logs: Vec<_> = self.replicas.iter().map(Daemon::log).collect();
            let queues = ["-q", "list_queues", "name", "messages_ready"];
            let queues = [&queues[..], &["messages_unacknowledged"]].concat();
            panic!(
                "not {what}: {:?}\n{}\n{}",
                self.provider.live(),
                self.servers.rabbit().ctl(&queues),
                logs.join("\n\n")
            );
        }
    }

    /// Waits for the rest, stops everything, and checks the run against its promises.
    async fn finish(&mut self, declared: &[&str]) -> Report {
        self.arrived(self.ids.len() as u64).await;
        let report = self.stop(declared).await;
        assert_eq!(report.lost, Some(0), "{report:?}");
        assert_eq!(self.left().await, 0);
        report
    }

    /// Stops everything in the middle: messages that did not arrive are in their queue again.
    async fn stop_early(&mut self, declared: &[&str]) -> Report {
        let report = self.stop(declared).await;
        eventually_async(PATIENCE, "the rest is in its queues", || async {
            Some(u64::from(self.left().await)) == report.lost
        })
        .await;
        report
    }

    /// Messages in the work queue, and in the queues where tenants wait for their turn.
    async fn left(&self) -> u32 {
        let parked = (0..8).map(|parked_queue| format!("{}.parked.{parked_queue}", self.plan.name));
        let mut left = 0;
        for queue in std::iter::once(self.plan.name.to_owned()).chain(parked) {
            left += self
                .broker
                .counts(&queue)
                .await
                .map_or(0, |(ready, _)| ready);
        }
        left
    }

    /// Stops all replicas, and returns the result.
    async fn halt(&mut self, declared: &[&str]) -> Report {
        for replica in self.replicas.drain(..) {
            replica.stop(declared).await;
        }
        let report = self.provider.report(&Expect::Ids(self.ids.clone()));
        eprintln!(
            "{}: {} calls, {:?} of the limit used, {} came more than once",
            self.plan.name, report.calls, report.used, report.repeated
        );
        report
    }

    async fn stop(&mut self, declared: &[&str]) -> Report {
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
        let report = self.halt(declared).await;
        assert_eq!((report.over, report.key_over), (0, 0), "{report:?}");
        assert_eq!(report.unexpected, 0, "{report:?}");
        let dead = format!("{}.dead", self.plan.name);
        let dead = self.broker.counts(&dead).await;
        assert_eq!(dead.map_or(0, |(ready, _)| ready), 0);
        report
    }
}

fn id(n: u64) -> String {
    format!("m-{n}")
}
