//! One limit, shared by the replicas of a queue and by callers.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lapin::BasicProperties;
use serde_json::json;
use sluiced_core::time::Mono;
use sluiced_ports::clock;
use sluiced_provider::{Behaviour, Expect, Provider};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::support::broker::Broker;
use crate::support::caller::Client;
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route};
use crate::support::machine;
use crate::support::rabbit::Rabbit;
use crate::support::soak::at_length;
use crate::support::wait::{eventually, within};

const RATE: u64 = 200;
/// This many of the queue may be called between the question of an urgent caller and its call: those of two seconds.
const MOST: usize = 2 * RATE as usize;

/// A program with messages of its own: for each it asks, and calls when its turn has come.
struct Worker {
    name: String,
    socket: PathBuf,
    provider: SocketAddr,
    stop: Arc<AtomicBool>,
}

/// A call of a worker.
struct Called {
    id: String,
    asked: Mono,
}

impl Worker {
    async fn work(self) -> Vec<Called> {
        let mut permits = Client::at_path(&self.socket).await;
        let mut provider = Client::at(self.provider).await;
        let mut called = Vec::new();
        while !self.stop.load(Ordering::Relaxed) {
            // The queue has its share, too.
            sleep(Duration::from_millis(61)).await;
            let asked = clock::now();
            let answer = permits.ask(&json!({"wait": "20s"})).await;
            let permit = answer.id();
            let id = format!("{}-{}", self.name, called.len());
            let status = provider.call(&self.name, &id).await.unwrap();
            assert_eq!(status.as_u16(), 202);
            permits.end(&permit, "?used_after_ms=0.3").await;
            called.push(Called { id, asked });
        }
        called
    }
}

fn replica(name: &str, provider: &Provider, socket: &Path) -> Daemon {
    let route = Route {
        keys: "prefetch = 100\n".to_owned(),
        ..Route::new(name, provider.address())
    };
    let mut config = Config::shared(name, &format!("{RATE}/1s"), vec![route]);
    config.tables = format!(
        "[callers.web]\nlisten = \"unix:{}\"\nlimits = [\"provider\"]\npriority = 5\nuse_within = \"12ms\"\n",
        socket.display()
    );
    let text = config.text();
    let text = text.replace("x-caller =", "x-key = \"{{ body.id }}\", x-caller =");
    Daemon::start_with(&text, |_| {})
}

/// Two replicas consume a queue that is never empty, each with two workers beside it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_and_callers_share_one_limit_and_urgent_callers_go_first() {
    machine::two();
    let name = "callers-shared";
    let behaviour = Behaviour::judging(format!("{RATE}/1s").parse().unwrap());
    let provider = Provider::start("127.0.0.1:0".parse().unwrap(), behaviour).unwrap();
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    broker.declare(name, "quorum").await;
    let count = at_length(3_000, 20_000);
    let messages = (0..count).map(|n| {
        let body = format!("{{\"id\":\"q{n}\"}}");
        (body.into_bytes(), BasicProperties::default())
    });
    broker.publish(name, messages).await;
    let dir = tempfile::tempdir().unwrap();
    let sockets = [0, 1].map(|n| dir.path().join(format!("{n}.sock")));
    let replicas = sockets
        .each_ref()
        .map(|socket| replica(name, &provider, socket));
    let flows = || provider.live().unique > RATE;
    eventually(LONG, "the queue flows", flows).await;

    let stop = Arc::new(AtomicBool::new(false));
    let mut workers = JoinSet::new();
    for number in 0..4 {
        let worker = Worker {
            name: format!("w{number}"),
            socket: sockets[number % 2].clone(),
            provider: provider.address(),
            stop: Arc::clone(&stop),
        };
        workers.spawn(worker.work());
    }
    // They end while the queue has a backlog.
    let enough = count as u64 * 9 / 10;
    let flowed = || provider.live().unique >= enough;
    eventually(LONG * 4, "the queue flows", flowed).await;
    stop.store(true, Ordering::Relaxed);
    let called: Vec<_> = within(LONG, "the workers end", workers.join_all())
        .await
        .into_iter()
        .flatten()
        .collect();
    let all = count as u64 + called.len() as u64;
    let arrived = || provider.live().unique >= all;
    eventually(LONG * 2, "the rest arrives", arrived).await;
    for replica in replicas {
        replica.stop(&[NEW_SCHEDULE]).await;
    }
    let mut ids: Vec<_> = (0..count).map(|n| format!("q{n}")).collect();
    ids.extend(called.iter().map(|call| call.id.clone()));
    let report = provider.report(&Expect::Ids(ids));
    let most = overtaken(&called, &provider.keyed());
    let (calls, used) = (report.calls, report.used);
    eprintln!(
        "{name}: {calls} calls, {} of callers, {used:?} of the limit used, at most {most} of the queue between a question and its call",
        called.len()
    );
    let judged = (report.over, report.lost, report.repeated);
    assert_eq!(judged, (0, Some(0), 0), "{report:?}");
    assert!(called.len() >= 100, "{} calls of callers", called.len());
    assert!(
        most <= MOST,
        "{most} of the queue came before an urgent caller"
    );
    broker.delete(name).await;
}

/// How many of the queue were called between the question of a worker and its call, at most.
fn overtaken(called: &[Called], calls: &[(Mono, Box<str>)]) -> usize {
    let between = called.iter().map(|call| {
        let place = calls.iter().position(|(_, id)| **id == *call.id).unwrap();
        let before = calls[..place].iter().rev();
        let since = before.take_while(|(at, _)| *at > call.asked);
        since.filter(|(_, id)| id.starts_with('q')).count()
    });
    between.max().unwrap_or(0)
}
