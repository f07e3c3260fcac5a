//! Two fleets on one Redis with the same names: the second one is refused and the first one goes on, unless both share
//! a limit on purpose.

use std::time::Duration;

use lapin::BasicProperties;
use sluiced_provider::{Behaviour, Expect, Provider};

use super::numbered;
use crate::fleet::control::said;
use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route, file, program};
use crate::support::rabbit::Rabbit;
use crate::support::recorder::{Recorder, Reply};
use crate::support::redis::RedisServer;
use crate::support::wait::eventually;

/// What `run` and `check` say of both fleets: all but the replica and the time.
const REFUSED: &str = "belong to the fleet `";

/// The Redis of the tests keeps nothing, and where limits count by key that is warned of.
const FORGETS: &str = "nothing is kept on disk";

/// A configuration for a virtual host of its own, with the same limit and the same route for everyone.
async fn in_vhost(vhost: &str, prefix: &str, rate: &str, provider: std::net::SocketAddr) -> Config {
    let url = Rabbit::shared().add_vhost_for(vhost, "secret");
    Broker::connect(&url).await.declare("sms", "classic").await;
    Config {
        rabbit: Some(url),
        ..Config::shared(prefix, rate, vec![Route::new("sms", provider)])
    }
}

async fn publish(config: &Config, queue: &str, count: u64) {
    let broker = Broker::connect(config.rabbit.as_ref().unwrap()).await;
    broker.publish(queue, numbered(1, count)).await;
}

fn ids(prefix: &'static str, count: u64) -> impl Iterator<Item = (Vec<u8>, BasicProperties)> {
    (1..=count).map(move |n| {
        let body = format!("{{\"id\":\"{prefix}-{n}\"}}");
        (body.into_bytes(), BasicProperties::default())
    })
}

/// `check --connect` of a configuration: its exit code, and the line about the fleet.
fn check(config: &Config) -> (Option<i32>, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), "c.toml", &config.text());
    let output = program(&["check", "--connect", "--config"])
        .arg(path)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.starts_with("fleet: "));
    (output.status.code(), line.unwrap_or(&text).to_owned())
}

/// The sentence about these two virtual hosts.
fn names_both(said: &str, first: &str, second: &str) {
    for part in [
        format!("limits.provider and routes.sms {REFUSED}"),
        format!(":{first}` in this Redis under the prefix"),
        format!(":{second}`: write another prefix"),
        ", fleet = ".to_owned(),
        "shared = true in the table of limits.provider".to_owned(),
    ] {
        assert!(said.contains(&part), "no `{part}` in {said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_fleet_is_refused_and_the_first_goes_on() {
    let provider = |rate: &str| {
        let behaviour = Behaviour::judging(rate.parse().unwrap());
        Provider::start("127.0.0.1:0".parse().unwrap(), behaviour).unwrap()
    };
    let (fast, slow) = (provider("200/1s"), provider("10/1s"));
    let first = in_vhost("owner-a", "owner", "200/1s", fast.address()).await;
    let broker = Broker::connect(first.rabbit.as_ref().unwrap()).await;
    broker.publish("sms", ids("a", 100)).await;
    let daemon = Daemon::start(&first);
    eventually(LONG, "the first fleet works", || fast.live().unique >= 100).await;

    let second = in_vhost("owner-b", "owner", "10/1s", slow.address()).await;
    let other = Broker::connect(second.rabbit.as_ref().unwrap()).await;
    other.publish("sms", ids("c", 50)).await;
    let (code, line) = check(&second);
    assert_eq!(code, Some(1), "{line}");
    names_both(&line, "owner-a", "owner-b");
    let mut refused = Daemon::start(&second);
    let status = refused.ended().await;
    assert_eq!(status.code(), Some(78), "{}", refused.log());
    names_both(&refused.log().replace("\\\"", "\""), "owner-a", "owner-b");
    refused.complaints(&[REFUSED]);
    assert_eq!(slow.live().unique, 0, "not one call of the second fleet");

    // The first one did not notice.
    let (code, line) = check(&first);
    assert_eq!(code, Some(0), "{line}");
    assert!(
        line.contains(":owner-a`: its limits and routes are free or its own"),
        "{line}"
    );
    assert!(said(&daemon, &["show", "provider"]).contains("rate=200/1s"));
    broker.publish("sms", ids("b", 100)).await;
    eventually(LONG, "it goes on", || fast.live().unique >= 200).await;
    daemon.stop(&[NEW_SCHEDULE]).await;
    let report = fast.report(&Expect::Count(200));
    assert_eq!((report.over, report.repeated), (0, 0), "{report:?}");

    // It stopped in order, so the names are free at once.
    let next = Daemon::start(&second);
    eventually(LONG, "the second fleet works", || slow.live().unique >= 20).await;
    next.stop(&[NEW_SCHEDULE, "file differs"]).await;
    assert_eq!(slow.report(&Expect::Count(20)).over, 0);
}

/// A rollout that adds a queue and a limit is no foreigner, and neither is a fleet that takes the name of another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rollout_and_a_fleet_of_that_name_are_no_foreigners() {
    let downstream = Recorder::accepting().await;
    let first = in_vhost("owner-c", "owner-rollout", "50/1s", downstream.address).await;
    let old = Daemon::start(&first);
    old.says("those of this fleet").await;
    let mut second = Route::new("mail", downstream.address);
    second.limits = vec!["provider", "more"];
    second.keys = "declare = true\n".to_owned();
    let next = Config {
        routes: vec![first.routes[0].clone(), second],
        tables: "[limits.more]\nkind = \"gcra\"\nrate = \"100/1s\"\n".to_owned(),
        ..first.clone()
    };
    let new = Daemon::start(&next);
    new.says("those of this fleet").await;
    publish(&first, "sms", 10).await;
    eventually(LONG, "it works", || downstream.count() >= 10).await;

    // The same under another name of the cluster, as an operator writes it.
    let log = new.log();
    let line = log
        .lines()
        .find(|line| line.contains("those of this fleet"));
    let line: serde_json::Value = serde_json::from_str(line.unwrap()).unwrap();
    let fleet = line["fleet"].as_str().unwrap();
    assert!(fleet.ends_with(":owner-c"), "{fleet}");
    let mut moved = in_vhost("owner-d", "owner-rollout", "50/1s", downstream.address).await;
    assert_eq!(check(&moved).0, Some(1));
    let text = |config: &Config| {
        config
            .text()
            .replace("[redis]\n", &format!("[redis]\nfleet = {fleet:?}\n"))
    };
    let joined = Daemon::start_with(&text(&moved), |_| {});
    joined.says("those of this fleet").await;
    publish(&moved, "sms", 10).await;
    eventually(LONG, "it works, too", || downstream.count() >= 20).await;
    moved.prefix = "owner-elsewhere".to_owned();
    assert_eq!(check(&moved).0, Some(0));
    for daemon in [old, new, joined] {
        daemon.stop(&[NEW_SCHEDULE, FORGETS]).await;
    }
}

/// Another kind of limit, and a limit that only one of the files shares, are refused as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_kind_or_half_a_share_is_refused() {
    let downstream = Recorder::accepting().await;
    let first = in_vhost("owner-e", "owner-kinds", "50/1s", downstream.address).await;
    let daemon = Daemon::start(&first);
    daemon.says("those of this fleet").await;
    let second = in_vhost("owner-f", "owner-kinds", "50/1s", downstream.address).await;
    publish(&second, "sms", 10).await;
    let gcra = |text: String| {
        let text = text.replace("kind = \"paced\"", "kind = \"gcra\"");
        text.replace("horizon = \"200ms\"\n", "")
    };
    let shared =
        |text: String| text.replace("[limits.provider]\n", "[limits.provider]\nshared = true\n");
    for text in [gcra(second.text()), shared(second.text())] {
        let mut refused = Daemon::start_with(&text, |_| {});
        let status = refused.ended().await;
        assert_eq!(status.code(), Some(78), "{}", refused.log());
        names_both(&refused.log().replace("\\\"", "\""), "owner-e", "owner-f");
    }
    assert_eq!(downstream.count(), 0);
    daemon.stop(&[]).await;
}

/// A limit that both files share holds for both fleets together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shared_limit_holds_over_both_fleets() {
    let behaviour = Behaviour::judging("100/1s".parse().unwrap());
    let provider = Provider::start("127.0.0.1:0".parse().unwrap(), behaviour).unwrap();
    let mut daemons = Vec::new();
    for (vhost, route) in [("owner-g", "sms"), ("owner-h", "other")] {
        let mut config = in_vhost(vhost, "owner-shared", "100/1s", provider.address()).await;
        config.routes[0].name = route.to_owned();
        config.routes[0].caller = vhost.to_owned();
        let broker = Broker::connect(config.rabbit.as_ref().unwrap()).await;
        broker.publish("sms", ids(vhost, 150)).await;
        let text = config.text();
        let text = text.replace("[limits.provider]\n", "[limits.provider]\nshared = true\n");
        daemons.push(Daemon::start_with(&text, |_| {}));
    }
    eventually(LONG, "all came", || provider.live().unique >= 300).await;
    for daemon in daemons {
        daemon.stop(&[NEW_SCHEDULE]).await;
    }
    let report = provider.report(&Expect::Count(300));
    assert_eq!(
        (report.over, report.lost, report.repeated),
        (0, Some(0), 0),
        "{report:?}"
    );
    for vhost in ["owner-g", "owner-h"] {
        assert_eq!(report.callers.get(vhost), Some(&150));
    }
}

/// The breaker is one of a route: an outage of one fleet does not stop the route of the same name of another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_route_of_the_same_name_is_refused_though_its_limits_differ() {
    let away = Recorder::start(|_| Reply::status(500)).await;
    let fine = Recorder::accepting().await;
    let first = in_vhost("owner-i", "owner-breaker", "100/1s", away.address).await;
    publish(&first, "sms", 50).await;
    let daemon = Daemon::start(&first);
    daemon.says("the downstream is away").await;
    let second = in_vhost("owner-j", "owner-breaker", "100/1s", fine.address).await;
    publish(&second, "sms", 10).await;
    let text = second.text().replace("limits.provider", "limits.own");
    let text = text.replace("\"provider\"", "\"own\"");
    let mut refused = Daemon::start_with(&text, |_| {});
    let status = refused.ended().await;
    assert_eq!(status.code(), Some(78), "{}", refused.log());
    let log = refused.log();
    assert!(
        log.contains("routes.sms belongs to the fleet") && !log.contains("shared"),
        "{log}"
    );
    // Under a name of its own it works while the other one is away.
    let own = Daemon::start_with(&text.replace("routes.sms", "routes.own"), |_| {});
    eventually(LONG, "it works", || fine.count() >= 10).await;
    own.stop(&[NEW_SCHEDULE]).await;
    daemon.stop(&[NEW_SCHEDULE, "the downstream is away"]).await;
}

/// Redis loses its state: the fleet that runs has its names again, and still refuses another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_loss_the_fleet_that_runs_has_its_names_again() {
    let downstream = Recorder::accepting().await;
    let redis = RedisServer::start();
    let mut first = in_vhost("owner-k", "owner-loss", "50/1s", downstream.address).await;
    first.redis = Some(redis.url());
    let daemon = Daemon::start(&first);
    daemon.says("those of this fleet").await;
    let mut second = in_vhost("owner-l", "owner-loss", "50/1s", downstream.address).await;
    second.redis = Some(redis.url());
    assert_eq!(check(&second).0, Some(1));
    // It keeps nothing on disk.
    redis.kill();
    redis.boot();
    eventually(
        Duration::from_secs(30),
        "the names are registered again",
        || check(&second).0 == Some(1),
    )
    .await;
    let mut refused = Daemon::start(&second);
    assert_eq!(refused.ended().await.code(), Some(78), "{}", refused.log());
    publish(&first, "sms", 10).await;
    eventually(LONG, "it works", || downstream.count() >= 10).await;
    daemon.stop(&[NEW_SCHEDULE, "Redis", "out of reach"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_whose_states_have_another_form_is_not_joined() {
    let provider = Provider::start(
        "127.0.0.1:0".parse().unwrap(),
        Behaviour::judging("200/1s".parse().unwrap()),
    )
    .unwrap();
    let config = in_vhost("owner-form", "owner-form", "200/1s", provider.address()).await;
    let broker = Broker::connect(config.rabbit.as_ref().unwrap()).await;
    broker.publish("sms", ids("a", 10)).await;
    let daemon = Daemon::start(&config);
    eventually(LONG, "it works", || provider.live().unique >= 10).await;

    // What a replica of the next format would have written, if this one had not been there.
    let key = "owner-form:{fleet}:owners";
    let redis = RedisServer::shared();
    let registrations: Vec<(String, String)> = redis.ask(redis::cmd("HGETALL").arg(key)).unwrap();
    daemon.stop(&[NEW_SCHEDULE]).await;
    let [(_, registration)] = &*registrations else {
        panic!("one replica, not {registrations:?}");
    };
    assert!(registration.contains("\n=1\n"), "{registration:?}");
    let next = registration.replace("\n=1\n", "\n=2\n");
    let written: redis::RedisResult<()> =
        redis.ask(redis::cmd("HSET").arg(key).arg("next:7").arg(next));
    written.unwrap();

    const WORDS: &str = "keeps its state in Redis in format 1, and the replica next:7 in format 2 under the same prefix `owner-form`";
    let (code, line) = check(&config);
    assert_eq!(code, Some(1), "{line}");
    assert!(line.contains(WORDS), "{line}");
    broker.publish("sms", ids("b", 10)).await;
    let mut refused = Daemon::start(&config);
    let status = refused.ended().await;
    assert_eq!(status.code(), Some(78), "{}", refused.log());
    assert!(refused.log().contains(WORDS), "{}", refused.log());
    refused.complaints(&["keeps its state in Redis in format"]);
    assert_eq!(provider.live().unique, 10, "not one call beside it");

    // Once the other one has left, the messages are called.
    let left: redis::RedisResult<()> = redis.ask(redis::cmd("HDEL").arg(key).arg("next:7"));
    left.unwrap();
    let daemon = Daemon::start(&config);
    eventually(LONG, "it goes on", || provider.live().unique >= 20).await;
    daemon.stop(&[NEW_SCHEDULE]).await;
}
