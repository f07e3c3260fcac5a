//! Incidents of the queues beside those that replicas consume.

use super::day::{ANSWERS, Day, MARKETING, OF_A_RECIPIENT, Says};
use crate::support::daemon::{LONG, get};
use crate::support::wait::eventually;

/// Rungs of the ladder of wait queues.
const RUNGS: std::ops::Range<u32> = 0..13;

/// (2): an operator purges the dead letters of the wrong template. Returns how many there were. Before any command
/// reads them: for a minute after that, a replica takes what is missing for read.
pub(super) async fn the_dead_letters_are_purged(day: &mut Day) -> u32 {
    let dead = format!("{MARKETING}.dead");
    let letters = day.ready_in(&dead).await;
    assert!((1..=45).contains(&letters), "{letters} dead letters");
    let series = format!("sluiced_queue_messages{{route=\"marketing\",part=\"dead\"}} {letters}\n");
    let counted = || {
        let mut all = day.admins.iter();
        all.all(|admin| get(*admin, "/metrics").1.contains(&series))
    };
    eventually(LONG, "they are counted", counted).await;
    day.broker.purge(&dead).await;
    are_gone(
        day,
        "dead",
        letters.into(),
        "messages are gone from a queue",
    )
    .await;
    letters
}

/// The counter of messages that are gone: on any replica that knew of them, in `sluiced status`, and in its log.
async fn are_gone(day: &Day, part: &str, count: u64, log: &str) {
    let series =
        format!("sluiced_vanished_messages_total{{route=\"marketing\",part=\"{part}\"}} {count}");
    eventually(LONG, "they are counted", || {
        let mut all = day.admins.iter().zip(&day.replicas);
        all.any(|(admin, replica)| {
            let (code, _) = get(*admin, "/readyz");
            let (_, page) = get(*admin, "/metrics");
            code == 200 && page.lines().any(|line| line == series) && replica.said(log) > 0
        })
    })
    .await;
    day.status("they are shown", |fleet| {
        fleet.route("marketing").vanished.get(part) == Some(&count)
    })
    .await;
}

/// (10): a wait queue is deleted. Returns the messages that were in it.
pub(super) async fn a_wait_queue_is_deleted(day: &mut Day) -> Vec<String> {
    let idle = Says {
        ready: 200,
        series: &[
            "sluiced_queue_messages{route=\"marketing\",part=\"ready\"} 0",
            "sluiced_queue_messages{route=\"marketing\",part=\"waiting\"} 0",
        ],
        ..Says::default()
    };
    day.says(&[0, 1, 2], "all else is sent", idle).await;
    let ids: Vec<_> = (0..OF_A_RECIPIENT + 3)
        .map(|n| format!("deleted-{n}"))
        .collect();
    let messages: Vec<_> = ids
        .iter()
        .map(|id| day.message(id, "+491700000000"))
        .collect();
    day.broker.publish(MARKETING, messages).await;
    day.published.extend(ids.iter().cloned());
    // Those that put one there count the queue at once, the others look for it every minute.
    let series = "sluiced_queue_messages{route=\"marketing\",part=\"waiting\"} 3\n";
    let counted = || {
        let mut all = day.admins.iter();
        all.any(|admin| get(*admin, "/metrics").1.contains(series))
    };
    eventually(LONG, "a replica has counted them", counted).await;
    for rung in RUNGS {
        day.broker
            .delete(&format!("{MARKETING}.wait.{}s", 1_u32 << rung))
            .await;
    }
    are_gone(day, "waiting", 3, "a queue is gone with the messages").await;
    day.is_well().await;
    ids
}

/// (12): no queue takes the results.
pub(super) async fn results_are_not_confirmed(day: &mut Day) {
    day.broker.delete(ANSWERS).await;
    day.feed().await;
    let unconfirmed = Says {
        ready: 503,
        page: &["results are not confirmed"],
        series: &["sluiced_ready 0"],
        log: "confirmed",
    };
    day.says(&[0, 1, 2], "results are not confirmed", unconfirmed)
        .await;
    day.broker.declare(ANSWERS, "quorum").await;
    day.is_well().await;
}
