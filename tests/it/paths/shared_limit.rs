//! One limit for several routes, and priorities within it.

use std::collections::BTreeSet;

use lapin::BasicProperties;
use sluiced_provider::{Behaviour, Expect, Provider};

use super::{config, queue};
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route};
use crate::support::messages::body;
use crate::support::recorder::Recorder;
use crate::support::wait::eventually;

fn with_ids(prefix: &'static str, count: u64) -> impl Iterator<Item = (Vec<u8>, BasicProperties)> {
    (1..=count).map(move |n| {
        let body = format!("{{\"id\":\"{prefix}-{n}\"}}");
        (body.into_bytes(), BasicProperties::default())
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_routes_of_one_limit_are_never_over_together() {
    let address = "127.0.0.1:0".parse().unwrap();
    let provider = Provider::start(address, Behaviour::judging("100/1s".parse().unwrap())).unwrap();
    let broker = queue("shared-a", "quorum").await;
    broker.declare("shared-b", "classic").await;
    broker.publish("shared-a", with_ids("a", 200)).await;
    broker.publish("shared-b", with_ids("b", 200)).await;
    let routes = ["shared-a", "shared-b"].map(|queue| {
        let mut route = Route::new(queue, provider.address());
        route.caller = queue.to_owned();
        route
    });
    let daemon = Daemon::start(&config("shared", routes.into()));
    eventually(LONG, "all came", || provider.live().unique >= 400).await;
    daemon.stop(&[NEW_SCHEDULE]).await;
    let report = provider.report(&Expect::Count(400));
    assert_eq!(
        (report.over, report.lost, report.repeated),
        (0, Some(0), 0),
        "{report:?}"
    );
    assert_eq!(report.callers.get("shared-a"), Some(&200));
    assert_eq!(report.callers.get("shared-b"), Some(&200));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_what_is_ready_the_higher_priority_goes_first() {
    let broker = queue("ranked", "classic").await;
    let downstream = Recorder::accepting().await;
    // Ten slots a second, and all messages are held from the start: the order is the
    // scheduler's.
    let messages = (1..=30).map(|n| {
        let priority = if n > 20 { 9 } else { 0 };
        (body(n), BasicProperties::default().with_priority(priority))
    });
    broker.publish("ranked", messages).await;
    let mut route = Route::new("ranked", downstream.address);
    route.keys = "prefetch = 100\n".to_owned();
    let mut config = config("ranked", vec![route]);
    config.rate = "10/1s".to_owned();
    let daemon = Daemon::start(&config);
    eventually(LONG, "all came", || downstream.count() == 30).await;
    daemon.stop(&[NEW_SCHEDULE]).await;
    let order: Vec<_> = downstream.calls().iter().map(|call| call.number).collect();
    // The very first slots may come before the last message was received.
    let early: BTreeSet<_> = order[..15].iter().copied().collect();
    let urgent = (21..=30).filter(|n| early.contains(n)).count();
    assert_eq!(urgent, 10, "{order:?}");
}
