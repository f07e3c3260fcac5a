//! What a server reports about itself (`INFO`), and what that means for limits.
//!
//! **Which run of a server it is** matters most: scripts compare it with the one that wrote a state, because a state
//! may have been lost in between. It must change with each start and each failover. `run_id` does. A server without it
//! is used only where its source shows that something else does the same: Dragonfly draws its `master_replid` at each
//! start (its `ServerFamily` in C++), and a replica that takes over brings its own. Redis keeps its `master_replid`
//! in its snapshot, so that field is of no use elsewhere.

use super::stream::DrivenConnection;
use sluiced_settings::types::RedisMode;

/// A field that names the run of a server, and where `INFO` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServerRun {
    /// The argument of `INFO`.
    pub(super) section: &'static str,
    field: &'static str,
    pub(super) id: String,
}

impl ServerRun {
    /// Of a server that reports `info`.
    ///
    /// # Errors
    /// When nothing names it; the text is for an operator.
    pub(super) fn read(info: &str) -> Result<Self, &'static str> {
        let dragonfly = field(info, "dragonfly_version").is_some();
        let names = [("server", "run_id"), ("replication", "master_replid")];
        let known_here = names.into_iter().take(1 + usize::from(dragonfly));
        let mut runs = known_here.filter_map(|(section, name)| {
            let id = field(info, name)?;
            Some(Self {
                section,
                field: name,
                id: id.to_owned(),
            })
        });
        runs.find(|run| !run.id.trim_matches('0').is_empty())
            .ok_or(NO_RUN_ID)
    }

    /// Whether a server that reports `info` is in another run.
    pub(super) fn is_over(&self, info: &str) -> bool {
        field(info, self.field) != Some(self.id.as_str())
    }
}

const NO_RUN_ID: &str = "INFO names no run_id, by which a restart or a failover is noticed: after one, more calls could leave than the limits allow; use a server that names it";

/// The value of a line `name:value` of `INFO`, unless it is empty.
pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
        .filter(|value| !value.is_empty())
}

/// The version, for a person: `7.0.15`, or `7.2.4 (Valkey 8.1.1)`.
pub(super) fn version(info: &str) -> String {
    let of = field(info, "redis_version").unwrap_or("unknown");
    let mut others = [
        ("Valkey", "valkey_version"),
        ("Dragonfly", "dragonfly_version"),
    ]
    .into_iter();
    let other = others.find_map(|(name, key)| Some(format!("{of} ({name} {})", field(info, key)?)));
    other.unwrap_or_else(|| of.to_owned())
}

/// Why a server is unsuitable for limits in this `mode`.
pub(super) fn misfit(info: &str, mode: RedisMode) -> Option<&'static str> {
    if field(info, "garnet_version").is_some() {
        return Some(
            "this is Garnet, which runs scripts side by side on the same keys: two replicas could be granted the same units; use Redis or Valkey",
        );
    }
    if field(info, "role") == Some("active-replica") {
        return Some(
            "this is an active replica of KeyDB, which grants units beside the server that it follows; use one without active-replica",
        );
    }
    // Valkey 8 says `server_mode` (its `genValkeyInfoString`).
    let says = field(info, "redis_mode").or_else(|| field(info, "server_mode"));
    match (says?, mode) {
        ("sentinel", _) => Some(
            "this is a Sentinel and keeps no limits: set redis.mode to \"sentinel\", with the Sentinels as redis.urls",
        ),
        ("cluster", RedisMode::Single | RedisMode::Sentinel) => {
            Some("this is a node of a cluster: set redis.mode to \"cluster\"")
        }
        ("standalone", RedisMode::Cluster) => {
            Some("this server is no node of a cluster: set redis.mode to \"single\"")
        }
        _ => None,
    }
}

/// Whether a server reports that it follows another. Dragonfly says `replica`.
pub(super) fn is_replica(info: &str) -> bool {
    matches!(field(info, "role"), Some("slave" | "replica"))
}

/// When the server saves to its disk, according to `CONFIG`. `None`: the user may not ask.
pub(super) async fn save_points(connection: &mut DrivenConnection) -> Option<String> {
    let (_, value): (String, String) = redis::cmd("CONFIG")
        .arg("GET")
        .arg("save")
        .query_async(connection)
        .await
        .ok()?;
    Some(value)
}

/// Settings that may cost limits their state, by `INFO` and [`save_points`]. These matter only for keyed limits: a
/// paced limit starts again behind its guard, and what it leased before counts no more then.
pub(super) fn risks(info: &str, save: Option<&str>) -> Vec<String> {
    let mut risks = Vec::new();
    let policy = field(info, "maxmemory_policy").unwrap_or("noeviction");
    if policy != "noeviction" && field(info, "maxmemory").is_some_and(|bytes| bytes != "0") {
        risks.push(format!(
            "maxmemory-policy {policy} may evict limits, which all have a time to live, when the \
             memory is full: a paced limit then pauses for its horizon, and what a keyed limit has \
             counted is lost; set maxmemory-policy noeviction"
        ));
    }
    let journal = field(info, "aof_enabled") == Some("1");
    if !journal && save.is_some_and(|points| points.trim().is_empty()) {
        risks.push(
            "nothing is kept on disk (appendonly no, no save): a restart loses what \
             keyed limits have counted; set appendonly yes"
                .to_owned(),
        );
    }
    risks
}

#[cfg(test)]
mod tests;
