//! Random faults, one after the other, with messages all the time: for an hour in the long variant.
//!
//! ```sh
//! ./test --soak drills::soak -- --nocapture                # an hour
//! SOAK_SECONDS=600 ./test --soak drills::soak -- --nocapture
//! SOAK_SEED=7 ./test drills::soak -- --nocapture           # the same faults again
//! ```
//!
//! `random_faults` calls messages again whose answer is unknown. `called_once` has a limit of the kind `once` with
//! `dead_letter`, and results: no message is called twice, and each has a result.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rustix::process::Signal;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{Drill, plan};
use crate::fleet::Plan;
use crate::support::broker::Broker;
use crate::support::daemon::{NEW_SCHEDULE, THROTTLED};
use crate::support::proxy::{Mode, Proxy};
use crate::support::rabbit::Rabbit;
use crate::support::redis::Paused;
use crate::support::soak::soak;

/// What replicas may log; everything else, a panic above all, is a failure.
const DECLARED: &[&str] = &[
    NEW_SCHEDULE,
    THROTTLED,
    "lost Redis",
    "cannot connect to Redis",
    "the limit's store is out of reach",
    "learn of each other's news late",
    "nothing is kept on disk",
    "no connection to RabbitMQ",
    "the queue cannot be consumed",
    "copies are not confirmed",
    "RabbitMQ blocks publishing",
    "the downstream is away",
    "only this replica stops",
    "no connection to the downstream yet",
    "only this replica knows of the freeze",
    "verdicts could not be made safe",
    "dead letter",
    // Where each message is called once.
    "hardly leaves time to renew",
    "a call under way is not counted any more",
    "was not written down yet",
    "the store could not be informed",
    "what was not sent counts as if it were",
    "what answers said was not written down",
    "calls under way could not be renewed",
    "grants nothing until",
    "nothing is granted while replicas report",
    "what a late answer granted counts",
];
/// Messages that wait, so that the fleet is never idle.
const BACKLOG: u64 = 1_200;
/// The memory of a replica grows for about three minutes of faults, and then stays: 47 MiB after half a minute, 77
/// after three, 78 after ten.
const SETTLED: Duration = Duration::from_secs(600);
/// It is never more than this, in KiB.
const MOST: u64 = 96 * 1024;
/// A replica that is never killed may take this much more of it in the second half of the time, in KiB, where its
/// memory has settled before.
const GROWTH: u64 = 16 * 1024;
/// Calls give up after this.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A fault, how it is chosen, and what it does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    ReplicaKilled,
    ReplicaStopped,
    ReplicaEnded,
    RedisFrozen,
    RedisFlushed,
    RedisRestarted,
    RedisCut,
    RedisSlow,
    RedisSilent,
    RedisRefuses,
    RabbitCut,
    RabbitSlow,
    RabbitSilent,
    RabbitKilled,
    DownstreamHangs,
    DownstreamCuts,
    DownstreamFails,
    DownstreamThrottles,
    DownstreamSlow,
    MessagesRetried,
}

use Fault::*;

/// Redis loses its state in these, and with it which messages were called.
const FORGETS: [Fault; 2] = [RedisFlushed, RedisRestarted];

const FAULTS: [Fault; 20] = [
    ReplicaKilled,
    ReplicaStopped,
    ReplicaEnded,
    RedisFrozen,
    RedisFlushed,
    RedisRestarted,
    RedisCut,
    RedisSlow,
    RedisSilent,
    RedisRefuses,
    RabbitCut,
    RabbitSlow,
    RabbitSilent,
    DownstreamHangs,
    DownstreamCuts,
    DownstreamFails,
    DownstreamThrottles,
    DownstreamSlow,
    MessagesRetried,
    // Its server is the soak's own only in the long variant.
    RabbitKilled,
];

/// For how long: `SOAK_SECONDS`, else an hour in the long variant.
fn at_random() -> Duration {
    let usual = if soak() { 3_600 } else { 12 };
    Duration::from_secs(number("SOAK_SECONDS").unwrap_or(usual))
}

/// Which faults happen: those of `SOAK_SEED`, else others each time.
fn seed() -> u64 {
    number("SOAK_SEED").unwrap_or_else(rand::random)
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().expect("a whole number"))
}

/// A drill that continues.
struct Soak {
    drill: Drill,
    redis: Proxy,
    rabbit: Proxy,
    dice: StdRng,
    faults: Vec<Fault>,
}

/// Each message is called once, and has a result.
const ONCE: &str = "[limits.repeats]\nkind = \"once\"\nkey = \"{{ message_id }}\"\nttl = \"2h\"\nlease = \"5s\"\n\
                    on_unknown = \"dead_letter\"\nheadroom = \"100ms\"\nlost_wait = \"0s\"\n\
                    [routes.drill-soak-called-once.results]\nrouting_key = \"drill-soak-called-once.results\"\n";
const RESULTS: &str = "drill-soak-called-once.results";

impl Soak {
    async fn start(row: &'static str, seed: u64) -> Self {
        let faults = FAULTS[..FAULTS.len() - usize::from(!soak())].to_vec();
        Self::on(row, plan(row), faults, seed).await
    }

    /// With a limit of the kind `once`; what makes Redis forget is left out.
    async fn start_once(row: &'static str, seed: u64) -> Self {
        let plan = Plan {
            limits: &["provider", "repeats"],
            tables: ONCE,
            ..plan(row)
        };
        let mut faults = FAULTS[..FAULTS.len() - usize::from(!soak())].to_vec();
        faults.retain(|fault| !FORGETS.contains(fault));
        Self::on(row, plan, faults, seed).await
    }

    async fn on(row: &'static str, plan: Plan, faults: Vec<Fault>, seed: u64) -> Self {
        // A connection that is dead is found by its heartbeat. A busy broker that confirms late is not one of the
        // faults: the copy would exist twice.
        let keys =
            "[rabbitmq]\nheartbeat = \"1s\"\nconnect_timeout = \"1s\"\nconfirm_timeout = \"20s\"\n";
        let plan = Plan {
            own_redis: true,
            own_rabbit: soak().then(|| Arc::new(Rabbit::start())),
            downstream: "timeout = \"2s\"\n",
            keys: "prefetch = 100\nmax_hold = \"200ms\"\n",
            settings: vec![
                (
                    "response_timeout = \"5s\"",
                    "response_timeout = \"1s\"".to_owned(),
                ),
                ("[rabbitmq]\n", keys.to_owned()),
            ],
            ..plan
        };
        let once = plan.tables == ONCE;
        let mut drill = Drill::prepare(row, "faults at random", plan).await;
        if once {
            drill.fleet.broker.declare(RESULTS, "quorum").await;
        }
        let redis = drill.redis_by_proxy().await;
        let rabbit = Proxy::to(drill.fleet.servers.rabbit().port()).await;
        drill.rabbit_by(&rabbit);
        drill.flow(3).await;
        Self {
            drill,
            redis,
            rabbit,
            dice: StdRng::seed_from_u64(seed),
            faults,
        }
    }

    async fn any(&mut self) -> Fault {
        let fault = self.faults[self.dice.random_range(0..self.faults.len())];
        let length = Duration::from_millis(self.dice.random_range(100..3_000));
        // The first replica lives on: its memory is watched.
        let place = self.dice.random_range(1..3);
        self.drill.begins();
        match fault {
            ReplicaKilled | ReplicaStopped | ReplicaEnded => {
                self.replica(fault, place, length).await
            }
            RedisFrozen | RedisFlushed | RedisRestarted | RedisCut | RedisSlow | RedisSilent
            | RedisRefuses => self.redis(fault, length).await,
            RabbitCut | RabbitSlow | RabbitSilent | RabbitKilled => {
                self.rabbit(fault, length).await
            }
            _ => self.downstream(fault, length).await,
        }
        self.drill.ends().await;
        if matches!(
            fault,
            RabbitCut | RabbitSlow | RabbitSilent | RabbitKilled | DownstreamHangs | DownstreamCuts
        ) {
            self.drill.answers_unknown();
        }
        fault
    }

    async fn replica(&mut self, fault: Fault, place: usize, length: Duration) {
        match fault {
            ReplicaKilled => self.drill.kill(place, DECLARED).await,
            ReplicaEnded => {
                let (_, old) = self.drill.take(place);
                old.stop(DECLARED).await;
            }
            _ => {
                self.drill.signal(place, Signal::STOP);
                sleep(length).await;
                self.drill.signal(place, Signal::CONT);
                // Answers may have come in time, and be read too late.
                let (name, now) = (self.drill.names[place].clone(), Instant::now());
                let from = self.drill.began - TIMEOUT;
                self.drill.books.excuse(Some(name), from, now);
                return;
            }
        }
        self.drill.add(1);
    }

    async fn redis(&mut self, fault: Fault, length: Duration) {
        let server = self.drill.fleet.servers.redis();
        let millis = Duration::from_millis;
        match fault {
            RedisFrozen => {
                let paused = Paused::new(server.pid());
                sleep(length).await;
                drop(paused);
            }
            RedisFlushed => {
                let flush = redis::cmd("FLUSHALL");
                flush
                    .query::<()>(&mut server.connection())
                    .expect("it is there");
            }
            RedisRestarted => {
                server.kill();
                server.boot();
            }
            RedisCut => self.redis.cut(),
            RedisSlow => passes(&self.redis, Mode::Delay(millis(25), millis(25)), length).await,
            RedisSilent => passes(&self.redis, Mode::Silent, length).await,
            _ => passes(&self.redis, Mode::Refuse, length).await,
        }
    }

    async fn rabbit(&mut self, fault: Fault, length: Duration) {
        let millis = Duration::from_millis;
        match fault {
            RabbitCut => {
                self.rabbit.cut_one();
            }
            RabbitSlow => passes(&self.rabbit, Mode::Delay(millis(25), millis(25)), length).await,
            RabbitSilent => passes(&self.rabbit, Mode::Silent, length).await,
            _ => {
                self.drill.fleet.servers.rabbit().kill();
                self.drill.fleet.servers.rabbit().boot();
                self.drill.reconnect().await;
            }
        }
    }

    async fn downstream(&mut self, fault: Fault, length: Duration) {
        let lasts = format!("{}ms", length.as_millis());
        let step = match fault {
            DownstreamHangs => json!({"act": "hang", "accept": true, "for": lasts}),
            DownstreamCuts => json!({"act": "close", "accept": true, "for": lasts}),
            DownstreamFails => json!({"status": 500, "for": lasts}),
            DownstreamThrottles => json!({"status": 429, "retry_after": "1", "for": lasts}),
            // About the message, not the downstream: through the wait queues.
            MessagesRetried => json!({"status": 408, "count": 30}),
            _ => json!({"delay": "300ms", "for": lasts}),
        };
        self.drill.script(step);
        sleep(length).await;
    }

    /// KiB of memory of the replica that is never killed.
    fn memory(&self) -> u64 {
        self.drill.fleet.replicas[0].memory("VmRSS") >> 10
    }

    /// Faults for this long; returns what was done, and how much memory a replica took.
    async fn runs(&mut self, length: Duration) -> (String, Memory) {
        let begun = Instant::now();
        let (mut faults, mut memory) = (0_usize, Vec::new());
        let mut told = begun;
        while begun.elapsed() < length {
            let fault = self.any().await;
            faults += 1;
            self.drill.feed(BACKLOG).await;
            let quiet = self.dice.random_range(100..1_500);
            sleep(Duration::from_millis(quiet)).await;
            memory.push(self.memory());
            let live = self.drill.fleet.provider.live();
            assert_eq!(live.over, 0, "after {fault:?}: {live:?}");
            if told.elapsed() > Duration::from_secs(30) {
                told = Instant::now();
                let (seconds, kib) = (begun.elapsed().as_secs(), self.memory());
                eprintln!("{seconds} s: {faults} faults, {live:?}, {kib} KiB");
            }
        }
        // Messages that timed out last may come again.
        sleep(TIMEOUT * 2).await;
        let half = memory.len() / 2;
        let most = |part: &[u64]| part.iter().copied().max().unwrap_or(0);
        let (before, after) = (most(&memory[..half]), most(&memory[half..]));
        let done = format!(
            "{faults} faults in {} s; memory of a replica at most {} MiB in the first half, {} MiB in the second",
            length.as_secs(),
            before.div_ceil(1024),
            after.div_ceil(1024)
        );
        let memory = Memory {
            most: before.max(after),
            grown: after.saturating_sub(before),
        };
        (done, memory)
    }
}

/// The memory of a replica, in KiB.
#[derive(Clone, Copy, Debug)]
struct Memory {
    most: u64,
    /// How much more it was in the second half of the time than in the first.
    grown: u64,
}

impl Memory {
    fn is_bounded(self, length: Duration) {
        assert!(self.most <= MOST, "{self:?}");
        assert!(length < SETTLED || self.grown <= GROWTH, "{self:?}");
    }
}

/// Does that for this long, and then passes everything on again.
async fn passes(proxy: &Proxy, mode: Mode, length: Duration) {
    proxy.set(mode);
    sleep(length).await;
    proxy.set(Mode::Pass);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_faults() {
    let (seed, length) = (seed(), at_random());
    eprintln!("SOAK_SEED={seed}, {length:?}");
    let mut soak = Soak::start("soak::random_faults", seed).await;
    let (done, memory) = soak.runs(length).await;
    soak.drill.proves(done, DECLARED).await;
    memory.is_bounded(length);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn called_once() {
    let (seed, length) = (seed(), at_random());
    eprintln!("SOAK_SEED={seed}, {length:?}");
    let mut soak = Soak::start_once("soak::called_once", seed).await;
    let (done, memory) = soak.runs(length).await;
    eprintln!("{memory:?}");
    let server = soak.drill.fleet.servers.rabbit.clone();
    let books = soak.drill.proves(done, DECLARED).await;
    let sums = books.sums();
    assert_eq!(sums.twice, 0, "{sums:?}");
    let url = server.as_deref().unwrap_or_else(|| Rabbit::shared()).url();
    let broker = Broker::connect(&url).await;
    let mut ends: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut copies = 0;
    for (body, _) in broker.drain(RESULTS).await {
        let result: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
        let of = |field: &str| result[field].as_str().unwrap_or_default().to_owned();
        copies += usize::from(
            !ends
                .entry(of("message_id"))
                .or_default()
                .insert(of("verdict")),
        );
    }
    eprintln!("{sums:?}; {copies} results came more than once");
    let missing: Vec<_> = books.ids().filter(|id| !ends.contains_key(*id)).collect();
    assert!(missing.is_empty(), "without a result: {missing:?}");
    let several: Vec<_> = ends.iter().filter(|(_, ends)| ends.len() > 1).collect();
    assert!(several.is_empty(), "with results that differ: {several:?}");
}
