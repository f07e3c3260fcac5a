//! The state of the fleet: each replica knows that of all, for the page, for programs and for a
//! terminal.

mod late;
mod reports;

use std::time::Duration;

use serde_json::Value;
use sluiced_status::Fleet;

use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route, get, program};
use crate::support::messages::body;
use crate::support::rabbit::Rabbit;
use crate::support::recorder::Recorder;
use crate::support::redis::RedisServer;
use crate::support::wait::eventually;

const NAME: &str = "status";
const DECLARED: &[&str] = &[NEW_SCHEDULE, "nothing is kept on disk"];

async fn fleet(daemon: &mut Daemon) -> Fleet {
    let (code, text) = daemon.page("/status.json").await;
    assert_eq!(code, 200, "{text}");
    serde_json::from_str(&text).unwrap()
}

async fn until(daemon: &mut Daemon, what: &str, holds: impl Fn(&Fleet) -> bool) -> Fleet {
    let seen = tokio::time::timeout(LONG, async {
        loop {
            let fleet = fleet(daemon).await;
            if holds(&fleet) {
                return fleet;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    match seen.await {
        Ok(fleet) => fleet,
        Err(_) => panic!("{what}: {:#?}\n{}", fleet(daemon).await, daemon.log()),
    }
}

/// All units in the plot of a limit: its bars cover ten seconds each, and are rounded.
fn used(fleet: &Fleet, limit: &str) -> u64 {
    let bars: f64 = fleet.bars(limit).iter().sum();
    (bars * 10.0).round() as u64
}

/// The names of the replicas that a Redis knows of.
fn known(config: &Config) -> Vec<String> {
    let mut redis = RedisServer::shared().connection();
    let key = format!("{}:{{fleet}}:status", config.prefix);
    redis::cmd("HKEYS").arg(key).query(&mut redis).unwrap()
}

fn command(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = program(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_replica_knows_how_all_of_them_are() {
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    broker.declare(NAME, "quorum").await;
    let downstream = Recorder::accepting().await;
    let config = Config::shared(NAME, "100/1s", vec![Route::new(NAME, downstream.address)]);
    let mut first = Daemon::start(&config);
    let mut second = Daemon::start(&config);
    let messages = (1..=20).map(|n| (body(n), lapin::BasicProperties::default()));
    broker.publish(NAME, messages).await;

    for daemon in [&mut first, &mut second] {
        both_and_what_they_did_are_known(daemon).await;
    }
    a_pause_of_one_is_shown_by_the_other(&first, &mut second).await;
    the_address_is_that_of_the_configuration_or_of_the_environment(&mut second).await;
    the_page_brings_all_that_it_needs(&mut second).await;
    what_a_replica_used_stays_when_it_stops(first, &mut second, &config).await;
    a_killed_replica_is_shown_as_one_that_is_silent(&mut second, &config).await;
    second.stop(DECLARED).await;
}

async fn both_and_what_they_did_are_known(daemon: &mut Daemon) {
    let are_ready = |fleet: &Fleet| {
        let mut replicas = fleet.replicas.iter();
        fleet.complete
            && fleet.replicas.len() == 2
            && replicas.all(|replica| replica.missing.is_empty())
    };
    let is_done = |fleet: &Fleet| {
        let answers = fleet.route(NAME).answers.get("2xx").copied();
        let all = fleet.route(NAME).done == 20 && answers == Some(20);
        all && used(fleet, "provider") == 20
    };
    let is_open = |fleet: &Fleet| {
        fleet
            .limits
            .first()
            .is_some_and(|limit| limit.state == "open" && limit.replicas.len() == 2)
    };
    let fleet = until(daemon, "both are known, and what they did", |fleet| {
        are_ready(fleet) && is_done(fleet) && fleet.route(NAME).open && is_open(fleet)
    })
    .await;
    assert_eq!(fleet.rates("provider").0, 100.0);
}

/// What an operator did, and who it was.
async fn a_pause_of_one_is_shown_by_the_other(first: &Daemon, second: &mut Daemon) {
    let file = first.config().display().to_string();
    let (code, _, err) = command(&["limits", "pause", "provider", "--config", &file]);
    assert_eq!(code, Some(0), "{err}");
    until(second, "the pause is seen", |fleet| {
        let limit = fleet.limits.first();
        limit.is_some_and(|limit| limit.state == "paused") && !fleet.route(NAME).open
    })
    .await;
    let url = format!("http://{}", second.admin().await);
    let said = [
        "2 replicas, all ready",
        "provider",
        "paused by ",
        "closed: ",
        "2xx: 20",
        "INFO fleet limit provider is paused by ",
    ];
    eventually(LONG, "the command says the same", || {
        let (code, text, err) = command(&["status", "--url", &url]);
        assert_eq!(code, Some(0), "{err}");
        said.iter().all(|said| text.contains(said))
    })
    .await;
    let (_, json, _) = command(&["status", "--url", &url, "--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["replicas"].as_array().map(Vec::len), Some(2));
}

async fn the_address_is_that_of_the_configuration_or_of_the_environment(daemon: &mut Daemon) {
    let listen = daemon.admin().await.to_string();
    let file = daemon.config().display().to_string();
    for arguments in [&["status"][..], &["status", "--config", &file]] {
        let mut command = program(arguments);
        command.env("SLUICED__ADMIN__LISTEN", &listen);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.starts_with("sluiced: 2 replicas"), "{output:?}");
    }
}

async fn the_page_brings_all_that_it_needs(daemon: &mut Daemon) {
    let (code, page) = get(daemon.admin().await, "/");
    assert_eq!(code, 200);
    assert!(page.starts_with("<!doctype html>") && page.contains("status.json"));
    for elsewhere in ["src=", "@import", "url(", "https://"] {
        assert!(!page.contains(elsewhere), "{elsewhere}");
    }
}

async fn what_a_replica_used_stays_when_it_stops(
    first: Daemon,
    second: &mut Daemon,
    config: &Config,
) {
    assert_eq!(known(config).len(), 2);
    first.stop(DECLARED).await;
    assert_eq!(known(config).len(), 1, "it reports that it stops");
    let left = until(second, "one is left", |fleet| fleet.replicas.len() == 1).await;
    assert_eq!(used(&left, "provider"), 20);
}

async fn a_killed_replica_is_shown_as_one_that_is_silent(second: &mut Daemon, config: &Config) {
    let killed = Daemon::start(config);
    until(second, "two again", |fleet| {
        fleet.reporting_replicas().count() == 2
    })
    .await;
    killed.kill(DECLARED).await;
    let silent = until(second, "one is silent", |fleet| {
        fleet.reporting_replicas().count() == 1
    })
    .await;
    assert_eq!(silent.replicas.len(), 2);
    let url = format!("http://{}", second.admin().await);
    let (_, text, _) = command(&["status", "--url", &url]);
    let said = ["2 replicas, 1 not heard of", "not heard of for "];
    assert!(said.iter().all(|said| text.contains(said)), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_store_a_replica_tells_of_itself() {
    let redis = RedisServer::start();
    let config = Config {
        redis: Some(redis.url()),
        ..Config::shared(
            "status-alone",
            "100/1s",
            vec![Route::new("status-alone", "127.0.0.1:1".parse().unwrap())],
        )
    };
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    broker.declare("status-alone", "quorum").await;
    let mut daemon = Daemon::start(&config);
    until(&mut daemon, "all is there", |fleet| {
        fleet.complete && fleet.limits.len() == 1
    })
    .await;
    redis.kill();
    let fleet = until(&mut daemon, "it reports", |fleet| !fleet.complete).await;
    assert_eq!(fleet.replicas.len(), 1);
    let missing = |fleet: &Fleet| {
        fleet.replicas[0]
            .missing
            .iter()
            .any(|part| part.name == "redis")
    };
    until(&mut daemon, "and of what is missing", missing).await;
    let warned = |fleet: &Fleet| {
        let mut lines = fleet.replicas[0].events.iter();
        lines.any(|line| line.level == "WARN" && line.text.contains("Redis"))
    };
    until(&mut daemon, "and of its last warnings", warned).await;
    daemon
        .stop(&[
            NEW_SCHEDULE,
            "nothing is kept on disk",
            "Redis",
            "tap closed",
            "no connection to the downstream",
        ])
        .await;
}

/// A pause of one limit must not be hidden because another one cannot be read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_whose_state_cannot_be_read_hides_no_other() {
    const QUEUE: &str = "status-unreadable";
    let redis = RedisServer::start();
    let route = Route {
        limits: vec!["provider", "recipient"],
        ..Route::new(QUEUE, "127.0.0.1:1".parse().unwrap())
    };
    let config = Config {
        redis: Some(redis.url()),
        tables: "[limits.recipient]\nkind = \"fixed_window\"\nrate = \"5/1d\"\nkey = \"{{ body.to }}\"\n".to_owned(),
        ..Config::shared(QUEUE, "100/1s", vec![route])
    };
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    broker.declare(QUEUE, "quorum").await;
    let mut daemon = Daemon::start(&config);
    until(&mut daemon, "both limits are shown", |fleet| {
        fleet.limits.len() == 2
    })
    .await;
    let policy = format!("{}:{{limits}}:recipient:policy", config.prefix);
    let overwrite = redis::cmd("SET").arg(&policy).arg("no hash").clone();
    let done: String = redis.ask(&overwrite).unwrap();
    assert_eq!(done, "OK");
    until(&mut daemon, "the other one is shown still", |fleet| {
        let names: Vec<_> = fleet.limits.iter().map(|limit| &limit.name).collect();
        fleet.complete && names == ["provider"]
    })
    .await;
    daemon
        .stop(&[DECLARED, &["no connection to the downstream"]].concat())
        .await;
}

#[test]
fn what_cannot_be_asked_is_said() {
    let (code, _, err) = command(&["status", "--url", "http://127.0.0.1:1"]);
    assert_eq!(code, Some(1));
    assert!(
        err.contains("http://127.0.0.1:1/status.json: ") && err.contains("refused"),
        "{err}"
    );
    let (code, _, err) = command(&["top"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("sluiced status"), "{err}");
}
