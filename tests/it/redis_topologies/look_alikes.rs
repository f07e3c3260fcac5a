//! What speaks the protocol of Redis and is none, as it is documented: `run` and `check --connect` say the same, and
//! what works is used. The table is in `docs/redis.md`.

use std::time::Duration;

use sluiced_ports::link::Link;
use sluiced_ports::store::Store as _;
use sluiced_store::redis::{RedisOptions, probe};

use super::{connect, down, lease, limit, options, single};
use crate::support::look_alike::{Differs, LookAlike};
use crate::support::redis::RedisServer;
use crate::support::wait::within;

const BOUND: Duration = Duration::from_secs(60);

fn front(differs: Differs) -> (RedisServer, LookAlike) {
    let redis = RedisServer::start();
    let front = LookAlike::of(&redis, differs);
    (redis, front)
}

fn at(url: &str) -> RedisOptions {
    options(single(url))
}

/// What both commands say.
async fn refused(differs: Differs) -> String {
    let (_redis, front) = front(differs);
    let options = at(&front.url());
    let said = down(&options).await;
    assert_eq!(probe(&options).await.unwrap_err().to_string(), said);
    said
}

/// Both commands work with it. Returns what they warn of, and the version.
async fn used(differs: Differs) -> (Vec<String>, String) {
    let (_redis, front) = front(differs);
    let options = at(&front.url());
    let store = connect(&options).await;
    lease(&store, &limit("look-alike")).await;
    let report = probe(&options).await.unwrap();
    (report.warnings, report.version)
}

fn info(without: &[&'static str], with: &[&str]) -> Differs {
    Differs {
        without: without.to_vec(),
        with: with.iter().map(ToString::to_string).collect(),
        ..Differs::default()
    }
}

/// Services that put a front of their own before Redis may say less about it; Upstash has no `INFO` among its commands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_lives_cannot_be_told_apart_is_refused() {
    let silent = Differs {
        refuses: vec![("INFO", "ERR Command is not available: 'INFO'")],
        ..Differs::default()
    };
    for differs in [info(&["run_id"], &[]), silent] {
        let said = refused(differs).await;
        let why = "INFO names no run_id, by which a restart or a failover is noticed";
        assert!(said.contains(why), "{said}");
    }
}

/// Dragonfly: no `run_id`; `master_replid` is drawn at each start. Its scripts may use only keys that are named, and
/// return numbers as text, unless it is told otherwise (its page on scripting; `EvalSerializer` in its source).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dragonfly_is_used_once_its_scripts_work_as_those_of_redis() {
    // The server behind the double may be Valkey.
    let without = ["run_id", "valkey_version"];
    let dragonfly = || info(&without, &["dragonfly_version:df-v1.30.0"]);
    let (warnings, version) = used(dragonfly()).await;
    assert_eq!(warnings, Vec::<String>::new());
    assert!(version.ends_with(" (Dragonfly df-v1.30.0)"), "{version}");

    let undeclared =
        "ERR Error running script (call to f_1): script tried accessing undeclared key";
    let said = refused(Differs {
        refuses: vec![("EVALSHA", undeclared)],
        ..dragonfly()
    });
    let said = said.await;
    assert!(
        said.contains("does not run scripts as sluiced needs them"),
        "{said}"
    );
    assert!(said.contains("undeclared key"), "{said}");

    let said = refused(Differs {
        replies: vec![(":2500\r\n", "$4\r\n2500\r\n")],
        ..dragonfly()
    });
    let said = said.await;
    assert!(said.contains("--lua_resp2_legacy_float"), "{said}");
}

/// Garnet: its scripts run side by side unless they lock all keys, and are switched off by default.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garnet_is_refused() {
    let garnet = || info(&[], &["garnet_version:1.0.84", "server_name:garnet"]);
    let said = refused(garnet()).await;
    assert!(
        said.contains("two replicas could be granted the same units"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_scripts_is_refused() {
    let said = refused(Differs {
        refuses: ["EVALSHA", "EVAL", "SCRIPT"]
            .map(|name| (name, "ERR This instance has Lua scripting support disabled"))
            .into(),
        ..Differs::default()
    });
    let said = said.await;
    assert!(said.contains("scripting support disabled"), "{said}");
}

/// KeyDB with `active-replica yes`: both servers take writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_active_replica_is_refused() {
    let said = refused(info(&["role"], &["role:active-replica"])).await;
    assert!(said.contains("active replica of KeyDB"), "{said}");
}

/// ElastiCache, MemoryDB, Memorystore and Azure do not let users configure anything; some services run no script
/// without a key, because the key says where.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_needed_is_not_missed() {
    let unknown = "ERR unknown command";
    let (warnings, _) = used(Differs {
        refuses: ["CONFIG", "CLIENT", "ACL", "CLUSTER", "WAIT", "DEBUG"]
            .map(|name| (name, unknown))
            .into(),
        keyless: Some("ERR eval/evalsha numkeys must be bigger than zero in redis cluster mode"),
        ..Differs::default()
    })
    .await;
    assert_eq!(warnings, Vec::<String>::new());
}

/// A command that scripts need, and one that is only wished for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_is_missing_is_named() {
    let redis = RedisServer::start_with("--rename-command ZPOPMIN gone-zpopmin", None);
    let options = at(&redis.url());
    let said = down(&options).await;
    assert!(
        said.contains("does not run scripts as sluiced needs them: ZPOPMIN: "),
        "{said}"
    );
    assert_eq!(probe(&options).await.unwrap_err().to_string(), said);

    let redis = RedisServer::start_with("--rename-command PUBLISH gone-publish", None);
    let options = at(&redis.url());
    let store = connect(&options).await;
    lease(&store, &limit("unheard")).await;
    let warnings = probe(&options).await.unwrap().warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("news late: PUBLISH: "), "{warnings:?}");
}

/// Nothing is left of the trial.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_trial_leaves_no_key() {
    let redis = RedisServer::start();
    probe(&at(&redis.url())).await.unwrap();
    let keys: Vec<String> = redis.ask(redis::cmd("KEYS").arg("*")).unwrap();
    assert_eq!(keys, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_refused_by_both() {
    let primary = RedisServer::start();
    let replica =
        RedisServer::start_with(&format!("--replicaof 127.0.0.1 {}", primary.port()), None);
    let options = at(&replica.url());
    let said = down(&options).await;
    assert!(
        said.contains("is a replica, and limits need the primary"),
        "{said}"
    );
    assert_eq!(probe(&options).await.unwrap_err().to_string(), said);
}

/// A proxy that keeps connections over a failover: another server answers on the same one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_exchanged_behind_its_connections_is_noticed() {
    let (_redis, front) = front(Differs::default());
    let store = connect(&at(&front.url())).await;
    let limit = limit("exchanged");
    lease(&store, &limit).await;
    let mut link = store.link();
    front.set(info(&["run_id"], &["run_id:another"]));
    let lost = link.wait_for(|link| matches!(link, Link::Down(_)));
    match &*within(BOUND, "a loss", lost).await.unwrap() {
        Link::Down(reason) => assert!(reason.contains("another server answers"), "{reason}"),
        Link::Connecting | Link::Up => unreachable!("it was waited for"),
    }
    let up = link.wait_for(Link::is_up);
    drop(within(BOUND, "a connection", up).await.unwrap());
    let (_, guarded) = lease(&store, &limit).await;
    assert!(guarded, "its schedule starts behind the guard");
}
