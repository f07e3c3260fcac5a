//! A route of a shared queue that waits for long: its messages move, whatever its own settings would make of them.

use super::{DECLARED, LATE_500, Pair};
use crate::paths::{NO_BREAKER, unix};
use crate::support::broker::Broker;
use crate::support::daemon::{Daemon, LONG};
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
    const COUNT: u64 = 800;
    for (name, on_denied) in [("pair-spent", "hold"), ("pair-spent-dead", "dead_letter")] {
        let mut pair = Pair::of(name).await;
        pair.config.tables += "[limits.daily]\nkind = \"fixed_window\"\nrate = \"50/1d\"\n";
        pair.config.routes[0].limits.push("daily");
        for route in &mut pair.config.routes {
            route.keys += &format!("max_age = \"1h\"\non_denied = \"{on_denied}\"\n");
        }
        pair.publish(1, COUNT).await;
        let daemon = Daemon::start(&pair.config);
        pair.have(COUNT).await;
        assert_eq!((pair.a.count(), pair.b.count()), (50, 750));
        daemon
            .stop(&[&["nothing is kept on disk"], DECLARED].concat())
            .await;
        nothing_is_left(&pair.broker, name).await;
    }
}

/// A time of day, in UTC.
fn clock(at: u64) -> String {
    let (hours, minutes, seconds) = (at / 3600 % 24, at / 60 % 60, at % 60);
    format!("{hours:02}:{minutes:02}:{seconds:02}")
}

/// What fails at the first one just before it closes is tried again over the second one, not tomorrow.
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
    let (open, close) = (clock(unix() - 60), clock(unix() + 4));
    pair.config.routes[0].keys += &format!("open = \"{open}-{close}\"\n");
    let daemon = Daemon::start(&pair.config);
    eventually(LONG, "the second one takes all", || {
        pair.b.numbers().len() as u64 == COUNT
    })
    .await;
    daemon.stop(DECLARED).await;
    nothing_is_left(&pair.broker, pair.name).await;
}
