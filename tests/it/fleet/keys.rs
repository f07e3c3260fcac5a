//! A thousand keys with a limit each, beside the limit of the account.

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

const KEYS: u64 = 1_000;
/// The account's limit binds: 3,000 messages take 15 seconds.
const RATE: &str = "200/1s";
/// A call may be so late.
const HEADROOM: Duration = Duration::from_millis(50);
/// What the headroom leaves of it: 1 s in 1.05 s.
const LEFT: f64 = 1.0 / 1.05;

const DENIED: &str = "sluiced_budget_denials_total{limit=\"recipient\"}";
const MISSED: &str = "sluiced_slots_missed_total{limit=\"provider\"}";

/// Two for each key right behind each other, so that every second one is denied; then one more for
/// each, so that the last seconds are not spent waiting for keys.
fn keys() -> impl Iterator<Item = u64> {
    let pairs = (0..KEYS).flat_map(|key| [key, key]);
    pairs.chain(0..KEYS)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_keys_keep_their_limits_while_the_account_is_used() {
    machine::alone();
    let name = "keys";
    let behaviour = Behaviour {
        key_rate: Some("1/2s".parse().unwrap()),
        ..Behaviour::judging(RATE.parse().unwrap())
    };
    let provider = Provider::start("127.0.0.1:0".parse().unwrap(), behaviour).unwrap();
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    broker.declare(name, "quorum").await;
    let messages = keys().enumerate().map(|(n, key)| {
        let body = format!("{{\"id\":\"{}\",\"to\":\"+49{key:06}\"}}", id(n as u64));
        (body.into_bytes(), BasicProperties::default())
    });
    broker.publish(name, messages).await;

    let mut replicas: Vec<_> = (0..3)
        .map(|place| replica(name, place, &provider))
        .collect();
    let all = keys().count() as u64;
    let still = Still::watch(provider.clock());
    until(&provider, &replicas, 1).await;
    // While nobody knew yet what the budgets hold, slots were leased in vain.
    let before = sum(&mut replicas, MISSED).await;
    until(&provider, &replicas, all).await;
    let missed = sum(&mut replicas, MISSED).await - before;
    let denied = sum(&mut replicas, DENIED).await;
    for replica in replicas {
        replica
            .stop(&[NEW_SCHEDULE, "nothing is kept on disk"])
            .await;
    }
    let report = provider.report(&Expect::Ids((0..all).map(id).collect()));
    assert_eq!((report.over, report.key_over), (0, 0), "{report:?}");
    assert_eq!((report.lost, report.repeated), (Some(0), 0), "{report:?}");
    assert_eq!(report.keys, KEYS, "{report:?}");
    // Each of the second ones is denied once at most, and nobody else is: unless this machine stood
    // still while a slot passed, and with it the permission of a first one.
    assert!(
        denied <= KEYS as f64 + missed,
        "{denied} denials, {missed} slots missed"
    );
    let calls: Vec<_> = provider.keyed().iter().map(|(at, _)| *at).collect();
    let (first, last) = (calls[0], calls[calls.len() - 1]);
    let still = still.end().and_then(HEADROOM);
    let used = still.pace(calls, first, last) / 200.0 / LEFT;
    assert!(
        used >= 0.98,
        "{used} of what the headroom leaves: {report:?}"
    );
}

/// Waits until so many messages arrived.
async fn until(provider: &Provider, replicas: &[Daemon], count: u64) {
    let arrived = tokio::time::timeout(
        PATIENCE,
        eventually(PATIENCE * 2, "they arrived", || {
            provider.live().unique >= count
        }),
    );
    if arrived.await.is_err() {
        let logs: Vec<_> = replicas.iter().map(Daemon::log).collect();
        panic!("{:?}\n{}", provider.live(), logs.join("\n\n"));
    }
}

/// A series, summed over the replicas.
pub(super) async fn sum(replicas: &mut [Daemon], series: &str) -> f64 {
    let mut sum = 0.0;
    for replica in replicas {
        sum += replica.metric(series).await;
    }
    sum
}

fn replica(name: &str, place: usize, provider: &Provider) -> Daemon {
    let mut route = Route::new(name, provider.address());
    route.limits.push("recipient");
    route.caller = format!("replica {place}");
    route.keys = "prefetch = 400\nmax_hold = \"3s\"\n".to_owned();
    let config = Config {
        rabbit: Some(Rabbit::shared().url()),
        redis: Some(RedisServer::shared().url()),
        prefix: name.to_owned(),
        rate: RATE.to_owned(),
        headroom: "50ms",
        horizon: "200ms",
        routes: vec![route],
        tables: "[limits.recipient]\nkind = \"gcra\"\nrate = \"1/2s\"\nheadroom = \"100ms\"\n\
                 key = \"{{ body.to }}\"\n"
            .to_owned(),
    };
    let named = "x-key = \"{{ body.to }}\", x-caller =";
    Daemon::start_with(&config.text().replace("x-caller =", named), |_| {})
}
