//! A throttled answer that names what it throttles (`throttles`): that key, or that route, waits on every replica, and
//! everything else goes on. The downstreams answer as Discord documents it: `429` with `Retry-After`, and
//! `X-RateLimit-Scope`, which is `user` for a channel's own limit and `global` for that of the account.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::time::Instant;

use super::{config, holds, queue, seconds, to};
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route, THROTTLED, get};
use crate::support::recorder::{Recorder, Reply};
use crate::support::wait::eventually;

const FULL: &str = "4999";
const KNOWN: &[&str] = &[
    NEW_SCHEDULE,
    THROTTLED,
    "nothing is kept on disk",
    "the downstream throttles all messages of a key",
];
const CHANNEL: &str = "[limits.channel]\nkind = \"gcra\"\nrate = \"1000/1s\"\nburst = 1000\nkey = \"{{ body.to }}\"\n";

fn scoped(seconds: &str, scope: &str) -> Reply {
    Reply {
        headers: vec![("x-ratelimit-scope", scope.to_owned())],
        ..Reply::retry_after(429, seconds)
    }
}

fn config_of(name: &str, downstream: &Recorder, limits: Vec<&'static str>) -> Config {
    let mut route = Route::new(name, downstream.address);
    route.caller = "{{ body.to }}".to_owned();
    route.limits = limits;
    route.keys = "prefetch = 60\n".to_owned();
    route.downstream =
        "throttles = \"{{ 'channel' if answer.headers['x-ratelimit-scope'] == 'user' }}\"\n"
            .to_owned();
    let mut config = config(name, vec![route]);
    CHANNEL.clone_into(&mut config.tables);
    config
}

/// One channel is full for some seconds. Both replicas know that from the first refusal on, and send the messages of
/// all other channels meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_key_that_an_answer_names_waits_on_every_replica() {
    let name = "named-key";
    let broker = queue(name, "quorum").await;
    let (full, others) = (40, 400);
    let messages = (0..full).map(|n| to(n + 1, FULL));
    broker.publish(name, messages).await;
    let messages = (0..others).map(|n| to(full + n + 1, &format!("{}", n % 5)));
    broker.publish(name, messages).await;
    let lasts = seconds(6);
    let begun = Arc::new(Mutex::new(None::<Instant>));
    let begin = Arc::clone(&begun);
    let downstream = Recorder::start(move |call| {
        if call.caller != FULL {
            return Reply::status(202);
        }
        let begun = *begin.lock().unwrap().get_or_insert(call.at);
        let left = (begun + lasts).saturating_duration_since(call.at);
        match left.is_zero() {
            true => Reply::status(202),
            false => scoped(&left.as_secs_f64().ceil().to_string(), "user"),
        }
    })
    .await;
    let config = config_of(name, &downstream, vec!["provider", "channel"]);
    let mut daemons = [Daemon::start(&config), Daemon::start(&config)];
    let all = || downstream.numbers().len() as u64 == full + others;
    eventually(LONG, "all were called", all).await;
    let begun = begun.lock().unwrap().expect("one was refused");
    let calls = downstream.calls();
    let of_full = calls.iter().filter(|call| call.caller == FULL);
    // Corrections are written within half a second; the calls of that time were under way or permitted.
    let early = of_full.filter(|call| {
        let since = call.at - begun;
        since > seconds(2) && since < lasts
    });
    assert_eq!(early.count(), 0, "while the key was closed");
    for daemon in &mut daemons {
        let freezes = daemon.metric("sluiced_freezes_total{limit=\"provider\"}");
        assert_eq!(freezes.await, 0.0, "the account was not frozen");
    }
    for daemon in daemons {
        daemon.stop(KNOWN).await;
    }
    holds(&broker, name, 0).await;
}

/// A route with keyed limits only: a refusal that names nothing, and that others share, stops it on every replica, also
/// on one that starts later, until an operator ends it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_route_without_a_paced_limit_is_frozen_for_every_replica() {
    let name = "named-none";
    let broker = queue(name, "quorum").await;
    let messages = (1..=200).map(|n| to(n, &n.to_string()));
    broker.publish(name, messages).await;
    let refuses = Arc::new(AtomicBool::new(true));
    let asked = Arc::clone(&refuses);
    let downstream = Recorder::start(move |_| match asked.load(Ordering::SeqCst) {
        true => scoped("600", "global"),
        false => Reply::status(202),
    })
    .await;
    let config = config_of(name, &downstream, vec!["channel"]);
    let mut first = Daemon::start(&config);
    first.says("the route is frozen for every replica").await;
    // Calls that were in flight with those that were refused end.
    let in_flight = format!("sluiced_in_flight{{route=\"{name}\"}} 0\n");
    let admin = first.admin().await;
    let none = || get(admin, "/metrics").1.contains(&in_flight);
    eventually(LONG, "no call is under way", none).await;
    let called = downstream.count();
    refuses.store(false, Ordering::SeqCst);
    let mut second = Daemon::start(&config);
    second.ready().await;
    // A replica that knew nothing of the freeze would call as soon as it consumes.
    tokio::time::sleep(seconds(3)).await;
    assert_eq!(downstream.count(), called, "the second replica waits too");
    let (_, page) = get(admin, "/readyz");
    assert!(page.contains("`sluiced routes resume` ends it"), "{page}");
    super::paused::said(&["routes", "resume", name], &first);
    // The messages that were refused have waits of their own.
    let others = || downstream.count() >= 200;
    eventually(LONG, "the others are called once it is resumed", others).await;
    for daemon in [first, second] {
        daemon.stop(KNOWN).await;
    }
}
