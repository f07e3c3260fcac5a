//! Redis some milliseconds away: the fleet still makes its calls, each limit holds, and nothing is lost.
//!
//! Asserted is that all messages arrive, no window of any limit over, and none twice; the share of the limit is
//! printed. The simulation asserts the shares (`crates/simulation/src/measured/distance.rs`).

use std::collections::BTreeMap;
use std::time::Duration;

use sluiced_core::time::Mono;
use sluiced_provider::Behaviour;

use super::Plan;
use super::keyed::{DECLARED, Keyed, RECIPIENTS, ROUTE, numbered};
use crate::support::judge::fullest;
use crate::support::machine;
use crate::support::proxy::{Mode, Proxy};
use crate::support::soak::{at_length, soak};

/// A setting, and its messages.
struct Cell {
    plan: Plan,
    replicas: usize,
    fields: Vec<String>,
    /// How long the limits need for all of them, without any headroom.
    least: f64,
    /// What its limits allow.
    most: Vec<Most>,
}

/// This many calls in any window of this length.
struct Most {
    calls: usize,
    window: Duration,
    /// Of each key, else of all.
    of_each: bool,
}

const SECOND: Duration = Duration::from_secs(1);

/// In a second.
const fn each(calls: usize) -> Most {
    Most {
        calls,
        window: SECOND,
        of_each: true,
    }
}

const fn all(calls: usize, window: Duration) -> Most {
    Most {
        calls,
        window,
        of_each: false,
    }
}

impl Most {
    fn holds(&self, calls: &[(Mono, Box<str>)]) {
        let mut by: BTreeMap<&str, Vec<Mono>> = BTreeMap::new();
        for (at, key) in calls {
            let key = if self.of_each { &**key } else { "all" };
            by.entry(key).or_default().push(*at);
        }
        for (key, mut times) in by {
            times.sort_unstable();
            let (held, window) = (fullest(&times, self.window), self.window);
            let most = self.calls;
            assert!(held <= most, "{key}: {held} in {window:?} of {most}");
        }
    }
}

/// Messages in turns of this many recipients, all by one sender.
fn fields(messages: usize, keys: usize) -> Vec<String> {
    let one = |n| format!("\"to\":\"r{}\",\"from\":\"s0\"", n % keys);
    (0..messages).map(one).collect()
}

fn unjudged(latency: Duration) -> Option<Behaviour> {
    Some(Behaviour {
        latency,
        ..Behaviour::judging("1000000/1s".parse().unwrap())
    })
}

/// Many keys; the account binds.
fn account(name: &'static str) -> Cell {
    let count = at_length(400, 1_200);
    Cell {
        plan: Plan {
            limits: &["provider", "recipient"],
            tables: "[limits.recipient]\nkind = \"gcra\"\nrate = \"10/1s\"\nkey = \"{{ body.to }}\"\n",
            keys: ROUTE,
            marked: "{{ body.to }}",
            headroom: "10ms",
            ..Plan::of(name)
        },
        replicas: 2,
        fields: fields(count, 40),
        least: count as f64 / 200.0,
        most: vec![each(10)],
    }
}

/// Many keys, and nothing else.
fn keys(name: &'static str) -> Cell {
    let limit = Keyed {
        units: 3,
        keys: at_length(100, 200),
        ..RECIPIENTS
    };
    // More than a key may have within a second.
    let of_each = at_length(6, 9);
    let fields = fields(of_each * limit.keys, limit.keys);
    Cell {
        plan: Plan {
            judged: unjudged(Duration::ZERO),
            limits: &["recipient"],
            tables: "[limits.recipient]\nkind = \"gcra\"\nrate = \"3/1s\"\nkey = \"{{ body.to }}\"\n",
            keys: ROUTE,
            marked: "{{ body.to }}",
            ..Plan::of(name)
        },
        replicas: 2,
        fields,
        least: (of_each - 1) as f64 / 3.0,
        most: vec![each(3)],
    }
}

/// How long the calls of `concurrency` last.
const CALL: Duration = Duration::from_millis(100);

/// Calls in flight.
fn calls(name: &'static str, replicas: usize) -> Cell {
    let count = at_length(200, 600);
    Cell {
        plan: Plan {
            judged: unjudged(CALL),
            limits: &["calls"],
            tables: "[limits.calls]\nkind = \"concurrency\"\nlimit = 10\n",
            ..Plan::of(name)
        },
        replicas,
        fields: fields(count, 10),
        least: count as f64 / 100.0,
        // Each lasts for this long.
        most: vec![all(10, CALL)],
    }
}

/// Two limits of each message.
fn two(name: &'static str) -> Cell {
    let count = at_length(200, 600);
    Cell {
        plan: Plan {
            judged: unjudged(Duration::ZERO),
            limits: &["recipient", "sender"],
            tables: "[limits.recipient]\nkind = \"sliding_log\"\nrate = \"5/1s\"\nkey = \"{{ body.to }}\"\n\
                     [limits.sender]\nkind = \"gcra\"\nrate = \"100/1s\"\nburst = 20\nkey = \"{{ body.from }}\"\n",
            keys: ROUTE,
            marked: "{{ body.to }}",
            ..Plan::of(name)
        },
        replicas: 2,
        fields: fields(count, at_length(20, 40)),
        least: (count - 20) as f64 / 100.0,
        most: vec![each(5), all(120, SECOND)],
    }
}

/// One sender whose messages take several slots of the account.
fn dear(name: &'static str, replicas: usize) -> Cell {
    let count = at_length(20, 60);
    Cell {
        plan: Plan {
            rate: "100/1s\"\nmax_cost = 10\ncost = \"10",
            judged: unjudged(Duration::ZERO),
            limits: &["provider", "sender"],
            tables: "[limits.sender]\nkind = \"gcra\"\nrate = \"50/1s\"\nburst = 9\ncost = 10\nkey = \"{{ body.from }}\"\n",
            headroom: "10ms",
            ..Plan::of(name)
        },
        replicas,
        fields: fields(count, 10),
        least: (count - 1) as f64 * 10.0 / 50.0 - 0.2,
        // Ten units each, of 50 and a burst of nine.
        most: vec![all(5, SECOND)],
    }
}

/// Runs it with Redis so far away in each direction; returns how long it took.
async fn run(cell: Cell, way: Duration) {
    machine::two();
    measure(cell, way).await;
}

async fn measure(cell: Cell, way: Duration) {
    let name = cell.plan.name;
    let count = cell.fields.len();
    let mut plan = cell.plan;
    plan.takes = || ();
    let mut fleet = plan.prepare().await;
    let proxy = Proxy::to(fleet.servers.redis().port()).await;
    proxy.set(Mode::Delay(way, way / 20));
    fleet.via.redis = Some(format!("redis://{}", proxy.address()));
    fleet.publish_with(numbered(cell.fields)).await;
    fleet.add(cell.replicas);
    fleet.arrived(count as u64).await;
    let report = fleet.finish(&[DECLARED, &[FAR_FOR]].concat()).await;
    assert_eq!(report.repeated, 0, "{report:?}");
    let calls = fleet.provider.keyed();
    cell.most.iter().for_each(|most| most.holds(&calls));
    let times: Vec<Mono> = calls.iter().map(|(at, _)| *at).collect();
    let (first, last) = (times.iter().min().unwrap(), times.iter().max().unwrap());
    let seconds = last.since(*first).as_secs_f64();
    eprintln!(
        "{name}: Redis {way:?} away, {count} calls in {seconds:.2} s, {:.2} of the least time",
        cell.least / seconds
    );
}

/// With Redis 10 ms away, the default headroom has 2 ms to spare, which is too little on a busy machine.
const FAR_FOR: &str = "permits run out before their calls leave";

const FAR: Duration = Duration::from_millis(6);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_keys_and_an_account() {
    run(account("far-account"), FAR).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_keys_alone() {
    run(keys("far-keys"), Duration::from_millis(10)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_in_flight() {
    run(calls("far-calls", 3), FAR).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_limits_of_a_message() {
    run(two("far-two"), FAR).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sender_of_messages_of_ten_slots() {
    run(dear("far-dear", 2), Duration::from_millis(3)).await;
}

/// The whole table, one cell after the other (`SOAK=1`).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_table_of_distances() {
    if !soak() {
        return;
    }
    machine::two();
    for ms in [0, 1, 2, 3, 6, 10] {
        let way = Duration::from_millis(ms);
        let cells = [
            account("table-account"),
            keys("table-keys"),
            calls("table-calls-1", 1),
            calls("table-calls-3", 3),
            two("table-two"),
            dear("table-dear-1", 1),
            dear("table-dear-2", 2),
            dear("table-dear-5", 5),
        ];
        for cell in cells {
            measure(cell, way).await;
        }
    }
}
