//! Redis for the demo: counts the scripts that ran, and removes what the run left there.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisError};
use tokio::time::timeout;

/// A server that does not answer within this is taken for unreachable.
const PATIENCE: Duration = Duration::from_secs(5);
/// Removing keys takes no longer; what is left has a TTL.
const CLEANING: Duration = Duration::from_secs(10);

/// Why Redis could not be used. Never with the URL, which may hold a password.
#[derive(Debug, thiserror::Error)]
pub enum DemoRedisError {
    /// The URL is none, the server refused, or the connection broke.
    #[error(transparent)]
    Redis(#[from] RedisError),
    /// No answer.
    #[error("no answer within {PATIENCE:?}")]
    Silent,
}

/// A connection to Redis.
#[derive(Clone)]
pub(super) struct DemoRedis {
    connection: MultiplexedConnection,
}

impl DemoRedis {
    pub(super) async fn connect(url: &str) -> Result<Self, DemoRedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        let client = Client::open(url)?;
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        let connection = timeout(PATIENCE, connecting)
            .await
            .map_err(|_| DemoRedisError::Silent)??;
        let mut store = Self { connection };
        redis::cmd("PING")
            .query_async::<()>(&mut store.connection)
            .await?;
        Ok(store)
    }

    /// Calls of scripts and functions by all clients since the server's start.
    pub(super) async fn script_calls(&mut self) -> Result<u64, DemoRedisError> {
        let info: String = redis::cmd("INFO")
            .arg("commandstats")
            .query_async(&mut self.connection)
            .await?;
        Ok(script_calls(&info))
    }

    /// Removes every key that has `prefix` in its name.
    pub(super) async fn clean(&mut self, prefix: &str) -> Result<(), DemoRedisError> {
        timeout(CLEANING, self.remove(prefix))
            .await
            .map_err(|_| DemoRedisError::Silent)?
    }

    async fn remove(&mut self, prefix: &str) -> Result<(), DemoRedisError> {
        let mut cursor = 0_u64;
        loop {
            let (next, keys): (u64, Vec<Vec<u8>>) = redis::cmd("SCAN")
                .arg(cursor)
                .arg("MATCH")
                .arg(format!("*{prefix}*"))
                .arg("COUNT")
                .arg(1_000)
                .query_async(&mut self.connection)
                .await?;
            for key in keys {
                redis::cmd("UNLINK")
                    .arg(key)
                    .query_async::<()>(&mut self.connection)
                    .await?;
            }
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }
}

/// Adds up the lines of `INFO commandstats` that are about scripts and functions.
fn script_calls(info: &str) -> u64 {
    info.lines()
        .filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="))
        .filter(|(name, _)| {
            [
                "eval",
                "evalsha",
                "eval_ro",
                "evalsha_ro",
                "fcall",
                "fcall_ro",
            ]
            .contains(name)
        })
        .filter_map(|(_, rest)| rest.split(',').next()?.parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_scripts_and_functions_are_counted() {
        let info = "# Commandstats\r\n\
            cmdstat_evalsha:calls=61,usec=900,usec_per_call=14.75,rejected_calls=0\r\n\
            cmdstat_eval:calls=1,usec=20\r\n\
            cmdstat_get:calls=500,usec=20\r\n\
            cmdstat_script|load:calls=3,usec=20\r\n";
        assert_eq!(script_calls(info), 62);
        assert_eq!(script_calls(""), 0);
    }
}
