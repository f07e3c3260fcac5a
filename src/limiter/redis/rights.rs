//! What our user of Redis must be allowed (ACL), and how an operator learns what is missing.

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError, Script, ServerErrorKind};

use super::access::Access;
use crate::settings::types::RedisMode;

/// Commands without which no limit works: those of the scripts, and those of a connection.
/// A test compares them with the scripts.
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
    /// Nothing works without.
    pub(super) needed: Vec<String>,
    /// All works without, but later.
    pub(super) wished: Vec<String>,
}

/// Asks the server. Redis before 7.0 cannot say, and nothing counts as missing then.
pub(super) async fn missing(
    connection: &mut MultiplexedConnection,
    access: &Access,
) -> Result<MissingRights, RedisError> {
    let script = Script::new(include_str!("../../../lua/rights.lua"));
    let mut question = script.prepare_invoke();
    question.arg(format!("{}:check", access.prefix));
    question.arg(&access.channel);
    for command in NEEDED.iter().chain(&WISHED) {
        question.arg(command);
    }
    if access.mode == RedisMode::Cluster {
        question.arg("CLUSTER|SLOTS");
    }
    let refused: Vec<String> = question.invoke_async(connection).await?;
    let mut missing = MissingRights::default();
    for name in refused {
        match name.as_str() {
            KEY => missing.needed.push(format!("keys ~{}:*", access.prefix)),
            CHANNEL => missing
                .wished
                .push(format!("channels &{}:*", access.prefix)),
            command if WISHED.contains(&command) => missing.wished.push(name),
            _ => missing.needed.push(name.replace('|', " ")),
        }
    }
    Ok(missing)
}

/// The rule that suffices, as `ACL SETUSER` takes it; `config/default.toml` shows it too.
pub(super) fn rule(access: &Access) -> String {
    let prefix = &access.prefix;
    let cluster = match access.mode {
        RedisMode::Cluster => " +cluster|slots",
        RedisMode::Single | RedisMode::Sentinel => "",
    };
    format!(
        "~{prefix}:* &{prefix}:* +@connection +@hash +@keyspace +@pubsub +@sortedset +@string -@dangerous \
         +evalsha +script|load +info +time{cluster}"
    )
}

/// What is missing and what would be right, as an operator should read it.
pub(super) fn told(missing: &[String], access: &Access) -> String {
    format!(
        "this user may not use {}; allow it with ACL SETUSER NAME {}",
        missing.join(", "),
        rule(access)
    )
}

/// The same for a command that was refused already.
pub(super) fn explained(error: &RedisError, access: &Access) -> Option<String> {
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
            } else {
                text.push_str(&std::fs::read_to_string(path).unwrap());
            }
        }
    }

    /// Every command that a script calls is asked for.
    #[test]
    fn the_scripts_call_nothing_else() {
        let mut text = String::new();
        scripts(Path::new("lua"), &mut text);
        let calls = text.split("call('").skip(1);
        let called: BTreeSet<&str> = calls.filter_map(|rest| rest.split('\'').next()).collect();
        assert!(called.contains("HMGET"));
        for command in called {
            let known = NEEDED.contains(&command) || WISHED.contains(&command);
            assert!(known, "{command} is not in the list");
        }
    }
}
