//! Closed hours: nothing is sent and nothing moves until the opening, and then everything is
//! sent.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::{NO_BREAKER, config, numbered, queue, seconds};
use crate::support::broker::Broker;
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route, get};
use crate::support::recorder::{Call, Recorder, Reply};
use crate::support::wait::{eventually, eventually_async};

const CLOSED: &str = "closed hours: nothing is sent until then";
const OPEN: &str = "opening hours: sending until then";
/// The test's clock is derived from the wall clock; the daemon maps the store's clock to its
/// own.
const SLACK: Duration = Duration::from_millis(50);
/// A call that left before the closing and came after it.
const UNDER_WAY: Duration = Duration::from_millis(500);

/// A whole second by the wall clock of this machine, which is the store's too.
#[derive(Clone, Copy, Debug)]
struct Second {
    time: u64,
    at: Instant,
}

/// The second that begins a little more than `wait` from now.
fn after(wait: u64) -> Second {
    let now = SystemTime::now();
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let second = since.as_secs() + wait + 1;
    let at = Instant::now() + (Duration::from_secs(second) - since);
    Second { time: second, at }
}

impl Second {
    /// By the clock of a zone whose offset from UTC is not a whole number of hours.
    fn in_kathmandu(self) -> String {
        let minutes = 5 * 60 + 45;
        let local = (self.time + minutes * 60) % 86_400;
        format!(
            "{:02}:{:02}:{:02}",
            local / 3600,
            local / 60 % 60,
            local % 60
        )
    }
}

/// Open from one second to another.
fn hours(open: &str, close: &str) -> String {
    format!("open = \"{open}-{close}\"\ntimezone = \"Asia/Kathmandu\"\nprefetch = 40\n")
}

async fn consumers(broker: &Broker, queue: &str, expected: u32) {
    eventually_async(
        LONG,
        &format!("{expected} consumers of {queue}"),
        || async { broker.counts(queue).await.map(|(_, consumers)| consumers) == Some(expected) },
    )
    .await;
}

fn times(calls: &[Call], since: Instant) -> Vec<Duration> {
    calls
        .iter()
        .map(|call| call.at.saturating_duration_since(since))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_route_waits_for_its_opening_and_another_of_its_limit_does_not() {
    let (shut, free) = ("hours-shut", "hours-free");
    let broker = queue(shut, "classic").await;
    broker.declare(free, "classic").await;
    broker.publish(shut, numbered(1, 100)).await;
    broker.publish(free, numbered(1, 50)).await;
    let (closed, open) = (Recorder::accepting().await, Recorder::accepting().await);
    let opening = after(12);
    let mut route = Route::new(shut, closed.address);
    route.keys = hours(&opening.in_kathmandu(), &after(86_000).in_kathmandu());
    let routes = vec![route, Route::new(free, open.address)];
    let mut daemon = Daemon::start(&config(shut, routes));
    daemon.says(CLOSED).await;
    eventually(LONG, "the other route sends", || open.count() >= 50).await;
    assert!(Instant::now() < opening.at - seconds(1), "still closed");
    assert_eq!(closed.count(), 0);
    assert_eq!(broker.counts(shut).await, Some((100, 0)), "all untouched");
    let (ready, _) = daemon.page("/readyz").await;
    assert_eq!(ready, 200, "closed is no fault");
    let (_, page) = daemon.page("/metrics").await;
    for line in [
        format!("sluiced_closed{{route=\"{shut}\"}} 1"),
        format!("sluiced_tap_open{{route=\"{shut}\"}} 0"),
        format!("sluiced_closed{{route=\"{free}\"}} 0"),
        format!("sluiced_tap_open{{route=\"{free}\"}} 1"),
    ] {
        assert!(page.contains(&line), "no {line} in\n{page}");
    }
    eventually(LONG, "all came", || closed.count() >= 100).await;
    let calls = closed.calls();
    let early: Vec<_> = calls
        .iter()
        .filter(|call| call.at + SLACK < opening.at)
        .map(|call| opening.at - call.at)
        .collect();
    assert!(early.is_empty(), "before the opening: {early:?}");
    assert!(calls.iter().all(|call| call.repeat == 0), "each once");
    let (_, page) = daemon.page("/metrics").await;
    for verdict in ["later", "given_back", "dead"] {
        let line = format!("sluiced_settled_total{{route=\"{shut}\",verdict=\"{verdict}\"}} 0");
        assert!(page.contains(&line), "no {line} in\n{page}");
    }
    let log = daemon.stop(&[NEW_SCHEDULE]).await;
    assert_eq!(log.matches(CLOSED).count(), 1, "{log}");
    assert_eq!(log.matches(OPEN).count(), 1, "{log}");
    assert_eq!(broker.counts(shut).await, Some((0, 0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_sent_after_closing_and_what_is_held_goes_back_on_classic_queues() {
    closing("hours-closing-classic", "classic").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_sent_after_closing_and_what_is_held_goes_back_on_quorum_queues() {
    closing("hours-closing-quorum", "quorum").await;
}

async fn closing(name: &str, queue_type: &str) {
    let broker = queue(name, queue_type).await;
    broker.publish(name, numbered(1, 2000)).await;
    let downstream = Recorder::accepting().await;
    let (opened, closing) = (after(0), after(10));
    let mut route = Route::new(name, downstream.address);
    route.keys = hours(&opened.in_kathmandu(), &closing.in_kathmandu());
    let mut daemon = Daemon::start(&config(name, vec![route]));
    daemon.says(CLOSED).await;
    consumers(&broker, name, 0).await;
    daemon
        .says("closed for longer than a message may be held")
        .await;
    eventually_async(LONG, "all is back", || async {
        let sent = u32::try_from(downstream.count()).unwrap();
        broker.counts(name).await == Some((2000 - sent, 0))
    })
    .await;
    let calls = downstream.calls();
    assert!(!calls.is_empty(), "it was open");
    let late: Vec<_> = times(&calls, closing.at + UNDER_WAY)
        .into_iter()
        .filter(|late| !late.is_zero())
        .collect();
    assert!(late.is_empty(), "after closing: {late:?}");
    let (_, page) = daemon.page("/metrics").await;
    let later = format!("sluiced_settled_total{{route=\"{name}\",verdict=\"later\"}} 0");
    assert!(page.contains(&later), "no {later} in\n{page}");
    daemon.stop(&[NEW_SCHEDULE]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_waits_for_the_opening_and_keeps_its_attempts() {
    let name = "hours-retry";
    let broker = queue(name, "classic").await;
    let downstream = Recorder::start(|call| match call.repeat {
        0 => Reply::status(500),
        _ => Reply::status(202),
    })
    .await;
    broker.publish(name, numbered(1, 20)).await;
    // Open for a few seconds, closed for a few, open again.
    let (opened, closing, again) = (after(0), after(8), after(12));
    let mut route = Route::new(name, downstream.address);
    route.caller = "{{ attempt }}".to_owned();
    route.keys = format!(
        "open = [\"{}-{}\", \"{}-{}\"]\ntimezone = \"Asia/Kathmandu\"\nmax_hold = \"60s\"\n",
        opened.in_kathmandu(),
        closing.in_kathmandu(),
        again.in_kathmandu(),
        after(80_000).in_kathmandu()
    );
    // Some retries come before the closing, most of them after.
    route.downstream = NO_BREAKER.to_owned();
    route.tables = format!("[routes.{name}.retry]\nbase = \"15s\"\nmax = \"15s\"\n");
    let daemon = Daemon::start(&config(name, vec![route]));
    eventually(LONG, "all were accepted", || downstream.count() >= 40).await;
    let calls = downstream.calls();
    let closed = closing.at + UNDER_WAY..again.at - SLACK;
    assert!(calls.iter().all(|call| !closed.contains(&call.at)));
    let attempt = |call: &Call| (call.repeat + 1).to_string();
    assert!(calls.iter().all(|call| call.caller == attempt(call)));
    assert!(calls.iter().any(|call| call.at < closing.at));
    assert!(calls.iter().any(|call| call.at >= again.at - SLACK));
    daemon.stop(&[NEW_SCHEDULE]).await;
}

/// What was published in closed hours is not late in the morning: its age counts from the opening.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_of_the_night_is_not_late_when_the_route_opens() {
    let name = "hours-morning";
    let broker = queue(name, "classic").await;
    let night = super::unix() - 8 * 3600;
    let messages = numbered(1, 200);
    let messages = messages.map(|(body, properties)| (body, properties.with_timestamp(night)));
    broker.publish(name, messages).await;
    let downstream = Recorder::accepting().await;
    let mut route = Route::new(name, downstream.address);
    route.keys = format!(
        "{}max_delay = \"1h\"\n",
        hours(&after(2).in_kathmandu(), &after(40_000).in_kathmandu())
    );
    let mut config = config(name, vec![route]);
    config.rate = "20/1s".to_owned();
    let mut daemon = Daemon::start(&config);
    let admin = daemon.admin().await;
    let oldest = || {
        let (_, page) = get(admin, "/metrics");
        let line = format!("sluiced_oldest_seconds{{route=\"{name}\"}} ");
        let rest = page
            .lines()
            .find_map(|of| of.strip_prefix(&line))
            .map(str::to_owned);
        rest.and_then(|number| number.parse::<f64>().ok())
    };
    eventually(LONG, "the age of the backlog is measured", || {
        downstream.count() > 0 && oldest().is_some_and(|age| age > 0.0)
    })
    .await;
    let age = oldest().unwrap();
    assert!(age < 3600.0, "{age} s: not that of the night");
    eventually(LONG, "all were sent", || downstream.count() >= 200).await;
    let log = daemon.stop(&[NEW_SCHEDULE]).await;
    assert!(!log.contains("waits for longer than max_delay"), "{log}");
}
