//! Letters are dropped only if the operator confirms it.

use super::{buried, dead_at, holds};
use crate::support::messages::number;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_is_meant_is_dropped_and_only_with_a_yes() {
    let name = "dead-dropped";
    let broker = buried(name, "quorum", 250).await;
    let dead = format!("{name}.dead");
    let asked = dead_at(name, "drop --where", &["body.n > 10"]).bad(2);
    assert!(
        asked.contains("240 letters of dead-dropped.dead would be dropped for good; add --yes"),
        "{asked}"
    );
    let dry = dead_at(name, "drop --dry-run --json", &[]).json()[0].clone();
    assert_eq!(
        (&dry["meant"], &dry["dropped"], &dry["after"]),
        (&250.into(), &0.into(), &250.into())
    );
    holds(&broker, &dead, 250).await;
    let said = dead_at(name, "drop --yes --where", &["body.n > 10"]).good();
    assert_eq!(
        said,
        "dead-dropped.dead: 250 letters before\n  240 dropped\n  10 letters after\n"
    );
    let one = dead_at(name, "drop --yes --json --limit", &["1"]).json()[0].clone();
    assert_eq!((&one["dropped"], &one["after"]), (&1.into(), &9.into()));
    let left: Vec<u64> = broker
        .drain(&dead)
        .await
        .iter()
        .map(|(body, _)| number(body))
        .collect();
    assert_eq!(left, (2..=10).collect::<Vec<_>>());
}
