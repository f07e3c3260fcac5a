//! What a route does with its messages while the limit is frozen for longer than `max_hold`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sluiced_ports::message::header as known;
use tokio::time::Instant;

use super::{config, header, holds, numbered, queue};
use crate::support::broker::Broker;
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route, THROTTLED};
use crate::support::recorder::{Recorder, Reply, after_an_answer};
use crate::support::wait::{eventually, eventually_async};

/// On a busy machine a few more calls are in flight before the first one's answer is read.
const FEW: u32 = 5;

/// For this long after its first call the downstream refuses the account.
const REFUSED: Duration = Duration::from_secs(4);

/// All calls are refused at first; 30 messages wait, 10 of them held.
async fn denied(name: &str, choice: &str) -> (Broker, Recorder, Daemon) {
    let begun = Mutex::new(None::<Instant>);
    let downstream = Recorder::start(move |call| {
        let mut begun = begun.lock().unwrap();
        let since = call.at - *begun.get_or_insert(call.at);
        if since < REFUSED {
            let left = (REFUSED - since).as_secs_f64().ceil();
            Reply::retry_after(429, &left.to_string())
        } else {
            Reply::status(202)
        }
    })
    .await;
    start(name, choice, downstream).await
}

/// How many calls were refused.
fn refused(downstream: &Recorder) -> usize {
    let calls = downstream.calls();
    let first = calls.iter().map(|call| call.at).min();
    let early = |at| first.is_some_and(|first| at < first + REFUSED);
    calls.iter().filter(|call| early(call.at)).count()
}

/// On a classic queue: a quorum queue counts a cancelled consumer until all that it had is settled.
async fn start(name: &str, choice: &str, downstream: Recorder) -> (Broker, Recorder, Daemon) {
    let broker = queue(name, "classic").await;
    broker.publish(name, numbered(1, 30)).await;
    let mut route = Route::new(name, downstream.address);
    route.keys = format!("prefetch = 10\nmax_hold = \"500ms\"\non_denied = \"{choice}\"\n");
    let mut config = config(name, vec![route]);
    config.rate = "10/1s".to_owned();
    let daemon = Daemon::start(&config);
    eventually(LONG, "the refusal", || downstream.count() > 0).await;
    (broker, downstream, daemon)
}

/// Few were called after the first answers: the second one freezes the limit.
fn few(downstream: &Recorder) {
    let calls = downstream.calls();
    let came = after_an_answer(&calls, LONG);
    assert!(!calls.is_empty() && came <= FEW as usize, "{calls:?}");
}

fn came(downstream: &Recorder) -> Vec<u64> {
    let mut numbers: Vec<_> = downstream.calls().iter().map(|call| call.number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_closes_the_tap_and_nothing_rotates() {
    let (broker, downstream, mut daemon) = denied("deny-hold", "hold").await;
    daemon.says("tap closed: the limit is frozen").await;
    eventually_async(LONG, "ten are held, the rest lies still", || async {
        let counts = broker.counts("deny-hold").await;
        counts.is_some_and(|(ready, consumers)| ready + FEW >= 20 && consumers == 0)
    })
    .await;
    few(&downstream);
    eventually(LONG, "it opens by itself", || {
        downstream.count() >= 30 + refused(&downstream)
    })
    .await;
    assert_eq!(came(&downstream), (1..=30).collect::<Vec<_>>());
    // The first refusal may be about its message alone, which waits by itself.
    for (verdict, most) in [("later", 1.0), ("given_back", 0.0), ("dead", 0.0)] {
        let series = format!("sluiced_settled_total{{route=\"deny-hold\",verdict=\"{verdict}\"}}");
        assert!(daemon.metric(&series).await <= most, "{verdict}");
    }
    daemon.stop(&[NEW_SCHEDULE, THROTTLED]).await;
    assert_eq!(broker.counts("deny-hold").await, Some((0, 0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delay_sends_them_through_the_wait_queues() {
    let (broker, downstream, mut daemon) = denied("deny-delay", "delay").await;
    holds(&broker, "deny-delay", 0).await;
    // All are out of the work queue; hardly any was sent.
    few(&downstream);
    eventually(LONG, "all came", || {
        downstream.count() >= 30 + refused(&downstream)
    })
    .await;
    assert_eq!(came(&downstream).len(), 30);
    assert_eq!(downstream.count(), 30 + refused(&downstream));
    let later = "sluiced_settled_total{route=\"deny-delay\",verdict=\"later\"}";
    assert!(daemon.metric(later).await >= 25.0);
    daemon.stop(&[NEW_SCHEDULE, THROTTLED]).await;
    assert_eq!(broker.counts("deny-delay").await, Some((0, 0)));
    assert_eq!(
        broker
            .counts("deny-delay.dead")
            .await
            .map_or(0, |counts| counts.0),
        0
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nack_gives_them_back_at_once() {
    let (broker, downstream, mut daemon) = denied("deny-nack", "nack").await;
    eventually_async(LONG, "all are back", || async {
        let counts = broker.counts("deny-nack").await;
        counts.is_some_and(|(ready, consumers)| ready + FEW >= 30 && consumers == 0)
    })
    .await;
    few(&downstream);
    eventually(LONG, "all came", || {
        downstream.count() >= 30 + refused(&downstream)
    })
    .await;
    assert_eq!(came(&downstream).len(), 30);
    let back = "sluiced_settled_total{route=\"deny-nack\",verdict=\"given_back\"}";
    assert!(daemon.metric(back).await >= 5.0);
    daemon.stop(&[NEW_SCHEDULE, THROTTLED]).await;
    assert_eq!(downstream.count(), 30 + refused(&downstream));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letter_gives_up_what_would_be_late() {
    let (broker, downstream, daemon) = denied("deny-dead", "dead_letter").await;
    eventually_async(LONG, "all are dead or were sent", || async {
        let dead = broker.counts("deny-dead.dead").await;
        let dead = dead.map_or(0, |(ready, _)| ready as usize);
        dead + downstream.count() == 30 + refused(&downstream)
    })
    .await;
    few(&downstream);
    for (_, properties) in broker.drain("deny-dead.dead").await {
        assert_eq!(
            header(&properties, known::REASON).as_deref(),
            Some("denied")
        );
        assert_eq!(header(&properties, known::ATTEMPTS).as_deref(), Some("0"));
    }
    daemon.stop(&[NEW_SCHEDULE, THROTTLED, "dead letter"]).await;
    assert_eq!(broker.counts("deny-dead").await, Some((0, 0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn however_often_it_is_frozen_no_more_is_held() {
    let thawed = Arc::new(AtomicBool::new(false));
    let downstream = Recorder::start({
        let thawed = Arc::clone(&thawed);
        move |_| match thawed.load(Ordering::Relaxed) {
            true => Reply::status(202),
            false => Reply::retry_after(429, "1"),
        }
    })
    .await;
    let (broker, downstream, daemon) = start("deny-often", "hold", downstream).await;
    let mut least = 30;
    for _ in 0..4 {
        let goal = downstream.count() + 1;
        eventually(LONG, "another denial", || downstream.count() >= goal).await;
        least = least.min(broker.counts("deny-often").await.unwrap().0);
    }
    assert!(daemon.said("tap open") >= 3, "it opened in between");
    assert!(
        least >= 15,
        "{least} of 30 left in the queue, with a prefetch of 10"
    );
    thawed.store(true, Ordering::Relaxed);
    eventually(LONG, "all came", || came(&downstream).len() == 30).await;
    daemon.stop(&[NEW_SCHEDULE, THROTTLED]).await;
    assert_eq!(broker.counts("deny-often").await, Some((0, 0)));
}
