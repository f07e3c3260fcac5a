//! Tries a Redis without changing anything, for `sluiced check --connect`.

use std::sync::Arc;
use std::time::Duration;

use redis::{RedisError, Script};
use tokio::time::{Instant, timeout};

use super::connection::{Connection, field};
use super::{RedisOptions, STORE};
use crate::ports::pace::StoreError;

/// Questions for the round trip: the best counts, the first pays for loading the script.
const ROUNDS: usize = 5;
/// The way to Redis from which on a warning is due. Answers that take longer than 100 ms look to
/// the schedule like a step of a clock, and the limit pauses behind its guard.
const FAR: Duration = Duration::from_millis(50);

/// What a Redis says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Of the server.
    pub version: String,
    /// Of one script, to the server and back.
    pub round_trip: Duration,
    /// What works, but not well.
    pub warnings: Vec<String>,
}

/// Connects, logs in and calls a script that reads one key below the prefix. Ends within the
/// connect timeout and a response timeout for each of a few questions.
///
/// # Errors
/// When it cannot be reached, says no, or must not be asked for scripts.
pub async fn probe(options: &RedisOptions) -> Result<Report, StoreError> {
    let connection = Connection::new(options, Arc::new(()))?;
    let mut live = connection.establish(0).await?.connection;
    let bound = options.response_timeout;
    let answer = |answer: Result<Result<_, RedisError>, _>| match answer {
        Ok(said) => said.map_err(|error| connection.error(&error)),
        Err(_) => Err(StoreError::Timeout {
            store: STORE,
            waited: bound,
        }),
    };
    let info = timeout(bound, redis::cmd("INFO").query_async(&mut live)).await;
    let info: String = answer(info)?;
    // As the limits' own scripts: EVALSHA, then SCRIPT LOAD, the clock, a key with the prefix.
    let script = Script::new("redis.call('EXISTS', KEYS[1]) return redis.call('TIME')[1]");
    let key = format!("{}:check", options.prefix);
    let mut round_trip = Duration::MAX;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        let _seconds: String =
            answer(timeout(bound, script.key(&key).invoke_async(&mut live)).await)?;
        round_trip = round_trip.min(begin.elapsed());
    }
    Ok(Report {
        version: field(&info, "redis_version")
            .unwrap_or("unknown")
            .to_owned(),
        warnings: warnings(&info, round_trip),
        round_trip,
    })
}

fn warnings(info: &str, round_trip: Duration) -> Vec<String> {
    let mut warnings = Vec::new();
    if field(info, "role") == Some("slave") {
        warnings.push("this is a replica, and limits need the primary".to_owned());
    }
    let policy = field(info, "maxmemory_policy").unwrap_or("noeviction");
    if policy != "noeviction" && field(info, "maxmemory").is_some_and(|bytes| bytes != "0") {
        warnings.push(format!(
            "maxmemory-policy {policy} may evict limits, and each loss pauses one: set noeviction"
        ));
    }
    if round_trip / 2 > FAR {
        warnings.push(format!(
            "it is far away: answers that take over {:?} pause a limit",
            2 * FAR
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_good_redis_has_no_warning() {
        let info = "redis_version:7.0.15\r\nmaxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\nrole:master\r\n";
        assert_eq!(
            warnings(info, Duration::from_millis(100)),
            Vec::<String>::new()
        );
    }

    #[test]
    fn what_works_badly_is_a_warning() {
        let info = "maxmemory:1000\r\nmaxmemory_policy:allkeys-lru\r\nrole:slave\r\n";
        let said = warnings(info, Duration::from_millis(101)).join("\n");
        for part in ["replica", "allkeys-lru", "over 100ms"] {
            assert!(said.contains(part), "{said}");
        }
    }
}
