//! Redis fails.

mod clock;
mod lagging;

use std::time::Duration;

use redis::Cmd;
use tokio::time::sleep;

use self::lagging::{follows, lagging};
use super::{Drill, keyed, lasts, plan};
use crate::fleet::{PATIENCE, Plan};
use crate::support::daemon::NEW_SCHEDULE;
use crate::support::proxy::Mode;
use crate::support::redis::{Paused, RedisServer};
use crate::support::soak::longer;
use crate::support::wait::eventually;

/// What replicas may log while Redis is away, and after it lost its state.
const AWAY: &[&str] = &[
    NEW_SCHEDULE,
    "lost Redis",
    "cannot connect to Redis",
    "the limit's store is out of reach",
    "learn of each other's news late",
    // What is logged about a keyed limit after a loss, and about a Redis without a disk.
    "the store is new or was restarted",
    "the store lost its state",
    "nothing is kept on disk",
    "the clock of Redis stepped",
    // Units that were granted and not used cannot be refunded.
    "what was not sent counts as if it were",
];

/// On a Redis of its own, whose requests are given up after a second without an answer.
fn own(row: &'static str) -> Plan {
    Plan {
        own_redis: true,
        settings: vec![(
            "response_timeout = \"5s\"",
            "response_timeout = \"1s\"".to_owned(),
        )],
        ..plan(row)
    }
}

async fn start(row: &'static str, fault: &'static str) -> Drill {
    Drill::start(row, fault, own(row), 2).await
}

/// On a Redis that was started with these arguments.
async fn start_on(redis: RedisServer, plan: Plan, row: &'static str, fault: &'static str) -> Drill {
    let plan = Plan {
        own_redis: false,
        ..plan
    };
    let mut drill = Drill::prepare(row, fault, plan).await;
    drill.fleet.servers.redis = Some(redis);
    drill.flow(2).await;
    drill
}

impl Drill {
    fn redis(&self) -> &RedisServer {
        self.fleet.servers.redis()
    }

    fn tell_redis(&self, words: &[&str]) {
        tell(&mut self.redis().connection(), words);
    }
}

fn tell(connection: &mut redis::Connection, words: &[&str]) {
    let mut question = Cmd::new();
    for word in words {
        question.arg(word);
    }
    question.query::<()>(connection).expect("Redis does it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_empty() {
    let row = "redis::restarted_empty";
    let mut drill = Drill::start(row, "restart, empty", keyed(own(row)), 2).await;
    drill.begins();
    drill.redis().kill();
    drill.redis().boot();
    drill.ends().await;
    drill
        .proves(
            "SIGKILL, started without its data; limits by recipient too",
            AWAY,
        )
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_with_its_file() {
    let row = "redis::restarted_with_its_file";
    let redis = RedisServer::start_with("--appendonly yes --appendfsync always", None);
    let mut drill = start_on(redis, keyed(own(row)), row, "restart with AOF").await;
    drill.begins();
    drill.redis().kill();
    drill.redis().boot();
    drill.ends().await;
    drill
        .proves(
            "SIGKILL, started with `appendfsync always`; limits by recipient too",
            AWAY,
        )
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushed() {
    let row = "redis::flushed";
    let mut drill = Drill::start(row, "FLUSHALL", keyed(own(row)), 2).await;
    let times = longer(3_u8);
    drill.begins();
    for _ in 0..times {
        drill.feed(300).await;
        drill.tell_redis(&["FLUSHALL"]);
        drill.arrive(20).await;
    }
    // The second loss happens during the guard after the first.
    drill.tell_redis(&["FLUSHALL"]);
    drill.tell_redis(&["FLUSHALL"]);
    drill.ends().await;
    let done = format!(
        "FLUSHALL {} times, the last two at once; limits by recipient too",
        times + 2
    );
    drill.proves(done, AWAY).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_snapshot() {
    let row = "redis::an_old_snapshot";
    let mut drill = Drill::start(row, "an old snapshot", keyed(own(row)), 2).await;
    drill.tell_redis(&["SAVE"]);
    drill.arrive(200).await;
    drill.feed(200).await;
    drill.begins();
    drill.redis().kill();
    drill.redis().boot();
    drill.ends().await;
    let done = "SAVE, 200 calls, SIGKILL, started with the snapshot; limits by recipient too";
    drill.proves(done, AWAY).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen() {
    let mut drill = start("redis::frozen", "frozen").await;
    let pid = drill.redis().pid();
    drill.begins();
    let paused = Paused::new(pid);
    let seconds = lasts(2.0, 5.0).await;
    drop(paused);
    drill.ends().await;
    drill
        .proves(format!("SIGSTOP for {seconds} s, then SIGCONT"), AWAY)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_cut() {
    let mut drill = start("redis::connections_cut", "connections cut").await;
    let times = longer(5_u8);
    drill.begins();
    for _ in 0..times {
        drill.feed(300).await;
        for kind in ["normal", "pubsub"] {
            drill.tell_redis(&["CLIENT", "KILL", "TYPE", kind]);
        }
        drill.arrive(20).await;
    }
    drill.ends().await;
    drill
        .proves(format!("CLIENT KILL of all, {times} times"), AWAY)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn far_away() {
    let row = "redis::far_away";
    let mut drill = Drill::prepare(row, "50 ms away, with jitter", own(row)).await;
    let proxy = drill.redis_by_proxy().await;
    drill.flow(2).await;
    drill.begins();
    // In each direction.
    let millis = Duration::from_millis;
    proxy.set(Mode::Delay(millis(25), millis(25)));
    let seconds = lasts(1.5, 30.0).await;
    proxy.set(Mode::Pass);
    drill.ends().await;
    drill
        .proves(
            format!("50 to 100 ms for each answer, for {seconds} s"),
            AWAY,
        )
        .await;
}

/// The address leads to a server that lacks the last second of the one that died.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_to_a_lagging_replica() {
    let row = "redis::failover_to_a_lagging_replica";
    let fault = "failover to a lagging replica";
    let (mut drill, lagging) = lagging(row, fault).await;
    drill.begins();
    drill.redis().kill();
    lagging.serves();
    drill.ends().await;
    let done = "the replica missed 150 calls, then the primary was killed; limits by recipient too";
    drill.proves(done, AWAY).await;
}

/// The first server follows the second one and then serves again, in the same process as before: the
/// writes that the second one missed are lost, and it was asked for nothing but the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_over_and_back() {
    let row = "redis::failed_over_and_back";
    let fault = "failover to a lagging replica, and back at once";
    let (mut drill, lagging) = lagging(row, fault).await;
    drill.begins();
    lagging.serves();
    let port = lagging.second.port().to_string();
    drill.tell_redis(&["REPLICAOF", "127.0.0.1", &port]);
    follows(drill.redis()).await;
    drill.tell_redis(&["REPLICAOF", "NO", "ONE"]);
    lagging.clients.retarget(drill.redis().port());
    lagging.clients.cut();
    drill.ends().await;
    let done =
        "the replica missed 150 calls, served, and gave its data back; limits by recipient too";
    drill.proves(done, AWAY).await;
}

/// While its snapshot cannot be written, it refuses all writes (MISCONF).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cannot_save() {
    let mut drill = start("redis::cannot_save", "cannot write its snapshot (MISCONF)").await;
    drill.tell_redis(&["CONFIG", "SET", "save", "3600 1000000"]);
    // A directory stands in the place of the file.
    let file = drill.redis().file("dump.rdb");
    std::fs::create_dir(&file).expect("there is no snapshot yet");
    let saved = async |drill: &Drill, status: &str| {
        drill.tell_redis(&["BGSAVE"]);
        let line = format!("rdb_last_bgsave_status:{status}");
        let ended = || drill.redis().info().contains(&line);
        eventually(PATIENCE, &line, ended).await;
    };
    drill.begins();
    saved(&drill, "err").await;
    let seconds = lasts(1.5, 10.0).await;
    std::fs::remove_dir(&file).expect("it is empty");
    saved(&drill, "ok").await;
    drill.ends().await;
    drill
        .proves(format!("BGSAVE fails, for {seconds} s"), AWAY)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn out_of_memory() {
    let mut drill = start("redis::out_of_memory", "out of memory (OOM)").await;
    drill.begins();
    drill.tell_redis(&["CONFIG", "SET", "maxmemory", "1"]);
    let seconds = lasts(1.5, 10.0).await;
    drill.tell_redis(&["CONFIG", "SET", "maxmemory", "0"]);
    drill.ends().await;
    drill
        .proves(format!("`maxmemory 1` for {seconds} s"), AWAY)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_only() {
    let mut drill = start("redis::read_only", "READONLY").await;
    drill.begins();
    // No master is at that address: a master that was demoted.
    drill.tell_redis(&["REPLICAOF", "127.0.0.1", "1"]);
    let seconds = lasts(1.5, 10.0).await;
    drill.tell_redis(&["REPLICAOF", "NO", "ONE"]);
    drill.ends().await;
    drill
        .proves(format!("REPLICAOF NO ONE for {seconds} s"), AWAY)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_password() {
    let row = "redis::wrong_password";
    let redis = RedisServer::start_with("", Some("right"));
    let mut drill = start_on(redis, own(row), row, "wrong password, then the right one").await;
    // This connection stays logged in.
    let mut operator = drill.redis().connection();
    drill.begins();
    tell(&mut operator, &["CONFIG", "SET", "requirepass", "other"]);
    for kind in ["normal", "pubsub"] {
        tell(&mut operator, &["CLIENT", "KILL", "TYPE", kind]);
    }
    let seconds = lasts(1.5, 10.0).await;
    tell(&mut operator, &["CONFIG", "SET", "requirepass", "right"]);
    drill.ends().await;
    let done = format!("`requirepass` changed and all connections cut, for {seconds} s");
    drill.proves(done, AWAY).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_flushed() {
    let row = "redis::scripts_flushed";
    let mut drill = Drill::start(row, "SCRIPT FLUSH", keyed(own(row)), 2).await;
    let times = longer(10_u8);
    drill.begins();
    for _ in 0..times {
        drill.feed(300).await;
        drill.tell_redis(&["SCRIPT", "FLUSH"]);
        drill.arrive(15).await;
    }
    drill.ends().await;
    drill
        .proves(format!("{times} times; limits by recipient too"), AWAY)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent() {
    let row = "redis::silent";
    let mut drill = Drill::prepare(row, "accepts and stays silent", own(row)).await;
    let proxy = drill.redis_by_proxy().await;
    drill.flow(2).await;
    drill.begins();
    proxy.set(Mode::Silent);
    let seconds = lasts(3.0, 30.0).await;
    proxy.set(Mode::Pass);
    drill.ends().await;
    drill
        .proves(format!("not a byte passes for {seconds} s"), AWAY)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused() {
    let row = "redis::refused";
    let mut drill = Drill::prepare(row, "refuses connections", own(row)).await;
    let proxy = drill.redis_by_proxy().await;
    drill.flow(2).await;
    drill.begins();
    for _ in 0..longer(3_u8) {
        proxy.set(Mode::Refuse);
        sleep(Duration::from_millis(400)).await;
        proxy.set(Mode::Pass);
        drill.arrive(20).await;
        drill.feed(300).await;
    }
    drill.ends().await;
    drill
        .proves("nothing listens for 0.4 s, again and again", AWAY)
        .await;
}
