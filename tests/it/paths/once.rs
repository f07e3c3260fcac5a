//! Messages that are called once: repeats of publishers, and calls that fail.

mod killed;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use lapin::BasicProperties;

use super::{NO_BREAKER, config, header, holds, queue};
use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route, get};
use crate::support::messages::body;
use crate::support::recorder::{Call, Recorder, Reply};
use crate::support::wait::eventually;

/// What is logged about the test's own Redis, and about its short leases.
const KNOWN: &[&str] = &[
    NEW_SCHEDULE,
    "nothing is kept on disk",
    "hardly leaves time to renew",
    "dead letter",
];

/// A route that calls each message id once. A claim ends after `lease`, and a call that is not answered ends
/// no later.
fn once(name: &str, downstream: &Recorder, on_unknown: &str, lease: &str) -> Config {
    let mut route = Route::new(name, downstream.address);
    route.limits = vec!["provider", "repeats"];
    route.keys = "retry = { base = \"1ms\", max = \"1ms\" }\n".to_owned();
    let timeout = if lease == "30s" { "10s" } else { lease };
    route.downstream = format!("{NO_BREAKER}timeout = \"{timeout}\"\n");
    let mut config = config(name, vec![route]);
    config.tables = format!(
        "[limits.repeats]\nkind = \"once\"\nkey = \"{{{{ message_id }}}}\"\nttl = \"1h\"\nlease = \"{lease}\"\n\
         on_unknown = \"{on_unknown}\"\nheadroom = \"100ms\"\nlost_wait = \"0s\"\n"
    );
    config
}

fn named(number: u64) -> (Vec<u8>, BasicProperties) {
    let properties = BasicProperties::default().with_message_id(format!("m-{number}").into());
    (body(number), properties)
}

/// Accepts every call after this time.
async fn slow(latency: Duration) -> Recorder {
    let reply = move |_: &Call| Reply {
        latency,
        ..Reply::status(202)
    };
    Recorder::start(reply).await
}

/// Does not answer the first call of a message, and accepts the others.
async fn silent_at_first() -> Recorder {
    let reply = |call: &Call| Reply {
        latency: if call.repeat == 0 {
            LONG
        } else {
            Duration::ZERO
        },
        ..Reply::status(202)
    };
    Recorder::start(reply).await
}

/// How often each message was called.
fn times(downstream: &Recorder) -> BTreeMap<u64, usize> {
    let mut times = BTreeMap::new();
    for call in downstream.calls() {
        *times.entry(call.number).or_default() += 1;
    }
    times
}

fn each_once(count: u64) -> BTreeMap<u64, usize> {
    (1..=count).map(|number| (number, 1)).collect()
}

/// The reasons of dead letters.
async fn reasons(broker: &Broker, queue: &str) -> Vec<String> {
    let letters = broker.drain(&format!("{queue}.dead")).await;
    let reason = |(_, properties): &(Vec<u8>, BasicProperties)| {
        header(properties, "x-sluiced-reason").unwrap_or_default()
    };
    letters.iter().map(reason).collect()
}

/// No message is left, and these are the reasons of the dead letters.
async fn left(broker: &Broker, queue: &str, letters: &[&str]) {
    assert_eq!(broker.counts(queue).await, Some((0, 0)));
    assert_eq!(reasons(broker, queue).await, letters);
}

/// A series of some replicas together.
fn sum(admins: &[SocketAddr], series: &str) -> f64 {
    let one = |admin: &SocketAddr| {
        let page = get(*admin, "/metrics").1;
        let line = page.lines().find_map(|line| line.strip_prefix(series));
        line.map_or(0.0, |value| value.trim().parse().expect("a number"))
    };
    admins.iter().map(one).sum()
}

fn done(admins: &[SocketAddr], name: &str) -> f64 {
    let series = format!("sluiced_settled_total{{route=\"{name}\",verdict=\"done\"}}");
    sum(admins, &series)
}

fn repeats(admins: &[SocketAddr], name: &str) -> f64 {
    sum(
        admins,
        &format!("sluiced_repeats_total{{route=\"{name}\"}}"),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_publishers_repeat_is_called_once() {
    const COUNT: u64 = 40;
    let name = "once-repeats";
    let broker = queue(name, "quorum").await;
    let downstream = slow(Duration::from_millis(50)).await;
    let config = once(name, &downstream, "resend", "10s");
    let thrice = (1..=3 * COUNT).map(|n| named(1 + n % COUNT));
    broker.publish(name, thrice).await;
    let mut daemons = [Daemon::start(&config), Daemon::start(&config)];
    let mut admins = Vec::new();
    for daemon in &mut daemons {
        admins.push(daemon.admin().await);
    }
    eventually(LONG, "all are settled", || {
        done(&admins, name) >= (3 * COUNT) as f64
    })
    .await;
    assert_eq!(done(&admins, name), (3 * COUNT) as f64);
    assert_eq!(repeats(&admins, name), (2 * COUNT) as f64);
    for daemon in daemons {
        daemon.stop(KNOWN).await;
    }
    assert_eq!(times(&downstream), each_once(COUNT));
    assert_eq!(broker.counts(name).await, Some((0, 0)));
}

/// An order is sent as an SMS and as a mail, under one id. Where the limit is shared, one of them is a repeat.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_queue_calls_its_message_of_an_id_unless_they_share() {
    const COUNT: u64 = 20;
    for (name, shared, calls) in [
        ("once-apart", false, 2 * COUNT),
        ("once-together", true, COUNT),
    ] {
        let downstream = Recorder::accepting().await;
        let mut config = once(name, &downstream, "dead_letter", "10s");
        let broker = queue(name, "quorum").await;
        let mail = format!("{name}-mail");
        broker.declare(&mail, "quorum").await;
        let mut second = config.routes[0].clone();
        (second.name, second.queue) = (mail.clone(), mail.clone());
        config.routes.push(second);
        config.tables += &format!("shared = {shared}\n");
        broker.publish(name, (1..=COUNT).map(named)).await;
        broker.publish(&mail, (1..=COUNT).map(named)).await;
        let mut daemon = Daemon::start(&config);
        let admins = [daemon.admin().await];
        let both =
            |what: fn(&[SocketAddr], &str) -> f64| what(&admins, name) + what(&admins, &mail);
        eventually(LONG, "all are settled", || both(done) == (2 * COUNT) as f64).await;
        assert_eq!(both(repeats), (2 * COUNT - calls) as f64);
        daemon.stop(KNOWN).await;
        let each = (calls / COUNT) as usize;
        assert_eq!(
            times(&downstream),
            (1..=COUNT).map(|number| (number, each)).collect()
        );
        for queue in [name, &mail] {
            left(&broker, queue, &[]).await;
        }
    }
}

/// An answer that refuses or fails says that the message was not taken: its key is free, also for a letter that is
/// replayed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_failed_frees_its_key() {
    let name = "once-failed";
    let broker = queue(name, "quorum").await;
    let downstream = Recorder::start(|call| match (call.number, call.repeat) {
        (1, 0 | 1) => Reply::status(500),
        (2, 0) => Reply::retry_after(429, "1"),
        (3, 0) => Reply::status(422),
        _ => Reply::status(202),
    })
    .await;
    let config = once(name, &downstream, "dead_letter", "30s");
    broker.publish(name, (1..=3).map(named)).await;
    let daemon = Daemon::start(&config);
    holds(&broker, &format!("{name}.dead"), 1).await;
    eventually(LONG, "the others are accepted", || downstream.count() == 6).await;
    replay(&daemon, name);
    eventually(LONG, "the refused one is accepted", || {
        downstream.count() == 7
    })
    .await;
    broker.publish(name, (1..=3).map(named)).await;
    daemon
        .stop(&[KNOWN, &["the downstream throttles"]].concat())
        .await;
    assert_eq!(times(&downstream), BTreeMap::from([(1, 3), (2, 2), (3, 2)]));
    assert_eq!(reasons(&broker, name).await, Vec::<String>::new());
}

fn replay(daemon: &Daemon, name: &str) {
    let config = daemon.config();
    let config = config.to_str().expect("a path in UTF-8");
    let replayed =
        crate::support::daemon::program(&["dead", "replay", "--config", config, "--route", name])
            .output()
            .expect("it runs");
    assert!(replayed.status.success(), "{replayed:?}");
}

/// A call without an answer may have been accepted. With `dead_letter` it is not repeated, unless an operator
/// replays the letter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_without_an_answer_is_unknown_until_it_is_replayed() {
    let name = "once-silent";
    let broker = queue(name, "quorum").await;
    let downstream = silent_at_first().await;
    let config = once(name, &downstream, "dead_letter", "3s");
    // The publisher repeats it: that one waits for the claim, and is unknown then.
    broker.publish(name, [named(1), named(1)]).await;
    let mut daemon = Daemon::start(&config);
    let dead = format!("{name}.dead");
    holds(&broker, &dead, 2).await;
    assert_eq!(downstream.count(), 1);
    // Both are sent again: one is called, the other is its repeat.
    replay(&daemon, name);
    eventually(LONG, "it is accepted", || downstream.count() == 2).await;
    let admin = daemon.admin().await;
    eventually(LONG, "all is settled", || done(&[admin], name) == 2.0).await;
    daemon.stop(&[KNOWN, LOST].concat()).await;
    assert_eq!(times(&downstream), BTreeMap::from([(1, 2)]));
    left(&broker, name, &[]).await;
}

/// On a busy machine an answer takes longer than the short lease of a test: then the claim is unknown, and called
/// again.
const LOST: &[&str] = &["a call under way is not counted any more"];

/// With `resend` it is called again, as without this limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_without_an_answer_is_repeated_where_that_is_allowed() {
    let name = "once-resend";
    let broker = queue(name, "quorum").await;
    let downstream = silent_at_first().await;
    let config = once(name, &downstream, "resend", "3s");
    broker.publish(name, [named(1), named(1)]).await;
    let mut daemon = Daemon::start(&config);
    eventually(LONG, "it is called again", || downstream.count() == 2).await;
    let admin = daemon.admin().await;
    eventually(LONG, "all is settled", || done(&[admin], name) == 2.0).await;
    daemon.stop(&[KNOWN, LOST].concat()).await;
    assert_eq!(times(&downstream), BTreeMap::from([(1, 2)]));
    assert_eq!(broker.counts(name).await, Some((0, 0)));
}
