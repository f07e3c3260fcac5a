//! Checks the servers of Redis for `sluiced check --connect`: opens a connection to each as `run` does, which asks for
//! all that is needed, and measures how far away it is.

use std::time::Duration;

use futures::future::join_all;
use redis::Script;
use tokio::time::{Instant, timeout};

use super::RedisOptions;
use super::access::Access;
use super::connection::Connection;
use super::info::version;
use super::needs::key_of_trial;
use super::server::Server;
use sluiced_ports::store::StoreError;

/// Questions for the round trip, after the first, which includes loading the script.
const ROUNDS: usize = 20;
/// No more questions are asked after this, however few they were.
const ROUNDS_BOUND: Duration = Duration::from_secs(2);
/// This many of them may be slower than what counts as a slow one: a machine that stood still for a moment
/// shows nothing about the way.
const OUTLIERS: usize = ROUNDS / 10;
/// The way to Redis from which on a warning is due. Answers that take longer than 100 ms look to
/// the schedule like a step of a clock, and the limit pauses behind its guard.
const FAR: Duration = Duration::from_millis(50);

/// What Redis reports about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisFacts {
    /// One server, a primary, a cluster.
    pub servers: String,
    /// The version of the server, or of the first of several.
    pub version: String,
    /// The round trip of one script; the longest if there are several servers.
    pub round_trip: Duration,
    /// A slow round trip: of up to twenty that were measured, the third slowest.
    pub slow_trip: Duration,
    /// Things that work, but not well.
    pub warnings: Vec<String>,
}

/// What one server reports.
struct ServerReport {
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
    /// The fastest one shows how far away it is, a slow one what a limit must tolerate.
    fn of(mut all: Vec<Duration>) -> Self {
        all.sort_unstable();
        let at = |place: usize| all.get(place).copied().unwrap_or_default();
        Self {
            best: at(0),
            slow: at(all.len().saturating_sub(1 + OUTLIERS)),
        }
    }
}

/// Connects to every server that may hold limits, logs in, asks for all that is needed, and calls a
/// script a few times. Ends within the connect timeout for each of finding and connecting, and a response
/// timeout for each of a few questions.
///
/// # Errors
/// When it cannot be reached, refuses, or lacks what is needed.
pub async fn probe(options: &RedisOptions) -> Result<RedisFacts, StoreError> {
    let connection = Connection::new(options)?;
    let (servers, how) = connection.servers().await?;
    let tried = join_all(
        servers
            .iter()
            .map(|server| try_one(server, connection.access())),
    );
    let tried_servers = tried.await.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut report = RedisFacts {
        servers: how,
        version: tried_servers
            .first()
            .map_or_else(String::new, |tried| tried.version.clone()),
        round_trip: Duration::ZERO,
        slow_trip: Duration::ZERO,
        warnings: Vec::new(),
    };
    for tried in tried_servers {
        report.round_trip = report.round_trip.max(tried.trips.best);
        report.slow_trip = report.slow_trip.max(tried.trips.slow);
        for warning in tried.warnings {
            // Nodes of a cluster usually have the same settings.
            if !report.warnings.contains(&warning) {
                report.warnings.push(warning);
            }
        }
    }
    Ok(report)
}

async fn try_one(server: &Server, access: &Access) -> Result<ServerReport, StoreError> {
    let mut opened = server.open().await?;
    // Like the limits' own scripts.
    let script = Script::new("return redis.call('TIME')[1]");
    let mut call = script.prepare_invoke();
    if let Some(key) = key_of_trial(access) {
        call.key(key);
    }
    let bound = access.response_timeout();
    let began = Instant::now();
    let mut measured = Vec::new();
    for round in 0..=ROUNDS {
        let sent = Instant::now();
        let asked = timeout(bound, call.invoke_async(&mut opened.connection)).await;
        let _seconds: String = access.answer(asked, bound)?;
        if round > 0 {
            measured.push(sent.elapsed());
        }
        if round > 0 && began.elapsed() > ROUNDS_BOUND {
            break;
        }
    }
    let trips = Trips::of(measured);
    let mut warnings = opened.risks;
    warnings.extend(remark(trips.best));
    Ok(ServerReport {
        version: version(&opened.info),
        trips,
        warnings,
    })
}

fn remark(round_trip: Duration) -> Option<String> {
    (round_trip / 2 > FAR).then(|| {
        format!(
            "it is far away: answers that take over {:?} pause a limit",
            2 * FAR
        )
    })
}

#[cfg(test)]
mod tests;
