//! The fault table: each row is a fault in full flow, on real servers and real replicas, and its result.
//!
//! A drill publishes messages, waits until they flow, applies the fault, ends it, and waits until every
//! message is accounted for: delivered, or dead with a reason. Then it checks the sums (`books`): none lost,
//! none over in any sliding window, none twice but those whose answer was unknown. The time until 99 % of the
//! rate was reached again is recorded and not asserted: a busy machine may take longer.
//!
//! Each row is a short function. With `SLUICED_DRILLS` each appends itself to that file, from which
//! `tests/reliability` makes the table in `docs/reliability.md`.

mod books;
mod downstream;
mod host;
mod incidents;
mod messages;
mod proven;
mod rabbitmq;
mod redis;
mod replica;
mod row;
mod smpp;
mod soak;

use std::time::Duration;

use lapin::BasicProperties;
use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use crate::fleet::{Fleet, PATIENCE, Plan};
use crate::support::broker::Broker;
use crate::support::daemon::Daemon;
use crate::support::machine;
use crate::support::proxy::Proxy;
use crate::support::soak::soak;
use crate::support::wait::eventually;
use books::Books;
use row::Row;

/// This many messages wait when a fault begins, and when it has ended: two seconds of the rate.
const BACKLOG: u64 = 400;
/// This many have arrived before a fault begins.
const FLOWS: u64 = 80;
/// This many recipients, in turns.
const RECIPIENTS: u64 = 20;

/// What a drill runs on: two hundred calls a second, on the servers that all tests share.
fn plan(row: &'static str) -> Plan {
    let name = format!("drill-{}", row.replace("::", "-").replace('_', "-"));
    Plan {
        // One for each row.
        name: name.leak(),
        marked: "{{ message_id }} REPLICA\", x-message-id = \"{{ message_id }}",
        takes: machine::share,
        ..Plan::of("drill")
    }
}

/// With a limit of each recipient, which leaves room.
fn keyed(plan: Plan) -> Plan {
    Plan {
        limits: &["provider", "recipient"],
        tables: "[limits.recipient]\nkind = \"sliding_log\"\nrate = \"15/1s\"\nheadroom = \"100ms\"\n\
                 key = \"{{ body.to }}\"\n",
        ..plan
    }
}

/// The length of a fault, in the short and in the long variant. This waits for nothing: it is the fault
/// itself.
async fn lasts(short: f64, long: f64) -> f64 {
    let seconds = if soak() { long } else { short };
    sleep(Duration::from_secs_f64(seconds)).await;
    seconds
}

/// One row, while it runs.
pub(crate) struct Drill {
    row: Row,
    fleet: Fleet,
    /// The names of the fleet's replicas, in their order.
    names: Vec<String>,
    books: Books,
    /// This many messages wait when the fault begins, and when it has ended.
    backlog: u64,
    began: Instant,
    ended: Instant,
}

impl Drill {
    /// A fleet without replicas and without messages.
    async fn prepare(row: &'static str, fault: &'static str, plan: Plan) -> Self {
        let limited = plan.limits.contains(&"recipient");
        let fleet = plan.prepare().await;
        let now = Instant::now();
        Self {
            row: Row::of(row, fault),
            fleet,
            names: Vec::new(),
            books: Books::new(limited.then_some(15)),
            backlog: BACKLOG,
            began: now,
            ended: now,
        }
    }

    /// This many replicas, in full flow.
    async fn start(row: &'static str, fault: &'static str, plan: Plan, replicas: usize) -> Self {
        let mut drill = Self::prepare(row, fault, plan).await;
        drill.flow(replicas).await;
        drill
    }

    /// Adds this many replicas, and waits until messages flow.
    async fn flow(&mut self, replicas: usize) {
        self.feed(self.backlog).await;
        self.add(replicas);
        self.arrive(FLOWS).await;
    }

    /// Waits until this many more messages have arrived. On a busy machine all may have arrived already: then
    /// more are published first.
    async fn arrive(&mut self, more: u64) {
        self.feed(more).await;
        let count = self.fleet.provider.live().unique + more;
        let what = format!("{count} messages arrived");
        let arrived = eventually(PATIENCE * 2, &what, || {
            self.fleet.provider.live().unique >= count
        });
        if tokio::time::timeout(PATIENCE, arrived).await.is_err() {
            panic!("not {what}\n{}", self.logs());
        }
    }

    fn add(&mut self, replicas: usize) {
        for _ in 0..replicas {
            self.names.push(format!("replica {}", self.fleet.started));
            self.fleet.add(1);
        }
    }

    /// Publishes until this many messages wait to be sent.
    async fn feed(&mut self, backlog: u64) {
        let sent = self.books.sent(&self.fleet.provider);
        let waiting = self.books.count().saturating_sub(sent);
        let first = self.books.count() + 1;
        let bodies = (0..backlog.saturating_sub(waiting)).map(|n| {
            let n = first + n;
            let body = format!("{{\"id\":{n},\"to\":\"r{}\"}}", n % RECIPIENTS);
            (n.to_string(), body.into_bytes(), BasicProperties::default())
        });
        self.publish(bodies.collect()).await;
    }

    /// Publishes messages with these ids.
    async fn publish(&mut self, messages: Vec<(String, Vec<u8>, BasicProperties)>) {
        let named = messages.into_iter().map(|(id, body, properties)| {
            let properties = properties.with_message_id(id.as_str().into());
            self.books.published(id);
            (body, properties)
        });
        let named: Vec<_> = named.collect();
        self.fleet.broker.publish(self.fleet.plan.name, named).await;
    }

    /// The fault begins now.
    fn begins(&mut self) {
        self.began = Instant::now();
    }

    /// The fault has ended: from now on the time until the rate is back is measured. There are enough
    /// messages for it.
    async fn ends(&mut self) {
        self.ended = Instant::now();
        self.feed(self.backlog).await;
    }

    /// Calls that were made while the fault lasted may have no answer, or none that reached RabbitMQ.
    fn answers_unknown(&mut self) {
        self.answers_unknown_and(Duration::ZERO);
    }

    /// The same, and calls that were made for this long after it.
    fn answers_unknown_and(&mut self, more: Duration) {
        self.books.excuse(None, self.began, self.ended + more);
    }

    /// Messages that the replicas had called and not acknowledged when they lost RabbitMQ, now or before,
    /// come again.
    fn cut_off(&mut self) {
        self.books.excuse(None, self.began, Instant::now());
    }

    /// Takes one of the replicas out of the fleet.
    fn take(&mut self, place: usize) -> (String, Daemon) {
        (self.names.remove(place), self.fleet.replicas.remove(place))
    }

    /// Kills one of the replicas (SIGKILL). Messages that it had called and not acknowledged come again.
    async fn kill(&mut self, place: usize, declared: &[&str]) {
        let (name, replica) = self.take(place);
        let before = Instant::now();
        replica.kill(declared).await;
        self.books.excuse(Some(name), before, Instant::now());
    }

    fn signal(&self, place: usize, signal: Signal) {
        self.fleet.replicas[place].signal(signal);
    }

    /// A step of the provider's script: what it does for a while.
    fn script(&self, step: serde_json::Value) {
        let step = serde_json::from_value(step).expect("a step");
        self.fleet.provider.script(step).expect("room for it");
    }

    /// Replicas that start from now on reach Redis through this.
    async fn redis_by_proxy(&mut self) -> Proxy {
        let proxy = Proxy::to(self.fleet.servers.redis().port()).await;
        self.fleet.via.redis = Some(format!("redis://127.0.0.1:{}/0", proxy.port()));
        proxy
    }

    /// Replicas that start from now on reach RabbitMQ through this.
    fn rabbit_by(&mut self, proxy: &Proxy) {
        self.fleet.via.rabbit = Some(proxy.amqp());
    }

    /// With a connection of the drill's own to a broker that was restarted.
    async fn reconnect(&mut self) {
        self.fleet.broker = Broker::connect(&self.fleet.servers.rabbit().url()).await;
    }

    fn logs(&self) -> String {
        let logs: Vec<_> = self.fleet.replicas.iter().map(Daemon::log).collect();
        logs.join("\n\n")
    }

    /// Waits until every message is accounted for, stops everything, writes the row, and checks it against
    /// the promises. `done` describes what was done.
    async fn proves(mut self, done: impl Into<String>, declared: &[&str]) -> Books {
        let accounted = self.accounted(PATIENCE).await;
        let logs = self.logs();
        for replica in self.fleet.replicas.drain(..) {
            replica.stop(declared).await;
        }
        self.books.look_for_waiting(&self.fleet).await;
        self.books.read(&self.fleet.provider);
        let sums = self.books.sums();
        let seconds = self.books.recovery(self.ended, self.fleet.plan.headroom);
        self.row.write(&done.into(), &sums, seconds);
        assert!(accounted, "not all is accounted for: {sums:?}\n{logs}");
        assert!(sums.hold(), "{sums:?}\n{logs}");
        self.books
    }

    /// Waits until each message was taken or is dead; returns whether all were in that time.
    async fn accounted(&mut self, bound: Duration) -> bool {
        let end = Instant::now() + bound;
        let dead = format!("{}.dead", self.fleet.plan.name);
        loop {
            if self
                .fleet
                .broker
                .counts(&dead)
                .await
                .is_some_and(|(ready, _)| ready > 0)
            {
                self.fleet.broker.reads_dead_letters(&dead).await;
                for letter in self.fleet.broker.drain(&dead).await {
                    self.books.buried(&letter);
                }
            }
            if self.books.all_ended(&self.fleet.provider)
                && self.books.none_waits(&self.fleet).await
            {
                return true;
            }
            if Instant::now() > end {
                return false;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}
