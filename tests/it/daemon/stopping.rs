//! SIGTERM: calls in flight are finished and acknowledged, the rest is returned, nothing is lost.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::RngExt as _;
use rustix::process::Signal;
use sluiced::wire::{self, RunningDaemon};
use sluiced_status::admin::Health;

use super::{body, config, filled};
use crate::paths::header;
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route, file, program};
use crate::support::messages::number;
use crate::support::proxy::{Mode, Proxy};
use crate::support::recorder::{Recorder, Reply};
use crate::support::redis::RedisServer;
use crate::support::wait::{eventually, eventually_async};

/// More than are called before a machine that stands still sees the first calls.
const ALL: u32 = 2_000;

/// A daemon inside of this process.
fn start_in_this_process(config: &Config) -> RunningDaemon {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), "sluiced.toml", &config.text());
    let loaded = sluiced_settings::load(&[path], std::iter::empty()).unwrap();
    let health = Health::default();
    wire::start(&loaded, &health).unwrap()
}

fn slowly(latency: Duration) -> Reply {
    Reply {
        latency,
        ..Reply::status(202)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_under_way_is_finished_and_the_rest_is_in_the_queue_again() {
    let broker = filled("stop-slow", u64::from(ALL)).await;
    let downstream = Recorder::start(|_| slowly(Duration::from_secs(1))).await;
    let daemon = Daemon::start(&config(
        "stop-slow",
        vec![Route::new("stop-slow", downstream.address)],
    ));
    eventually(LONG, "calls under way", || downstream.count() >= 5).await;
    let log = daemon.stop(&[NEW_SCHEDULE]).await;
    assert!(log.contains("stopping: no new messages"), "{log}");
    let sent: BTreeSet<u64> = downstream.calls().iter().map(|call| call.number).collect();
    assert_eq!(sent.len(), downstream.count(), "none twice");
    assert!(log.contains(&format!("\"done\":{}", sent.len())), "{log}");
    let left = ALL - u32::try_from(sent.len()).unwrap();
    assert!(left > 0, "it stopped before the queue was empty");
    eventually_async(LONG, "all the others are ready", || async {
        broker.counts("stop-slow").await == Some((left, 0))
    })
    .await;
    let back: BTreeSet<u64> = broker
        .drain("stop-slow")
        .await
        .iter()
        .map(|(body, _)| number(body))
        .collect();
    assert!(back.is_disjoint(&sent), "what was sent is acknowledged");
    assert_eq!(&back | &sent, (1..=u64::from(ALL)).collect());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_ends_it_although_a_call_hangs() {
    let broker = filled("stop-twice", 3).await;
    let downstream = Recorder::start(|_| slowly(Duration::from_secs(600))).await;
    let mut daemon = Daemon::start(&config(
        "stop-twice",
        vec![Route::new("stop-twice", downstream.address)],
    ));
    eventually(LONG, "calls under way", || downstream.count() == 3).await;
    daemon.signal(Signal::TERM);
    daemon.says("stopping: no new messages").await;
    assert!(daemon.is_running());
    // The first ones come too early to count.
    eventually(LONG, "it ends", || {
        let running = daemon.is_running();
        if running {
            daemon.signal(Signal::TERM);
        }
        !running
    })
    .await;
    assert_eq!(daemon.ended().await.code(), Some(1), "{}", daemon.log());
    daemon.complaints(&["a second signal", NEW_SCHEDULE]);
    eventually_async(LONG, "the messages are back", || async {
        broker.counts("stop-twice").await == Some((3, 0))
    })
    .await;
}

/// As from a supervisor that signals the process and its group.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signals_that_come_at_once_are_one_and_calls_are_finished() {
    let broker = filled("stop-group", u64::from(ALL)).await;
    let downstream = Recorder::start(|_| slowly(Duration::from_secs(1))).await;
    let daemon = Daemon::start(&config(
        "stop-group",
        vec![Route::new("stop-group", downstream.address)],
    ));
    eventually(LONG, "calls under way", || downstream.count() >= 5).await;
    // Two signals of the same kind may reach a process as one.
    for signal in [Signal::TERM, Signal::INT] {
        daemon.signal(signal);
    }
    let log = daemon.stop(&[NEW_SCHEDULE]).await;
    assert!(log.contains("nothing was under way any more"), "{log}");
    let left = ALL - u32::try_from(downstream.count()).unwrap();
    eventually_async(LONG, "all the others are ready", || async {
        broker.counts("stop-group").await == Some((left, 0))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_stops_at_random_moments_lose_nothing_and_repeat_nothing() {
    const COUNT: u64 = 400;
    let broker = filled("stop-often", COUNT).await;
    let downstream = Recorder::start(|_| slowly(Duration::from_millis(20))).await;
    let config = config(
        "stop-often",
        vec![Route::new("stop-often", downstream.address)],
    );
    for _ in 0..20 {
        let daemon = Daemon::start(&config);
        let (more, moment) = (
            rand::rng().random_range(0..15),
            rand::rng().random_range(0..300),
        );
        if moment % 2 == 0 {
            daemon.says("started").await;
            tokio::time::sleep(Duration::from_millis(moment)).await;
        } else {
            let goal = (downstream.count() + more).min(usize::try_from(COUNT).unwrap());
            eventually(LONG, "a few calls more", || downstream.count() >= goal).await;
            // Until a process has installed its handlers, a signal ends it.
            daemon.says("serving /metrics").await;
        }
        daemon.stop(&[NEW_SCHEDULE]).await;
    }
    let daemon = Daemon::start(&config);
    let all: BTreeSet<u64> = (1..=COUNT).collect();
    eventually(LONG, "all delivered", || {
        let sent = downstream.calls();
        sent.iter().map(|call| call.number).collect::<BTreeSet<_>>() == all
    })
    .await;
    daemon.stop(&[NEW_SCHEDULE]).await;
    assert_eq!(downstream.count() as u64, COUNT, "none twice");
    assert_eq!(broker.counts("stop-often").await, Some((0, 0)));
}

/// The grace is as long as the longest call may take, so it is cut short only if the process must end at
/// once, as here. In the library that is a shorter grace.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grace_that_ends_too_early_loses_nothing() {
    let name = "stop-early";
    let broker = filled(name, 20).await;
    // The calls of the first process hang; the next one has its answers.
    let hangs = Arc::new(AtomicBool::new(true));
    let downstream = Recorder::start({
        let hangs = Arc::clone(&hangs);
        move |_| {
            slowly(Duration::from_secs(
                600 * u64::from(hangs.load(Ordering::Relaxed)),
            ))
        }
    })
    .await;
    let mut config = config(name, vec![Route::new(name, downstream.address)]);
    config.rate = "10/1s".to_owned();
    let running = start_in_this_process(&config);
    eventually(LONG, "calls under way", || downstream.count() >= 5).await;
    let remains = running.pipeline.stop(Duration::from_millis(100)).await;
    assert!(remains.cut_off >= 5, "{remains:?}");
    eventually_async(LONG, "all of them are in the queue again", || async {
        broker.counts(name).await == Some((20, 0))
    })
    .await;
    let in_flight = downstream.count();
    hangs.store(false, Ordering::Relaxed);
    let daemon = Daemon::start(&config);
    let all: BTreeSet<u64> = (1..=20).collect();
    eventually(LONG, "all delivered", || {
        let calls = downstream.calls();
        let calls = calls.iter().filter(|call| call.place >= in_flight);
        calls.map(|call| call.number).collect::<BTreeSet<_>>() == all
    })
    .await;
    daemon.stop(&[NEW_SCHEDULE]).await;
    // Only messages whose calls were in flight came twice.
    assert_eq!(downstream.count(), in_flight + 20);
    assert_eq!(broker.counts(name).await, Some((0, 0)));
}

/// With `max_attempts = 1` a call that may have arrived is never repeated, also if its replica stops before the answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_attempt_of_a_message_is_spent_by_a_call_that_is_cut_off() {
    let name = "stop-last";
    let broker = filled(name, 5).await;
    let downstream = Recorder::start(|_| slowly(Duration::from_secs(600))).await;
    let mut route = Route::new(name, downstream.address);
    route.keys = "max_attempts = 1\n".to_owned();
    let running = start_in_this_process(&config(name, vec![route]));
    eventually(LONG, "calls under way", || downstream.count() == 5).await;
    let remains = running.pipeline.stop(Duration::from_millis(100)).await;
    assert_eq!(remains.cut_off, 5, "{remains:?}");
    assert_eq!(remains.unsettled, 0, "{remains:?}");
    let letters = broker.drain(&format!("{name}.dead")).await;
    for (_, properties) in &letters {
        let detail = header(properties, "x-sluiced-detail").unwrap_or_default();
        let said = "ended before the answer came; it may have been taken";
        assert!(detail.contains(said), "{detail}");
    }
    assert_eq!(letters.len(), 5);
    assert_eq!(broker.counts(name).await, Some((0, 0)));
}

/// A call that is cut off may have arrived, and may be going on: its units stay spent, it counts as in flight until its
/// lease ends, and a message that is called once is unknown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_call_took_that_was_cut_off_is_not_given_back() {
    let name = "stop-once";
    let broker = filled(name, 5).await;
    let downstream = Recorder::start(|_| slowly(Duration::from_secs(600))).await;
    let mut route = Route::new(name, downstream.address);
    route.limits = vec!["repeats", "daily", "calls"];
    route.downstream = "timeout = \"3s\"\n".to_owned();
    let mut config = config(name, vec![route]);
    config.tables = "[limits.daily]\nkind = \"sliding_log\"\nrate = \"2/1d\"\nlost_wait = \"0s\"\nkey = \"{{ body.n }}\"\n\
         [limits.repeats]\nkind = \"once\"\nkey = \"{{ body.n }}\"\nlease = \"3s\"\non_unknown = \"dead_letter\"\nlost_wait = \"0s\"\n\
         [limits.calls]\nkind = \"concurrency\"\nlimit = 8\nlease = \"1m\"\n"
        .to_owned();
    let running = start_in_this_process(&config);
    eventually(LONG, "calls under way", || downstream.count() == 5).await;
    let remains = running.pipeline.stop(Duration::from_millis(100)).await;
    assert_eq!(remains.cut_off, 5, "{remains:?}");
    let daemon = Daemon::start(&config);
    eventually_async(LONG, "all are dead letters", || async {
        let letters = broker.counts(&format!("{name}.dead")).await;
        letters.map(|(ready, _)| ready) == Some(5)
    })
    .await;
    assert_eq!(downstream.count(), 5, "none twice");
    let file = daemon.config().display().to_string();
    for (limit, key, left) in [("daily", vec!["3"], 1), ("calls", vec![], 3)] {
        let show = ["limits", "show", limit, "--json", "--config", &file];
        let output = program(&[&show[..3], &key, &show[3..]].concat()).output();
        let text = output.unwrap().stdout;
        let shown: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(shown["units"]["remaining"], left, "{shown}");
    }
    daemon
        .stop(&[NEW_SCHEDULE, "nothing is kept on disk", "dead letter"])
        .await;
}

/// The store must know an accepted message of a `once` limit before the message is settled. While the store is away,
/// the message waits for that, but not beyond the grace: a message whose answer was read is not called again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_accepted_while_the_store_is_away_is_settled_when_the_grace_ends() {
    let name = "stop-accepted";
    let broker = filled(name, 1).await;
    let redis = Arc::new(Proxy::to(RedisServer::shared().port()).await);
    let silenced = Arc::clone(&redis);
    let downstream = Recorder::start(move |_| {
        silenced.set(Mode::Silent);
        slowly(Duration::from_millis(100))
    })
    .await;
    let mut route = Route::new(name, downstream.address);
    route.limits = vec!["repeats"];
    let mut config = config(name, vec![route]);
    config.redis = Some(format!("redis://{}", redis.address()));
    config.tables =
        "[limits.repeats]\nkind = \"once\"\nkey = \"{{ body.n }}\"\nlost_wait = \"0s\"\n"
            .to_owned();
    let running = start_in_this_process(&config);
    eventually(LONG, "it is called", || downstream.count() == 1).await;
    let remains = running.pipeline.stop(Duration::from_secs(1)).await;
    assert_eq!(remains.unsettled, 0, "{remains:?}");
    eventually_async(LONG, "it is acknowledged", || async {
        broker.counts(name).await == Some((0, 0))
    })
    .await;
    let letters = broker.counts(&format!("{name}.dead")).await;
    assert_eq!(letters.unwrap_or_default(), (0, 0));
    assert_eq!(downstream.count(), 1);
}

/// Units that Redis grants while a replica stops are refunded: with one call a day, these messages would
/// otherwise wait for a day.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_granted_while_it_stops_is_given_back() {
    const FAR: &str = "permits run out before their calls leave";
    let name = "stop-asking";
    let broker = filled(name, 0).await;
    let downstream = Recorder::accepting().await;
    let redis = Proxy::to(RedisServer::shared().port()).await;
    let mut route = Route::new(name, downstream.address);
    route.limits = vec!["daily"];
    let mut config = config(name, vec![route]);
    config.redis = Some(format!("redis://{}", redis.address()));
    config.tables = "[limits.daily]\nkind = \"sliding_log\"\nrate = \"1/1d\"\nlost_wait = \"0s\"\nkey = \"{{ body.n }}\"\n"
        .to_owned();
    let mut daemon = Daemon::start(&config);
    daemon.ready().await;
    redis.set(Mode::Delay(Duration::from_millis(150), Duration::ZERO));
    let messages = (1..=20).map(|n| (body(n), lapin::BasicProperties::default()));
    broker.publish(name, messages).await;
    // All of them have been delivered: their limits are being asked.
    eventually_async(LONG, "they are delivered", || async {
        broker.counts(name).await == Some((0, 1))
    })
    .await;
    daemon.stop(&[FAR, "nothing is kept on disk"]).await;
    config.redis = Some(RedisServer::shared().url());
    let daemon = Daemon::start(&config);
    // On a busy machine some were called before it was stopped.
    eventually(LONG, "all are called", || downstream.count() == 20).await;
    daemon.stop(&["nothing is kept on disk"]).await;
    let called: BTreeSet<u64> = downstream.calls().iter().map(|call| call.number).collect();
    assert_eq!(called, (1..=20).collect(), "each once");
}

/// What the daemon of the next test complains about.
const STOPPED_BETWEEN: &[&str] = &[
    NEW_SCHEDULE,
    "nothing is kept on disk",
    "permits run out before their calls leave",
];

/// Their limits are being asked, or what they took is being given back: what they have been through goes with them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_on_their_way_between_two_calls_keep_their_attempts() {
    const COUNT: usize = 20;
    let name = "stop-between";
    let _broker = filled(name, COUNT as u64).await;
    let is_well = Arc::new(AtomicBool::new(false));
    let known = Arc::clone(&is_well);
    let downstream = Recorder::start(move |_| match known.load(Ordering::Relaxed) {
        true => Reply::status(202),
        // It spends an attempt, and the downstream is not away.
        false => Reply::retry_after(413, "1"),
    })
    .await;
    let redis = Proxy::to(RedisServer::shared().port()).await;
    let mut route = Route::new(name, downstream.address);
    route.limits = vec!["senders"];
    route.caller = "{{ attempt }}".to_owned();
    route.keys = "retry = { base = \"100ms\", max = \"100ms\" }\nmax_attempts = 1000\n".to_owned();
    let mut config = config(name, vec![route]);
    config.redis = Some(format!("redis://{}", redis.address()));
    config.tables = "[limits.senders]\nkind = \"gcra\"\nrate = \"1000/1s\"\nburst = 1000\n\
                     lost_wait = \"0s\"\nkey = \"{{ body.n }}\"\n"
        .to_owned();
    let mut daemon = Daemon::start(&config);
    daemon.ready().await;
    eventually(LONG, "each was called", || downstream.count() >= COUNT).await;
    redis.set(Mode::Delay(Duration::from_millis(150), Duration::ZERO));
    // Permits run out before they are there: messages are asked for and refunded by turns.
    daemon
        .says("permits run out before their calls leave")
        .await;
    daemon.stop(STOPPED_BETWEEN).await;
    let called = downstream.count();
    is_well.store(true, Ordering::Relaxed);
    config.redis = Some(RedisServer::shared().url());
    let daemon = Daemon::start(&config);
    eventually(LONG, "all are called", || {
        downstream.count() >= called + COUNT
    })
    .await;
    daemon.stop(STOPPED_BETWEEN).await;
    for call in downstream.calls() {
        let attempt = (call.repeat + 1).to_string();
        assert_eq!(call.caller, attempt, "of message {}", call.number);
    }
}
