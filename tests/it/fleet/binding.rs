//! Keyed limits that bind, behind an account with slots: one limit or two, in turns and in blocks, in any
//! order, with costs, with changes and losses of state meanwhile.

use sluiced_ports::clock;
use std::time::Duration;

use sluiced_provider::Behaviour;

use super::control::said;
use super::keyed::{
    Bounds, Counts, DECLARED, Keyed, ONE, RECIPIENTS, ROUTE, SENDERS, TWO, numbered, scramble,
    through, used,
};
use super::{Fleet, Plan};
use crate::support::soak::soak;

const HEADROOM: Duration = Duration::from_millis(100);

fn plan(name: &'static str, rate: &'static str, tables: String) -> Plan {
    Plan {
        rate,
        limits: &["provider", "recipient"],
        // Few of them, for as long as the tests run.
        tables: tables.leak(),
        keys: ROUTE,
        marked: "{{ body.to }}",
        ..Plan::of(name)
    }
}

/// How many messages each of 40 keys has.
fn chain() -> usize {
    if soak() { 80 } else { 30 }
}

/// Of all keys; `key` returns that of a message by its number.
fn chains(key: impl Fn(usize) -> usize) -> Vec<String> {
    let field = |n| format!("\"to\":\"r{}\"", key(n));
    (0..RECIPIENTS.keys * chain()).map(field).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_in_turns_behind_a_saturated_account() {
    let plan = plan("turns", "100/1s", RECIPIENTS.table(""));
    through(plan, chains(|n| n % 40), &[RECIPIENTS], &ONE).await;
}

/// All messages of a key stand behind each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_in_blocks_behind_a_saturated_account() {
    let plan = plan("blocks", "100/1s", RECIPIENTS.table(""));
    through(plan, chains(|n| n / chain()), &[RECIPIENTS], &ONE).await;
}

/// Most go through a wait queue, once each: no message is denied again when it returns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_of_one_key_goes_through_wait_queues_once() {
    const ALL: usize = 300;
    let hot = Keyed {
        units: 20,
        keys: 1,
        ..RECIPIENTS
    };
    let plan = Plan {
        // Most of them do not fit into the memory.
        keys: "prefetch = 50\nmax_hold = \"30s\"\n",
        marked: "{{ body.to }}/{{ headers['x-sluiced-waited'] | default('never') }}",
        ..plan("hot", "100/1s", hot.table(""))
    };
    let mut fleet = plan.prepare().await;
    let fields = vec!["\"to\":\"hot\"".to_owned(); ALL];
    fleet.publish_with(numbered(fields)).await;
    fleet.add(3);
    fleet.arrived(ALL as u64).await;
    let counts = Counts::of(&mut fleet).await;
    let report = fleet.finish(DECLARED).await;
    assert_eq!(report.repeated, 0, "{report:?}");
    let calls = fleet.provider.keyed();
    hot.none_over(&calls, hot.units);
    used("hot", &calls, 20.0 / 1.1);
    let waited = calls.iter().filter(|(_, key)| !key.ends_with("never"));
    let waited = waited.count();
    eprintln!("hot: {waited} came through a wait queue");
    assert!(waited > ALL / 4, "{waited} came through a wait queue");
    assert_eq!(counts.trips, waited as f64, "once each");
    // Each of the three replicas asks when the one key opens, and one of them is granted.
    let bounds = Bounds { looks: 4.0, ..ONE };
    counts.judge("hot", ALL, &bounds);
}

const PAIRS: usize = 800;

/// Any sender writes to any recipient.
fn pairs() -> Vec<String> {
    let pair = |n: usize| {
        let from = scramble(u32::try_from(n).unwrap()) as usize % SENDERS.keys;
        format!("\"to\":\"r{}\",\"from\":\"s{from}\"", n % RECIPIENTS.keys)
    };
    (0..PAIRS).map(pair).collect()
}

fn pairs_plan(name: &'static str, rate: &'static str, limits: [Keyed; 2], more: &str) -> Plan {
    let tables = limits.map(|limit| limit.table(more)).concat();
    Plan {
        limits: &["provider", "recipient", "sender"],
        marked: "{{ body.to }}/{{ body.from }}",
        ..plan(name, rate, tables)
    }
}

async fn any_to_any(name: &'static str, rate: &'static str) {
    let limits = [RECIPIENTS, SENDERS];
    through(pairs_plan(name, rate, limits, ""), pairs(), &limits, &TWO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_sender_to_any_recipient_where_the_senders_bind() {
    any_to_any("pairs", "400/1s").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_sender_to_any_recipient_behind_a_saturated_account() {
    any_to_any("pairs-saturated", "100/1s").await;
}

/// What was granted under a policy that has gone, and what the store has forgotten: none of it comes on top of what the
/// policy in force allows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_policy_and_a_loss_meanwhile_exceed_nothing() {
    const FEWER: [usize; 2] = [3, 15];
    let limits = [RECIPIENTS, SENDERS];
    let plan = Plan {
        own_redis: true,
        ..pairs_plan(
            "pairs-changed",
            "100/1s",
            limits,
            "lost_wait = \"forever\"\n",
        )
    };
    let mut fleet = plan.prepare().await;
    let mut all: Vec<_> = numbered(pairs()).collect();
    let after = all.split_off(PAIRS / 2);
    fleet.publish_with(all).await;
    fleet.add(3);
    fleet.arrived(300).await;
    for (limit, units) in limits.iter().zip(FEWER) {
        let rate = format!("rate={units}/1s");
        said(&fleet.replicas[0], &["set", limit.name, &rate]);
    }
    let changed = clock::now();
    fleet.publish_with(after).await;
    fleet.arrived(550).await;
    forget(&fleet);
    let more = [
        "file differs from the current policy",
        "the store lost its state",
    ];
    fleet.arrived(PAIRS as u64).await;
    let counts = Counts::of(&mut fleet).await;
    let report = fleet.finish(&[DECLARED, &more].concat()).await;
    assert_eq!(report.repeated, 0, "{report:?}");
    let calls = fleet.provider.keyed();
    for limit in &limits {
        limit.none_over(&calls, limit.units);
    }
    // Current within a second; calls that were granted a moment before may still leave.
    let settled = changed + Duration::from_secs(1) + HEADROOM;
    let later: Vec<_> = calls.into_iter().filter(|(at, _)| *at > settled).collect();
    assert!(later.len() > 200, "{} calls", later.len());
    for (limit, fewer) in limits.iter().zip(FEWER) {
        limit.none_over(&later, fewer);
    }
    // Each of them may ask again because of the loss, and because of the change.
    let bounds = Bounds {
        looks: TWO.looks + 2.0,
        ..TWO
    };
    counts.judge("pairs-changed", PAIRS, &bounds);
}

fn forget(fleet: &Fleet) {
    redis::cmd("FLUSHALL")
        .query::<()>(&mut fleet.servers.redis().connection())
        .unwrap();
}

/// A message of two segments takes two slots of the account, and is called in the last one: the permit of its
/// sender's limit must be valid until then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_two_segments_of_one_sender_flow() {
    const ALL: u64 = 60;
    const BOUND: Duration = Duration::from_secs(20);
    let sender = "[limits.sender]\nkind = \"gcra\"\nrate = \"12/1s\"\nburst = 5\n\
                  key = \"{{ body.from }}\"\ncost = \"{{ body.units }}\"\n";
    let plan = Plan {
        judged: Some(Behaviour::judging("90/1s".parse().unwrap())),
        limits: &["provider", "sender"],
        marked: "{{ body.from }}\", x-cost = \"{{ body.units }}",
        ..plan(
            "segments-of-one",
            "90/1s\"\nmax_cost = 2\ncost = \"{{ body.units }}",
            sender.to_owned(),
        )
    };
    let mut fleet = plan.prepare().await;
    let fields = vec!["\"from\":\"one\",\"units\":2".to_owned(); ALL as usize];
    fleet.publish_with(numbered(fields)).await;
    fleet.add(3);
    fleet.arrived(1).await;
    let first = clock::now();
    fleet.arrived(ALL).await;
    let took = clock::now().since(first);
    let counts = Counts::of(&mut fleet).await;
    let report = fleet.finish(DECLARED).await;
    assert_eq!((report.repeated, report.units), (0, 2 * ALL), "{report:?}");
    // 12 a second, and a burst of 5 besides.
    let one = Keyed {
        name: "sender",
        keys: 1,
        ..RECIPIENTS
    };
    one.none_over(&fleet.provider.keyed(), (12 + 5) / 2);
    eprintln!("segments-of-one: {took:?}");
    counts.judge("segments-of-one", ALL as usize, &ONE);
    assert!(took <= BOUND, "{took:?}");
}
