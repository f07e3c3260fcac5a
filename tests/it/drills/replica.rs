//! Replicas fail.

use std::process::{Child, Command};
use std::time::Duration;

use rand::RngExt as _;
use rustix::process::Signal;
use tokio::time::sleep;

use super::{Drill, keyed, lasts, plan};
use crate::fleet::Plan;
use crate::support::daemon::NEW_SCHEDULE;
use crate::support::machine;
use crate::support::soak::soak;

const DECLARED: &[&str] = &[
    NEW_SCHEDULE,
    "nothing is kept on disk",
    "hardly leaves time to renew",
    // A busy machine may take longer for an answer than the short lease.
    "a call under way is not counted any more",
    "lost Redis",
];

/// Short and random: the test tries different moments.
async fn a_moment(most: u64) {
    let millis = rand::rng().random_range(50..most);
    sleep(Duration::from_millis(millis)).await;
}

fn times(short: u64, long: u64) -> u64 {
    if soak() { long } else { short }
}

/// With limits of every kind: of the account, of each recipient, of calls in flight.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed() {
    let row = "replica::killed";
    let all = Plan {
        limits: &["provider", "recipient", "calls"],
        tables: "[limits.recipient]\nkind = \"sliding_log\"\nrate = \"15/1s\"\nheadroom = \"100ms\"\n\
                 key = \"{{ body.to }}\"\n\
                 [limits.calls]\nkind = \"concurrency\"\nlimit = 100\nlease = \"2s\"\n",
        ..keyed(plan(row))
    };
    let mut drill = Drill::start(row, "kill -9 at random moments", all, 3).await;
    let times = times(6, 50);
    drill.begins();
    for _ in 0..times {
        a_moment(700).await;
        drill.add(1);
        drill.kill(0, DECLARED).await;
        drill.feed(300).await;
    }
    drill.ends().await;
    let done =
        format!("{times} times, one of 3 replicas; limits by recipient and of calls under way too");
    drill.proves(done, DECLARED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_and_continued() {
    let row = "replica::stopped_and_continued";
    let mut drill = Drill::start(row, "SIGSTOP, then SIGCONT", plan(row), 3).await;
    drill.begins();
    let mut seconds = 0.0;
    for place in 0..3 {
        drill.signal(place, Signal::STOP);
        seconds = lasts(0.8, 5.0).await;
        drill.signal(place, Signal::CONT);
        drill.feed(300).await;
    }
    drill.ends().await;
    let done = format!("{seconds} s, each of 3 replicas in turn");
    drill.proves(done, DECLARED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn told_to_stop() {
    let row = "replica::told_to_stop";
    let mut drill = Drill::start(row, "SIGTERM under load", plan(row), 3).await;
    let times = times(5, 50);
    drill.begins();
    for _ in 0..times {
        a_moment(500).await;
        drill.add(1);
        let (_, old) = drill.take(0);
        old.stop(DECLARED).await;
        drill.feed(300).await;
    }
    drill.ends().await;
    let done = format!("{times} times, one of 3 replicas, another one started");
    drill.proves(done, DECLARED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_and_fewer() {
    let row = "replica::more_and_fewer";
    let mut drill = Drill::start(row, "1, 8, 2 replicas", plan(row), 1).await;
    drill.begins();
    drill.add(7);
    drill.arrive(200).await;
    drill.feed(300).await;
    for _ in 0..6 {
        let (_, old) = drill.take(0);
        old.stop(DECLARED).await;
    }
    drill.ends().await;
    drill
        .proves("7 started at once, 6 stopped one after the other", DECLARED)
        .await;
}

/// Processes that use all processor time that they get, until this is dropped.
struct Hungry(Vec<Child>);

impl Hungry {
    fn start(count: usize) -> Self {
        let start = |_| {
            let mut command = Command::new("timeout");
            command.args(["120", "sh", "-c", "while :; do :; done"]);
            command.spawn().expect("a process that computes")
        };
        Self((0..count).map(start).collect())
    }
}

impl Drop for Hungry {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // When it is ended, it ends what it started.
            let pid = child.id().to_string();
            drop(Command::new("kill").arg(pid).status());
            drop(child.wait());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn starved() {
    let row = "replica::starved";
    let plan = Plan {
        takes: machine::two,
        ..plan(row)
    };
    let mut drill = Drill::start(row, "starved by other processes", plan, 2).await;
    drill.begins();
    let hungry = Hungry::start(8);
    let mut seconds = 0.0;
    for _ in 0..4 {
        seconds += lasts(0.5, 5.0).await;
        drill.feed(300).await;
    }
    drop(hungry);
    drill.ends().await;
    let done = format!("8 busy processes beside 2 replicas, for {seconds} s");
    drill.proves(done, DECLARED).await;
}

/// The wall clock, which is used only for the ages of messages and for opening hours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_clock_stepped() {
    let row = "replica::its_clock_stepped";
    let dir = tempfile::tempdir().unwrap();
    let clock = dir.path().join("clock");
    let step = |text: &str| {
        let new = dir.path().join("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, &clock).unwrap();
    };
    step("+0");
    let script = "export LD_PRELOAD=/usr/lib/$(uname -m)-linux-gnu/faketime/libfaketime.so.1 \
                  DONT_FAKE_MONOTONIC=1 FAKETIME_NO_CACHE=1 FAKETIME_TIMESTAMP_FILE=\"$0\"; exec \"$@\"";
    let file = clock.display().to_string();
    let launcher = ["sh", "-c", script, &file];
    let plan = Plan {
        launcher: launcher.map(str::to_owned).to_vec(),
        ..keyed(plan(row))
    };
    let mut drill = Drill::start(row, "the host's clock stepped", plan, 2).await;
    drill.begins();
    for seconds in ["+5", "-5", "+3600", "-3600", "+0"] {
        step(seconds);
        drill.arrive(30).await;
        drill.feed(300).await;
    }
    drill.ends().await;
    drill
        .proves(
            "+5 s, -5 s, +1 h, -1 h, back; limits by recipient too",
            DECLARED,
        )
        .await;
}
