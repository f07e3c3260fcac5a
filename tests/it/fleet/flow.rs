//! Nothing fails.

use super::keys::sum;
use super::{Fleet, script_calls};
use crate::support::daemon::NEW_SCHEDULE;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_replicas_keep_one_limit_and_hardly_ever_ask() {
    const COUNT: u64 = 2_400;
    let mut fleet = Fleet::start_at("400/1s", "flow", 4, COUNT).await;
    let before = script_calls();
    fleet.arrived(COUNT).await;
    let missed = sum(
        &mut fleet.replicas,
        "sluiced_slots_missed_total{limit=\"provider\"}",
    )
    .await;
    let report = fleet.finish(&[NEW_SCHEDULE]).await;
    assert_eq!(report.repeated, 0, "{report:?}");
    assert_eq!(
        report.callers.len(),
        4,
        "all take part: {:?}",
        report.callers
    );
    let asked = script_calls() - before;
    eprintln!("{asked} script calls for {COUNT} messages, {missed} slots missed");
    // What this machine missed had to be asked for again; and each replica asks once before it knows the
    // store's time, and gives back once what it leased and did not use.
    let beside = 2.0 * 4.0;
    assert!((asked as f64 - beside) * 20.0 <= COUNT as f64 + missed);
}
