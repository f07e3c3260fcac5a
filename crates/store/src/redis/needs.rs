//! What is needed of a server, asked by `run` for each connection and by `check --connect`.
//!
//! Problem: many programs and services speak the protocol of Redis, and each lacks something else: commands, scripts
//! without keys, keys that a script did not name, whole numbers in answers, a field of `INFO`. What was not asked at
//! the start would show as a limit that never grants, or as one that grants too much. So everything is asked in one
//! place, and a server that lacks something is refused with what it is. `docs/redis.md` has the tables of what is
//! needed and of what each server lacks.

use futures::future::try_join_all;
use redis::{ErrorKind, RedisError, Script, ScriptInvocation, ServerErrorKind, Value};

use super::access::Access;
use super::scripts::STARTING;
use super::stream::DrivenConnection;
use sluiced_settings::types::RedisMode;

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
const OPTIONAL: [&str; 2] = ["PUBLISH", "SUBSCRIBE"];
/// How `needs.lua` calls a key and a channel.
const KEY: &str = "~";
const CHANNEL: &str = "&";
const NEEDS: &str = include_str!("../../../../lua/needs.lua");

/// What `needs.lua` returns where numbers stay exact.
const EXACT: [i64; 3] = [1, 2500, (1 << 53) - 1];

/// What a server or its user lacks, in sentences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MissingNeeds {
    /// Without it nothing works.
    pub(super) needed: Option<String>,
    /// Without it everything works, but later.
    pub(super) optional: Option<String>,
}

/// Asks a server for everything.
///
/// # Errors
/// When it cannot be asked.
pub(super) async fn lacking(
    connection: &mut DrivenConnection,
    access: &Access,
) -> Result<MissingNeeds, RedisError> {
    let answer = match answer(connection, access).await {
        Err(error) if is_lack(&error) => return Ok(MissingNeeds::scripts(&error)),
        answer => answer?,
    };
    let rights = missing_rights(answer.refused, access);
    if rights.needed.is_some() {
        return Ok(rights);
    }
    if let Some(passing) = answer.failed.iter().find_map(|why| passing(why)) {
        return Err(passing);
    }
    let tried = failures(answer.exact, answer.failed, &answer.unheard);
    Ok(MissingNeeds {
        needed: tried.needed,
        optional: rights.optional.or(tried.optional),
    })
}

/// What `needs.lua` answers.
struct NeedsReply {
    refused: Vec<String>,
    exact: Value,
    failed: Vec<String>,
    unheard: Vec<String>,
}

async fn answer(
    connection: &mut DrivenConnection,
    access: &Access,
) -> Result<NeedsReply, RedisError> {
    load(connection).await?;
    let script = Script::new(NEEDS);
    let asked = question(&script, access, key_of_trial(access))
        .invoke_async(connection)
        .await;
    let (refused, exact, failed, unheard) = match asked {
        // A user without the right to the key would learn nothing else.
        Err(error) if right_denied(&error, access).is_some() => {
            question(&script, access, None)
                .invoke_async(connection)
                .await?
        }
        asked => asked?,
    };
    Ok(NeedsReply {
        refused,
        exact,
        failed,
        unheard,
    })
}

/// Loads what each replica calls when it starts, in one round trip: a Redis that does not know a script is asked for
/// it twice.
async fn load(connection: &DrivenConnection) -> Result<(), RedisError> {
    let loading = [NEEDS].into_iter().chain(STARTING).map(async |code| {
        let load = redis::cmd("SCRIPT").arg("LOAD").arg(code).clone();
        load.query_async::<()>(&mut connection.clone()).await
    });
    try_join_all(loading).await.map(drop)
}

fn question<'a>(script: &'a Script, access: &Access, key: Option<String>) -> ScriptInvocation<'a> {
    let mut question = script.prepare_invoke();
    if let Some(key) = key {
        question.key(key);
    }
    question.arg(format!("{}:check", access.prefix()));
    question.arg(&access.channel);
    for command in NEEDED.iter().chain(&OPTIONAL) {
        question.arg(command);
    }
    if access.mode() == RedisMode::Cluster {
        question.arg("CLUSTER|SLOTS");
    }
    question
}

impl MissingNeeds {
    fn scripts(error: &RedisError) -> Self {
        let error_text = super::text(error);
        Self {
            needed: Some(format!(
                "it does not run scripts as sluiced needs them: {error_text}"
            )),
            optional: None,
        }
    }
}

/// Whether a command is refused because the server does not have it: not for what passes by itself or is about the
/// user.
pub(super) fn is_lack(error: &RedisError) -> bool {
    super::fault(error) == super::ErrorClass::Refused
        && error.kind() != ErrorKind::Server(ServerErrorKind::NoPerm)
}

/// A key for scripts that need none: some services run no script without one. In a cluster it would lie on one node
/// only.
pub(super) fn key_of_trial(access: &Access) -> Option<String> {
    let prefix = access.prefix();
    (access.mode() != RedisMode::Cluster).then(|| format!("{prefix}:{{check}}"))
}

/// What the scripts call and this server does not do.
fn failures(exact: Value, mut failed: Vec<String>, unheard: &[String]) -> MissingNeeds {
    if exact != Value::Array(EXACT.map(Value::Int).into()) {
        failed.push(
            "scripts do not return whole numbers (Dragonfly: --lua_resp2_legacy_float)".to_owned(),
        );
    }
    MissingNeeds {
        needed: (!failed.is_empty()).then(|| {
            let list = failed.join("; ");
            format!("it does not run scripts as sluiced needs them: {list}")
        }),
        optional: (!unheard.is_empty()).then(|| late(&unheard.join("; "))),
    }
}

/// The error in `COMMAND: CODE detail`, if it passes by itself.
fn passing(why: &str) -> Option<RedisError> {
    let (_, error_text) = why.split_once(": ")?;
    let (code, detail) = error_text.split_once(' ')?;
    let passes = super::PASSING.contains(&code) || code == "READONLY";
    passes.then(|| redis::make_extension_error(code.to_owned(), Some(detail.to_owned())))
}

fn late(why: &str) -> String {
    format!("replicas learn of each other's news late: {why}")
}

/// What the user may not do. Redis before 7.0 cannot say, and nothing counts as missing then: the trial shows it.
fn missing_rights(refused: Vec<String>, access: &Access) -> MissingNeeds {
    let (mut needed, mut optional) = (Vec::new(), Vec::new());
    for name in refused {
        match name.as_str() {
            KEY => needed.push(format!("keys ~{}:*", access.prefix())),
            CHANNEL => optional.push(format!("channels &{}:*", access.prefix())),
            command if OPTIONAL.contains(&command) => optional.push(name),
            _ => needed.push(name.replace('|', " ")),
        }
    }
    let words_of = |missing: Vec<String>| {
        (!missing.is_empty()).then(|| {
            format!(
                "this user may not use {}; allow it with ACL SETUSER NAME {}",
                missing.join(", "),
                rule(access)
            )
        })
    };
    MissingNeeds {
        needed: words_of(needed),
        optional: words_of(optional).map(|why| late(&why)),
    }
}

/// The rule that suffices, as `ACL SETUSER` takes it; `config/default.toml` shows it too.
fn rule(access: &Access) -> String {
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

/// How to allow a command that was refused already.
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
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    fn scripts(below: &Path, text: &mut String) {
        for entry in std::fs::read_dir(below).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                scripts(&path, text);
            } else if !path.ends_with("needs.lua") {
                text.push_str(&std::fs::read_to_string(path).unwrap());
            }
        }
    }

    #[test]
    fn what_passes_by_itself_is_no_lack() {
        let passing = passing("SET: MISCONF Redis is configured to save RDB snapshots").unwrap();
        assert_eq!(
            crate::redis::fault(&passing),
            crate::redis::ErrorClass::Busy
        );
        assert!(super::passing("SET: ERR unknown command 'SET'").is_none());
    }

    /// Every command that a script calls is in the list, and is tried.
    #[test]
    fn the_scripts_call_nothing_else() {
        let mut text = String::new();
        let lua = concat!(env!("CARGO_MANIFEST_DIR"), "/../../lua");
        scripts(Path::new(lua), &mut text);
        let calls = text.split("call('").skip(1);
        let called: BTreeSet<&str> = calls.filter_map(|rest| rest.split('\'').next()).collect();
        assert!(called.contains("HMGET"));
        for command in called {
            let known = NEEDED.contains(&command) || OPTIONAL.contains(&command);
            assert!(known, "{command} is not in the list");
            assert!(
                NEEDS.contains(&format!("'{command}'")),
                "{command} is not tried"
            );
        }
    }
}
