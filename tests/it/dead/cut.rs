//! Replays that are cut short: by a signal, by SIGKILL, by a broker that accepts no more
//! messages.

use std::collections::BTreeMap;
use std::process::{Child, Stdio};

use lapin::types::{AMQPValue, FieldTable};
use rustix::process::{Pid, Signal, kill_process};
use sluiced_amqp::rabbit::letters::BATCH;

use super::{at, buried, dead_at, holds};
use crate::support::broker::Broker;
use crate::support::daemon::{LONG, program};
use crate::support::messages::number;
use crate::support::process::Leash;
use crate::support::wait::eventually_async;

const COUNT: u64 = 2000;

/// A replay that is under way, and has moved some letters.
async fn replaying(broker: &Broker, name: &str) -> (Child, Leash) {
    let mut command = program(&["dead", "replay", "--rate", "200/1s"]);
    command
        .args(at(name))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let leash = Leash::on(&child);
    eventually_async(LONG, "some are replayed", || async {
        broker
            .counts(name)
            .await
            .is_some_and(|(ready, _)| ready >= 100)
    })
    .await;
    (child, leash)
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// How often each letter is in that queue.
async fn drained(broker: &Broker, queue: &str) -> BTreeMap<u64, u64> {
    let mut found = BTreeMap::new();
    for (body, _) in broker.drain(queue).await {
        *found.entry(number(&body)).or_default() += 1;
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_that_is_killed_repeats_one_batch_at_most_and_loses_none() {
    for queue_type in ["quorum", "classic"] {
        let name = &format!("dead-killed-{queue_type}");
        let broker = buried(name, queue_type, COUNT).await;
        let (mut child, _leash) = replaying(&broker, name).await;
        signal(&child, Signal::KILL);
        child.wait().unwrap();
        let dead = format!("{name}.dead");
        // The letters that it held return to the queue.
        eventually_async(LONG, "all are ready again", || async {
            let counts = (broker.counts(name).await, broker.counts(&dead).await);
            let (Some((work, _)), Some((dead, _))) = counts else {
                return false;
            };
            u64::from(work) + u64::from(dead) >= COUNT
        })
        .await;
        let (left, _) = broker.counts(&dead).await.unwrap();
        assert!(left > 0, "it was killed in the middle");
        let rest = dead_at(name, "replay --json", &[]).json()[0].clone();
        assert_eq!(rest["after"], 0);
        let found = drained(&broker, name).await;
        assert_eq!(found.len() as u64, COUNT, "none is lost");
        let twice: u64 = found.values().map(|count| count - 1).sum();
        println!("{queue_type}: {left} left by the kill, {twice} came twice");
        assert!(twice <= BATCH as u64, "{twice} came twice");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_that_is_interrupted_says_how_far_it_came() {
    let name = "dead-interrupted";
    let broker = buried(name, "quorum", COUNT).await;
    let (child, _leash) = replaying(&broker, name).await;
    signal(&child, Signal::INT);
    let output = child.wait_with_output().unwrap();
    let (out, err) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    assert_eq!(output.status.code(), Some(1), "{out}{err}");
    assert!(
        err.contains("stopped; what was not replayed is a dead letter still"),
        "{err}"
    );
    let replayed = out
        .lines()
        .find_map(|line| line.trim().strip_suffix(" replayed to dead-interrupted"));
    let replayed: u64 = replayed.unwrap_or_else(|| panic!("{out}")).parse().unwrap();
    assert!(
        out.contains(&format!("  {} letters after\n", COUNT - replayed)),
        "{out}"
    );
    holds(&broker, name, u32::try_from(replayed).unwrap()).await;
    let (work, dead) = (
        drained(&broker, name).await,
        drained(&broker, "dead-interrupted.dead").await,
    );
    assert!(work.keys().all(|n| !dead.contains_key(n)), "none twice");
    assert_eq!((work.len() + dead.len()) as u64, COUNT);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_is_full_takes_some_and_the_rest_stays() {
    let name = "dead-full";
    let broker = buried(name, "classic", 150).await;
    broker.delete(name).await;
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongLongInt(120));
    let policy = AMQPValue::LongString("reject-publish".into());
    arguments.insert("x-overflow".into(), policy);
    broker.declare_with(name, "classic", arguments).await;
    let full = dead_at(name, "replay", &[]);
    let said = full.out.clone();
    let why = full.bad(1);
    assert!(why.contains("queue `dead-full` refuses copies"), "{why}");
    let (work, _) = broker.counts(name).await.unwrap();
    assert!(work >= 120, "{said}");
    assert!(said.contains(&format!("  {work} replayed")), "{said}");
    holds(&broker, "dead-full.dead", 150 - work).await;
    assert!(
        said.contains("not confirmed: they are dead letters still"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_is_missing_takes_none_and_all_stay() {
    let name = "dead-nowhere-to-go";
    let broker = buried(name, "quorum", 150).await;
    let nowhere = dead_at(name, "replay --to dead-no-such-queue", &[]);
    let said = nowhere.out.clone();
    let why = nowhere.bad(1);
    assert!(why.contains("`dead-no-such-queue` does not exist"), "{why}");
    assert!(said.contains("  150 letters after\n"), "{said}");
    let letters = broker.drain(&format!("{name}.dead")).await;
    let mut found: Vec<u64> = letters.iter().map(|(body, _)| number(body)).collect();
    // Letters that were read are behind those that were not, each group in its order.
    let first = found.iter().position(|n| *n == 1).unwrap();
    found.rotate_left(first);
    assert_eq!(found, (1..=150).collect::<Vec<_>>());
}
