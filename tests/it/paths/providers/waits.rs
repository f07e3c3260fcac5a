//! A route of a shared queue that waits for long: its messages move, whatever its own settings would do with
//! them.

use super::{DECLARED, LATE_500, MESSAGES, Pair, SLOW};
use crate::paths::{NO_BREAKER, header, unix};
use crate::support::broker::Broker;
use crate::support::daemon::{Daemon, LONG, program};
use crate::support::soak::at_length;
use crate::support::wait::eventually;

/// No message is left in the queues of the pair, and none is dead.
async fn nothing_is_left(broker: &Broker, queue: &str) {
    assert_eq!(broker.counts(queue).await, Some((0, 0)));
    let dead = broker.counts(&format!("{queue}.dead")).await;
    assert_eq!(dead, Some((0, 0)));
}

/// The first account takes fifty a day. The others are too old before it has room again, and the second one sends them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_expires_that_the_other_one_sends() {
    let count = at_length(300, 800);
    for (name, on_denied) in [("pair-spent", "hold"), ("pair-spent-dead", "dead_letter")] {
        let mut pair = Pair::of(name).await;
        pair.config.tables += "[limits.daily]\nkind = \"fixed_window\"\nrate = \"50/1d\"\n";
        pair.config.routes[0].limits.push("daily");
        for route in &mut pair.config.routes {
            route.keys += &format!("max_age = \"1h\"\non_denied = \"{on_denied}\"\n");
        }
        pair.publish(1, count).await;
        let daemon = Daemon::start(&pair.config);
        pair.have(count).await;
        let (a, b) = (pair.a.count(), pair.b.count());
        assert_eq!((a + b) as u64, count, "none twice");
        assert!((1..=50).contains(&a), "{a} of 50 a day");
        daemon
            .stop(&[&["nothing is kept on disk"], DECLARED].concat())
            .await;
        nothing_is_left(&pair.broker, name).await;
    }
}

/// An operator does this to the limit of the first one.
fn limits(daemon: &Daemon, act: &str) {
    let config = daemon.config();
    let config = config.to_str().expect("a path");
    let done = program(&["limits", act, "--config", config, "provider"]).output();
    let done = done.expect("it runs");
    assert!(done.status.success(), "{done:?}");
}

/// An operator pauses the limit of one of them, and resumes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_operator_pauses_the_other_one_sends() {
    let pair = Pair::of("pair-paused").await;
    let daemon = Daemon::start(&pair.config);
    pair.publish(1, MESSAGES).await;
    pair.have(60).await;
    limits(&daemon, "pause");
    daemon.says("its messages move").await;
    // The slots that were leased before are used until the horizon is over. Once all messages are called,
    // none is left to use one.
    pair.have(MESSAGES).await;
    let before = pair.a.count();
    pair.publish(MESSAGES + 1, 2 * MESSAGES).await;
    pair.have(2 * MESSAGES).await;
    assert_eq!(pair.a.count(), before, "it is paused");
    limits(&daemon, "resume");
    daemon.says("its messages stay with it again").await;
    pair.publish(2 * MESSAGES + 1, 3 * MESSAGES).await;
    pair.have(3 * MESSAGES).await;
    assert!(pair.a.count() > before, "it is used again");
    let calls = pair.a.count() + pair.b.count();
    assert_eq!(calls as u64, 3 * MESSAGES, "none twice");
    daemon.stop(DECLARED).await;
    nothing_is_left(&pair.broker, pair.name).await;
}

/// A route that is paused consumes for the other one, whose calls are slow. A stop ends that at once:
/// otherwise the queue would deliver the same messages again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_ends_consuming_for_the_other_one() {
    const COUNT: u64 = 400;
    let pair = Pair::of("pair-stopped").await;
    pair.b.answers(SLOW);
    let daemon = Daemon::start(&pair.config);
    pair.publish(1, 20).await;
    pair.have(20).await;
    limits(&daemon, "pause");
    daemon.says("its messages move").await;
    pair.publish(21, COUNT).await;
    eventually(LONG, "the second one is calling", || pair.b.count() >= 40).await;
    daemon.stop(DECLARED).await;
    let left = pair.broker.drain(pair.name).await;
    assert!(left.len() >= 100, "{} are left", left.len());
    let returns = left.iter().map(|(_, properties)| {
        let count = header(properties, "x-delivery-count");
        count.map_or(0, |count| count.parse::<u64>().expect("a count"))
    });
    let most = returns.max().expect("there are some");
    assert!(most <= 3, "returned {most} times");
}

/// A route is removed from the configuration while its messages wait for another attempt: the other route
/// takes them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_route_that_is_taken_out_leaves_no_message_behind() {
    const COUNT: u64 = 40;
    let mut pair = Pair::of("pair-removed").await;
    for route in &mut pair.config.routes {
        route.downstream = NO_BREAKER.to_owned();
        route.keys += "retry = { base = \"8s\", max = \"8s\" }\n";
    }
    pair.a.answers(500);
    pair.b.answers(500);
    pair.publish(1, COUNT).await;
    let daemon = Daemon::start(&pair.config);
    eventually(LONG, "all have failed", || {
        (&pair.a.numbers() | &pair.b.numbers()).len() as u64 == COUNT
    })
    .await;
    daemon.stop(DECLARED).await;
    pair.config.routes.remove(0);
    pair.b.answers(202);
    let before = pair.b.count();
    let daemon = Daemon::start(&pair.config);
    eventually(LONG, "the other one takes all", || {
        (pair.b.count() - before) as u64 == COUNT
    })
    .await;
    daemon.stop(DECLARED).await;
    nothing_is_left(&pair.broker, pair.name).await;
}

/// A time of day, in UTC.
fn clock(at: u64) -> String {
    let (hours, minutes, seconds) = (at / 3600 % 24, at / 60 % 60, at % 60);
    format!("{hours:02}:{minutes:02}:{seconds:02}")
}

/// Messages that fail at the first one just before it closes are tried again over the second one, not
/// tomorrow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_retry_waits_for_an_opening_while_the_other_one_is_open() {
    const COUNT: u64 = 40;
    let mut pair = Pair::of("pair-closes").await;
    for route in &mut pair.config.routes {
        route.downstream = NO_BREAKER.to_owned();
        route.keys += "retry = { base = \"8s\", max = \"8s\" }\n";
    }
    pair.a.answers(LATE_500);
    pair.publish(1, COUNT).await;
    let (open, close) = (clock(unix() - 60), clock(unix() + 6));
    pair.config.routes[0].keys += &format!("open = \"{open}-{close}\"\n");
    let daemon = Daemon::start(&pair.config);
    eventually(LONG, "the second one takes all", || {
        pair.b.numbers().len() as u64 == COUNT
    })
    .await;
    daemon.stop(DECLARED).await;
    nothing_is_left(&pair.broker, pair.name).await;
}
