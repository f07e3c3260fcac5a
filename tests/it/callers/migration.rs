//! A migration without a cut, as `docs/migration.md` shows it: old workers and replicas on one limit. Three workers of
//! Celery ask for permits, two replicas consume a queue, and one of each is killed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lapin::BasicProperties;
use sluiced_core::time::Mono;
use sluiced_ports::clock;
use sluiced_provider::{Behaviour, Expect, Provider};

use super::workers::{CELERY_PACED, Place, Worker};
use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route};
use crate::support::judge::{Made, repeated_without_reason};
use crate::support::machine;
use crate::support::rabbit::Rabbit;
use crate::support::soak::at_length;
use crate::support::wait::{eventually, eventually_async};

const RATE: &str = "400/1s";
/// The prefetch of a replica. A worker of Celery holds fewer: two for each of its 8 threads.
const HELD: usize = 100;
/// This many calls of each: then all of them work.
const WORKS: u64 = 5;

fn replica(name: &str, caller: &str, provider: &Provider, socket: &Path) -> Daemon {
    let route = Route {
        keys: format!("prefetch = {HELD}\n"),
        caller: caller.to_owned(),
        ..Route::new(name, provider.address())
    };
    let mut config = Config::shared(name, RATE, vec![route]);
    config.tables = format!(
        "[callers.old]\nlisten = \"unix:{}\"\nlimits = [\"provider\"]\n",
        socket.display()
    );
    let text = config.text();
    // The default of both.
    let text = text.replace("headroom = \"50ms\"\nhorizon = \"200ms\"\n", "");
    let headers = "x-message-id = \"{{ message_id }}\", x-key =";
    let key = format!("{headers} \"{caller} {{{{ message_id }}}}\", x-caller =");
    Daemon::start_with(&text.replace("x-caller =", &key), |_| {})
}

/// The old workers and the replicas, which share one limit.
struct Migration {
    workers: Vec<Worker>,
    replicas: Vec<Daemon>,
    provider: Provider,
    broker: Broker,
    /// The queue of the replicas, and that of the workers.
    messages: &'static str,
    tasks: String,
    /// The sockets of the replicas.
    sockets: [PathBuf; 2],
    _dir: tempfile::TempDir,
}

impl Migration {
    /// Two replicas that are ready, and three workers that consume.
    async fn start(name: &'static str) -> Self {
        let judging = Behaviour::judging(RATE.parse().unwrap());
        let provider = Provider::start("127.0.0.1:0".parse().unwrap(), judging).unwrap();
        let broker = Broker::connect(&Rabbit::shared().url()).await;
        broker.declare(name, "quorum").await;
        let dir = tempfile::tempdir().unwrap();
        let sockets = [0, 1].map(|n| dir.path().join(format!("{n}.sock")));
        let mut replicas = Vec::new();
        for (number, socket) in sockets.iter().enumerate() {
            replicas.push(replica(name, &format!("r{number}"), &provider, socket));
        }
        for replica in &mut replicas {
            replica.ready().await;
        }
        let mut migration = Self {
            workers: Vec::new(),
            replicas,
            provider,
            broker,
            messages: name,
            tasks: format!("{name}.celery"),
            sockets,
            _dir: dir,
        };
        for number in 0..3 {
            let place = migration.place_of_worker(number);
            migration.workers.push(CELERY_PACED.start(&place));
        }
        eventually_async(LONG * 2, "the workers consume", || async {
            let counts = migration.broker.counts(&migration.tasks).await;
            counts.is_some_and(|(_, consumers)| consumers == 3)
        })
        .await;
        migration
    }

    /// Two of the workers ask the replica that is killed.
    fn place_of_worker(&self, number: usize) -> Place {
        Place {
            sockets: in_order(&self.sockets, number / 2),
            provider: self.provider.address(),
            broker: Rabbit::shared().url(),
            queue: self.tasks.clone(),
            caller: format!("w{number}"),
        }
    }

    async fn publish(&self, tasks: usize, messages: usize) {
        let messages = (0..messages).map(|n| {
            let properties = BasicProperties::default().with_message_id(format!("q{n}").into());
            (b"{}".to_vec(), properties)
        });
        let publisher = self.place_of_worker(0);
        let published = CELERY_PACED.publish(&publisher, tasks as u64);
        futures::join!(published, self.broker.publish(self.messages, messages));
    }

    async fn arrived(&self, count: u64, bound: Duration, what: &str) {
        let arrived = || self.provider.live().unique >= count;
        eventually(bound, what, arrived).await;
    }

    /// Returns when the first of each were dying, by their names.
    async fn kill_one_of_each(&mut self) -> BTreeMap<String, Range<Mono>> {
        let provider = &self.provider;
        let works = || provider.report(&Expect::Nothing).callers.get("w0") >= Some(&WORKS);
        eventually(LONG * 2, "the worker that is killed works", works).await;
        let before = clock::now();
        self.workers.remove(0).kill();
        self.replicas.remove(0).kill(&[NEW_SCHEDULE]).await;
        let died = before..clock::now();
        BTreeMap::from(["w0", "r0"].map(|caller| (caller.to_owned(), died.clone())))
    }

    /// Returns how many permits were too old when they were given.
    async fn stop(&mut self) -> f64 {
        let unused = "sluiced_unused_permits_total{route=\"callers.old\"}";
        let unused = self.replicas[0].metric(unused).await;
        for replica in self.replicas.drain(..) {
            replica.stop(&[NEW_SCHEDULE]).await;
        }
        self.workers.clear();
        unused
    }

    async fn delete_queues(&self) {
        self.broker.delete(self.messages).await;
        self.broker.delete(&self.tasks).await;
    }
}

/// A key of [`replica`], or of a worker.
fn call(at: Mono, key: &str) -> Made<'_> {
    let mut words = key.splitn(3, ' ');
    let mut word = || words.next().unwrap_or_default();
    Made {
        at,
        by: word(),
        message: word(),
        copy: word(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_workers_and_replicas_share_one_limit_and_one_of_each_is_killed() {
    if !CELERY_PACED.is_there() {
        return;
    }
    machine::all();
    let name = "callers-migration";
    let (tasks, messages) = (at_length(300, 3_000), at_length(4_000, 40_000));
    let mut migration = Migration::start(name).await;
    migration.publish(tasks, messages).await;
    let all = (tasks + messages) as u64;
    migration.arrived(all / 2, LONG * 2, "half arrives").await;
    let deaths = migration.kill_one_of_each().await;
    migration.arrived(all, LONG * 4, "all arrive").await;
    let unused = migration.stop().await;

    let ids = (0..tasks).map(|n| format!("c{n}"));
    let ids = ids.chain((0..messages).map(|n| format!("q{n}")));
    let report = migration.provider.report(&Expect::Ids(ids.collect()));
    let keyed = migration.provider.keyed();
    let calls: Vec<_> = keyed.iter().map(|(at, key)| call(*at, key)).collect();
    eprintln!(
        "{name}: {:.2} % used while all had work, worst window {}, {} calls, {} of them again, {unused} permits that were too old, by {:?}",
        100.0 * used(&calls),
        report.worst,
        report.calls,
        report.repeated,
        report.callers
    );
    let judged = (report.over, report.lost, report.unexpected);
    assert_eq!(judged, (0, Some(0), 0), "{report:?}");
    assert_eq!(repeated_without_reason(calls, &deaths, HELD), [""; 0]);
    // Each of them worked.
    for caller in ["w0", "w1", "w2", "r0", "r1"] {
        assert!(report.callers.contains_key(caller), "{report:?}");
    }
    migration.delete_queues().await;
}

/// The sockets, from that one on.
fn in_order(sockets: &[PathBuf; 2], first: usize) -> Vec<PathBuf> {
    let mut sockets = sockets.to_vec();
    sockets.rotate_left(first);
    sockets
}

/// The share of the limit that was used between the time when all work and the end of the backlog.
fn used(calls: &[Made<'_>]) -> f64 {
    let mut counts = BTreeMap::new();
    let all_work = calls.iter().position(|call| {
        *counts.entry(call.by).or_insert(0_u64) += 1;
        counts.len() == 5 && counts.values().all(|count| *count >= WORKS)
    });
    // Both have messages until one of them has none: the last tenth of the queue may be with one replica.
    let mut queued = calls.iter().rposition(|call| call.by.starts_with('r'));
    queued = queued.map(|last| last * 9 / 10);
    let (Some(first), Some(last)) = (all_work, queued) else {
        return 0.0;
    };
    let Some(count) = last.checked_sub(first).filter(|count| *count > 0) else {
        return 0.0;
    };
    let span = calls[last].at.since(calls[first].at);
    f64::from(u32::try_from(count).unwrap()) / (400.0 * span.as_secs_f64())
}
