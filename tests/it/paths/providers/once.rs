//! Messages that are called once, in routes that share a queue: whichever of them calls, and whatever dies,
//! no message is called twice, and none that was certainly not called becomes a dead letter.

use std::collections::BTreeSet;

use tokio::time::{Instant, sleep};

use super::{DECLARED, HANGS, LATE_500, MESSAGES, Pair, header, taken};
use crate::support::daemon::{Daemon, LONG, get};
use crate::support::messages::number;
use crate::support::proxy::{Mode, Proxy};
use crate::support::redis::RedisServer;
use crate::support::wait::eventually;

/// Each message is called once, at most.
const ONCE: &str = "[limits.repeats]\nkind = \"once\"\nkey = \"{{ body.n }}\"\nttl = \"1h\"\non_unknown = \"dead_letter\"\nheadroom = \"100ms\"\n";

/// A message that moves gives its claim back: it is no repeat of itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_called_once_moves_too() {
    let mut pair = Pair::of("pair-once").await;
    pair.config.tables += ONCE;
    for route in &mut pair.config.routes {
        route.limits.push("repeats");
    }
    pair.publish(1, MESSAGES).await;
    let daemons = vec![Daemon::start(&pair.config), Daemon::start(&pair.config)];
    pair.have(60).await;
    pair.a.answers(500);
    eventually(LONG, "the other one takes all", || taken(&pair) >= MESSAGES).await;
    assert!(
        pair.b.numbers().is_disjoint(&pair.a.accepted()),
        "none twice"
    );
    assert_eq!(pair.b.count(), pair.b.numbers().len(), "none twice");
    let dead = format!("{}.dead", pair.name);
    assert_eq!(pair.broker.counts(&dead).await, Some((0, 0)));
    for daemon in daemons {
        daemon
            .stop(&[&["nothing is kept on disk"], DECLARED].concat())
            .await;
    }
}

/// Redis was away when it moved, so its claim is still there: it is the message's own, and not that of
/// another message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_moves_while_redis_is_away_keeps_its_claim() {
    const COUNT: u64 = 20;
    let mut pair = Pair::of("pair-claims").await.with_standby("");
    let redis = Proxy::to(RedisServer::shared().port()).await;
    pair.config.redis = Some(format!("redis://{}", redis.address()));
    pair.config.tables += ONCE;
    for route in &mut pair.config.routes {
        route.limits.push("repeats");
    }
    pair.a.answers(LATE_500);
    pair.publish(1, COUNT).await;
    let mut daemon = Daemon::start(&pair.config);
    eventually(LONG, "its calls are under way", || {
        pair.a.count() as u64 == COUNT
    })
    .await;
    redis.set(Mode::Refuse);
    let admin = daemon.admin().await;
    let ended = "sluiced_calls_total{route=\"pair-claims-a\",outcome=\"transient\"} 20\n";
    eventually(LONG, "they end without Redis", || {
        get(admin, "/metrics").1.contains(ended)
    })
    .await;
    daemon
        .says("calls that ended count until the store is back")
        .await;
    redis.set(Mode::Pass);
    eventually(LONG, "the other one takes all", || {
        pair.b.numbers().len() as u64 == COUNT
    })
    .await;
    assert_eq!(pair.b.count() as u64, COUNT, "none twice");
    let away = [
        "lost Redis",
        "cannot connect to Redis",
        "out of reach",
        "could not be renewed",
        "counts as if it were",
        "nothing is kept on disk",
    ];
    daemon.stop(&[&away, DECLARED].concat()).await;
    assert_eq!(pair.broker.counts(pair.name).await, Some((0, 0)));
    let dead = format!("{}.dead", pair.name);
    assert_eq!(pair.broker.counts(&dead).await, Some((0, 0)));
}

/// Four replicas are killed with calls in flight, while one of the providers hangs now and then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn none_is_called_twice_whichever_route_has_it_when_its_replica_dies() {
    const COUNT: u64 = 3 * MESSAGES;
    let mut pair = Pair::of("pair-killed").await;
    pair.config.tables += &format!("{ONCE}lease = \"3s\"\n");
    for route in &mut pair.config.routes {
        route.limits.push("repeats");
        route.downstream += "timeout = \"2s\"\n";
    }
    pair.publish(1, COUNT).await;
    let known = [
        "nothing is kept on disk",
        "hardly leaves time to renew",
        "a call under way is not counted any more",
        "dead letter",
    ];
    let known = [&known, DECLARED].concat();
    let mut daemons = vec![Daemon::start(&pair.config), Daemon::start(&pair.config)];
    for round in 0..4 {
        pair.a.answers(if round % 2 == 0 { HANGS } else { 202 });
        let before = pair.b.count();
        eventually(LONG, "calls go on", || pair.b.count() > before + 100).await;
        daemons.push(Daemon::start(&pair.config));
        daemons.remove(0).kill(&known).await;
    }
    let (mut dead, queue) = (BTreeSet::new(), format!("{}.dead", pair.name));
    let end = Instant::now() + LONG;
    loop {
        for (body, properties) in pair.broker.drain(&queue).await {
            let reason = header(&properties, "x-sluiced-reason");
            assert_eq!(reason.as_deref(), Some("unknown"));
            dead.insert(number(&body));
        }
        let called = &pair.a.numbers() | &pair.b.numbers();
        match COUNT - (&called | &dead).len() as u64 {
            0 => break,
            left => assert!(Instant::now() < end, "{left} of {COUNT}"),
        }
        sleep(super::super::seconds(1) / 10).await;
    }
    for daemon in daemons {
        daemon.stop(&known).await;
    }
    let calls = pair.a.count() + pair.b.count();
    let called = &pair.a.numbers() | &pair.b.numbers();
    assert_eq!(calls, called.len(), "none twice");
}
