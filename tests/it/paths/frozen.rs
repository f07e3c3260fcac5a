//! "Not now" of the downstream: every replica pauses, no attempt is spent, and there is no
//! burst afterwards.

use std::sync::Mutex;
use std::time::Duration;

use sluiced_core::rate::Rate;
use sluiced_core::time::Mono;
use sluiced_simulation::window::Tally;
use tokio::time::Instant;

use super::{config, numbered, queue, seconds};
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route, THROTTLED};
use crate::support::recorder::{Call, Recorder, Reply, after_an_answer};
use crate::support::wait::{eventually, eventually_async};

/// A call that another replica started before it got notice of the freeze.
const UNDER_WAY: Duration = Duration::from_millis(500);
const REPLICAS: [&str; 2] = ["one", "two"];

/// Calls that came too early for `rate`.
fn over(calls: &[Call], rate: &str) -> u64 {
    let mut tally = Tally::new(rate.parse::<Rate>().unwrap());
    let mut arrivals: Vec<Instant> = calls.iter().map(|call| call.at).collect();
    arrivals.sort_unstable();
    for at in &arrivals {
        tally.record(Mono::default() + at.duration_since(arrivals[0]));
    }
    tally.usage().over
}

/// From its call number 60 on the downstream refuses all calls for `freeze`, as an account that called too often;
/// `reply` says how long that still lasts.
async fn two_replicas(
    name: &str,
    denied: &'static str,
    reply: fn(Duration) -> Reply,
    freeze: Duration,
) {
    // A quorum queue would count a cancelled consumer until all that it had is settled.
    let broker = queue(name, "classic").await;
    broker.publish(name, numbered(1, 300)).await;
    let downstream = freezes(reply, freeze).await;
    let daemons = REPLICAS.map(|replica| {
        let mut route = Route::new(name, downstream.address);
        route.caller = format!("{replica} {{{{ attempt }}}}");
        route.keys = format!("prefetch = 40\n{denied}\nmax_hold = \"1s\"\n");
        Daemon::start(&config(name, vec![route]))
    });
    eventually(LONG, "the denial", || downstream.count() > 60).await;
    let closed = downstream.calls()[60].at;
    eventually_async(LONG, "both taps are closed", || async {
        broker
            .counts(name)
            .await
            .is_some_and(|(_, consumers)| consumers == 0)
    })
    .await;
    assert!(Instant::now() < closed + freeze, "closed while frozen");
    let (ready, _) = broker.counts(name).await.unwrap();
    let all = || downstream.count_of(|call| call.place < 60 || call.at >= closed + freeze) >= 300;
    eventually(LONG, "all came", all).await;
    assert!(ready > 0, "nothing was taken out meanwhile");
    assert_no_replica_calls_in_the_freeze(&downstream.calls(), closed, freeze);
    let mut warnings = String::new();
    for daemon in daemons {
        let log = daemon.stop(&[NEW_SCHEDULE, THROTTLED]).await;
        assert!(log.contains("tap closed: the limit is frozen"), "{log}");
        warnings.extend(log.lines().filter(|line| line.contains("\"WARN\"")));
    }
    // The replica whose calls were refused logs it once, with the answer.
    let told = warnings.matches(THROTTLED).count();
    assert!((1..=2).contains(&told), "{warnings}");
    assert!(warnings.contains("429 Too Many Requests"), "{warnings}");
    assert_eq!(broker.counts(name).await, Some((0, 0)));
}

/// Refuses calls for this long, from its call number 60 on.
async fn freezes(reply: fn(Duration) -> Reply, freeze: Duration) -> Recorder {
    let begun = Mutex::new(None::<Instant>);
    Recorder::start(move |call| {
        let mut begun = begun.lock().unwrap();
        if call.place >= 60 {
            let since = call.at - *begun.get_or_insert(call.at);
            if since < freeze {
                return reply(freeze - since);
            }
        }
        Reply::status(202)
    })
    .await
}

/// Both took part, no attempt is spent, and there is no burst afterwards.
fn assert_no_replica_calls_in_the_freeze(calls: &[Call], closed: Instant, freeze: Duration) {
    let in_freeze = |call: &&Call| (closed..closed + freeze).contains(&call.at);
    let refused: Vec<Call> = calls.iter().filter(in_freeze).cloned().collect();
    let told = refused.iter().map(|call| call.read).min().unwrap_or(closed);
    let during = calls
        .iter()
        .filter(|call| call.at > told + UNDER_WAY && call.at < closed + freeze - seconds(1) / 10);
    let during: Vec<_> = during
        .map(|call| (call.at - closed, &call.caller))
        .collect();
    assert!(during.is_empty(), "in the freeze: {during:?}");
    for replica in REPLICAS.map(|replica| format!("{replica} 1")) {
        assert!(
            calls.iter().any(|call| call.caller == replica),
            "{replica} took part"
        );
    }
    assert!(
        calls.iter().all(|call| call.caller.ends_with(" 1")),
        "no attempt is spent"
    );
    // The second one freezes the limit; each replica has calls in flight then.
    let came = after_an_answer(&refused, freeze);
    assert!(calls.len() >= 302 && came < 40, "{came} came late");
    assert_eq!(over(calls, "100/1s"), 0, "no burst");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retry_after_in_seconds_stops_both_replicas() {
    two_replicas(
        "frozen-seconds",
        "",
        |left| Reply::retry_after(429, &left.as_secs_f64().ceil().to_string()),
        seconds(6),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retry_after_as_a_date_stops_both_replicas() {
    // A date has whole seconds: it may be up to one second early.
    let as_a_date = |left| {
        let at = std::time::SystemTime::now() + left + seconds(1);
        Reply::retry_after(429, &httpdate::fmt_http_date(at))
    };
    two_replicas("frozen-date", "", as_a_date, seconds(6)).await;
}
