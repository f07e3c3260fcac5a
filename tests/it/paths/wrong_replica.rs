//! One replica of several is wrong: its template, its token, its host. It stops itself; the others go on.

use super::{config, numbered, queue};
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route, get};
use crate::support::recorder::{Call, Recorder, Reply};
use crate::support::wait::{eventually, eventually_async};

const MESSAGES: u64 = 600;
/// What stops a replica whose calls fail in a row, as the defaults have it.
const FAILURES: usize = 5;
const ONLY: &str = "only this replica";
const KNOWN: &[&str] = &[
    NEW_SCHEDULE,
    "the downstream is away",
    "messages died in a row",
    "only this replica stops",
    "dead letter",
    "no connection to the downstream yet",
];

/// Calls of the caller `wrong` are answered so; returns how many there were, and how many messages are dead, once all
/// others have been accepted.
async fn one_wrong(name: &'static str, status: u16, keys: &str, dead_letters: u32) -> (usize, u32) {
    let broker = queue(name, "quorum").await;
    broker.publish(name, numbered(1, MESSAGES)).await;
    let answer =
        move |call: &Call| Reply::status(if call.caller == "wrong" { status } else { 202 });
    let downstream = Recorder::start(answer).await;
    let mut daemons = ["wrong", "right", "right"].map(|caller| {
        let mut route = Route::new(name, downstream.address);
        route.caller = caller.to_owned();
        route.keys = "prefetch = 20\n".to_owned();
        route.downstream = keys.to_owned();
        Daemon::start(&config(name, vec![route]))
    });
    let wrong = daemons[0].admin().await;
    let says_so = || {
        let (code, page) = get(wrong, "/readyz");
        code == 503 && page.contains(ONLY)
    };
    eventually(LONG, "it says that it is alone", says_so).await;
    let accepted = || {
        let calls = downstream.calls();
        calls.iter().filter(|call| call.caller == "right").count()
    };
    // Messages that the wrong replica holds wait there for its mending.
    eventually(LONG, "the others go on", || accepted() >= 500).await;
    let rights: Vec<_> = [daemons[1].admin().await, daemons[2].admin().await].to_vec();
    let all_ready = || rights.iter().all(|admin| get(*admin, "/readyz").0 == 200);
    eventually(LONG, "the others are ready", all_ready).await;
    // The first failures of the wrong one stop the others once; its later ones do not.
    let opened = format!("sluiced_breaker_opened_total{{route=\"{name}\"}}");
    for daemon in &mut daemons[1..] {
        let times = daemon.metric(&opened).await;
        assert!(times <= 1.0, "stopped {times} times");
    }
    let refused = downstream.count() - accepted();
    let dead = broker.counts(&format!("{name}.dead")).await;
    let dead = dead.map_or(0, |(ready, _)| ready);
    assert!(
        dead <= dead_letters,
        "{dead} dead letters, {refused} refused"
    );
    for daemon in daemons {
        daemon.stop(KNOWN).await;
    }
    (refused, dead)
}

/// 401 spends no message: the credential is wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_with_a_wrong_token_stops_alone() {
    let (refused, _) = one_wrong("wrong-token", 401, "", 0).await;
    // Those that opened the breaker, calls in flight then, and one for each pause.
    assert!(refused <= FAILURES + 25, "{refused}");
}

/// 422 spends messages: as many as the breaker allows, and one for each pause.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_with_a_wrong_template_stops_alone() {
    one_wrong(
        "wrong-template",
        422,
        "breaker = { dead_letters = 20 }\n",
        20 + 25,
    )
    .await;
}

/// The reason of an outage is known to replicas that made no call themselves, and it is forgotten with the outage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reason_travels_with_the_outage() {
    let name = "wrong-reason";
    let broker = queue(name, "quorum").await;
    let answer = std::sync::Arc::new(std::sync::atomic::AtomicU16::new(202));
    let says = std::sync::Arc::clone(&answer);
    let order = std::sync::atomic::Ordering::SeqCst;
    let downstream = Recorder::start(move |_| Reply::status(says.load(order))).await;
    let mut daemons = [(); 2].map(|()| {
        let mut route = Route::new(name, downstream.address);
        route.keys = "prefetch = 200\n".to_owned();
        Daemon::start(&config(name, vec![route]))
    });
    let admins = [daemons[0].admin().await, daemons[1].admin().await];
    let mut first = 1;
    for status in [500, 403, 503] {
        broker.publish(name, numbered(first, first + 19)).await;
        first += 20;
        eventually_async(LONG, "all were called", || async {
            broker.counts(name).await.map(|(ready, _)| ready) == Some(0)
        })
        .await;
        for admin in admins {
            let ready = || get(admin, "/readyz").0 == 200;
            eventually(LONG, "it is ready", ready).await;
        }
        answer.store(status, order);
        broker.publish(name, numbered(first, first + 9)).await;
        first += 10;
        for admin in admins {
            let says_so = || {
                let (code, page) = get(admin, "/readyz");
                code == 503 && page.contains(&status.to_string())
            };
            eventually(LONG, &format!("it says {status}"), says_so).await;
            let (_, page) = get(admin, "/readyz");
            for other in [500, 403, 503] {
                assert!(
                    other == status || !page.contains(&other.to_string()),
                    "an old reason: {page}"
                );
            }
        }
        answer.store(202, order);
    }
    for daemon in daemons {
        daemon.stop(KNOWN).await;
    }
}
