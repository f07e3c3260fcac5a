//! A replica of Redis that lacks the latest writes, and takes the place of the first server.

use super::{own, tell};
use crate::drills::{Drill, keyed};
use crate::fleet::PATIENCE;
use crate::support::proxy::{Mode, Proxy};
use crate::support::redis::RedisServer;
use crate::support::wait::eventually;

/// A replica of Redis that lacks the latest writes.
pub(super) struct Lagging {
    pub(super) second: RedisServer,
    /// Its way to the first server, on which nothing passes.
    pub(super) link: Proxy,
    /// The way of the replicas to Redis.
    pub(super) clients: Proxy,
}

impl Lagging {
    /// It serves in the place of the first server.
    pub(super) fn serves(&self) {
        self.link.cut();
        tell(&mut self.second.connection(), &["REPLICAOF", "NO", "ONE"]);
        self.clients.retarget(self.second.port());
        self.clients.cut();
    }
}

/// Two replicas on a Redis that another one followed until 150 calls ago.
pub(super) async fn lagging(row: &'static str, fault: &'static str) -> (Drill, Lagging) {
    let mut drill = Drill::prepare(row, fault, keyed(own(row))).await;
    // A follower gets its copy at once.
    let at_once = ["CONFIG", "SET", "repl-diskless-sync-delay", "0"];
    drill.tell_redis(&at_once);
    let link = Proxy::to(drill.redis().port()).await;
    let second = RedisServer::start_with(&format!("--replicaof 127.0.0.1 {}", link.port()), None);
    tell(&mut second.connection(), &at_once);
    follows(&second).await;
    let clients = drill.redis_by_proxy().await;
    drill.flow(2).await;
    link.set(Mode::Silent);
    drill.arrive(150).await;
    drill.feed(200).await;
    let lagging = Lagging {
        second,
        link,
        clients,
    };
    (drill, lagging)
}

pub(super) async fn follows(server: &RedisServer) {
    let up = || server.info().contains("master_link_status:up");
    eventually(PATIENCE, "it follows", up).await;
}
