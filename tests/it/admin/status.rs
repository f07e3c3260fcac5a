//! The state of the fleet: each replica knows that of all, for the page, for programs and for a
//! terminal.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use sluiced_ports::clock::Clock;
use sluiced_ports::limits::limit_key;
use sluiced_ports::store::{BARS, StatusReport, StatusStore, Store as _};
use sluiced_status::Fleet;
use sluiced_store::memory::MemoryStore;
use sluiced_store::redis::{RedisOptions, RedisStore};

use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route, get, program};
use crate::support::messages::body;
use crate::support::rabbit::Rabbit;
use crate::support::recorder::Recorder;
use crate::support::redis::RedisServer;
use crate::support::wait::eventually;

/// A tenant that no configuration names.
const PHONE: &str = "+4915550100";
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
        let answers = fleet.route(name).answers.get("2xx").copied();
        let all = fleet.route(name).done == 20 && answers == Some(20);
        all && used(fleet, "provider") == 20
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

    // The page shows what an operator did, and who it was.
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
        "INFO fleet limit provider is paused by ",
    ];
    eventually(LONG, "the command says the same", || {
        let (code, text, err) = command(&["status", "--url", &url]);
        assert_eq!(code, Some(0), "{err}");
        said.iter().all(|said| text.contains(said))
    })
    .await;
    // The address is that of the configuration, or of the environment.
    let listen = other.admin().await.to_string();
    let variable = ("SLUICED__ADMIN__LISTEN", listen.as_str());
    let file = other.config().display().to_string();
    for arguments in [&["status"][..], &["status", "--config", &file]] {
        let mut command = program(arguments);
        let output = command.env(variable.0, variable.1).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.starts_with("sluiced: 2 replicas"), "{output:?}");
    }
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

    // A replica that stops reports that it does, and what it used stays.
    assert_eq!(known(&config).len(), 2);
    one.stop(DECLARED).await;
    assert_eq!(known(&config).len(), 1);
    let left = until(&mut other, "one is left", |fleet| fleet.replicas.len() == 1).await;
    assert_eq!(used(&left, "provider"), 20);

    // A replica that is killed cannot: it is shown as one that no longer reports.
    let one = Daemon::start(&config);
    until(&mut other, "two again", |fleet| {
        fleet.reporting_replicas().count() == 2
    })
    .await;
    one.kill(DECLARED).await;
    let silent = until(&mut other, "one is silent", |fleet| {
        fleet.reporting_replicas().count() == 1
    })
    .await;
    assert_eq!(silent.replicas.len(), 2);
    let url = format!("http://{}", other.admin().await);
    let (_, text, _) = command(&["status", "--url", &url]);
    let said = ["2 replicas, 1 not heard of", "not heard of for "];
    assert!(said.iter().all(|said| text.contains(said)), "{text}");
    other.stop(DECLARED).await;
}

/// A campaign before one-time passwords: which route waits, for how long, and what takes the rate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_route_whose_messages_wait_for_too_long_is_shown_with_what_takes_its_rate() {
    let (late, bulk) = ("status-late", "status-bulk");
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    let downstream = Recorder::accepting().await;
    let routes = [late, bulk].map(|name| {
        let mut route = Route::new(name, downstream.address);
        route.keys = match name == late {
            true => "max_delay = \"1s\"\n",
            false => "priority = 9\n",
        }
        .to_owned();
        route
    });
    for name in [late, bulk] {
        broker.declare(name, "classic").await;
        let message = |n| (body(n), lapin::BasicProperties::default());
        broker.publish(name, (1..=300).map(message)).await;
    }
    let config = Config::shared("status-late", "20/1s", routes.to_vec());
    let mut daemon = Daemon::start(&config);
    let said = "of the routes that share limit provider, status-bulk makes 100 % of the calls";
    // A first call of the other route may leave before the messages of this one have come.
    let seen = until(&mut daemon, "what takes the rate", |fleet| {
        fleet.route(late).taken == said && fleet.route(bulk).delay.is_some()
    })
    .await;
    assert!(seen.gone.contains_key(bulk), "{:?}", seen.gone);
    let curve = &seen.curves[bulk];
    assert_eq!((curve.delay.len(), curve.backlog.len()), (BARS, BARS));
    assert!(curve.delay.iter().flatten().count() > 0, "{curve:?}");
    let url = format!("http://{}", daemon.admin().await);
    let (_, text, _) = command(&["status", "--url", &url]);
    for part in [said, "  delay: ", "   gone ", " at this rate"] {
        assert!(
            text.replace("\n      ", " ").contains(part),
            "{part}: {text}"
        );
    }
    daemon
        .stop(&[DECLARED, &["waits for longer than max_delay"]].concat())
        .await;
}

/// The warning, and so the page, names the tenant that takes the rate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_warning_of_a_late_route_names_the_tenant_with_most_calls() {
    let (name, unnamed) = ("status-tenant", "status-digest");
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    let downstream = Recorder::accepting().await;
    let routes = [(name, "weights = { acme = 9 }\n"), (unnamed, "")].map(|(name, weights)| {
        let mut route = Route::new(name, downstream.address);
        route.keys = format!(
            "max_delay = \"5s\"\nfair_by = \"{{{{ body.tenant }}}}\"\nparked = 0\n{weights}"
        );
        route
    });
    broker.declare(name, "classic").await;
    broker.declare(unnamed, "classic").await;
    let mut daemon = Daemon::start(&Config::shared(name, "20/1s", routes.to_vec()));
    // Before it has called a message it has nothing to name, and it warns once in a while.
    daemon.ready().await;
    let published = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let message = |n: u64, tenant| {
        let body = format!("{{\"n\": {n}, \"tenant\": \"{tenant}\"}}").into_bytes();
        (
            body,
            lapin::BasicProperties::default().with_timestamp(published),
        )
    };
    let tenants = ["acme", PHONE].into_iter().cycle();
    let shared = (1..=400).zip(tenants).map(|(n, tenant)| message(n, tenant));
    broker.publish(name, shared).await;
    let own = (1..=400).map(|n| message(n, PHONE));
    broker.publish(unnamed, own).await;
    // `sluiced find --key` shows the same digest.
    let digest = limit_key(&[PHONE]).short();
    let said = [
        "most_calls=\"tenant acme: ".to_owned(),
        format!("most_calls=\"a tenant with the digest {digest}: 100 % or more"),
    ];
    let named = |fleet: &Fleet| {
        let events = fleet.events();
        said.iter()
            .all(|said| events.iter().any(|(_, line)| line.text.contains(said)))
    };
    until(&mut daemon, "the tenants are named", named).await;
    let log = daemon
        .stop(&[DECLARED, &["waits for longer than max_delay"]].concat())
        .await;
    assert!(!log.contains(PHONE), "{log}");
}

/// Redis and the store of one process keep the same reports.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_used_is_shown_when_it_was_used() {
    let options = RedisOptions::single(RedisServer::shared().url(), "status-bars");
    let redis = RedisStore::connect(&options).unwrap();
    let link = redis.link();
    eventually(LONG, "a connection", || link.borrow().is_up()).await;
    let redis: Arc<dyn StatusStore> = Arc::new(redis);
    for store in [redis, Arc::new(MemoryStore::new(Clock::start()))] {
        let used = BTreeMap::from([("account".to_owned(), 300), ("sender".to_owned(), 30)]);
        let told = |replica, text| {
            let passed = Duration::from_secs(60);
            store.report_status(StatusReport {
                replica,
                text,
                used: &used,
                passed,
            })
        };
        told("a", "{}").await.unwrap();
        told("b", "{\"x\": 1}").await.unwrap();
        let heard = store.read_reports().await.unwrap();
        let mut texts: Vec<_> = heard
            .replicas
            .iter()
            .map(|(_, text)| text.as_str())
            .collect();
        texts.sort_unstable();
        assert_eq!(texts, ["{\"x\": 1}", "{}"]);
        assert!(
            heard
                .replicas
                .iter()
                .all(|(ago, _)| *ago < Duration::from_secs(60))
        );
        for (limit, per_second) in [("account", 10.0), ("sender", 1.0)] {
            let bars = &heard.bars[limit];
            assert_eq!(bars.len(), BARS);
            // The minute began within one bar, and the newest may not have ended.
            let minute: Vec<_> = bars.iter().copied().skip_while(|bar| *bar == 0.0).collect();
            assert!((5..=6).contains(&minute.len()), "{bars:?}");
            assert!(minute[0] <= per_second, "{bars:?}");
            assert!(minute[1..].iter().all(|bar| *bar == per_second), "{bars:?}");
        }
        told("a", "").await.unwrap();
        assert_eq!(store.read_reports().await.unwrap().replicas.len(), 1);
    }
}

/// Replicas that crash again and again, each time under another name, do not fill Redis.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_report_of_a_killed_replica_is_deleted_when_another_one_comes() {
    let options = RedisOptions::single(RedisServer::shared().url(), "status-swept");
    let store = RedisStore::connect(&options).unwrap();
    let link = store.link();
    eventually(LONG, "a connection", || link.borrow().is_up()).await;
    let key = "status-swept:{fleet}:status";
    let mut connection = RedisServer::shared().connection();
    let killed = redis::cmd("HSET")
        .arg(key)
        .arg("killed")
        .arg("1 {}")
        .query(&mut connection);
    () = killed.unwrap();
    for replica in ["a", "b"] {
        let report = StatusReport {
            replica,
            text: "{}",
            used: &BTreeMap::new(),
            passed: Duration::from_secs(1),
        };
        store.report_status(report).await.unwrap();
    }
    let known: BTreeSet<String> = redis::cmd("HKEYS").arg(key).query(&mut connection).unwrap();
    assert_eq!(known, ["a", "b"].map(str::to_owned).into());
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
