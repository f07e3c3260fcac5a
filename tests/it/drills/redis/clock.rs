//! The clock of Redis steps.

use super::{AWAY, own};
use crate::drills::{BACKLOG, Drill, keyed};
use crate::fleet::Plan;

/// Two replicas, and a Redis whose clock is the drill's.
async fn start(row: &'static str, fault: &'static str) -> Drill {
    let clocked = Plan {
        clocked: true,
        ..keyed(own(row))
    };
    Drill::start(row, fault, clocked, 2).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stepped() {
    let mut drill = start("redis::clock::stepped", "its clock stepped").await;
    drill.begins();
    for seconds in [5.0, 0.0, -5.0, 0.0] {
        drill.feed(300).await;
        drill.redis().step_to(seconds);
        drill.arrive(40).await;
    }
    drill.ends().await;
    drill
        .proves("+5 s, back, -5 s, back; limits by recipient too", AWAY)
        .await;
}

/// It never returns to a time at which grants from before the step would count again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stepped_for_good() {
    let row = "redis::clock::stepped_for_good";
    let mut drill = start(row, "its clock stepped for good").await;
    drill.begins();
    drill.redis().step_to(5.0);
    drill.arrive(300).await;
    drill.feed(BACKLOG).await;
    drill.redis().step_to(-5.0);
    drill.ends().await;
    drill
        .proves(
            "+5 s, and 300 calls later -10 s; limits by recipient too",
            AWAY,
        )
        .await;
}
