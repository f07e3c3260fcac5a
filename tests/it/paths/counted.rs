//! Limits besides the paced one: keys, costs, several at once, places that were booked, priorities.

use std::collections::BTreeMap;
use std::time::Duration;

use lapin::BasicProperties;
use sluiced::ports::message::header as known;

use super::{config, header, holds, queue};
use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route};
use crate::support::recorder::{Call, Recorder, Reply};
use crate::support::redis::RedisServer;
use crate::support::wait::{eventually, eventually_async};

/// Arrivals are stamped by another process, after the way there.
const STAMPS: Duration = Duration::from_millis(20);

/// What is said of the test's own Redis, and of its short lease.
const KNOWN: &[&str] = &[
    NEW_SCHEDULE,
    "nothing is kept on disk",
    "hardly leaves time to renew",
];

/// A message with a number, for somebody.
fn to(number: u64, to: &str) -> (Vec<u8>, BasicProperties) {
    let body = format!("{{\"n\":{number},\"to\":\"{to}\"}}");
    (body.into_bytes(), BasicProperties::default())
}

fn urgent((body, properties): (Vec<u8>, BasicProperties)) -> (Vec<u8>, BasicProperties) {
    (body, properties.with_priority(9))
}

/// A route that tells its downstream whom a message is for.
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
async fn account_and_recipient_are_kept_together_and_nobody_is_lost() {
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
    // Two of four pass at once; the other two are denied, once each.
    let denied = "sluiced_budget_denials_total{limit=\"recipient\"}";
    assert_eq!(daemon.metric(denied).await, 30.0);
    daemon.stop(KNOWN).await;
    assert_eq!(broker.counts(name).await, Some((0, 0)));
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
    assert!(!log.contains("hot"), "and not for whom");
    let waits = broker.drain(&format!("{name}.wait.2048s")).await;
    let (_, properties) = waits.first().expect("the first to pass waits an hour");
    let told = |name| header(properties, name).unwrap_or_default();
    assert!(told(known::BOOKED).starts_with("sender@"), "{properties:?}");
    assert_eq!(told(known::ATTEMPTS), "0");
    assert_eq!(told(known::LIMIT), "sender");
    assert_eq!(told(known::REMAINING), "0");
    assert!(told(known::RETRY_AFTER).parse::<u64>().unwrap() > 3_000_000_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_message_comes_back_for_its_place_and_is_not_denied_again() {
    let name = "booked";
    let broker = queue(name, "classic").await;
    let downstream = Recorder::accepting().await;
    broker.publish(name, (1..=4).map(|n| to(n, "one"))).await;
    let mut route = route(name, &["provider", "sender"], &downstream);
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
    for (series, count) in [
        ("sluiced_denials_total{route=\"booked\"}", 3.0),
        (
            "sluiced_bookings_total{route=\"booked\",fate=\"used\"}",
            3.0,
        ),
        (
            "sluiced_bookings_total{route=\"booked\",fate=\"missed\"}",
            0.0,
        ),
    ] {
        assert_eq!(daemon.metric(series).await, count, "{series}");
    }
    let later = "sluiced_settled_total{route=\"booked\",verdict=\"later\"}";
    assert!(daemon.metric(later).await >= 3.0, "through the ladder");
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
    holds(&broker, "uncounted.dead", 4).await;
    let series = "sluiced_settled_total{route=\"uncounted-drop\",verdict=\"dropped\"}";
    eventually_async(LONG, "four are dropped", || {
        let page = futures::executor::block_on(daemon.page("/metrics")).1;
        let told = page.contains(&format!("{series} 4"));
        async move { told }
    })
    .await;
    assert_eq!(downstream.count(), 0);
    let details: Vec<_> = broker
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
    assert!(details[0].contains("limits.segments.key"), "{details:?}");
    for detail in &details[1..] {
        assert!(detail.contains("limits.segments.cost"), "{details:?}");
    }
    assert!(details.iter().all(|detail| !detail.contains("49170")));
    let log = daemon.stop(KNOWN).await;
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
    daemon.stop(KNOWN).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_under_way_are_bounded_over_two_replicas_without_a_paced_limit() {
    let name = "under-way";
    let broker = queue(name, "classic").await;
    let latency = Duration::from_millis(200);
    let downstream = Recorder::start(move |_| Reply {
        latency,
        ..Reply::status(202)
    })
    .await;
    broker.publish(name, (1..=60).map(|n| to(n, "any"))).await;
    let mut route = route(name, &["calls"], &downstream);
    route.keys = "queue_type = \"classic\"\nprefetch = 20\n".to_owned();
    let config = with(
        config(name, vec![route]),
        // Shorter than a call: it is renewed.
        "[limits.calls]\nkind = \"concurrency\"\nlimit = 4\nlease = \"150ms\"\nheadroom = \"50ms\"\nlost_wait = \"0s\"\n",
    );
    let mut daemons = [Daemon::start(&config), Daemon::start(&config)];
    eventually(LONG, "all came", || downstream.count() >= 60).await;
    assert_eq!(numbers(&downstream), (1..=60).collect::<Vec<_>>());
    let calls = downstream.calls();
    let all: Vec<_> = calls.iter().collect();
    assert!(most(&all, latency - STAMPS) <= 4);
    for daemon in &mut daemons {
        let lost = "sluiced_call_leases_lost_total{limit=\"calls\"}";
        assert_eq!(daemon.metric(lost).await, 0.0);
    }
    for daemon in daemons {
        daemon.stop(KNOWN).await;
    }
    assert_eq!(broker.counts(name).await, Some((0, 0)));
}

/// Redis forgets which calls are under way: until their leases have ended no other one begins, and the log
/// says why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_under_way_that_redis_forgot_are_waited_for() {
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
    let lost = "the store lost its budgets";
    assert_eq!(daemon.said(lost), 1, "{}", daemon.log());
    let more = [lost, "a call under way is not counted any more"];
    daemon.stop(&[KNOWN, &more].concat()).await;
}

/// A window that begins with a call is known to have begun once the downstream has answered; what a
/// proxy may have said for it tells nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answer_to_the_first_call_tells_when_its_window_began() {
    let name = "first-call";
    let broker = queue(name, "classic").await;
    let downstream =
        Recorder::start(|call| Reply::status(if call.caller == "served" { 202 } else { 503 }))
            .await;
    broker
        .publish(name, [to(1, "served"), to(2, "unheard")])
        .await;
    let config = with(
        config(name, vec![route(name, &["hourly"], &downstream)]),
        "[limits.hourly]\nkind = \"fixed_window\"\nrate = \"5/1h\"\nkey = \"{{ body.to }}\"\nlost_wait = \"0s\"\n",
    );
    let daemon = Daemon::start(&config);
    let mut redis = RedisServer::shared().connection();
    // Epoch, start, units; and while it is in doubt, the last call.
    let mut states = || -> Vec<usize> {
        let keys: Vec<String> = redis::cmd("KEYS")
            .arg(format!("{name}:{{budgets}}:hourly:*"))
            .query(&mut redis)
            .unwrap();
        let budgets = keys.iter().filter(|key| !key.ends_with("policy"));
        let budgets = budgets.filter(|key| !key.ends_with("replicas"));
        let state = |key: &String| -> Option<String> {
            redis::cmd("GET").arg(key).query(&mut redis).unwrap()
        };
        let states: Vec<_> = budgets.filter_map(state).collect();
        let mut numbers: Vec<_> = states.iter().map(|s| s.split(' ').count()).collect();
        numbers.sort_unstable();
        numbers
    };
    eventually(LONG, "one window is known", || states() == [3, 4]).await;
    eventually(LONG, "a second try", || downstream.count() >= 3).await;
    assert_eq!(states(), [3, 4]);
    daemon.stop(KNOWN).await;
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
