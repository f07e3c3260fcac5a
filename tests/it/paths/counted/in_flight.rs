//! Limits of calls in flight.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_in_flight_are_bounded_over_two_replicas_without_a_paced_limit() {
    let name = "under-way";
    let broker = queue(name, "classic").await;
    // A call lasts longer than its lease, which is renewed; and a lease is longer than a busy machine lets
    // a replica wait.
    let latency = Duration::from_secs(6);
    let downstream = Recorder::start(move |_| Reply {
        latency,
        ..Reply::status(202)
    })
    .await;
    broker.publish(name, (1..=8).map(|n| to(n, "any"))).await;
    let mut route = route(name, &["calls"], &downstream);
    route.keys = "queue_type = \"classic\"\nprefetch = 20\n".to_owned();
    let config = with(
        config(name, vec![route]),
        "[limits.calls]\nkind = \"concurrency\"\nlimit = 4\nlease = \"5s\"\nheadroom = \"50ms\"\nlost_wait = \"0s\"\n",
    );
    let mut daemons = [Daemon::start(&config), Daemon::start(&config)];
    eventually(LONG, "all came", || downstream.count() >= 8).await;
    assert_eq!(numbers(&downstream), (1..=8).collect::<Vec<_>>());
    let calls = downstream.calls();
    let all: Vec<_> = calls.iter().collect();
    assert!(most(&all, latency - STAMPS) <= 4);
    for daemon in &mut daemons {
        let series = "sluiced_call_leases_lost_total{limit=\"calls\"}";
        assert_eq!(daemon.metric(series).await, 0.0);
    }
    for daemon in daemons {
        daemon.stop(KNOWN).await;
    }
    assert_eq!(broker.counts(name).await, Some((0, 0)));
}

/// Redis forgets which calls are in flight: until their leases have ended no other one begins, and the log
/// says why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_in_flight_that_redis_forgot_are_waited_for() {
    let name = "forgotten-calls";
    let broker = queue(name, "classic").await;
    let latency = Duration::from_millis(600);
    let downstream = Recorder::start(move |_| Reply {
        latency,
        ..Reply::status(202)
    })
    .await;
    broker.publish(name, (1..=12).map(|n| to(n, "any"))).await;
    let server = RedisServer::start();
    let mut route = route(name, &["calls"], &downstream);
    route.keys = "queue_type = \"classic\"\nprefetch = 20\n".to_owned();
    let mut config = with(
        config(name, vec![route]),
        "[limits.calls]\nkind = \"concurrency\"\nlimit = 2\nlease = \"3s\"\nheadroom = \"50ms\"\n",
    );
    config.redis = Some(server.url());
    let daemon = Daemon::start(&config);
    eventually(LONG, "some came", || downstream.count() >= 4).await;
    () = redis::cmd("FLUSHALL")
        .query(&mut server.connection())
        .unwrap();
    eventually(LONG, "all came", || downstream.count() >= 12).await;
    assert_eq!(numbers(&downstream), (1..=12).collect::<Vec<_>>());
    let calls = downstream.calls();
    let all: Vec<_> = calls.iter().collect();
    assert!(most(&all, latency - STAMPS) <= 2);
    let lost = "the limit grants nothing until the units that were spent before no longer count";
    assert_eq!(daemon.said(lost), 1, "{}", daemon.log());
    let more = [lost, "a call under way is not counted any more"];
    daemon.stop(&[KNOWN, &more].concat()).await;
}
