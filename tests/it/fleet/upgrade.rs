//! Two versions side by side on one Redis and one RabbitMQ, as in a rolling upgrade: none over, none lost, none twice.
//!
//! They share what is in Redis (the schedule, keyed limits, policies, the breaker, reports of replicas) and in RabbitMQ
//! (the queue, wait queues, headers of messages that come back). The older version is built from the commit that
//! `tests/upgrade/from` names, which takes minutes: so this runs with `./test --soak` only.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::control::said;
use super::keyed::DECLARED;
use super::{Plan, id};
use crate::support::daemon::THROTTLED;
use crate::support::soak::soak;
use sluiced_provider::{Behaviour, ScriptStep};

const MESSAGES: u64 = 6_000;
/// What both versions may log besides.
const UPGRADE: &[&str] = &[
    THROTTLED,
    "file differs",
    "returned to the queue",
    "the downstream refused calls though the limit was kept",
    "the downstream is away",
];
/// Twenty recipients share what the provider allows, so messages of each go through wait queues, and come back to
/// either version.
const RECIPIENT: &str = "[limits.recipient]\nkind = \"gcra\"\nrate = \"9/1s\"\nburst = 4\n\
                         headroom = \"100ms\"\nkey = \"{{ body.to }}\"\n";

/// Runs a program to its end.
fn run(program: &mut Command) {
    let done = program.stdin(Stdio::null()).status().expect("it starts");
    assert!(done.success(), "{program:?}: {done}");
}

/// The program of the older version.
fn older() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let commit = std::fs::read_to_string(root.join("tests/upgrade/from")).unwrap();
    let commit = commit.trim();
    let folder = root.join("target/upgrade");
    let source = folder.join(commit);
    if !source.join("Cargo.toml").exists() {
        std::fs::create_dir_all(&source).unwrap();
        let archive = folder.join("source.tar");
        run(Command::new("git")
            .current_dir(root)
            .args(["archive", "--output"])
            .arg(&archive)
            .arg(commit));
        run(Command::new("tar")
            .arg("-xf")
            .arg(&archive)
            .arg("-C")
            .arg(&source));
    }
    let built = folder.join("build");
    run(Command::new(env!("CARGO"))
        .current_dir(&source)
        .env("CARGO_TARGET_DIR", &built)
        .args(["build", "--locked", "--bin", "sluiced"]));
    built.join("debug/sluiced")
}

/// Becomes the older version instead of the program that it is given.
fn instead(older: &Path) -> Vec<String> {
    let script = format!("shift; exec {} \"$@\"", older.display());
    ["sh", "-c", &script, "sh"].map(str::to_owned).to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_versions_share_a_limit_and_the_older_one_is_replaced() {
    if !soak() {
        return;
    }
    let launcher = instead(&older());
    let behaviour = Behaviour {
        key_rate: Some("24/1s".parse().unwrap()),
        ..Behaviour::judging("200/1s".parse().unwrap())
    };
    let plan = Plan {
        limits: &["provider", "recipient"],
        judged: Some(behaviour),
        keys: "prefetch = 100\nmax_hold = \"200ms\"\n",
        marked: "{{ body.to }}",
        launcher: launcher.clone(),
        tables: RECIPIENT,
        ..Plan::of("upgrade")
    };
    let mut fleet = plan.prepare().await;
    let messages = (1..=MESSAGES).map(|n| (id(n), format!("r{}", n % 20)));
    fleet.publish(messages).await;
    fleet.add(2);
    fleet.plan.launcher.clear();
    fleet.add(2);
    for replica in &mut fleet.replicas {
        replica.ready().await;
    }
    fleet.arrived(500).await;
    // Both follow what the other says of the limit, and what its answers show.
    said(&fleet.replicas[3], &["set", "provider", "rate=100/1s"]);
    fleet.arrived(800).await;
    said(&fleet.replicas[3], &["set", "provider", "rate=200/1s"]);
    let step = |json: &str| serde_json::from_str::<ScriptStep>(json).unwrap();
    fleet
        .provider
        .script(step(r#"{"status": 429, "retry_after": "1", "count": 3}"#))
        .unwrap();
    fleet.arrived(1_500).await;
    fleet
        .provider
        .script(step(r#"{"status": 500, "count": 5}"#))
        .unwrap();
    fleet.arrived(2_000).await;
    // One by one the older replicas are replaced, and one that was upgraded too early goes back.
    let declared = [DECLARED, UPGRADE].concat();
    fleet.replace(0).stop(&declared).await;
    fleet.arrived(3_000).await;
    fleet.plan.launcher = launcher;
    fleet.replace(3).stop(&declared).await;
    fleet.arrived(4_000).await;
    fleet.plan.launcher.clear();
    fleet.replace(1).stop(&declared).await;
    fleet.replace(3).stop(&declared).await;
    let report = fleet.finish(&declared).await;
    assert_eq!((report.repeated, report.lost), (0, Some(0)), "{report:?}");
}
