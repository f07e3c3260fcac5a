//! Two keyed limits at once, over three replicas: any of eight senders writes to any of forty recipients,
//! and both limits bind. A message has a place in both of them, at a moment that suits both.

use std::collections::BTreeMap;
use std::time::Duration;

use lapin::BasicProperties;
use sluiced::core::budget::admit::SOON;
use sluiced::core::time::Mono;
use sluiced::proof::provider::{Behaviour, Expect, Provider};

use super::control::said;
use super::keys::sum;
use super::{PATIENCE, id};
use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, NEW_SCHEDULE, Route};
use crate::support::machine;
use crate::support::rabbit::Rabbit;
use crate::support::redis::RedisServer;
use crate::support::still::Still;
use crate::support::wait::eventually;

const RECIPIENTS: u64 = 40;
const SENDERS: u64 = 8;
const ALL: u64 = 1_600;
/// Of a recipient and of a sender in a second.
const UNITS: [usize; 2] = [5, 20];
/// After a change.
const FEWER: [usize; 2] = [3, 15];
const HEADROOM: Duration = Duration::from_millis(100);

/// The senders may send less than the recipients may get, and both less than the account allows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_two_keyed_limits_that_bind_each_is_denied_once() {
    denied_once("pairs", "400/1s", ["gcra", "gcra"], 0.8).await;
}

/// The account is saturated as well: places fall due faster than there are slots. Who is late stands in line.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn so_it_is_behind_a_saturated_account() {
    denied_once("pairs-saturated", "100/1s", ["gcra", "gcra"], 0.8).await;
}

/// A log is planned, and used, in any order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn so_it_is_behind_logs() {
    denied_once("pairs-logs", "400/1s", ["sliding_log", "sliding_log"], 0.8).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn so_it_is_behind_a_log_and_a_saturated_account() {
    denied_once("pairs-mixed", "100/1s", ["sliding_log", "gcra"], 0.8).await;
}

/// What was granted a moment ahead, or booked, under terms that have gone, and what the store has forgotten:
/// none of it comes on top of what the terms in force allow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_terms_and_a_loss_meanwhile_exceed_nothing() {
    machine::alone();
    let name = "pairs-terms";
    let mut pairs = Pairs::start(name, "100/1s", ["gcra", "gcra"]).await;
    pairs.arrived(600).await;
    // Some have come late for their places by now, and wait for another moment.
    let late = format!("sluiced_bookings_total{{route=\"{name}\",fate=\"late\"}}");
    let late = sum(&mut pairs.replicas, &late).await;
    assert!(late >= 100.0, "{late} were late: nothing was granted ahead");
    let first = &pairs.replicas[0];
    said(
        first,
        &["set", "recipient", &format!("rate={}/1s", FEWER[0])],
    );
    said(first, &["set", "sender", &format!("rate={}/1s", FEWER[1])]);
    let changed = pairs.provider.clock().now();
    pairs.arrived(1_100).await;
    redis::cmd("FLUSHALL")
        .query::<()>(&mut RedisServer::shared().connection())
        .unwrap();
    pairs.arrived(ALL).await;
    for replica in pairs.replicas {
        let declared = [
            NEW_SCHEDULE,
            "nothing is kept on disk",
            "file differs from what is in force",
            "the store lost its budgets",
        ];
        replica.stop(&declared).await;
    }
    let report = pairs
        .provider
        .report(&Expect::Ids((0..ALL).map(id).collect()));
    assert_eq!(report.over, 0, "{report:?}");
    assert_eq!((report.lost, report.repeated), (Some(0), 0), "{report:?}");
    let calls = pairs.provider.keyed();
    none_over(&calls, UNITS);
    // In force within a second; who was granted a moment ahead may use it.
    let settled = changed + Duration::from_secs(1) + SOON + HEADROOM;
    let later: Vec<_> = calls.into_iter().filter(|(at, _)| *at > settled).collect();
    assert!(later.len() > 300, "{} calls", later.len());
    none_over(&later, FEWER);
}

/// Three replicas on a backlog, and their provider.
struct Pairs {
    provider: Provider,
    replicas: Vec<Daemon>,
}

impl Pairs {
    async fn start(name: &str, rate: &str, kinds: [&str; 2]) -> Self {
        let behaviour = Behaviour::judging(rate.parse().unwrap());
        let provider = Provider::start("127.0.0.1:0".parse().unwrap(), behaviour).unwrap();
        let broker = Broker::connect(&Rabbit::shared().url()).await;
        broker.declare(name, "quorum").await;
        let messages = (0..ALL).map(|n| {
            // Senders in no order (Fibonacci hashing).
            let hash = u32::try_from(n).unwrap().wrapping_mul(0x9E37_79B9);
            let (to, from) = (n % RECIPIENTS, u64::from(hash) % SENDERS);
            let body = format!(
                "{{\"id\":\"{}\",\"to\":\"r{to}\",\"from\":\"s{from}\"}}",
                id(n)
            );
            (body.into_bytes(), BasicProperties::default())
        });
        broker.publish(name, messages).await;
        let replicas = (0..3).map(|place| replica(name, rate, kinds, place, &provider));
        let replicas = replicas.collect();
        Self { provider, replicas }
    }

    async fn arrived(&self, count: u64) {
        let arrived = tokio::time::timeout(
            PATIENCE,
            eventually(PATIENCE * 2, "they arrived", || {
                self.provider.live().unique >= count
            }),
        );
        if arrived.await.is_err() {
            let logs: Vec<_> = self.replicas.iter().map(Daemon::log).collect();
            panic!("{:?}\n{}", self.provider.live(), logs.join("\n\n"));
        }
    }
}

/// `kinds`: of the recipients' limits and the senders'; `at_least`: this share of what the tightest of the
/// three limits leaves is used.
async fn denied_once(name: &str, rate: &str, kinds: [&str; 2], at_least: f64) {
    machine::alone();
    let pairs = Pairs::start(name, rate, kinds).await;
    let still = Still::watch(pairs.provider.clock());
    pairs.arrived(ALL).await;
    let Pairs {
        provider,
        mut replicas,
    } = pairs;
    let series = [
        format!("sluiced_denials_total{{route=\"{name}\"}}"),
        format!("sluiced_bookings_total{{route=\"{name}\",fate=\"missed\"}}"),
        "sluiced_slots_missed_total{limit=\"provider\"}".to_owned(),
    ];
    let [mut denied, mut lost, mut missed] = [0.0; 3];
    for (count, series) in [&mut denied, &mut lost, &mut missed]
        .into_iter()
        .zip(series)
    {
        *count = sum(&mut replicas, &series).await;
    }
    for replica in replicas {
        replica
            .stop(&[NEW_SCHEDULE, "nothing is kept on disk"])
            .await;
    }
    let report = provider.report(&Expect::Ids((0..ALL).map(id).collect()));
    assert_eq!(report.over, 0, "{report:?}");
    assert_eq!((report.lost, report.repeated), (Some(0), 0), "{report:?}");
    none_over(&provider.keyed(), UNITS);
    let calls: Vec<_> = provider.keyed().iter().map(|(at, _)| *at).collect();
    let (first, last) = (calls[0], calls[calls.len() - 1]);
    let still = still.end().and_then(HEADROOM);
    let pace = still.pace(calls, first, last);
    eprintln!(
        "{name}: {denied} denials for {ALL} messages, {lost} places lost, {pace:.1} calls a second, \
         {missed} slots missed"
    );
    // All but a few are denied: whoever is denied twice is one too many. He has lost the places that his
    // first denial gave him, or had none in one of the limits.
    // Places pass by, too, while the machine stands still.
    let stood = still.within(first, last).as_secs_f64() / last.since(first).as_secs_f64();
    let few = ALL as f64 / 50.0 + ALL as f64 * stood;
    assert!(
        denied <= ALL as f64 + few && lost <= few,
        "{denied} denials, {lost} places lost"
    );
    let account: f64 = rate.split('/').next().unwrap().parse().unwrap();
    let each = [
        account / 1.05,
        (RECIPIENTS as usize * UNITS[0]) as f64 / 1.1,
        (SENDERS as usize * UNITS[1]) as f64 / 1.1,
    ];
    let tightest = each.into_iter().fold(f64::MAX, f64::min);
    assert!(
        pace >= at_least * tightest,
        "{pace} calls a second of {tightest}: {report:?}"
    );
}

/// Neither limit is exceeded in any second.
fn none_over(calls: &[(Mono, Box<str>)], units: [usize; 2]) {
    let mut by: [BTreeMap<String, Vec<_>>; 2] = [BTreeMap::new(), BTreeMap::new()];
    for (at, key) in calls {
        let (to, from) = key.split_once('/').expect("both are named");
        for (calls, name) in by.iter_mut().zip([to, from]) {
            calls.entry(name.to_owned()).or_default().push(*at);
        }
    }
    assert_eq!(by[0].len() as u64, RECIPIENTS);
    assert_eq!(by[1].len() as u64, SENDERS);
    for (calls, units) in by.iter().zip(units) {
        for (name, times) in calls {
            for some in times.windows(units + 1) {
                let span = some[units].since(some[0]);
                assert!(
                    span >= Duration::from_secs(1),
                    "{name}: {} calls in {span:?}",
                    units + 1
                );
            }
        }
    }
}

fn replica(name: &str, rate: &str, kinds: [&str; 2], place: usize, provider: &Provider) -> Daemon {
    let mut route = Route::new(name, provider.address());
    route.limits.extend(["recipient", "sender"]);
    route.caller = format!("replica {place}");
    route.keys = "prefetch = 400\nmax_hold = \"30s\"\n".to_owned();
    let limit = |name: &str, kind: &str, units: usize, key: &str| {
        format!(
            "[limits.{name}]\nkind = \"{kind}\"\nrate = \"{units}/1s\"\nheadroom = \"100ms\"\n\
             key = \"{{{{ body.{key} }}}}\"\n"
        )
    };
    let config = Config {
        rabbit: Some(Rabbit::shared().url()),
        redis: Some(RedisServer::shared().url()),
        prefix: name.to_owned(),
        rate: rate.to_owned(),
        headroom: "50ms",
        horizon: "200ms",
        routes: vec![route],
        tables: limit("recipient", kinds[0], UNITS[0], "to")
            + &limit("sender", kinds[1], UNITS[1], "from"),
    };
    let named = "x-key = \"{{ body.to }}/{{ body.from }}\", x-caller =";
    Daemon::start_with(&config.text().replace("x-caller =", named), |_| {})
}
