//! A limit that grants nothing is named everywhere, with the time that is left.

use serde_json::Value;

use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route, get, program};
use crate::support::messages::body;
use crate::support::rabbit::Rabbit;
use crate::support::recorder::Recorder;
use crate::support::redis::RedisServer;
use crate::support::wait::eventually;

const DECLARED: &[&str] = &[
    NEW_SCHEDULE,
    "nothing is kept on disk",
    "the store lost its state",
];

pub(super) fn said(arguments: &[&str]) -> String {
    let output = program(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8(text).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_whose_state_was_lost_is_named_with_the_seconds_that_are_left() {
    let name = "named-loss";
    let redis = RedisServer::start();
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    broker.declare(name, "quorum").await;
    let downstream = Recorder::accepting().await;
    let mut route = Route::new(name, downstream.address);
    route.limits = vec!["provider", "repeats"];
    let mut config = Config::shared(name, "100/1s", vec![route]);
    config.redis = Some(redis.url());
    config.tables = "[limits.repeats]\nkind = \"once\"\nkey = \"{{ body.n }}\"\nttl = \"1h\"\nlease = \"10m\"\nlost_wait = \"30m\"\n".to_owned();
    let mut daemon = Daemon::start(&config);
    let message = |n| [(body(n), lapin::BasicProperties::default())];
    broker.publish(name, message(1)).await;
    eventually(LONG, "it is called", || downstream.count() == 1).await;

    redis::cmd("FLUSHALL")
        .query::<()>(&mut redis.connection())
        .unwrap();
    broker.publish(name, message(2)).await;
    let admin = daemon.admin().await;
    let waiting = || {
        let page: Value = serde_json::from_str(&get(admin, "/readyz").1).unwrap();
        let all = page["waiting"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|wait| wait["limit"] == "repeats")
    };
    eventually(LONG, "readyz names the limit", || waiting().is_some()).await;
    let wait = waiting().unwrap();
    assert!(wait["reason"].as_str().unwrap().contains("lost its state"));
    let seconds = wait["seconds"].as_f64().unwrap();
    assert!((60.0..=600.0).contains(&seconds), "{wait}");

    let url = format!("http://{admin}");
    let parts = ["closed for another ", "the store lost its state"];
    eventually(LONG, "the status names it", || {
        let text = said(&["status", "--url", &url]);
        parts.iter().all(|part| text.contains(part))
            && text.contains("its limit repeats is closed for another ")
    })
    .await;
    let file = daemon.config().display().to_string();
    let shown = said(&["limits", "show", "repeats", "--config", &file]);
    assert!(parts.iter().all(|part| shown.contains(part)), "{shown}");
    let listed = said(&["limits", "list", "--config", &file]);
    assert!(listed.contains("closed"), "{listed}");
    let found = said(&["find", "m", "--key", "repeats=9", "--config", &file]);
    assert!(found.contains("nothing passes for "), "{found}");
    assert!(!found.contains("retry after   now"), "{found}");

    said(&["limits", "open", "repeats", "--config", &file]);
    eventually(LONG, "it is open", || {
        downstream.count() == 2 && waiting().is_none()
    })
    .await;
    let shown = said(&["limits", "show", "repeats", "--config", &file]);
    assert!(
        shown.contains("open") && !shown.contains("closed"),
        "{shown}"
    );
    daemon.stop(DECLARED).await;
}
