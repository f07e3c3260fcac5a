//! Messages that wait in memory: they leave room for others, keep their order, and their attempts.

use std::time::Duration;

use sluiced_ports::message::header as known;

use super::{config, header, numbered, queue, to};
use crate::fleet::control::said;
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route};
use crate::support::recorder::{Recorder, Reply};
use crate::support::wait::{eventually, eventually_async, within};

/// What replicas may log here.
const KNOWN: &[&str] = &[
    NEW_SCHEDULE,
    "nothing is kept on disk",
    // A wait queue that is used for the first time, on a busy machine.
    "copies are not confirmed",
];

/// Calls of one recipient take half a second each, one at a time, and it has more messages than the replica
/// can hold. Those of others still pass, also after its messages have returned from wait queues.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recipient_whose_calls_last_long_does_not_hold_up_others() {
    const HOT: u64 = 200;
    const OTHERS: u64 = 20;
    let name = "held-hot";
    let broker = queue(name, "quorum").await;
    let downstream = Recorder::start(|call| Reply {
        latency: Duration::from_millis(if call.caller == "hot" { 500 } else { 5 }),
        ..Reply::status(202)
    })
    .await;
    broker.publish(name, (1..=HOT).map(|n| to(n, "hot"))).await;
    let mut route = Route::new(name, downstream.address);
    route.limits = vec!["calls"];
    route.caller = "{{ body.to }}".to_owned();
    route.keys = "prefetch = 40\n".to_owned();
    let mut config = config(name, vec![route]);
    config.tables = "[limits.calls]\nkind = \"concurrency\"\nlimit = 1\nkey = \"{{ body.to }}\"\n\
                     lease = \"5s\"\nlost_wait = \"0s\"\n"
        .to_owned();
    let daemon = Daemon::start(&config);
    eventually(LONG, "ten calls of the hot one", || {
        downstream.count() >= 10
    })
    .await;
    let others = (1..=OTHERS).map(|n| to(HOT + n, &format!("other-{n}")));
    broker.publish(name, others).await;
    let came = || downstream.count_of(|call| call.caller != "hot");
    eventually(LONG, "the others came", || came() >= OTHERS as usize).await;
    let hot = downstream.count() - came();
    // 30 more calls of it take 15 seconds.
    assert!(hot <= 40, "{hot} calls of the hot one meanwhile");
    daemon.stop(KNOWN).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_of_their_limit_does_not_turn_their_order_around() {
    let name = "held-order";
    let broker = queue(name, "quorum").await;
    let downstream = Recorder::accepting().await;
    let mut route = Route::new(name, downstream.address);
    route.limits = vec!["provider", "all"];
    route.keys = "prefetch = 40\n".to_owned();
    let mut config = config(name, vec![route]);
    config.rate = "10/1s".to_owned();
    config.tables = "[limits.all]\nkind = \"sliding_log\"\nrate = \"100/1s\"\n\
                     headroom = \"100ms\"\nlost_wait = \"0s\"\n"
        .to_owned();
    let daemon = Daemon::start(&config);
    broker.publish(name, numbered(1, 40)).await;
    eventually_async(LONG, "all are held", || async {
        let ready = broker.counts(name).await.map(|(ready, _)| ready);
        ready == Some(0) && downstream.count() > 0
    })
    .await;
    said(&daemon, &["pause", "all", "--for", "20s"]);
    daemon.says("the limit is paused").await;
    said(&daemon, &["resume", "all"]);
    eventually(LONG, "all came", || downstream.count() >= 40).await;
    let came: Vec<_> = downstream.calls().iter().map(|call| call.number).collect();
    assert_eq!(came, (1..=40).collect::<Vec<_>>());
    daemon.stop(KNOWN).await;
}

/// The second attempt waits in memory when the replica is stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_failed_before_keeps_its_attempts_when_the_replica_stops() {
    let name = "held-attempts";
    let broker = queue(name, "quorum").await;
    let downstream = Recorder::start(|_| Reply::status(503)).await;
    let mut route = Route::new(name, downstream.address);
    route.keys = "retry = { base = \"5m\", max = \"5m\" }\nmax_hold = \"10m\"\n".to_owned();
    let mut daemon = Daemon::start(&config(name, vec![route]));
    broker.publish(name, numbered(1, 1)).await;
    eventually(LONG, "one attempt", || downstream.count() == 1).await;
    let judged = "sluiced_calls_total{route=\"held-attempts\",outcome=\"transient\"} 1";
    within(LONG, "its failure is counted", async {
        while !daemon.page("/metrics").await.1.contains(judged) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    daemon.stop(KNOWN).await;
    // Its wait is random, and so is its wait queue.
    let steps = (0..10).map(|exponent| format!("{name}.wait.{}s", 1 << exponent));
    let mut found = Vec::new();
    for step in steps {
        if broker
            .counts(&step)
            .await
            .is_some_and(|(ready, _)| ready > 0)
        {
            found.extend(broker.drain(&step).await);
        }
    }
    let (_, properties) = found.pop().expect("it waits");
    assert_eq!(header(&properties, known::ATTEMPTS).as_deref(), Some("1"));
}
