//! Replicas that die in each state of a call, and a Redis that is away when answers come.

use std::time::Duration;

use sluiced_ports::limits::message_key;

use super::{
    KNOWN, done, each_once, holds, left, named, once, queue, reasons, repeats, silent_at_first,
    slow, sum, times,
};
use crate::limits::rules::redis_key;
use crate::support::broker::Broker;
use crate::support::daemon::{Daemon, LONG};
use crate::support::recorder::Recorder;
use crate::support::redis::{Paused, RedisServer};
use crate::support::wait::eventually;

/// Waits for the end of a message: its letter, or this many calls.
async fn ended(
    broker: &Broker,
    queue: &str,
    downstream: &Recorder,
    calls: usize,
    letters: &[&str],
) {
    if letters.is_empty() {
        eventually(LONG, "it is called", || downstream.count() == calls).await;
    } else {
        holds(broker, &format!("{queue}.dead"), letters.len() as u32).await;
    }
}

/// The state that a replica leaves that died between its claim and its call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_before_its_call() {
    for (name, on_unknown, calls, letters) in [
        ("once-before-dead", "dead_letter", 0, &["unknown"][..]),
        ("once-before-again", "resend", 1, &[]),
    ] {
        let broker = queue(name, "quorum").await;
        let downstream = Recorder::accepting().await;
        let config = once(name, &downstream, on_unknown, "2s");
        let redis = RedisServer::shared();
        let (seconds, micros): (u64, u64) =
            redis::cmd("TIME").query(&mut redis.connection()).unwrap();
        let now = seconds * 1_000_000 + micros;
        () = redis::cmd("SET")
            .arg(redis_key(
                name,
                "repeats",
                message_key(Some(name), Some("m-1")),
            ))
            .arg(format!("o {now} {} abc0000001", now + 1_000_000))
            .query(&mut redis.connection())
            .unwrap();
        broker.publish(name, [named(1)]).await;
        let daemon = Daemon::start(&config);
        ended(&broker, name, &downstream, calls, letters).await;
        daemon.stop(KNOWN).await;
        assert_eq!(downstream.count(), calls);
        left(&broker, name, letters).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_during_its_call() {
    for (name, on_unknown, calls, letters) in [
        ("once-during-dead", "dead_letter", 1, &["unknown"][..]),
        ("once-during-again", "resend", 2, &[]),
    ] {
        let broker = queue(name, "quorum").await;
        let downstream = silent_at_first().await;
        let config = once(name, &downstream, on_unknown, "3s");
        broker.publish(name, [named(1)]).await;
        let first = Daemon::start(&config);
        eventually(LONG, "its call is under way", || downstream.count() == 1).await;
        first.kill(KNOWN).await;
        let second = Daemon::start(&config);
        ended(&broker, name, &downstream, calls, letters).await;
        second.stop(KNOWN).await;
        assert_eq!(downstream.count(), calls);
        left(&broker, name, letters).await;
    }
}

/// The answer is there, and Redis is not: the replica dies before it could write it down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_between_its_answer_and_redis() {
    let name = "once-answered";
    let broker = queue(name, "quorum").await;
    let downstream = slow(Duration::from_secs(3)).await;
    let redis = RedisServer::start();
    let mut config = once(name, &downstream, "dead_letter", "10s");
    config.redis = Some(redis.url());
    broker.publish(name, [named(1)]).await;
    let mut first = Daemon::start(&config);
    let admin = first.admin().await;
    eventually(LONG, "its call is under way", || downstream.count() == 1).await;
    let paused = Paused::new(redis.pid());
    let answered = format!("sluiced_answers_total{{route=\"{name}\",answer=\"2xx\"}}");
    eventually(LONG, "its answer is there", || {
        sum(&[admin], &answered) == 1.0
    })
    .await;
    first.kill(KNOWN).await;
    drop(paused);
    // Redis may still run its request once it continues: then the message is a repeat.
    let mut second = Daemon::start(&config);
    let admin = second.admin().await;
    eventually(LONG, "it has its verdict", || {
        let dead = format!("sluiced_dead_total{{route=\"{name}\",reason=\"unknown\"}}");
        done(&[admin], name) + sum(&[admin], &dead) == 1.0
    })
    .await;
    second.stop(KNOWN).await;
    assert_eq!(broker.counts(name).await, Some((0, 0)));
    assert_eq!(times(&downstream), each_once(1));
    let reasons = reasons(&broker, name).await;
    assert!(
        reasons.iter().all(|reason| reason == "unknown"),
        "{reasons:?}"
    );
}

/// Redis knows that it was accepted, and RabbitMQ does not: the verdict waits for a result that no queue
/// accepts yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_between_redis_and_its_verdict() {
    let name = "once-done";
    let broker = queue(name, "quorum").await;
    let downstream = Recorder::accepting().await;
    let mut config = once(name, &downstream, "resend", "3s");
    config.routes[0].tables =
        format!("[routes.{name}.results]\nrouting_key = \"{name}.out\"\non = [\"accepted\"]\n");
    broker.publish(name, [named(1)]).await;
    let first = Daemon::start(&config);
    first.says("copies are not confirmed").await;
    first
        .kill(&[KNOWN, &["copies are not confirmed"]].concat())
        .await;
    let results = format!("{name}.out");
    broker.declare(&results, "quorum").await;
    let mut second = Daemon::start(&config);
    let admin = second.admin().await;
    eventually(LONG, "it is a repeat", || repeats(&[admin], name) == 1.0).await;
    // A publisher's repeat has no result of its own.
    broker.publish(name, [named(1)]).await;
    eventually(LONG, "it is another", || repeats(&[admin], name) == 2.0).await;
    second.stop(KNOWN).await;
    assert_eq!(broker.counts(name).await, Some((0, 0)));
    assert_eq!(times(&downstream), each_once(1));
    let published = broker.drain(&results).await;
    assert_eq!(published.len(), 1, "the result was not lost");
    let result: serde_json::Value = serde_json::from_slice(&published[0].0).expect("JSON");
    assert_eq!(result["verdict"], "accepted");
    assert_eq!(result["reason"], "repeat");
    assert_eq!(result["attempts"], 1);
}

/// Redis is away when answers come: the verdicts wait for it, and repeats of publishers are recognized
/// afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verdicts_wait_for_redis() {
    const COUNT: u64 = 10;
    let name = "once-away";
    let broker = queue(name, "quorum").await;
    let downstream = slow(Duration::from_secs(3)).await;
    let redis = RedisServer::start();
    let mut config = once(name, &downstream, "dead_letter", "30s");
    config.redis = Some(redis.url());
    broker.publish(name, (1..=COUNT).map(named)).await;
    let mut daemon = Daemon::start(&config);
    eventually(LONG, "calls are under way", || {
        downstream.count() as u64 == COUNT
    })
    .await;
    let paused = Paused::new(redis.pid());
    // Longer than a request to Redis can take: writing fails, and is tried again.
    tokio::time::sleep(Duration::from_secs(9)).await;
    drop(paused);
    let admin = daemon.admin().await;
    eventually(LONG, "all are settled", || {
        done(&[admin], name) == COUNT as f64
    })
    .await;
    broker.publish(name, (1..=COUNT).map(named)).await;
    eventually(LONG, "all are repeats", || {
        repeats(&[admin], name) == COUNT as f64
    })
    .await;
    let away = [
        "lost Redis",
        "cannot connect to Redis",
        "the limit's store is out of reach",
        "was not written down yet",
        "could not be renewed",
        // The machine stood still, too.
        "the clock of Redis stepped",
    ];
    daemon.stop(&[KNOWN, &away].concat()).await;
    assert_eq!(times(&downstream), each_once(COUNT));
    left(&broker, name, &[]).await;
}
