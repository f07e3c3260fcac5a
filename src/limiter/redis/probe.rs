//! Tries a Redis without changing anything, for `sluiced check --connect`.

use std::time::Duration;

use futures::future::join_all;
use redis::Script;
use tokio::time::{Instant, timeout};

use super::RedisOptions;
use super::access::Access;
use super::connection::Connection;
use super::facts::{field, is_replica};
use super::fault::refused;
use super::rights;
use super::server::Server;
use crate::ports::store::StoreError;

/// Questions for the round trip, after the first, which pays for loading the script …
const ROUNDS: usize = 20;
/// … and the last is asked after this, however few they were.
const ROUNDS_BOUND: Duration = Duration::from_secs(2);
/// So many of them may be slower than what counts as a slow one: a machine that stood still for a moment says nothing
/// about the way.
const OUTLIERS: usize = ROUNDS / 10;
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
    /// The same, when it is slow.
    pub slow_trip: Duration,
    /// What works, but not well.
    pub warnings: Vec<String>,
}

/// What one server says.
struct Said {
    version: String,
    trips: Trips,
    warnings: Vec<String>,
}

/// Round trips that were measured.
#[derive(Clone, Copy, Debug)]
struct Trips {
    best: Duration,
    slow: Duration,
}

impl Trips {
    /// The best one says how far away it is, a slow one what a limit must bear.
    fn of(mut all: Vec<Duration>) -> Self {
        all.sort_unstable();
        let at = |place: usize| all.get(place).copied().unwrap_or_default();
        Self {
            best: at(0),
            slow: at(all.len().saturating_sub(1 + OUTLIERS)),
        }
    }
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
        slow_trip: Duration::ZERO,
        warnings: Vec::new(),
    };
    for one in said {
        report.round_trip = report.round_trip.max(one.trips.best);
        report.slow_trip = report.slow_trip.max(one.trips.slow);
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
    let began = Instant::now();
    let mut trips = Vec::new();
    for round in 0..=ROUNDS {
        let sent = Instant::now();
        let asked = timeout(bound, script.invoke_async(&mut opened.connection)).await;
        let _seconds: String = access.answer(asked, bound)?;
        if round > 0 {
            trips.push(sent.elapsed());
        }
        if round > 0 && began.elapsed() > ROUNDS_BOUND {
            break;
        }
    }
    let trips = Trips::of(trips);
    let mut warnings = opened.risks;
    warnings.extend(remarks(&opened.info, trips.best));
    Ok(Said {
        version: field(&opened.info, "redis_version")
            .unwrap_or("unknown")
            .to_owned(),
        trips,
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
    fn a_slow_round_trip_counts_but_not_the_slowest_of_twenty() {
        let of = |all: &[u64]| Trips::of(all.iter().copied().map(Duration::from_millis).collect());
        let trips = of(&[9, 31, 7, 11, 40, 8]);
        assert_eq!(trips.best, Duration::from_millis(7));
        assert_eq!(trips.slow, Duration::from_millis(11));
        let one = of(&[900]);
        assert_eq!((one.best, one.slow), (one.slow, Duration::from_millis(900)));
    }

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
