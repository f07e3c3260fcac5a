//! A private Redis Cluster: three masters, made by the same commands as `redis-cli --cluster`.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use redis::Value;

use super::machine;
use super::port::free_port;
use super::redis::RedisServer;

const BOOT: Duration = Duration::from_secs(60);
const SLOTS: u16 = 16384;

/// Three masters that share the slots evenly, and replicas of the first.
#[derive(Debug)]
pub struct RedisCluster {
    pub nodes: Vec<RedisServer>,
}

impl RedisCluster {
    /// The cluster that all tests share, started at first use.
    pub fn shared() -> &'static Self {
        machine::share();
        static CLUSTER: OnceLock<RedisCluster> = OnceLock::new();
        CLUSTER.get_or_init(|| Self::start(0))
    }

    /// A cluster of its own with `replicas` of its first master, ready for all slots.
    #[must_use]
    pub fn start(replicas: usize) -> Self {
        let node = |_| {
            // The default is the port plus 10000, which not every free port has.
            let bus = free_port();
            let arguments = format!(
                "--cluster-enabled yes --cluster-port {bus} --cluster-node-timeout 1000 \
                 --cluster-require-full-coverage no --cluster-replica-validity-factor 0 \
                 --repl-diskless-sync-delay 0"
            );
            (RedisServer::start_with(&arguments, None), bus)
        };
        let nodes: Vec<_> = (0..3 + replicas).map(node).collect();
        let share = SLOTS / 3;
        for (i, (server, bus)) in nodes.iter().enumerate() {
            let first = share * u16::try_from(i).unwrap();
            let last = if i == 2 { SLOTS } else { first + share } - 1;
            if i < 3 {
                cluster(
                    server,
                    &["ADDSLOTSRANGE", &first.to_string(), &last.to_string()],
                );
            }
            let (seed, _) = &nodes[0];
            let port = server.port().to_string();
            cluster(seed, &["MEET", "127.0.0.1", &port, &bus.to_string()]);
        }
        let this = Self {
            nodes: nodes.into_iter().map(|(server, _)| server).collect(),
        };
        this.wait("all nodes know each other", |nodes| {
            nodes
                .iter()
                .all(|node| info(node, "cluster_known_nodes") == nodes.len().to_string())
        });
        let first = this.id(0);
        for replica in &this.nodes[3..] {
            cluster(replica, &["REPLICATE", &first]);
        }
        this.wait("the cluster is ready", |nodes| {
            nodes.iter().all(|node| {
                info(node, "cluster_state") == "ok"
                    && info(node, "cluster_slots_assigned") == SLOTS.to_string()
            }) && nodes[3..]
                .iter()
                .all(|node| node.info().contains("master_link_status:up"))
        });
        this
    }

    /// All nodes, as seeds.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        let urls = self.nodes.iter();
        urls.map(|node| format!("redis://127.0.0.1:{}", node.port()))
            .collect()
    }

    /// The name of node `index` within the cluster.
    #[must_use]
    pub fn id(&self, index: usize) -> String {
        redis::cmd("CLUSTER")
            .arg("MYID")
            .query(&mut self.nodes[index].connection())
            .unwrap()
    }

    /// The slot of a key, as a server computes it.
    #[must_use]
    pub fn slot(&self, key: &str) -> u16 {
        let mut connection = self.nodes[1].connection();
        let mut question = redis::cmd("CLUSTER");
        question
            .arg("KEYSLOT")
            .arg(key)
            .query(&mut connection)
            .unwrap()
    }

    /// The master that owned `slot` at the start.
    #[must_use]
    pub fn owner(slot: u16) -> usize {
        usize::from(slot / (SLOTS / 3)).min(2)
    }

    /// Moves a slot with its keys, as an operator does.
    pub fn migrate(&self, slot: u16, from: usize, to: usize) {
        let (source, target) = (&self.nodes[from], &self.nodes[to]);
        let text = slot.to_string();
        cluster(target, &["SETSLOT", &text, "IMPORTING", &self.id(from)]);
        cluster(source, &["SETSLOT", &text, "MIGRATING", &self.id(to)]);
        let keys: Vec<String> = redis::cmd("CLUSTER")
            .arg("GETKEYSINSLOT")
            .arg(slot)
            .arg(100)
            .query(&mut source.connection())
            .unwrap();
        for key in keys {
            let mut command = redis::cmd("MIGRATE");
            command.arg("127.0.0.1").arg(target.port()).arg(key);
            let _: Value = command
                .arg(0)
                .arg(5000)
                .query(&mut source.connection())
                .unwrap();
        }
        let id = self.id(to);
        cluster(target, &["SETSLOT", &text, "NODE", &id]);
        cluster(source, &["SETSLOT", &text, "NODE", &id]);
    }

    fn wait(&self, what: &str, ready: impl Fn(&[RedisServer]) -> bool) {
        let end = SystemTime::now() + BOOT;
        while !ready(&self.nodes) {
            assert!(SystemTime::now() < end, "not within {BOOT:?}: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn cluster(node: &RedisServer, arguments: &[&str]) {
    () = redis::cmd("CLUSTER")
        .arg(arguments)
        .query(&mut node.connection())
        .unwrap();
}

/// A line of `CLUSTER INFO`.
fn info(node: &RedisServer, name: &str) -> String {
    let said: String = redis::cmd("CLUSTER")
        .arg("INFO")
        .query(&mut node.connection())
        .unwrap();
    let line = said
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}
