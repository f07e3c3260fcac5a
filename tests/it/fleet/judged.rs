//! Tests of the judges themselves: each must notice the fault that it exists for. With a judge that
//! accepts everything, every other test would pass.

use std::collections::BTreeMap;
use std::time::Duration;

use sluiced_core::time::Mono;
use sluiced_provider::Behaviour;

use super::{Fleet, Plan, id};
use crate::support::daemon::NEW_SCHEDULE;
use crate::support::judge::{History, Made, fullest, repeated_without_reason};

const SECOND: Duration = Duration::from_secs(1);
/// What replicas may log here.
const DECLARED: &[&str] = &[
    NEW_SCHEDULE,
    "the limit holds for each replica alone",
    // A wait queue that is used for the first time, on a busy machine.
    "copies are not confirmed",
    // With limits in memory each has a key of its own for the headers of copies.
    "headers that only sluiced may write",
];

fn times(fleet: &Fleet) -> Vec<Mono> {
    let calls = fleet.provider.keyed();
    calls.iter().map(|(at, _)| *at).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_that_keep_the_limit_each_for_itself_are_seen_to_be_over() {
    let plan = Plan {
        rate: "100/1s",
        in_memory: true,
        ..Plan::of("judged-over")
    };
    let mut fleet = plan.start(2, 500).await;
    fleet.arrived(500).await;
    let report = fleet.halt(DECLARED).await;
    assert!(report.over > 0 && report.worst > 100, "{report:?}");
    let calls = times(&fleet);
    assert!(fullest(&calls, SECOND) > 100);
    let history = History::of(100, SECOND, SECOND);
    assert!(!history.over(&calls).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_that_keep_the_limit_of_a_key_each_for_itself_are_seen_to_be_over() {
    let judged = Behaviour {
        key_rate: Some("20/1s".parse().unwrap()),
        ..Behaviour::judging("200/1s".parse().unwrap())
    };
    let plan = Plan {
        judged: Some(judged),
        limits: &["provider", "recipient"],
        tables: "[limits.recipient]\nkind = \"gcra\"\nrate = \"20/1s\"\nheadroom = \"100ms\"\n\
                 key = \"{{ body.to }}\"\n",
        // Both have messages for each of the keys.
        keys: "prefetch = 60\n",
        rate: "100/1s",
        marked: "{{ body.to }}",
        in_memory: true,
        ..Plan::of("judged-keys")
    };
    let mut fleet = plan.prepare().await;
    fleet.publish((0..200).map(|n| (id(n), n % 2))).await;
    fleet.add(2);
    fleet.arrived(200).await;
    let report = fleet.halt(DECLARED).await;
    assert_eq!((report.over, report.keys), (0, 2), "{report:?}");
    assert!(report.key_over > 0 && report.key_worst > 20, "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_missing_and_one_that_came_twice_are_seen() {
    let mut fleet = Plan::of("judged-lost").prepare().await;
    fleet.publish([("lost".to_owned(), "any")]).await;
    assert_eq!(fleet.broker.drain("judged-lost").await.len(), 1);
    let twice = ["once", "twice", "twice"].map(|id| (id.to_owned(), "any"));
    fleet.publish(twice).await;
    fleet.add(1);
    fleet.arrived(2).await;
    fleet.calls(3).await;
    let report = fleet.halt(DECLARED).await;
    assert_eq!((report.lost, report.repeated), (Some(1), 1), "{report:?}");
    assert_eq!(report.lost_ids, ["lost"]);
    assert_eq!(report.repeated_ids, ["twice"]);
    // A message that was never sent is not taken for one of them.
    fleet.ids.retain(|id| id != "once");
    let report = fleet.halt(&[]).await;
    assert_eq!(report.unexpected, 1, "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_calls_at_once_than_are_allowed_are_seen() {
    let latency = Duration::from_millis(200);
    let judged = Behaviour {
        latency,
        ..Behaviour::judging("200/1s".parse().unwrap())
    };
    let plan = Plan {
        judged: Some(judged),
        limits: &["calls"],
        tables: "[limits.calls]\nkind = \"concurrency\"\nlimit = 3\nlease = \"30s\"\n",
        keys: "prefetch = 20\n",
        in_memory: true,
        ..Plan::of("judged-calls")
    };
    let mut fleet = plan.start(2, 60).await;
    fleet.arrived(60).await;
    fleet.halt(DECLARED).await;
    let at_once = fullest(&times(&fleet), latency);
    assert!((4..=6).contains(&at_once), "{at_once} at once");
}

/// Evenly spaced calls, this many a second, for this many milliseconds.
fn flow(from: u64, units: u64, length: u64) -> Vec<Mono> {
    let count = units * length / 1_000;
    let at = |n| Mono::from_micros((from + n * length / count) * 1_000);
    (0..count).map(at).collect()
}

const fn at(millis: u64) -> Mono {
    Mono::from_micros(millis * 1_000)
}

/// From 100 to 50 a second after five seconds.
fn slower() -> History {
    let mut history = History::of(100, SECOND, SECOND);
    history.changed(at(5_000)..at(5_100), 50);
    history
}

#[test]
fn a_change_that_comes_in_time_is_right() {
    let calls = [flow(0, 100, 6_000), flow(6_000, 50, 4_000)].concat();
    assert_eq!(slower().over(&calls), [""; 0]);
    assert_eq!(slower().settled(), at(6_100));
}

#[test]
fn a_burst_at_a_change_is_seen() {
    let burst = flow(5_200, 100, 300);
    let mut calls = [flow(0, 100, 6_000), burst, flow(6_000, 50, 4_000)].concat();
    calls.sort_unstable();
    assert!(!slower().over(&calls).is_empty());
}

#[test]
fn a_change_that_comes_late_is_seen() {
    let calls = [flow(0, 100, 6_400), flow(6_400, 50, 4_000)].concat();
    assert!(!slower().over(&calls).is_empty());
}

#[test]
fn a_call_in_a_pause_is_seen() {
    let mut history = History::of(100, SECOND, SECOND);
    history.changed(at(5_000)..at(5_100), 0);
    history.changed(at(9_000)..at(9_100), 100);
    let paused = [flow(0, 100, 5_500), flow(9_050, 100, 2_000)].concat();
    assert_eq!(history.over(&paused), [""; 0]);
    let mut calls = [paused, vec![at(7_000)]].concat();
    calls.sort_unstable();
    assert_eq!(history.over(&calls).len(), 1);
}

#[test]
fn a_message_may_come_again_only_after_the_death_of_the_one_that_called() {
    let made = |millis, message, by| Made {
        at: at(millis),
        message,
        by,
        copy: "none",
    };
    let deaths = BTreeMap::from([("dead".to_owned(), at(5_000)..at(5_100))]);
    // It held one message.
    let wrong =
        |calls: &[Made<'static>]| repeated_without_reason(calls.iter().cloned(), &deaths, 1).len();
    let again = made(5_400, "m", "other");
    assert_eq!(wrong(&[made(3_000, "m", "dead"), again.clone()]), 0);
    let behind = made(4_900, "another", "dead");
    let acknowledged = [made(3_000, "m", "dead"), behind, again];
    assert_eq!(wrong(&acknowledged), 1);
    let by_the_living = [made(4_900, "m", "other"), made(5_400, "m", "dead")];
    assert_eq!(wrong(&by_the_living), 1);
    // The dead replica had copied it for a wait queue: the copy and the original come, and nothing
    // more.
    let copy = Made {
        copy: "12",
        ..made(5_900, "m", "other")
    };
    let original = made(5_200, "m", "other");
    assert_eq!(wrong(&[original.clone(), copy.clone()]), 0);
    let another = |made: Made<'static>| Made {
        message: "n",
        ..made
    };
    let pairs = [original.clone(), copy.clone()];
    let more = [pairs.clone(), pairs.map(another)].concat();
    assert_eq!(wrong(&more), 1, "it held one");
    let before = [
        made(1_000, "m", "other"),
        Made {
            at: at(2_000),
            ..copy.clone()
        },
    ];
    assert_eq!(wrong(&before), 1, "nothing had died");
    assert_eq!(wrong(&[copy.clone(), copy.clone()]), 1);
    assert_eq!(
        wrong(&[original.clone(), original.clone(), copy.clone()]),
        1
    );
    // Two replicas that died may each have left a copy; one cannot have left two.
    let third = Made {
        copy: "13",
        ..made(6_000, "m", "other")
    };
    let all = [original, copy, third];
    assert_eq!(wrong(&all), 1);
    let mut more = deaths.clone();
    more.insert("too".to_owned(), at(5_300)..at(5_400));
    assert_eq!(repeated_without_reason(all, &more, 1), Vec::<String>::new());
}
