//! The recipes of `docs/callers.md`, each with a real worker of its library: every job is done exactly once, none too
//! early, and a denied one comes back.

use sluiced_provider::{Behaviour, Expect, Provider};

use super::Alone;
use super::workers::{BULLMQ, CELERY, DRAMATIQ, Library, Place, SIDEKIQ};
use crate::support::daemon::{LONG, NEW_SCHEDULE};
use crate::support::rabbit::Rabbit;
use crate::support::redis::RedisServer;
use crate::support::wait::eventually;

const PAGE: &str = include_str!("../../../docs/callers.md");
const SHOWN: [&str; 7] = [
    include_str!("../../interop/callers/permit.py"),
    include_str!("../../interop/callers/celery_permit.py"),
    include_str!("../../interop/callers/dramatiq_permit.py"),
    include_str!("../../interop/callers/permit.js"),
    include_str!("../../interop/callers/bullmq_permit.js"),
    include_str!("../../interop/callers/permit.rb"),
    include_str!("../../interop/callers/sidekiq_permit.rb"),
];

/// Jobs of four keys in turn.
const JOBS: u64 = 24;
/// A busy machine may stand still between the look at the clock and the call, so there is much time for it.
const LIMITS: &str = "[limits.provider]\nrate = \"50/1s\"\nheadroom = \"250ms\"\n\
    [limits.sender]\nkind = \"sliding_log\"\nrate = \"3/2s\"\nheadroom = \"900ms\"\nkey = \"{{ body.from }}\"\n";
/// The longest wait is short, so that most jobs are denied at first.
const CALLERS: &str =
    "limits = [\"provider\", \"sender\"]\nmax_wait = \"200ms\"\nuse_within = \"60ms\"\n";

#[test]
fn the_page_shows_what_is_tested() {
    for shown in SHOWN {
        assert!(PAGE.contains(shown), "not on the page:\n{shown}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn celery() {
    waits_for_its_turn(CELERY, || Rabbit::shared().url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dramatiq() {
    waits_for_its_turn(DRAMATIQ, || Rabbit::shared().url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bullmq() {
    waits_for_its_turn(BULLMQ, || RedisServer::shared().url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sidekiq() {
    waits_for_its_turn(SIDEKIQ, || RedisServer::shared().url()).await;
}

async fn waits_for_its_turn(library: Library, broker: fn() -> String) {
    if !library.is_there() {
        return;
    }
    let name = format!("callers-{}", library.name);
    let behaviour = Behaviour {
        key_rate: Some("3/2s".parse().unwrap()),
        ..Behaviour::judging("50/1s".parse().unwrap())
    };
    let provider = Provider::start("127.0.0.1:0".parse().unwrap(), behaviour).unwrap();
    let mut alone = Alone::start(&name, LIMITS, CALLERS).await;
    let place = Place {
        // The first replica of its list does not run.
        sockets: vec![alone.socket.with_extension("gone"), alone.socket.clone()],
        provider: provider.address(),
        broker: broker(),
        queue: name.clone(),
        caller: library.name.to_owned(),
    };
    library.publish(&place, JOBS).await;
    let mut worker = library.start(&place);
    let done = || provider.live().unique >= JOBS;
    eventually(LONG * 2, "all jobs are done", done).await;
    let denied = "sluiced_settled_total{route=\"callers.web\",verdict=\"later\"}";
    let denied = alone.daemon.metric(denied).await;
    worker.kill();
    alone
        .daemon
        .stop(&[NEW_SCHEDULE, "nothing is kept on disk"])
        .await;
    let ids = (0..JOBS).map(|number| format!("c{number}"));
    let report = provider.report(&Expect::Ids(ids.collect()));
    eprintln!("{name}: {} calls, denied {denied} times", report.calls);
    let judged = (report.calls, report.lost, report.over, report.key_over);
    assert_eq!(judged, (JOBS, Some(0), 0, 0), "{report:?}");
    assert!(denied > 0.0, "none was denied");
}
