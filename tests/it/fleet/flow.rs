//! Nothing fails.

use sluiced_ports::clock;
use sluiced_provider::Behaviour;

use super::Plan;
use super::keyed::{Counts, DECLARED, numbered};
use crate::support::daemon::NEW_SCHEDULE;
use crate::support::redis::RedisServer;
use crate::support::soak::longer;

/// The simulation asserts how rarely they ask. Here it is enough that they do not ask for each
/// message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_replicas_keep_one_limit_and_hardly_ever_ask() {
    let count = longer(2_400_u64);
    let plan = Plan {
        rate: "400/1s",
        // All that Redis is asked is counted.
        own_redis: true,
        ..Plan::of("flow")
    };
    let mut fleet = plan.start(4, count).await;
    let before = script_calls(fleet.servers.redis());
    fleet.arrived(count).await;
    let missed = Counts::of(&mut fleet).await.slots_missed;
    let report = fleet.finish(&[NEW_SCHEDULE]).await;
    assert_eq!(report.repeated, 0, "{report:?}");
    assert_eq!(
        report.callers.len(),
        4,
        "all take part: {:?}",
        report.callers
    );
    let asked = script_calls(fleet.servers.redis()) - before;
    eprintln!("{asked} script calls for {count} messages, {missed} slots missed");
    // Slots that were missed while the machine stood still had to be asked for again. If they were the
    // most, the number of calls shows nothing of the replicas, and the test cannot say that they keep it.
    assert!(
        missed <= count as f64,
        "the machine stood still: {missed} slots were missed"
    );
    assert!(asked as f64 * 5.0 <= count as f64 + missed);
}

/// A lease is for whole messages, so few slots are left over. How few, the simulation asserts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_several_slots_share_one_limit() {
    several_slots(Plan::of("slots")).await;
}

/// The limit of the keys is never full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_several_slots_share_one_limit_beside_a_keyed_one() {
    let plan = Plan {
        limits: &["provider", "recipient"],
        tables: "[limits.recipient]\nkind = \"sliding_log\"\nrate = \"100/1s\"\nkey = \"{{ body.id }}\"\n",
        ..Plan::of("slots-keyed")
    };
    several_slots(plan).await;
}

async fn several_slots(plan: Plan) {
    const ALL: u64 = 300;
    let name = plan.name;
    let plan = Plan {
        marked: "{{ body.id }}\", x-cost = \"{{ body.units }}",
        judged: Some(Behaviour::judging("200/1s".parse().unwrap())),
        rate: "200/1s\"\nmax_cost = 10\ncost = \"{{ body.units }}",
        ..plan
    };
    let mut fleet = plan.prepare().await;
    let units: Vec<u64> = (0..ALL).map(|n| 1 + n * 7 % 10).collect();
    let fields = units.iter().map(|units| format!("\"units\":{units}"));
    fleet.publish_with(numbered(fields.collect())).await;
    fleet.add(3);
    fleet.arrived(1).await;
    let first = clock::now();
    fleet.arrived(ALL).await;
    let took = clock::now().since(first);
    let report = fleet.finish(DECLARED).await;
    let all: u64 = units.iter().sum();
    assert_eq!((report.repeated, report.units), (0, all), "{report:?}");
    // Of 200 units 9 are unused, for messages of ten; the headroom is 50 ms.
    let most = took.as_secs_f64() * 191.0 / 1.05;
    eprintln!("{name}: {:.2} of the limit", all as f64 / most);
}

/// Calls of scripts that Redis has counted.
pub(super) fn script_calls(server: &RedisServer) -> u64 {
    let text: String = redis::cmd("INFO")
        .arg("commandstats")
        .query(&mut server.connection())
        .unwrap();
    text.lines()
        .filter_map(|line| line.strip_prefix("cmdstat_eval")?.split_once(":calls="))
        .filter_map(|(_, rest)| rest.split(',').next()?.parse::<u64>().ok())
        .sum()
}
