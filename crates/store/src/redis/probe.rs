//! Checks a server of Redis: what it reports about itself (`INFO`) and what an operator should know of that,
//! which permissions the user needs (ACL) and which are missing, and how far away it is. Nothing is changed,
//! so `sluiced check --connect` can use it.

use std::time::Duration;

use futures::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError, Script, ServerErrorKind};
use tokio::time::{Instant, timeout};

use super::RedisOptions;
use super::access::Access;
use super::connection::Connection;
use super::refused;
use super::server::Server;
use sluiced_ports::store::StoreError;
use sluiced_settings::types::RedisMode;

/// Questions for the round trip, after the first, which includes loading the script …
const ROUNDS: usize = 20;
/// … and the last is asked after this, however few they were.
const ROUNDS_BOUND: Duration = Duration::from_secs(2);
/// So many of them may be slower than what counts as a slow one: a machine that stood still for a moment
/// shows nothing about the way.
const OUTLIERS: usize = ROUNDS / 10;
/// The way to Redis from which on a warning is due. Answers that take longer than 100 ms look to
/// the schedule like a step of a clock, and the limit pauses behind its guard.
const FAR: Duration = Duration::from_millis(50);

/// What Redis reports about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// One server, a primary, a cluster.
    pub servers: String,
    /// The version of the server, or of the first of several.
    pub version: String,
    /// The round trip of one script; the longest if there are several servers.
    pub round_trip: Duration,
    /// A slow round trip.
    pub slow_trip: Duration,
    /// Things that work, but not well.
    pub warnings: Vec<String>,
}

/// What one server reports.
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

/// Connects to every server that may hold limits, logs in, asks for the permissions and calls a
/// script. Ends within the connect timeout for each of finding and connecting, and a response
/// timeout for each of a few questions.
///
/// # Errors
/// When it cannot be reached, refuses, or does not allow needed or wished commands.
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
            // Nodes of a cluster usually have the same settings.
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
        return Err(refused(&missing_text(&missing, access)));
    }
    // Like the limits' own scripts, but without a key, which would lie on only one node of a cluster.
    let script = Script::new("return redis.call('TIME')[1]");
    let bound = access.response_timeout();
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

/// The value of a line `name:value` of `INFO`, unless it is empty.
pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
        .filter(|value| !value.is_empty())
}

/// Why a server is unsuitable for limits in this `mode`.
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

/// Whether a server reports that it follows another.
pub(super) fn is_replica(info: &str) -> bool {
    field(info, "role") == Some("slave")
}

/// When the server saves to its disk, according to `CONFIG`. `None`: the user may not ask.
pub(super) async fn save_points(connection: &mut MultiplexedConnection) -> Option<String> {
    let (_, value): (String, String) = redis::cmd("CONFIG")
        .arg("GET")
        .arg("save")
        .query_async(connection)
        .await
        .ok()?;
    Some(value)
}

/// Settings that may cost limits their state, by `INFO` and [`save_points`]. These matter only
/// for keyed limits: a paced one starts again behind its guard within a second.
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

/// Commands that every limit needs: those of the scripts, and those of a connection. A test
/// compares them with the scripts.
const NEEDED: [&str; 17] = [
    "EVALSHA",
    "SCRIPT|LOAD",
    "INFO",
    "PING",
    "TIME",
    "HGET",
    "HGETALL",
    "HMGET",
    "HDEL",
    "HSET",
    "GET",
    "SET",
    "DEL",
    "EXISTS",
    "ZADD",
    "ZPOPMIN",
    "PEXPIRE",
];
/// Without these, replicas learn of freezes and changes only from their next answer.
const WISHED: [&str; 2] = ["PUBLISH", "SUBSCRIBE"];
/// How `rights.lua` calls a key and a channel.
const KEY: &str = "~";
const CHANNEL: &str = "&";

/// What is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MissingRights {
    /// Permissions without which nothing works.
    pub(super) needed: Vec<String>,
    /// Permissions without which everything works, but later.
    pub(super) wished: Vec<String>,
}

/// Asks the server. Redis before 7.0 cannot answer, and nothing counts as missing then.
pub(super) async fn missing_rights(
    connection: &mut MultiplexedConnection,
    access: &Access,
) -> Result<MissingRights, RedisError> {
    let script = Script::new(include_str!("../../../../lua/rights.lua"));
    let mut question = script.prepare_invoke();
    question.arg(format!("{}:check", access.prefix()));
    question.arg(&access.channel);
    for command in NEEDED.iter().chain(&WISHED) {
        question.arg(command);
    }
    if access.mode() == RedisMode::Cluster {
        question.arg("CLUSTER|SLOTS");
    }
    let refused: Vec<String> = question.invoke_async(connection).await?;
    let mut missing = MissingRights::default();
    for name in refused {
        match name.as_str() {
            KEY => missing.needed.push(format!("keys ~{}:*", access.prefix())),
            CHANNEL => missing
                .wished
                .push(format!("channels &{}:*", access.prefix())),
            command if WISHED.contains(&command) => missing.wished.push(name),
            _ => missing.needed.push(name.replace('|', " ")),
        }
    }
    Ok(missing)
}

/// The rule that suffices, as `ACL SETUSER` takes it; `config/default.toml` shows it too.
pub(super) fn rule(access: &Access) -> String {
    let prefix = access.prefix();
    let cluster = match access.mode() {
        RedisMode::Cluster => " +cluster|slots",
        RedisMode::Single | RedisMode::Sentinel => "",
    };
    format!(
        "~{prefix}:* &{prefix}:* +@connection +@hash +@keyspace +@pubsub +@sortedset +@string -@dangerous \
         +evalsha +script|load +info +time{cluster}"
    )
}

/// A text for operators: what is missing, and the rule that suffices.
pub(super) fn missing_text(missing: &[String], access: &Access) -> String {
    format!(
        "this user may not use {}; allow it with ACL SETUSER NAME {}",
        missing.join(", "),
        rule(access)
    )
}

/// The same for a command that was refused already.
pub(super) fn right_denied(error: &RedisError, access: &Access) -> Option<String> {
    let refused = error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm);
    refused.then(|| {
        format!(
            "{}; allow it with ACL SETUSER NAME {}",
            error.detail().unwrap_or("a permission is missing"),
            rule(access)
        )
    })
}

#[cfg(test)]
mod tests;
