//! How the fleet is: each replica knows it of all, for a page, for programs and for a terminal.

use serde_json::Value;
use sluiced::status::Fleet;

use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route, get, program};
use crate::support::messages::body;
use crate::support::rabbit::Rabbit;
use crate::support::recorder::Recorder;
use crate::support::wait::eventually;

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
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    });
    match seen.await {
        Ok(fleet) => fleet,
        Err(_) => panic!("{what}: {:#?}\n{}", fleet(daemon).await, daemon.log()),
    }
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
    let name = "status";
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    broker.declare(name, "quorum").await;
    let downstream = Recorder::accepting().await;
    let config = Config::shared(name, "100/1s", vec![Route::new(name, downstream.address)]);
    let mut one = Daemon::start(&config);
    let mut other = Daemon::start(&config);
    broker
        .publish(
            name,
            (1..=20).map(|n| (body(n), lapin::BasicProperties::default())),
        )
        .await;
    let done = |fleet: &Fleet| {
        // Rates of intervals of 5 s and more, of 20 calls.
        let used: f64 = fleet.used("provider").iter().sum();
        let answers = fleet.route(name).answers.get("2xx").copied();
        fleet.route(name).done == 20 && answers == Some(20) && used > 0.0 && used <= 4.0
    };
    let limit = |fleet: &Fleet| {
        fleet.limits.first().is_some_and(|limit| {
            let replicas = limit["replicas"].as_array().map(Vec::len);
            limit["state"] == "open" && replicas == Some(2)
        })
    };
    for daemon in [&mut one, &mut other] {
        let fleet = until(daemon, "both are known, and what they did", |fleet| {
            let ready = fleet
                .replicas
                .iter()
                .all(|replica| replica.missing.is_empty());
            fleet.complete
                && fleet.replicas.len() == 2
                && ready
                && done(fleet)
                && fleet.route(name).open
                && limit(fleet)
        })
        .await;
        assert_eq!(fleet.rates("provider").0, 100.0);
    }

    // What an operator does is seen, and who did it.
    let file = one.config().display().to_string();
    let (code, _, err) = command(&["limits", "pause", "provider", "--config", &file]);
    assert_eq!(code, Some(0), "{err}");
    let paused = |fleet: &Fleet| {
        fleet
            .limits
            .first()
            .is_some_and(|limit| limit["state"] == "paused")
    };
    until(&mut other, "the pause is seen", |fleet| {
        paused(fleet) && !fleet.route(name).open
    })
    .await;
    let url = format!("http://{}", other.admin().await);
    let said = [
        "2 replicas, all ready",
        "provider",
        "paused by ",
        "closed: ",
        "2xx: 20",
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

    // The page brings all that it needs.
    let (code, page) = get(other.admin().await, "/");
    assert_eq!(code, 200);
    assert!(page.starts_with("<!doctype html>") && page.contains("status.json"));
    for elsewhere in ["src=", "@import", "url(", "https://"] {
        assert!(!page.contains(elsewhere), "{elsewhere}");
    }

    // One that is gone is shown no more.
    one.stop(DECLARED).await;
    until(&mut other, "one is left", |fleet| fleet.replicas.len() == 1).await;
    other.stop(DECLARED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_store_a_replica_tells_of_itself() {
    let redis = crate::support::redis::RedisServer::start();
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
    let fleet = until(&mut daemon, "it tells of itself", |fleet| !fleet.complete).await;
    assert_eq!(fleet.replicas.len(), 1);
    let missing = |fleet: &Fleet| {
        fleet.replicas[0]
            .missing
            .iter()
            .any(|part| part.name == "redis")
    };
    until(&mut daemon, "and of what is missing", missing).await;
    let warned = |fleet: &Fleet| {
        let mut lines = fleet.replicas[0].warnings.iter();
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
