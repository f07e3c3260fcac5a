//! The same over SMPP: four replicas with two binds each, judged where their `submit_sm` arrive. What fails one at a
//! time, the drills cause (`drills/smpp.rs`).

use std::collections::BTreeSet;
use std::time::Duration;

use lapin::types::AMQPValue;
use serde_json::Value;
use sluiced_provider::{Act, Report, ScriptStep};
use tokio::time::{Instant, sleep};

use super::{Fleet, PATIENCE, Plan};
use crate::support::daemon::{NEW_SCHEDULE, THROTTLED};
use crate::support::soak::longer;

/// What replicas may log when the centre fails.
const DECLARED: &[&str] = &[
    NEW_SCHEDULE,
    THROTTLED,
    "not bound",
    "the downstream is away",
    "only this replica stops",
];

/// The same for messages that are called once.
const ONCE: &[&str] = &[
    NEW_SCHEDULE,
    THROTTLED,
    "not bound",
    "the downstream is away",
    "only this replica stops",
    "nothing is kept on disk",
    "hardly leaves time to renew",
    "a call under way is not counted any more",
    "dead letter",
];

/// 400 segments a second.
fn plan(name: &'static str) -> Plan {
    Plan {
        rate: "400/1s",
        smpp: true,
        downstream: "binds = 2\nwindow = 50\n",
        ..Plan::of(name)
    }
}

fn step(json: &str) -> ScriptStep {
    serde_json::from_str(json).expect(json)
}

/// Waits for all of it. Nothing excuses a repeat.
async fn finish(mut fleet: Fleet) -> Report {
    let report = fleet.finish(DECLARED).await;
    eprintln!(
        "{} of {} came at a time that is not known",
        report.undated, report.calls
    );
    assert_eq!(report.repeated, 0, "{report:?}");
    report
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_replicas_with_two_binds_each_keep_one_limit() {
    let count = longer(2_400_u64);
    let fleet = plan("smpp-flow").start(4, count).await;
    fleet.arrived(count).await;
    let report = finish(fleet).await;
    assert_eq!(report.callers.len(), 4, "{:?}", report.callers);
}

/// Messages of these texts in turn, which become this many `submit_sm` together. No cost is written: the limit counts
/// what is sent, and the provider counts what comes.
async fn long(plan: Plan, texts: [String; 3], segments: u64) {
    let mut fleet = plan.prepare().await;
    let count = longer(900_usize);
    let messages = (0..count).map(|n| {
        (
            super::id(n as u64),
            format!("\"text\":\"{}\"", texts[n % 3]),
        )
    });
    fleet.publish_with(messages).await;
    fleet.add(4);
    let report = finish(fleet).await;
    assert_eq!(report.calls, count as u64 * segments / 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_messages_take_their_segments_of_the_limit() {
    let texts = ["short".to_owned(), "a".repeat(200), "ж".repeat(180)];
    long(plan("smpp-long"), texts, 1 + 2 + 3).await;
}

/// Short in the GSM alphabet, long in the one that is sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_segments_are_those_of_the_encoding() {
    let plan = Plan {
        downstream: "binds = 2\nwindow = 50\nencoding = \"ucs2\"\n",
        ..plan("smpp-ucs2")
    };
    let texts = ["short".to_owned(), "a".repeat(100), "a".repeat(160)];
    long(plan, texts, 1 + 2 + 3).await;
}

/// `ESME_RTHROTTLED` and `ESME_RMSGQFUL` for a while: every replica stands still, and no attempt is spent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_centre_throttles() {
    let count = longer(1_200_u64);
    let plan = Plan {
        keys: "prefetch = 100\nmax_attempts = 1\n",
        ..plan("smpp-throttled")
    };
    let fleet = plan.start(4, count).await;
    for (part, status) in [(1, 0x58), (2, 0x14)] {
        fleet.calls(count * part / 4).await;
        let storm = ScriptStep {
            smpp: Some(status),
            ..step(r#"{"for": "1s"}"#)
        };
        fleet.provider.script(storm).expect("room for it");
    }
    let report = finish(fleet).await;
    assert!(report.calls > report.accepted, "some were refused");
}

/// Messages of two segments that are called once. Meanwhile two replicas are killed, sessions break, and the centre is
/// silent, throttles and ends all sessions.
async fn once(name: &'static str, on_unknown: &str) -> Fleet {
    let count = longer(900_u64);
    let segments = "kind = \"paced\"\nmax_cost = 3\n";
    let plan = Plan {
        limits: &["provider", "repeats"],
        downstream: "binds = 2\nwindow = 50\ntimeout = \"2s\"\n",
        tables: "[limits.repeats]\nkind = \"once\"\nkey = \"{{ body.id }}\"\nlease = \"3s\"\non_unknown = \"WHAT\"\n",
        settings: vec![
            ("kind = \"paced\"\n", segments.to_owned()),
            ("WHAT", on_unknown.to_owned()),
        ],
        ..plan(name)
    };
    let mut fleet = plan.prepare().await;
    let text = format!("\"text\":\"{}\"", "a".repeat(200));
    let messages = (1..=count).map(|n| (super::id(n), text.clone()));
    fleet.publish_with(messages).await;
    fleet.add(4);
    let shortly = || step(r#"{"for": "300ms"}"#);
    for fault in 1..=6 {
        fleet.calls(2 * count * fault / 8).await;
        let script = |step| fleet.provider.script(step).expect("room for it");
        match fault {
            1 => script(ScriptStep {
                act: Act::Hang,
                accept: true,
                ..shortly()
            }),
            2 => script(ScriptStep {
                smpp: Some(0x58),
                ..shortly()
            }),
            3 => fleet.provider.cut(),
            4 => fleet.provider.unbind(),
            _ => {
                let old = fleet.replace(fault as usize % 4);
                old.kill(ONCE).await;
            }
        }
    }
    fleet
}

/// The centre takes no message twice; a message that is not known to be taken is a dead letter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_called_once_is_never_taken_twice_whatever_fails() {
    let mut fleet = once("smpp-once", "dead_letter").await;
    let (all, queue) = (fleet.ids.clone(), format!("{}.dead", fleet.plan.name));
    let (mut dead, end) = (BTreeSet::new(), Instant::now() + PATIENCE);
    loop {
        for (body, properties) in fleet.broker.drain(&queue).await {
            let reason = properties.headers().as_ref();
            let reason = reason.and_then(|headers| headers.inner().get("x-sluiced-reason"));
            assert_eq!(reason, Some(&AMQPValue::LongString("unknown".into())));
            let body: Value = serde_json::from_slice(&body).expect("JSON");
            dead.insert(body["id"].as_str().expect("an id").to_owned());
        }
        let taken = fleet.provider.taken();
        let missing = all.iter().filter(|id| !dead.contains(*id));
        let missing = missing.filter(|id| !taken.contains_key(id.as_str()));
        match missing.count() {
            0 => break,
            left => assert!(Instant::now() < end, "{left} of {}", all.len()),
        }
        sleep(Duration::from_millis(100)).await;
    }
    let report = fleet.halt(ONCE).await;
    eprintln!(
        "{} are unknown, {:?} of them not taken",
        dead.len(),
        report.lost
    );
    assert_eq!((report.repeated, report.over), (0, 0), "{report:?}");
    assert!(!dead.is_empty(), "some were unknown");
}

/// With `resend` each arrives, and none is a dead letter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_unknown_is_sent_again_where_that_is_allowed() {
    let mut fleet = once("smpp-again", "resend").await;
    fleet.arrived(fleet.ids.len() as u64).await;
    // A message that a killed replica had called may still wait for the end of its claim: it is in its queue
    // again.
    let report = fleet.halt(ONCE).await;
    assert_eq!((report.lost, report.over), (Some(0), 0), "{report:?}");
    let dead = fleet.broker.counts("smpp-again.dead").await;
    assert_eq!(dead.map_or(0, |(ready, _)| ready), 0);
}
