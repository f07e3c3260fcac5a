//! A call that failed, or was refused for now, is repeated when its answer says, and an answer is believed only so far.

use super::{config, numbered, queue, seconds};
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route, THROTTLED};
use crate::support::recorder::{Recorder, Reply};
use crate::support::wait::eventually;

/// 413 with `Retry-After` is a condition for now (RFC 9110, section 15.5.14).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_call_comes_back_no_earlier_than_its_answer_says() {
    let name = "comes-back-failed";
    let broker = queue(name, "classic").await;
    broker.publish(name, numbered(1, 1)).await;
    let downstream = Recorder::start(|call| match call.repeat {
        0 => Reply::retry_after(413, "3"),
        _ => Reply::status(202),
    })
    .await;
    let mut route = Route::new(name, downstream.address);
    route.caller = "{{ attempt }}".to_owned();
    let daemon = Daemon::start(&config(name, vec![route]));
    eventually(LONG, "the second call", || downstream.count() >= 2).await;
    let calls = downstream.calls();
    let waited = calls[1].at - calls[0].at;
    assert!(waited >= seconds(3), "{waited:?}");
    assert_eq!(calls[1].caller, "2", "it spends an attempt");
    daemon.stop(&[NEW_SCHEDULE]).await;
    assert_eq!(broker.counts(name).await, Some((0, 0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_is_not_plausible_is_cut_counted_and_logged() {
    let name = "comes-back-cut";
    let broker = queue(name, "classic").await;
    broker.publish(name, numbered(1, 1)).await;
    let downstream = Recorder::start(|call| match call.repeat {
        0 => Reply::retry_after(429, "86400"),
        _ => Reply::status(202),
    })
    .await;
    let mut route = Route::new(name, downstream.address);
    route.downstream = "max_throttle_wait = \"1s\"\n".to_owned();
    let mut daemon = Daemon::start(&config(name, vec![route]));
    eventually(LONG, "the second call", || downstream.count() >= 2).await;
    let calls = downstream.calls();
    let waited = calls[1].at - calls[0].at;
    assert!(waited >= seconds(1), "{waited:?}");
    let cut = format!("sluiced_waits_cut_total{{route=\"{name}\"}}");
    assert_eq!(daemon.metric(&cut).await, 1.0);
    let said = "the downstream asks to wait for longer than max_throttle_wait";
    let log = daemon.stop(&[NEW_SCHEDULE, THROTTLED, said]).await;
    assert!(log.contains(said), "{log}");
}
