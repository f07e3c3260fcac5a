//! Nothing fails.

use super::support::daemon::NEW_SCHEDULE;
use super::{Fleet, script_calls};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_replicas_keep_one_limit_and_hardly_ever_ask() {
    const COUNT: u64 = 2_400;
    let fleet = Fleet::start_at("400/1s", "flow", 4, COUNT).await;
    let before = script_calls();
    let report = fleet.finish(&[NEW_SCHEDULE]).await;
    assert_eq!(report.repeated, 0, "{report:?}");
    assert_eq!(
        report.callers.len(),
        4,
        "all take part: {:?}",
        report.callers
    );
    let asked = script_calls() - before;
    assert!(
        asked * 20 <= COUNT,
        "{asked} script calls for {COUNT} messages"
    );
}
