//! Messages that are old, and how long they waited.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lapin::BasicProperties;

use super::{USED_UNITS, config, numbered, queue, route, unix};
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, get, program};
use crate::support::messages::body;
use crate::support::recorder::{Call, Recorder, Reply};
use crate::support::wait::eventually;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_old_can_be_dropped() {
    let broker = queue("dropped", "quorum").await;
    let downstream = Recorder::accepting().await;
    let mut route = route("dropped", "quorum", &downstream);
    route.keys += "max_age = \"1h\"\non_expired = \"drop\"\n";
    let mut daemon = Daemon::start(&config("dropped", vec![route]));
    let old = BasicProperties::default().with_timestamp(unix() - 7_200);
    broker.publish("dropped", [(body(1), old)]).await;
    broker.publish("dropped", numbered(2, 2)).await;
    eventually(LONG, "the young one", || downstream.count() == 1).await;
    assert_eq!(downstream.calls()[0].number, 2);
    daemon.says("dropped, as the route says").await;
    let admin = daemon.admin().await;
    let one = format!("{USED_UNITS} 1\n");
    eventually(LONG, "one slot", || get(admin, "/metrics").1.contains(&one)).await;
    daemon.stop(&[NEW_SCHEDULE]).await;
    assert_eq!(broker.counts("dropped").await, Some((0, 0)));
    assert_eq!(
        broker
            .counts("dropped.dead")
            .await
            .map_or(0, |counts| counts.0),
        0
    );
}

/// How long messages wait, including the backlog: from their publishing, whatever their replica knows of
/// that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_delay_of_a_message_counts_from_its_publishing_to_the_accepted_call() {
    let broker = queue("delay", "quorum").await;
    let first = AtomicBool::new(true);
    let downstream = Recorder::start(move |_| {
        let fails = first.swap(false, Ordering::SeqCst);
        Reply::status(if fails { 400 } else { 202 })
    })
    .await;
    let mut daemon = Daemon::start(&config(
        "delay",
        vec![route("delay", "quorum", &downstream)],
    ));
    daemon.ready().await;
    let old = BasicProperties::default().with_timestamp(unix() - 1_000);
    broker.publish("delay", [(body(1), old.clone())]).await;
    eventually(LONG, "the rejected call", || downstream.count() == 1).await;
    // A publisher's clock that is ahead makes none younger.
    let ahead = BasicProperties::default().with_timestamp(unix() + 1_000);
    broker
        .publish("delay", [(body(2), old), (body(3), ahead)])
        .await;
    eventually(LONG, "the others", || downstream.count() == 3).await;
    let count = "sluiced_queue_delay_seconds_count{route=\"delay\"}";
    let admin = daemon.admin().await;
    let two = format!("{count} 2\n");
    eventually(LONG, "both", || get(admin, "/metrics").1.contains(&two)).await;
    let sum = daemon
        .metric("sluiced_queue_delay_seconds_sum{route=\"delay\"}")
        .await;
    assert!((999.0..1_100.0).contains(&sum), "{sum}");
    daemon.stop(&[NEW_SCHEDULE, "dead letter"]).await;
}

/// A backlog that is too old is seen: in the log, the metrics and the status.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_that_waits_for_longer_than_max_delay_is_warned_of() {
    const LATE: &str = "the oldest message waits for longer than max_delay";
    let broker = queue("late", "quorum").await;
    let downstream = Recorder::accepting().await;
    let mut route = route("late", "quorum", &downstream);
    route.keys += "max_delay = \"30s\"\nprefetch = 2\n";
    let mut config = config("late", vec![route]);
    config.rate = "2/1s".to_owned();
    let old = BasicProperties::default().with_timestamp(unix() - 1_000);
    let messages = (1..=12).map(|n| (body(n), old.clone()));
    broker.publish("late", messages).await;
    let mut daemon = Daemon::start(&config);
    daemon.says(LATE).await;
    let oldest = "sluiced_oldest_seconds{route=\"late\"}";
    let age = daemon.metric(oldest).await;
    assert!((999.0..1_100.0).contains(&age), "{age}");
    let most = "sluiced_max_delay_seconds{route=\"late\"}";
    assert_eq!(daemon.metric(most).await, 30.0);
    let admin = daemon.admin().await;
    let url = format!("http://{admin}");
    let shows = || {
        let status = program(&["status", "--url", &url]).output().unwrap().stdout;
        String::from_utf8(status)
            .unwrap()
            .contains("longer than max_delay (30 s)")
    };
    eventually(LONG, "the status shows it", shows).await;
    eventually(LONG, "all", || downstream.count() == 12).await;
    daemon
        .says("no message waits for longer than max_delay any more")
        .await;
    let none = format!("{oldest} 0\n");
    eventually(LONG, "none waits", || {
        get(admin, "/metrics").1.contains(&none)
    })
    .await;
    daemon.stop(&[NEW_SCHEDULE, LATE]).await;
}

/// A call that takes long is no message that waits: its age does not count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_whose_call_takes_long_does_not_wait() {
    let broker = queue("long-call", "quorum").await;
    let slow = |_: &Call| Reply {
        latency: Duration::from_secs(18),
        ..Reply::status(202)
    };
    let downstream = Recorder::start(slow).await;
    let mut route = route("long-call", "quorum", &downstream);
    route.downstream += "timeout = \"20s\"\n";
    let config = config("long-call", vec![route]);
    let old = BasicProperties::default().with_timestamp(unix() - 1_000);
    broker.publish("long-call", [(body(1), old)]).await;
    let mut daemon = Daemon::start(&config);
    eventually(LONG, "it is called", || downstream.count() == 1).await;
    let admin = daemon.admin().await;
    let shows = |line: &str| get(admin, "/metrics").1.contains(line);
    let called = || {
        shows("sluiced_in_flight{route=\"long-call\"} 1\n")
            && shows("sluiced_oldest_seconds{route=\"long-call\"} 0\n")
    };
    eventually(LONG / 2, "under way, and none waits", called).await;
    assert!(shows("sluiced_ready 1\n"));
    daemon.kill(&[NEW_SCHEDULE]).await;
}
