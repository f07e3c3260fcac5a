//! Nothing fails.

use super::Plan;
use super::keyed::Counts;
use crate::support::daemon::NEW_SCHEDULE;
use crate::support::machine;
use crate::support::redis::RedisServer;
use crate::support::soak::longer;

/// How rarely they ask is asserted by the simulation. Here it is enough that they do not ask for each
/// message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_replicas_keep_one_limit_and_hardly_ever_ask() {
    let count = longer(2_400_u64);
    let plan = Plan {
        rate: "400/1s",
        // All that Redis is asked is counted.
        takes: machine::alone,
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
    // What the machine missed had to be asked for again; it is not judged where that was most of it.
    assert!(
        missed <= count as f64,
        "not judged: the machine stood still"
    );
    assert!(asked as f64 * 5.0 <= count as f64 + missed);
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
