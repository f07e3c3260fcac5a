//! Replicas are killed (SIGKILL) while their messages are counted by key, or by calls in flight: the units
//! that they had taken are lost for a while, but no message is.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use lapin::BasicProperties;
use lapin::types::AMQPValue;
use sluiced_core::time::Mono;
use tokio::time::Instant;

use super::PATIENCE;
use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, NEW_SCHEDULE, Route};
use crate::support::judge::{Made, fullest, repeated_without_reason};
use crate::support::machine;
use crate::support::rabbit::Rabbit;
use crate::support::recorder::{Call, Recorder, Reply, number};
use crate::support::soak::at_length;
use crate::support::wait::eventually;

const SECOND: Duration = Duration::from_secs(1);
/// The prefetch of a replica: this many calls may be unknown to the broker.
const HELD: usize = 100;
/// Which copy for a wait queue a message is. The time alone does not say it: a message whose time has not come waits
/// once more, with the same time. If its replica dies then, both the copy and its original come. So the number, under
/// which the copy was published, counts too.
const COPY: &str = "{{ headers['x-sluiced-not-before'] | default('none') }}/\
                    {{ headers['x-sluiced-copy'] | default('none') }}";
/// What replicas may log here.
const DECLARED: &[&str] = &[
    NEW_SCHEDULE,
    "nothing is kept on disk",
    "hardly leaves time to renew",
    // On a busy machine an answer takes longer than the short lease of a test. The test would
    // still notice more calls than are allowed.
    "a call under way is not counted any more",
    "dead letter",
];

/// Replicas that are killed, and what they call.
struct Mortal {
    config: Config,
    broker: Broker,
    downstream: Recorder,
    began: Instant,
    replicas: Vec<(String, Daemon)>,
    /// Replicas so far: each has its own name.
    started: usize,
    deaths: BTreeMap<String, Range<Mono>>,
}

impl Mortal {
    /// Replicas with these limits, on a queue of messages to this many recipients in turn.
    async fn start(
        name: &str,
        limits: &[&'static str],
        tables: &str,
        messages: (u64, u64),
        latency: Duration,
    ) -> Self {
        machine::two();
        let downstream = Recorder::start(move |_| Reply {
            latency,
            ..Reply::status(202)
        })
        .await;
        let broker = Broker::connect(&Rabbit::shared().url()).await;
        broker.declare(name, "quorum").await;
        let (count, recipients) = messages;
        let messages = (1..=count).map(|n| {
            let body = format!("{{\"n\":{n},\"to\":\"{}\"}}", n % recipients);
            (body.into_bytes(), BasicProperties::default())
        });
        broker.publish(name, messages).await;
        let mut route = Route::new(name, downstream.address);
        route.limits = limits.to_vec();
        route.keys = "prefetch = 100\n".to_owned();
        let mut config = Config::shared(name, "100/1s", vec![route]);
        config.tables = tables.to_owned();
        Self {
            config,
            broker,
            downstream,
            began: Instant::now(),
            replicas: Vec::new(),
            started: 0,
            deaths: BTreeMap::new(),
        }
    }

    fn add(&mut self, replicas: usize) {
        for _ in 0..replicas {
            let name = format!("replica-{}", self.started);
            self.started += 1;
            self.config.routes[0].caller = format!("{{{{ body.to }}}} {name} {COPY}");
            let replica = Daemon::start(&self.config);
            self.replicas.push((name, replica));
        }
    }

    /// Kills the oldest.
    async fn kill(&mut self) {
        let (name, replica) = self.replicas.remove(0);
        let before = self.at(Instant::now());
        replica.kill(DECLARED).await;
        let died = before..self.at(Instant::now());
        self.deaths.insert(name, died);
    }

    fn at(&self, instant: Instant) -> Mono {
        Mono::default() + instant.duration_since(self.began)
    }

    async fn arrived(&self, count: usize) {
        let what = format!("{count} calls");
        let arrived = eventually(PATIENCE * 2, &what, || self.downstream.count() >= count);
        if tokio::time::timeout(PATIENCE, arrived).await.is_err() {
            let logs: Vec<_> = self.replicas.iter().map(|(_, one)| one.log()).collect();
            panic!(
                "{} of {what}\n{}",
                self.downstream.count(),
                logs.join("\n\n")
            );
        }
    }

    /// Waits until each message came, and stops: none is missing, and none came again without a
    /// reason. All calls, in their order.
    async fn finish(&mut self, count: u64) -> Vec<Call> {
        let all: BTreeSet<u64> = (1..=count).collect();
        let came = || self.downstream.numbers();
        eventually(PATIENCE, "all came", || came() == all).await;
        for (_, replica) in self.replicas.drain(..) {
            replica.stop(DECLARED).await;
        }
        let mut calls = self.downstream.calls();
        calls.sort_by_key(|call| call.at);
        let numbers: Vec<_> = calls.iter().map(|call| call.number.to_string()).collect();
        let made = calls.iter().zip(&numbers).map(|(call, number)| Made {
            at: self.at(call.at),
            message: number,
            by: by(call),
            copy: copy_of(call),
        });
        let wrong = repeated_without_reason(made, &self.deaths, HELD);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        let left = self.broker.drain(&self.config.routes[0].queue).await;
        assert_eq!(self.unexplained(&left, &calls), Vec::<&str>::new());
        calls
    }

    /// Messages that are left in the queue without a reason. A replica that is killed may have called a
    /// message that it had not acknowledged: that message comes again, and may come after all others were
    /// called. Or it may have sent a copy away, and not acknowledged the original: both come, and one of them may be
    /// left.
    fn unexplained<'a>(
        &self,
        left: &'a [(Vec<u8>, BasicProperties)],
        calls: &[Call],
    ) -> Vec<&'a str> {
        let dead = |call: &&Call| self.deaths.contains_key(by(call));
        let lost: BTreeSet<u64> = calls.iter().filter(dead).map(|call| call.number).collect();
        let called: BTreeSet<(u64, &str)> = calls
            .iter()
            .map(|call| (call.number, copy_of(call)))
            .collect();
        // No dead replica held more than its prefetch.
        let mut others = HELD * self.deaths.len();
        let mut is_other = |(body, properties): &(Vec<u8>, BasicProperties)| {
            let is_other = !called.contains(&(number(body), left_as(properties).as_str()));
            let explained = is_other && others > 0;
            others -= usize::from(explained);
            explained
        };
        left.iter()
            .filter(|(body, _)| !lost.contains(&number(body)))
            .filter(|one| !is_other(one))
            .map(|(body, _)| std::str::from_utf8(body).unwrap())
            .collect()
    }

    fn times<'a>(&self, calls: impl IntoIterator<Item = &'a Call>) -> Vec<Mono> {
        calls.into_iter().map(|call| self.at(call.at)).collect()
    }
}

/// Which copy a message that is left is, in the words of [`COPY`].
fn left_as(properties: &BasicProperties) -> String {
    let headers = properties.headers().clone().unwrap_or_default();
    let text = |name: &str| match headers.inner().get(name) {
        Some(AMQPValue::LongLongInt(number)) => number.to_string(),
        _ => "none".to_owned(),
    };
    format!(
        "{}/{}",
        text("x-sluiced-not-before"),
        text("x-sluiced-copy")
    )
}

/// Which copy was called.
fn copy_of(call: &Call) -> &str {
    call.caller.rsplit(' ').next().unwrap()
}

/// The replica that made a call.
fn by(call: &Call) -> &str {
    call.caller.split(' ').nth(1).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_of_keys_hold_and_nothing_is_lost() {
    const KEYS: u64 = 20;
    const COUNT: u64 = 500;
    let limit = "[limits.recipient]\nkind = \"sliding_log\"\nrate = \"4/1s\"\nheadroom = \"100ms\"\n\
                 key = \"{{ body.to }}\"\n";
    let limits = ["provider", "recipient"];
    let name = "killed-keys";
    let mut fleet = Mortal::start(name, &limits, limit, (COUNT, KEYS), Duration::ZERO).await;
    fleet.add(3);
    for arrived in [50, 130, 210, 290] {
        fleet.arrived(arrived).await;
        fleet.add(1);
        fleet.kill().await;
    }
    let calls = fleet.finish(COUNT).await;
    let worst = fullest(&fleet.times(&calls), SECOND);
    assert!(worst <= 100, "{worst} in a second");
    for key in 0..KEYS {
        let own = calls.iter().filter(|call| call.number % KEYS == key);
        let worst = fullest(&fleet.times(own), SECOND);
        assert!(worst <= 4, "{worst} to {key} in a second");
    }
}

/// The replicas die with calls in flight. Their units come free when the leases end, although no
/// replica returns them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_in_flight_are_bounded_and_leases_of_the_dead_end_by_themselves() {
    const COUNT: u64 = 150;
    const MOST: usize = 6;
    let latency = Duration::from_millis(150);
    let limit = "[limits.calls]\nkind = \"concurrency\"\nlimit = 6\nlease = \"2s\"\n";
    let mut fleet = Mortal::start("killed-calls", &["calls"], limit, (COUNT, 1), latency).await;
    fleet.add(2);
    fleet.arrived(30).await;
    for _ in 0..2 {
        fleet.kill().await;
    }
    // Dead replicas hold all of the limit, or nearly all: it comes free without them.
    let dead = Instant::now();
    fleet.add(2);
    let calls = fleet.finish(COUNT).await;
    let at_once = fullest(&fleet.times(&calls), latency);
    assert!(at_once <= MOST, "{at_once} at once");
    let after = calls.iter().filter(|call| call.at > dead);
    let at_once = fullest(&fleet.times(after), latency);
    assert_eq!(at_once, MOST, "the whole limit is used again");
}

/// A key of each message. A claim ends six seconds after its replica died.
const REPEATS: &str = "[limits.repeats]\nkind = \"once\"\nkey = \"{{ body.n }}\"\nlease = \"6s\"\n";
fn kills() -> usize {
    at_length(5, 10)
}

fn many() -> u64 {
    at_length(900, 1_800)
}

/// Four replicas, one of which is killed every one and a half seconds, with calls in flight.
async fn killed_in_flow(name: &str, limit: &str) -> Mortal {
    let latency = Duration::from_millis(100);
    let limits = ["provider", "repeats"];
    let mut fleet = Mortal::start(name, &limits, limit, (many(), 1), latency).await;
    fleet.config.routes[0].downstream = "timeout = \"6s\"\n".to_owned();
    fleet.add(4);
    fleet.arrived(50).await;
    for _ in 0..kills() {
        // Not a wait for anything: so often they die.
        tokio::time::sleep(SECOND * 3 / 2).await;
        fleet.add(1);
        fleet.kill().await;
    }
    fleet
}

/// Nothing excuses a repeat here: each message is called at most once. If its replica died, it is a dead letter with
/// the reason unknown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn called_once_and_never_twice_whatever_dies() {
    let name = "killed-once";
    let limit = format!("{REPEATS}on_unknown = \"dead_letter\"\n");
    let mut fleet = killed_in_flow(name, &limit).await;
    let (mut dead, queue) = (BTreeSet::new(), format!("{name}.dead"));
    let all: BTreeSet<u64> = (1..=many()).collect();
    let end = Instant::now() + PATIENCE;
    loop {
        for (body, properties) in fleet.broker.drain(&queue).await {
            let reason = properties.headers().as_ref();
            let reason = reason.and_then(|headers| headers.inner().get("x-sluiced-reason"));
            assert_eq!(reason, Some(&AMQPValue::LongString("unknown".into())));
            dead.insert(number(&body));
        }
        let called = fleet.downstream.numbers();
        if called.union(&dead).count() as u64 == many()
            && fleet.broker.counts(name).await.map(|(ready, _)| ready) == Some(0)
        {
            assert_eq!(&called | &dead, all);
            break;
        }
        assert!(
            Instant::now() < end,
            "{} called, {} dead, of {}",
            called.len(),
            dead.len(),
            many()
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for (_, replica) in fleet.replicas.drain(..) {
        // This test itself empties the queue of the dead letters, and a replica may look at it just then.
        let emptied = ["messages are gone from a queue, and `sluiced dead` took none"];
        replica.stop(&[DECLARED, &emptied].concat()).await;
    }
    let mut times: BTreeMap<u64, usize> = BTreeMap::new();
    for call in fleet.downstream.calls() {
        *times.entry(call.number).or_default() += 1;
    }
    let twice: Vec<_> = times.iter().filter(|(_, times)| **times > 1).collect();
    eprintln!(
        "{} kills, {} messages: {} called, {} unknown, {} of them called",
        kills(),
        many(),
        times.len(),
        dead.len(),
        dead.iter().filter(|one| times.contains_key(one)).count()
    );
    assert!(twice.is_empty(), "{twice:?}");
}

/// With `resend` none is lost, and a message comes again only if its replica died.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn called_again_where_it_is_unknown_and_none_is_lost() {
    let limit = format!("{REPEATS}on_unknown = \"resend\"\n");
    let mut fleet = killed_in_flow("killed-again", &limit).await;
    let calls = fleet.finish(many()).await;
    let (kills, many) = (kills(), many());
    eprintln!("{kills} kills, {many} messages: {} calls", calls.len());
}
