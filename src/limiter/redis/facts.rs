//! What a server says of itself (`INFO`), and what an operator should know about it.

use crate::settings::types::RedisMode;
use redis::aio::MultiplexedConnection;

/// The value of a line `name:value` of `INFO`, unless it is empty.
pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
        .filter(|value| !value.is_empty())
}

/// Why a server is none for limits that are kept as `mode` says.
pub(super) fn misfit(info: &str, mode: RedisMode) -> Option<&'static str> {
    match (field(info, "redis_mode")?, mode) {
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

/// Whether a server says that it follows another.
pub(super) fn is_replica(info: &str) -> bool {
    field(info, "role") == Some("slave")
}

/// When the server writes all to its disk, as `CONFIG` has it. None: it may not be asked.
pub(super) async fn save_points(connection: &mut MultiplexedConnection) -> Option<String> {
    let (_, value): (String, String) = redis::cmd("CONFIG")
        .arg("GET")
        .arg("save")
        .query_async(connection)
        .await
        .ok()?;
    Some(value)
}

/// What may cost limits their state, by `INFO` and [`save_points`], which only matter for keyed
/// limits: a paced one is behind its guard again within a second.
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
mod tests {
    use super::*;

    #[test]
    fn the_run_id_is_read_from_info() {
        let run_id = |info| field(info, "run_id");
        assert_eq!(run_id("# Server\r\nrun_id:abc\r\nx:1\r\n"), Some("abc"));
        assert_eq!(run_id("run_id:\r\n"), None);
        assert_eq!(run_id(""), None);
    }

    #[test]
    fn a_good_redis_bears_no_risk() {
        let info = "maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\naof_enabled:0\r\n";
        for save in [None, Some("3600 1 300 100")] {
            assert_eq!(risks(info, save), Vec::<String>::new());
        }
        let journal = "maxmemory:1\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\n";
        assert_eq!(risks(journal, Some("")), Vec::<String>::new());
    }

    #[test]
    fn what_may_cost_the_state_is_said_with_what_to_set() {
        let info = "maxmemory:1000\r\nmaxmemory_policy:volatile-lru\r\naof_enabled:0\r\n";
        let said = risks(info, Some(""));
        assert_eq!(said.len(), 2);
        assert!(said[0].contains("volatile-lru") && said[0].contains("noeviction"));
        assert!(said[1].contains("appendonly yes"), "{}", said[1]);
    }

    #[test]
    fn servers_of_another_kind_are_told_apart() {
        let says = |mode: &str, wanted| misfit(&format!("redis_mode:{mode}\r\n"), wanted);
        for (mode, wanted) in [
            ("standalone", RedisMode::Single),
            ("standalone", RedisMode::Sentinel),
            ("cluster", RedisMode::Cluster),
        ] {
            assert_eq!(says(mode, wanted), None);
        }
        for (mode, wanted, word) in [
            ("cluster", RedisMode::Single, "\"cluster\""),
            ("cluster", RedisMode::Sentinel, "\"cluster\""),
            ("sentinel", RedisMode::Single, "\"sentinel\""),
            ("standalone", RedisMode::Cluster, "\"single\""),
        ] {
            assert!(says(mode, wanted).is_some_and(|said| said.contains(word)));
        }
        assert_eq!(misfit("role:master\r\n", RedisMode::Single), None);
    }
}
