//! Tries a Redis without changing anything, for `sluiced check --connect`.

use std::time::Duration;

use futures::future::join_all;
use redis::Script;
use tokio::time::{Instant, timeout};

use super::access::Access;
use super::connection::Connection;
use super::facts::{field, is_replica};
use super::fault::refused;
use super::options::RedisOptions;
use super::rights;
use super::server::Server;
use crate::ports::pace::StoreError;

/// Questions for the round trip: the best counts, the first pays for loading the script.
const ROUNDS: usize = 5;
/// The way to Redis from which on a warning is due. Answers that take longer than 100 ms look to
/// the schedule like a step of a clock, and the limit pauses behind its guard.
const FAR: Duration = Duration::from_millis(50);

/// What a Redis says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// One server, a primary, a cluster.
    pub servers: String,
    /// Of the server, or of the first of several.
    pub version: String,
    /// Of one script, to the server and back; the longest if there are several servers.
    pub round_trip: Duration,
    /// What works, but not well.
    pub warnings: Vec<String>,
}

/// What one server says.
struct Said {
    version: String,
    round_trip: Duration,
    warnings: Vec<String>,
}

/// Connects to every server that may hold limits, logs in, asks for the permissions and calls a
/// script. Ends within the connect timeout for each of finding and connecting, and a response
/// timeout for each of a few questions.
///
/// # Errors
/// When it cannot be reached, says no, or does not allow what is needed or wished.
pub async fn probe(options: &RedisOptions) -> Result<Report, StoreError> {
    let connection = Connection::new(options)?;
    let (servers, how) = connection.servers().await?;
    let tried = join_all(servers.iter().map(|one| try_one(one, connection.access())));
    let said = tried.await.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut report = Report {
        servers: how,
        version: said
            .first()
            .map_or_else(String::new, |one| one.version.clone()),
        round_trip: Duration::ZERO,
        warnings: Vec::new(),
    };
    for one in said {
        report.round_trip = report.round_trip.max(one.round_trip);
        for warning in one.warnings {
            // Nodes of a cluster are set up alike.
            if !report.warnings.contains(&warning) {
                report.warnings.push(warning);
            }
        }
    }
    Ok(report)
}

async fn try_one(server: &Server, access: &Access) -> Result<Said, StoreError> {
    let mut opened = server.open().await?;
    let missing = &opened.missing;
    let missing = [missing.needed.as_slice(), &missing.wished].concat();
    if !missing.is_empty() {
        return Err(refused(&rights::told(&missing, access)));
    }
    // As the limits' own scripts, but for a key: it would lie on one node of a cluster only.
    let script = Script::new("return redis.call('TIME')[1]");
    let bound = access.response_timeout;
    let mut round_trip = Duration::MAX;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        let asked = timeout(bound, script.invoke_async(&mut opened.connection)).await;
        let _seconds: String = access.answer(asked, bound)?;
        round_trip = round_trip.min(begin.elapsed());
    }
    let mut warnings = opened.risks;
    warnings.extend(remarks(&opened.info, round_trip));
    Ok(Said {
        version: field(&opened.info, "redis_version")
            .unwrap_or("unknown")
            .to_owned(),
        round_trip,
        warnings,
    })
}

fn remarks(info: &str, round_trip: Duration) -> Vec<String> {
    let mut remarks = Vec::new();
    if is_replica(info) {
        remarks.push("this is a replica, and limits need the primary".to_owned());
    }
    if round_trip / 2 > FAR {
        remarks.push(format!(
            "it is far away: answers that take over {:?} pause a limit",
            2 * FAR
        ));
    }
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_works_badly_is_said() {
        let near = Duration::from_millis(100);
        assert_eq!(remarks("role:master\r\n", near), Vec::<String>::new());
        let said = remarks("role:slave\r\n", Duration::from_millis(101)).join("\n");
        for part in ["replica", "over 100ms"] {
            assert!(said.contains(part), "{said}");
        }
    }
}
