//! Results: the outcome of a message is published, and safe before the message is settled.

mod content;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use lapin::BasicProperties;
use serde_json::Value;

use super::{NO_BREAKER, config, header, holds, queue};
use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route, get};
use crate::support::messages::body;
use crate::support::rabbit::Rabbit;
use crate::support::recorder::{Recorder, Reply};
use crate::support::wait::{eventually, eventually_async};

/// A copy is tried again.
const AGAIN: &str = "copies are not confirmed";
const SAFE: &str = "copies are confirmed again";

/// Accepts messages with an even number, and refuses the others for good.
async fn even() -> Recorder {
    Recorder::start(|call| Reply {
        body: r#"{"id": "sms-7"}"#,
        ..Reply::status(if call.number.is_multiple_of(2) {
            200
        } else {
            422
        })
    })
    .await
}

fn route(queue: &str, downstream: &Recorder, results: &str) -> Route {
    let mut route = Route::new(queue, downstream.address);
    route.downstream = NO_BREAKER.to_owned();
    route.tables = format!("[routes.{queue}.results]\n{results}");
    route
}

fn asked(number: u64, reply_to: Option<&str>) -> (Vec<u8>, BasicProperties) {
    let properties = BasicProperties::default()
        .with_message_id(format!("m-{number}").into())
        .with_correlation_id(format!("c-{number}").into());
    let properties = match reply_to {
        Some(queue) => properties.with_reply_to(queue.into()),
        None => properties,
    };
    (body(number), properties)
}

/// The results in a queue as JSON, by correlation id.
async fn results(broker: &Broker, queue: &str) -> Vec<(String, Value)> {
    let mut found: Vec<_> = broker.drain(queue).await.into_iter().collect::<Vec<_>>();
    found.sort_by_key(|(_, properties)| correlation(properties));
    let parsed = |(body, properties): (Vec<u8>, BasicProperties)| {
        assert_eq!(*properties.delivery_mode(), Some(2), "persistent");
        let json = serde_json::from_slice(&body).expect("JSON");
        (correlation(&properties), json)
    };
    found.into_iter().map(parsed).collect()
}

/// A series of a replica; zero if it is not there.
fn metric(admin: SocketAddr, series: &str) -> f64 {
    let page = get(admin, "/metrics").1;
    let line = page.lines().find_map(|line| line.strip_prefix(series));
    line.map_or(0.0, |value| value.trim().parse().expect("a number"))
}

fn correlation(properties: &BasicProperties) -> String {
    let id = properties.correlation_id().as_ref();
    id.map_or_else(String::new, |id| id.to_string())
}

/// The binding of an exchange leads results back to their own queue, which no check can see.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_that_come_back_end_after_some_rounds() {
    let name = "results-circle";
    let broker = queue(name, "quorum").await;
    let exchange = "results-circle-x";
    broker.fanout(exchange, name).await;
    broker.publish(name, [asked(2, None)]).await;
    let downstream = even().await;
    let results = format!(
        "exchange = \"{exchange}\"\nrouting_key = \"any\"\nbody = \"{{{{ body | tojson }}}}\"\n"
    );
    let route = route(name, &downstream, &results);
    let mut daemon = Daemon::start(&config(name, vec![route]));
    let end = "results come back as messages";
    daemon.says(end).await;
    let circles = format!("sluiced_results_total{{route=\"{name}\",outcome=\"circles\"}}");
    assert_eq!(daemon.metric(&circles).await, 1.0);
    assert_eq!(downstream.count(), 9, "the message and eight results");
    daemon.stop(&[NEW_SCHEDULE, end]).await;
    assert_eq!(broker.counts(name).await, Some((0, 0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_is_not_settled_before_its_result_is_safe() {
    let name = "results-missing";
    let broker = queue(name, "quorum").await;
    let into = "results-missing.out";
    broker
        .publish(name, (1..=6).map(|number| asked(2 * number, None)))
        .await;
    let downstream = even().await;
    let results_to = format!("routing_key = \"{into}\"\nbody = \"{{{{ answer.body.id }}}}\"\n");
    let route = route(name, &downstream, &results_to);
    let mut daemon = Daemon::start(&config(name, vec![route]));
    eventually(LONG, "all are called", || downstream.count() == 6).await;
    daemon.says(AGAIN).await;
    let admin = daemon.admin().await;
    let tried = || {
        metric(
            admin,
            &format!("sluiced_unconfirmed_total{{route=\"{name}\"}}"),
        )
    };
    eventually(LONG, "results are tried again", || tried() >= 12.0).await;
    let settled = format!("sluiced_settled_total{{route=\"{name}\",verdict=\"done\"}}");
    assert_eq!(metric(admin, &settled), 0.0, "none is settled");
    let says_so = || {
        let (status, page) = get(admin, "/readyz");
        status == 503 && page.contains("results are not confirmed")
    };
    eventually(LONG, "it is not ready", says_so).await;
    broker.declare(into, "quorum").await;
    holds(&broker, into, 6).await;
    eventually(LONG, "it is ready again", || get(admin, "/readyz").0 == 200).await;
    daemon.stop(&[NEW_SCHEDULE, AGAIN, SAFE]).await;
    assert_eq!(broker.counts(name).await, Some((0, 0)));
    assert_eq!(downstream.count(), 6, "no call is repeated");
    for (text, properties) in broker.drain(into).await {
        assert_eq!(text, b"sms-7");
        assert_eq!(
            *properties.content_type(),
            None,
            "a template may make anything"
        );
        assert_eq!(
            header(&properties, "x-sluiced-route").as_deref(),
            Some(name)
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_exchange_holds_results_and_no_other_copy() {
    let name = "results-exchange";
    let broker = queue(name, "quorum").await;
    broker
        .publish(name, (1..=4).map(|number| asked(number, None)))
        .await;
    let downstream = even().await;
    let results_to = "exchange = \"results-none\"\nrouting_key = \"sms\"\non = [\"accepted\"]\n";
    let route = route(name, &downstream, results_to);
    let daemon = Daemon::start(&config(name, vec![route]));
    daemon
        .says("the exchange `results-none` of results does not exist")
        .await;
    holds(&broker, &format!("{name}.dead"), 2).await;
    let into = "results-exchange.out";
    broker.declare(into, "quorum").await;
    broker.fanout("results-none", into).await;
    holds(&broker, into, 2).await;
    daemon
        .stop(&[NEW_SCHEDULE, "dead letter", AGAIN, SAFE])
        .await;
    assert_eq!(broker.counts(name).await, Some((0, 0)));
    assert_eq!(downstream.count(), 4, "no call is repeated");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_repeats_no_call_whose_result_was_not_safe() {
    let (name, into) = ("results-lost", "results-lost.out");
    let rabbit = Rabbit::shared();
    let url = rabbit.add_user(name, "secret");
    let broker = queue(name, "quorum").await;
    broker
        .publish(name, (1..=6).map(|number| asked(2 * number, None)))
        .await;
    let downstream = even().await;
    let route = route(name, &downstream, &format!("routing_key = \"{into}\"\n"));
    let mut config = config(name, vec![route]);
    config.rabbit = Some(url);
    let mut daemon = Daemon::start(&config);
    let admin = daemon.admin().await;
    let tried = || {
        metric(
            admin,
            &format!("sluiced_unconfirmed_total{{route=\"{name}\"}}"),
        )
    };
    eventually(LONG, "results are tried", || tried() >= 6.0).await;
    rabbit.close_connections_of(name);
    let came = format!("sluiced_received_total{{route=\"{name}\"}}");
    let again = format!("sluiced_redelivered_total{{route=\"{name}\"}}");
    eventually_async(LONG, "all are with the replica again", || async {
        broker.counts(name).await == Some((0, 1)) && tried() >= 18.0
    })
    .await;
    broker.declare(into, "quorum").await;
    holds(&broker, into, 6).await;
    eventually(LONG, "all are settled", || {
        metric(
            admin,
            &format!("sluiced_settled_total{{route=\"{name}\",verdict=\"done\"}}"),
        ) == 6.0
    })
    .await;
    assert_eq!(downstream.count(), 6, "no call is repeated");
    assert_eq!(
        metric(admin, &came) + metric(admin, &again),
        6.0,
        "none came to the pipeline again"
    );
    drop(daemon);
}

/// Killed while results wait, and while they are published.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_killed_loses_no_result() {
    let name = "results-killed";
    let broker = queue(name, "quorum").await;
    let into = "results-killed.out";
    const COUNT: u64 = 60;
    broker
        .publish(name, (1..=COUNT).map(|number| asked(number, None)))
        .await;
    let downstream = even().await;
    let route = route(name, &downstream, &format!("routing_key = \"{into}\"\n"));
    let config = config(name, vec![route]);
    let first = Daemon::start(&config);
    eventually(LONG, "calls are made", || downstream.count() >= 20).await;
    first.kill(&[NEW_SCHEDULE, AGAIN, "dead letter"]).await;
    broker.declare(into, "quorum").await;
    let second = Daemon::start(&config);
    eventually_async(LONG, "results are published", || async {
        broker
            .counts(into)
            .await
            .is_some_and(|(ready, _)| ready >= 10)
    })
    .await;
    second
        .kill(&[NEW_SCHEDULE, AGAIN, SAFE, "dead letter"])
        .await;
    eventually_async(LONG, "what it had is in the queue again", || async {
        broker
            .counts(name)
            .await
            .is_some_and(|(_, consumers)| consumers == 0)
    })
    .await;
    let (left, _) = broker.counts(name).await.expect("the queue");
    let mut third = Daemon::start(&config);
    let admin = third.admin().await;
    let settled = |verdict: &str| {
        let series = format!("sluiced_settled_total{{route=\"{name}\",verdict=\"{verdict}\"}}");
        metric(admin, &series)
    };
    eventually(LONG, "all are settled", || {
        settled("done") + settled("dead") >= f64::from(left)
    })
    .await;
    third
        .stop(&[NEW_SCHEDULE, "dead letter", AGAIN, SAFE])
        .await;
    assert_eq!(broker.counts(name).await, Some((0, 0)));
    let all: BTreeSet<String> = results(&broker, into)
        .await
        .into_iter()
        .map(|(correlation, _)| correlation)
        .collect();
    assert_eq!(all.len() as u64, COUNT, "each has a result");
}

/// A route with results that calls each id once. Each call takes `latency`.
async fn once_with_results(name: &str, latency: Duration) -> (Recorder, Config) {
    let downstream = Recorder::start(move |_| Reply {
        latency,
        body: r#"{"id": "sms-7"}"#,
        ..Reply::status(200)
    })
    .await;
    let mut route = route(
        name,
        &downstream,
        &format!("routing_key = \"{name}.out\"\n"),
    );
    route.limits = vec!["provider", "repeats"];
    let mut config = config(name, vec![route]);
    config.rabbit = Some(Rabbit::shared().add_user(name, "secret"));
    config.tables = "[limits.repeats]\nkind = \"once\"\nkey = \"{{ message_id }}\"\non_unknown = \"dead_letter\"\n\
         headroom = \"100ms\"\nlost_wait = \"0s\"\n".to_owned();
    (downstream, config)
}

/// What is logged when the broker closes the connections.
const CUT: &[&str] = &[
    NEW_SCHEDULE,
    "nothing is kept on disk",
    "cannot be consumed",
    "lost RabbitMQ",
    "cannot connect to RabbitMQ",
    "the connection to RabbitMQ",
    AGAIN,
    SAFE,
];

/// The connections are cut while calls are in flight: what the broker delivers again is a repeat of these calls, and
/// gets their results with what the answers said. Memory has no place for all of them, so that some come back as copies
/// from a wait queue, which the broker has not delivered before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_a_cut_finds_under_way_have_their_results() {
    const COUNT: u64 = 60;
    let name = "results-cut";
    let broker = queue(name, "quorum").await;
    let into = "results-cut.out";
    broker.declare(into, "quorum").await;
    let (downstream, config) = once_with_results(name, Duration::from_secs(6)).await;
    broker
        .publish(name, (1..=COUNT).map(|number| asked(number, None)))
        .await;
    let mut daemon = Daemon::start(&config);
    eventually(LONG, "all are under way", || {
        downstream.count() as u64 == COUNT
    })
    .await;
    Rabbit::shared().close_connections_of(name);
    holds(&broker, into, COUNT as u32).await;
    let later = format!("sluiced_settled_total{{route=\"{name}\",verdict=\"later\"}}");
    assert!(daemon.metric(&later).await > 0.0, "some wait as copies");
    daemon.stop(CUT).await;
    assert_eq!(broker.counts(name).await, Some((0, 0)), "all are settled");
    assert_eq!(downstream.count() as u64, COUNT, "no call is repeated");
    let all = results(&broker, into).await;
    let ids: BTreeSet<&String> = all.iter().map(|(id, _)| id).collect();
    assert_eq!(ids.len() as u64, COUNT, "each has a result");
    for (_, json) in &all {
        assert_eq!(json["verdict"], "accepted");
        assert_eq!(json["answer"]["body"]["id"], "sms-7", "{json}");
    }
}
