//! The machine fails.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Drill, lasts, plan};
use crate::fleet::Plan;
use crate::support::daemon::NEW_SCHEDULE;
use crate::support::proxy::Proxy;
use crate::support::soak::longer;

const DECLARED: &[&str] = &[
    NEW_SCHEDULE,
    "lost Redis",
    "cannot connect to Redis",
    "the limit's store is out of reach",
    "no connection to RabbitMQ",
    "the queue cannot be consumed",
    "no connection to the downstream yet",
    "the downstream is away",
    "only this replica stops",
    "learn of each other's news late",
];

/// From now on the running process may have so many of that.
fn limit(pid: u32, what: &str, most: &str) {
    let words = [format!("--pid={pid}"), format!("--{what}={most}:")];
    let done = Command::new("prlimit").args(words).status();
    assert!(done.is_ok_and(|status| status.success()), "prlimit {what}");
}

/// No file can be opened, and so no connection, while all of them are cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_file_handles() {
    let row = "host::no_file_handles";
    let plan = Plan {
        own_redis: true,
        ..plan(row)
    };
    let mut drill = Drill::start(row, "no file handles left", plan, 2).await;
    let pids: Vec<u32> = drill.fleet.replicas.iter().map(|one| one.id()).collect();
    drill.begins();
    for pid in &pids {
        limit(*pid, "nofile", "3");
    }
    for kind in ["normal", "pubsub"] {
        let mut kill = redis::cmd("CLIENT");
        kill.arg("KILL").arg("TYPE").arg(kind);
        kill.query::<i64>(&mut drill.fleet.servers.redis().connection())
            .expect("Redis cuts them");
    }
    let seconds = lasts(2.0, 20.0).await;
    for pid in &pids {
        limit(*pid, "nofile", "1024");
    }
    drill.ends().await;
    drill.answers_unknown();
    let done = format!("`nofile` 3 for running replicas, Redis' connections cut, for {seconds} s");
    drill.proves(done, DECLARED).await;
}

/// A group of processes that together may have this many threads. It is removed when it is dropped, after
/// them.
struct Group(PathBuf);

impl Group {
    /// `None`: this test may not make one.
    fn new(name: &str) -> Option<Self> {
        let folders = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"];
        let folder = folders
            .map(Path::new)
            .into_iter()
            .find(|one| one.exists())?;
        let group = folder.join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir(&group).ok()?;
        let group = Self(group);
        group.0.join("pids.max").exists().then_some(group)
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.0.join(file), text).expect("the group takes it");
    }

    /// This many threads may run before another one is started; those that run go on.
    fn bound(&self, threads: &str) {
        self.write("pids.max", threads);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        drop(std::fs::remove_dir(&self.0));
    }
}

/// No thread can be started, while all connections are cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_threads() {
    let row = "host::no_threads";
    let mut drill = Drill::prepare(row, "no threads left", plan(row)).await;
    let Some(group) = Group::new("sluiced-drill") else {
        println!("no right to bound the threads of a process: not checked");
        return;
    };
    let redis = drill.redis_by_proxy().await;
    let rabbit = Proxy::to(drill.fleet.servers.rabbit().port()).await;
    drill.rabbit_by(&rabbit);
    drill.flow(2).await;
    for replica in &drill.fleet.replicas {
        group.write("cgroup.procs", &replica.id().to_string());
    }
    drill.begins();
    group.bound("1");
    redis.cut();
    rabbit.cut();
    drill.cut_off();
    let seconds = lasts(2.0, 20.0).await;
    group.bound("max");
    drill.ends().await;
    let done = format!("no new thread for running replicas, all connections cut, for {seconds} s");
    drill.proves(done, DECLARED).await;
}

/// The log cannot be written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disk_full() {
    let row = "host::disk_full";
    let script = "exec \"$@\" >/dev/full 2>&1";
    let plan = Plan {
        launcher: ["sh", "-c", script, "sh"].map(str::to_owned).to_vec(),
        ..plan(row)
    };
    let mut drill = Drill::start(row, "disk full", plan, 2).await;
    drill.begins();
    for _ in 0..longer(1_u8) {
        drill.feed(600).await;
        drill.arrive(300).await;
    }
    drill.ends().await;
    drill
        .proves("each line of the log fails with ENOSPC", &[])
        .await;
}
