//! Chains: many messages for each of a few keys, which together want twice what the account allows,
//! over three replicas. The places of the keys fall due faster than there are slots for them.

use std::time::Duration;

use lapin::BasicProperties;
use sluiced::proof::provider::{Behaviour, Expect, Provider};

use super::{PATIENCE, id};
use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, NEW_SCHEDULE, Route};
use crate::support::machine;
use crate::support::rabbit::Rabbit;
use crate::support::redis::RedisServer;
use crate::support::still::Still;
use crate::support::wait::eventually;

const KEYS: u64 = 40;
const EACH: u64 = 25;
const LONG: u64 = 80;
const RATE: &str = "100/1s";
/// What the headroom leaves of it: 1 s in 1.05 s.
const LEFT: f64 = 1.0 / 1.05;

/// A slot that came up while the machine stood still was missed.
const HEADROOM: Duration = Duration::from_millis(50);

const DENIED: &str = "sluiced_budget_denials_total{limit=\"recipient\"}";
const MISSED: &str = "sluiced_slots_missed_total{limit=\"provider\"}";

/// The first of each key, then the second ones, and so on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chains_behind_a_saturated_account_are_denied_once_at_most() {
    denied_once("chains", EACH, |number| number % KEYS, 0.9).await;
}

/// All of a key stand behind each other: each replica holds all of some keys, which want more than its part
/// of the slots. In the end some replicas have nothing left, and the keys of the others bind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn so_are_whole_chains_that_one_replica_holds() {
    denied_once("chains-whole", EACH, |number| number / EACH, 0.6).await;
}

/// Most of these are late for their places, by many times what may be granted ahead. They stand in line.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn so_are_long_chains() {
    denied_once("chains-long", LONG, |number| number / LONG, 0.6).await;
}

async fn denied_once(name: &str, each: u64, key: impl Fn(u64) -> u64, at_least: f64) {
    machine::alone();
    let behaviour = Behaviour {
        key_rate: Some("5/1s".parse().unwrap()),
        ..Behaviour::judging(RATE.parse().unwrap())
    };
    let provider = Provider::start("127.0.0.1:0".parse().unwrap(), behaviour).unwrap();
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    broker.declare(name, "quorum").await;
    let all = KEYS * each;
    let messages = (0..all).map(|n| {
        let body = format!("{{\"id\":\"{}\",\"to\":\"+49{:06}\"}}", id(n), key(n));
        (body.into_bytes(), BasicProperties::default())
    });
    broker.publish(name, messages).await;

    let mut replicas: Vec<_> = (0..3)
        .map(|place| replica(name, place, &provider))
        .collect();
    let still = Still::watch(provider.clock());
    let arrived = tokio::time::timeout(
        PATIENCE,
        eventually(PATIENCE * 2, "they arrived", || {
            provider.live().unique >= all
        }),
    );
    if arrived.await.is_err() {
        let logs: Vec<_> = replicas.iter().map(Daemon::log).collect();
        panic!("{:?}\n{}", provider.live(), logs.join("\n\n"));
    }
    let again = format!("sluiced_bookings_total{{route=\"{name}\",fate=\"missed\"}}");
    let (mut denied, mut missed, mut places_lost) = (0.0, 0.0, 0.0);
    for replica in &mut replicas {
        denied += replica.metric(DENIED).await;
        missed += replica.metric(MISSED).await;
        places_lost += replica.metric(&again).await;
    }
    for replica in replicas {
        replica
            .stop(&[NEW_SCHEDULE, "nothing is kept on disk"])
            .await;
    }
    let report = provider.report(&Expect::Ids((0..all).map(id).collect()));
    assert_eq!((report.over, report.key_over), (0, 0), "{report:?}");
    assert_eq!((report.lost, report.repeated), (Some(0), 0), "{report:?}");
    assert_eq!(report.keys, KEYS, "{report:?}");
    let calls: Vec<_> = provider.keyed().iter().map(|(at, _)| *at).collect();
    let (first, last) = (calls[0], calls[calls.len() - 1]);
    let still = still.end().and_then(HEADROOM);
    let used = still.pace(calls, first, last) / 100.0 / LEFT;
    eprintln!(
        "{name}: {denied} denials for {all} messages, {used:.3} used, {missed} slots and {places_lost} places missed"
    );
    // Each once at most, unless this machine stood still while its slot passed. Who is denied again has lost
    // the place that his first denial gave him.
    assert!(
        denied <= all as f64 + missed && places_lost <= all as f64 / 100.0,
        "{denied} denials, {missed} slots and {places_lost} places missed"
    );
    assert!(
        used >= at_least,
        "{used} of what the headroom leaves: {report:?}"
    );
}

fn replica(name: &str, place: usize, provider: &Provider) -> Daemon {
    let mut route = Route::new(name, provider.address());
    route.limits.push("recipient");
    route.caller = format!("replica {place}");
    route.keys = "prefetch = 400\nmax_hold = \"30s\"\n".to_owned();
    let config = Config {
        rabbit: Some(Rabbit::shared().url()),
        redis: Some(RedisServer::shared().url()),
        prefix: name.to_owned(),
        rate: RATE.to_owned(),
        headroom: "50ms",
        horizon: "200ms",
        routes: vec![route],
        tables: "[limits.recipient]\nkind = \"gcra\"\nrate = \"5/1s\"\nheadroom = \"100ms\"\n\
                 key = \"{{ body.to }}\"\n"
            .to_owned(),
    };
    let named = "x-key = \"{{ body.to }}\", x-caller =";
    Daemon::start_with(&config.text().replace("x-caller =", named), |_| {})
}
