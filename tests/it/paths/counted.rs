//! Limits besides the paced one: keys, costs, several at once, messages that come back, priorities.

mod in_flight;

use std::collections::BTreeMap;
use std::time::Duration;

use lapin::BasicProperties;
use sluiced_ports::message::header as known;

use super::{config, header, holds, queue, to};
use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route};
use crate::support::recorder::{Call, Recorder, Reply};
use crate::support::redis::RedisServer;
use crate::support::wait::{eventually, eventually_async};

/// Another process stamps arrivals, after the way to it.
const STAMPS: Duration = Duration::from_millis(20);

/// What is logged about the test's own Redis, and about its short lease.
const KNOWN: &[&str] = &[
    NEW_SCHEDULE,
    "nothing is kept on disk",
    "hardly leaves time to renew",
];

fn urgent((body, properties): (Vec<u8>, BasicProperties)) -> (Vec<u8>, BasicProperties) {
    (body, properties.with_priority(9))
}

/// A route that sends its downstream the recipient of a message.
fn route(queue: &str, limits: &[&'static str], downstream: &Recorder) -> Route {
    let mut route = Route::new(queue, downstream.address);
    route.limits = limits.to_vec();
    route.caller = "{{ body.to }}".to_owned();
    route.keys = "queue_type = \"classic\"\nprefetch = 300\n".to_owned();
    route
}

fn with(mut config: Config, tables: &str) -> Config {
    config.tables = tables.to_owned();
    config
}

/// The most calls in any window of that length.
fn most(calls: &[&Call], window: Duration) -> usize {
    let within = |from: &Call| {
        let inside = |call: &&&Call| call.at >= from.at && call.at < from.at + window;
        calls.iter().filter(inside).count()
    };
    calls.iter().map(|call| within(call)).max().unwrap_or(0)
}

fn numbers(downstream: &Recorder) -> Vec<u64> {
    let mut numbers: Vec<_> = downstream.calls().iter().map(|call| call.number).collect();
    numbers.sort_unstable();
    numbers
}

async fn waiting(broker: &Broker, queue: &str) -> u32 {
    let mut sum = 0;
    for exponent in 0..13 {
        let step = format!("{queue}.wait.{}s", 1 << exponent);
        sum += broker.counts(&step).await.map_or(0, |(ready, _)| ready);
    }
    sum
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn account_and_recipient_are_kept_together_and_no_message_is_lost() {
    let name = "together";
    let broker = queue(name, "classic").await;
    let downstream = Recorder::accepting().await;
    let messages = (0..60).map(|n| to(n + 1, &format!("+{}", n % 15)));
    broker.publish(name, messages).await;
    let limits = ["provider", "recipient"];
    let config = with(
        config(name, vec![route(name, &limits, &downstream)]),
        "[limits.recipient]\nkind = \"sliding_log\"\nrate = \"2/3s\"\nkey = \"{{ body.to }}\"\nheadroom = \"300ms\"\nlost_wait = \"0s\"\n",
    );
    let mut daemon = Daemon::start(&config);
    eventually(LONG, "all came", || downstream.count() >= 60).await;
    assert_eq!(numbers(&downstream), (1..=60).collect::<Vec<_>>());
    let calls = downstream.calls();
    let mut of: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
    for call in &calls {
        of.entry(&call.caller).or_default().push(call);
    }
    assert_eq!(of.len(), 15);
    let window = Duration::from_secs(3) - STAMPS;
    for (recipient, calls) in &of {
        assert!(most(calls, window) <= 2, "{recipient}: {calls:?}");
    }
    let all: Vec<_> = calls.iter().collect();
    assert!(most(&all, Duration::from_secs(1) - STAMPS) <= 100);
    // Two of four pass at once, the other two are denied: at most three looks a message on average.
    let denied = daemon
        .metric("sluiced_keyed_denials_total{limit=\"recipient\"}")
        .await;
    assert!((30.0..=120.0).contains(&denied), "{denied} denials");
    daemon.stop(KNOWN).await;
    assert_eq!(broker.counts(name).await, Some((0, 0)));
}

/// A single replica waits for no other, and sends at once. Redis knows its limits; the replica before left in
/// order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_alone_makes_its_first_call_at_once() {
    let name = "alone";
    let broker = queue(name, "classic").await;
    let downstream = Recorder::accepting().await;
    let redis = RedisServer::start();
    let mut route = Route::new(name, downstream.address);
    route.limits = vec!["recipient"];
    let mut config = Config {
        redis: Some(redis.url()),
        ..config(name, vec![route])
    };
    config.tables =
        "[limits.recipient]\nkind = \"sliding_log\"\nrate = \"5/1h\"\nkey = \"{{ body.to }}\"\n\
                     headroom = \"500ms\"\n"
            .to_owned();
    let mut since = Vec::new();
    for number in 1..=3 {
        broker
            .publish(name, std::iter::once(to(number, "+1")))
            .await;
        let daemon = Daemon::start(&config);
        daemon.says("routes with keyed limits wait at first").await;
        let told = tokio::time::Instant::now();
        eventually(LONG, "it came", || downstream.count() as u64 == number).await;
        let call = downstream.calls().pop().unwrap();
        since.push(call.at.saturating_duration_since(told));
        daemon.stop(KNOWN).await;
    }
    // The first one finds a Redis that was never used, and waits for its guard. For one of the others the
    // machine may have stood still.
    let quickest = since[1..].iter().min().unwrap();
    assert!(*quickest < Duration::from_millis(700), "{since:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_spent_does_not_block_the_others() {
    let name = "spent-key";
    let broker = queue(name, "classic").await;
    let downstream = Recorder::accepting().await;
    broker.publish(name, (1..=200).map(|n| to(n, "hot"))).await;
    let others = (201..=230).map(|n| to(n, &format!("+{n}")));
    broker.publish(name, others).await;
    let mut route = route(name, &["provider", "sender"], &downstream);
    route.keys += "denied_headers = true\n";
    let config = with(
        config(name, vec![route]),
        "[limits.sender]\nkind = \"gcra\"\nrate = \"1/1h\"\nlost_wait = \"0s\"\nkey = \"{{ body.to }}\"\n",
    );
    let mut daemon = Daemon::start(&config);
    eventually(LONG, "the others came", || downstream.count() >= 31).await;
    eventually_async(LONG, "the rest waits", || async {
        waiting(&broker, name).await == 199
    })
    .await;
    assert_eq!(downstream.count(), 31);
    let denied = "sluiced_denials_total{route=\"spent-key\"}";
    assert_eq!(daemon.metric(denied).await, 199.0);
    let attempts = "sluiced_calls_total{route=\"spent-key\",outcome=\"accepted\"}";
    assert_eq!(daemon.metric(attempts).await, 31.0);
    let log = daemon.stop(KNOWN).await;
    assert!(log.contains("\"limit\":\"sender\""), "why they wait");
    assert!(!log.contains("hot"), "and not the recipient");
    let waits = broker.drain(&format!("{name}.wait.2048s")).await;
    let (_, properties) = waits.first().expect("the first to pass waits an hour");
    let told = |name| header(properties, name).unwrap_or_default();
    assert_eq!(told(known::DENIED_BEFORE), "Boolean(true)");
    assert_eq!(told(known::ATTEMPTS), "0");
    assert_eq!(told(known::DENIED_BY), "sender");
    assert_eq!(told(known::LIMIT), "1");
    assert_eq!(told(known::REMAINING), "0");
    assert!(told(known::RETRY_AFTER).parse::<u64>().unwrap() > 3_000_000_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_message_comes_back_when_its_limit_has_room() {
    let name = "comes-back";
    let broker = queue(name, "classic").await;
    let downstream = Recorder::accepting().await;
    broker.publish(name, (1..=4).map(|n| to(n, "one"))).await;
    let mut route = route(name, &["provider", "sender"], &downstream);
    route.caller = "{{ headers['x-sluiced-waited'] | default('never') }}".to_owned();
    route.keys += "max_hold = \"100ms\"\n";
    let config = with(
        config(name, vec![route]),
        "[limits.sender]\nkind = \"gcra\"\nrate = \"1/4s\"\nkey = \"{{ body.to }}\"\nheadroom = \"1s\"\nlost_wait = \"0s\"\n",
    );
    let mut daemon = Daemon::start(&config);
    eventually(LONG, "all came", || downstream.count() >= 4).await;
    let calls = downstream.calls();
    for pair in calls.windows(2) {
        let apart = pair[1].at - pair[0].at;
        assert!(apart + STAMPS >= Duration::from_secs(4), "{apart:?}");
    }
    let waited: Vec<_> = calls.iter().map(|call| call.caller != "never").collect();
    assert_eq!(waited, [false, true, true, true], "through wait queues");
    let looks = |decision| {
        format!("sluiced_admissions_total{{pacer=\"provider\",decision=\"{decision}\"}}")
    };
    assert_eq!(daemon.metric(&looks("granted")).await, 4.0);
    let denied = daemon.metric(&looks("denied")).await;
    assert!((3.0..=8.0).contains(&denied), "{denied} denials");
    daemon.stop(KNOWN).await;
    assert_eq!(broker.counts(name).await, Some((0, 0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_limit_cannot_count_is_buried_with_the_reason_or_dropped() {
    let (buried, dropped) = ("uncounted", "uncounted-drop");
    let broker = queue(buried, "classic").await;
    broker.declare(dropped, "classic").await;
    let downstream = Recorder::accepting().await;
    let bodies = [
        r#"{"n":1,"units":1}"#,
        r#"{"n":2,"to":"+49170","units":0}"#,
        r#"{"n":3,"to":"+49170","units":7}"#,
        r#"{"n":4,"to":"+49170","units":"many"}"#,
        // The downstream could read the other recipient.
        r#"{"n":5,"to":"+49170","to":"+49171","units":1}"#,
    ];
    let messages = || {
        let messages = bodies.iter().map(|body| body.as_bytes().to_vec());
        messages.map(|body| (body, BasicProperties::default()))
    };
    broker.publish(buried, messages()).await;
    broker.publish(dropped, messages()).await;
    let limits = ["provider", "segments"];
    let mut routes = vec![
        route(buried, &limits, &downstream),
        route(dropped, &limits, &downstream),
    ];
    routes[1].keys += "on_invalid = \"drop\"\n";
    let config = with(
        config(buried, routes),
        "[limits.segments]\nkind = \"sliding_log\"\nrate = \"5/1m\"\nlost_wait = \"0s\"\nkey = \"{{ body.to }}\"\ncost = \"{{ body.units }}\"\n",
    );
    let mut daemon = Daemon::start(&config);
    holds(&broker, "uncounted.dead", 5).await;
    let series = "sluiced_settled_total{route=\"uncounted-drop\",verdict=\"dropped\"}";
    eventually_async(LONG, "five are dropped", || {
        let page = futures::executor::block_on(daemon.page("/metrics")).1;
        let told = page.contains(&format!("{series} 5"));
        async move { told }
    })
    .await;
    assert_eq!(downstream.count(), 0);
    let mut details: Vec<_> = broker
        .drain("uncounted.dead")
        .await
        .iter()
        .map(|(_, properties)| {
            let told = |name| header(properties, name).unwrap_or_default();
            assert_eq!(told(known::REASON), "invalid");
            assert_eq!(told(known::ATTEMPTS), "0");
            told(known::DETAIL)
        })
        .collect();
    let twice = details.pop().unwrap_or_default();
    assert!(twice.contains("the member `to` twice"), "{twice}");
    assert!(!twice.contains("4917"), "{twice}");
    assert!(details[0].contains("limits.segments.key"), "{details:?}");
    for detail in &details[1..] {
        assert!(detail.contains("limits.segments"), "{details:?}");
        assert!(detail.contains("cost"), "{details:?}");
    }
    assert!(details.iter().all(|detail| !detail.contains("49170")));
    // Five a minute, and a template that counts.
    let declared = ["dead letter", "fits only while nothing else counts"];
    let log = daemon.stop(&[KNOWN, &declared].concat()).await;
    assert!(!log.contains("49170"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn urgent_messages_pass_a_backlog_of_bulk_and_bulk_leaves_them_the_reserve() {
    let name = "reserve";
    let broker = queue(name, "classic").await;
    let downstream = Recorder::accepting().await;
    broker.publish(name, (1..=120).map(|n| to(n, "bulk"))).await;
    let mut config = config(name, vec![route(name, &["provider"], &downstream)]);

    config.rate = "20/1s\"\nreserve_priority = 5\nreserve = \"20%".to_owned();
    let daemon = Daemon::start(&config);
    eventually(LONG, "bulk flows", || downstream.count() >= 20).await;
    broker
        .publish(name, (201..=208).map(|n| urgent(to(n, "urgent"))))
        .await;
    eventually(LONG, "all came", || downstream.count() >= 128).await;
    let log = daemon.stop(KNOWN).await;
    assert!(!log.contains(NEW_SCHEDULE), "both rows are new: {log}");
    let calls = downstream.calls();
    let bulk: Vec<_> = calls.iter().filter(|call| call.caller == "bulk").collect();
    assert_eq!((bulk.len(), calls.len()), (120, 128));
    // The reserve is four of twenty.
    assert!(most(&bulk, Duration::from_secs(1) - STAMPS) <= 16);
    let all: Vec<_> = calls.iter().collect();
    assert!(most(&all, Duration::from_secs(1) - STAMPS) <= 20);
    let first = calls.iter().position(|call| call.caller == "urgent");
    let last = calls.iter().rposition(|call| call.caller == "urgent");
    let (first, last) = (first.unwrap(), last.unwrap());
    assert!(last - first <= 20, "{first} to {last}");
    assert!(last < 80, "long before bulk was through: {last}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_take_turns_however_long_the_backlog_of_one_is() {
    let name = "fair";
    let broker = queue(name, "classic").await;
    let downstream = Recorder::accepting().await;
    broker.publish(name, (1..=100).map(|n| to(n, "big"))).await;
    broker
        .publish(name, (101..=120).map(|n| to(n, "small")))
        .await;
    let mut route = route(name, &["provider"], &downstream);
    route.keys += "fair_by = \"{{ body.to }}\"\n";
    route.tables = format!("[routes.{name}.weights]\nsmall = 2\n");
    let mut config = config(name, vec![route]);
    config.rate = "20/1s".to_owned();
    let daemon = Daemon::start(&config);
    eventually(LONG, "all came", || downstream.count() >= 120).await;
    daemon.stop(KNOWN).await;
    let calls = downstream.calls();
    let last = calls
        .iter()
        .rposition(|call| call.caller == "small")
        .unwrap();
    // Two of three, but for the first slots, which may come before all were received.
    assert!(
        (29..=45).contains(&last),
        "the last of the small one is number {last}"
    );
}

/// The downstream begins a window with the first call that it sees, which need not be the first that was
/// granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_window_that_a_call_began_holds_more_than_its_limit() {
    const MOST: usize = 5;
    let name = "first-call";
    let broker = queue(name, "classic").await;
    let downstream = Recorder::accepting().await;
    let messages = (1..=40).map(|n| to(n, ["one", "other"][n as usize % 2]));
    broker.publish(name, messages).await;
    let config = with(
        config(name, vec![route(name, &["window"], &downstream)]),
        "[limits.window]\nkind = \"fixed_window\"\nrate = \"5/1s\"\nheadroom = \"50ms\"\nkey = \"{{ body.to }}\"\nlost_wait = \"0s\"\n",
    );
    let daemon = Daemon::start(&config);
    eventually(LONG, "all came", || downstream.count() >= 40).await;
    daemon.stop(KNOWN).await;
    assert_eq!(numbers(&downstream), (1..=40).collect::<Vec<_>>());
    let mut calls = downstream.calls();
    calls.sort_by_key(|call| call.at);
    for key in ["one", "other"] {
        let of: Vec<_> = calls.iter().filter(|call| call.caller == key).collect();
        let mut rest = &of[..];
        while let Some(first) = rest.first() {
            let end = first.at + Duration::from_secs(1) - STAMPS;
            let held = rest.partition_point(|call| call.at < end);
            assert!(held <= MOST, "{key}: {held} calls in a window");
            rest = &rest[held..];
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn segments_take_as_many_slots_as_they_are() {
    let name = "segments";
    let broker = queue(name, "classic").await;
    let downstream = Recorder::accepting().await;
    broker.publish(name, (1..=60).map(|n| to(n, "any"))).await;
    let mut config = config(name, vec![route(name, &["provider"], &downstream)]);
    config.rate = "60/1s\"\nmax_cost = 3\ncost = \"{{ body.n % 3 + 1 }}".to_owned();
    let daemon = Daemon::start(&config);
    eventually(LONG, "all came", || downstream.count() >= 60).await;
    daemon.stop(KNOWN).await;
    let calls = downstream.calls();
    assert_eq!(calls.len(), 60);
    let window = Duration::from_secs(1) - STAMPS;
    for from in &calls {
        let inside = calls
            .iter()
            .filter(|call| call.at >= from.at && call.at < from.at + window);
        let units: u64 = inside.map(|call| call.number % 3 + 1).sum();
        assert!(units <= 60, "{units} units in a second");
    }
}
