//! The picture of the README, docs/status.png: the status page of a fleet at work. One command makes it again:
//!
//!     ./test the_picture_of_the_readme -- --ignored

use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lapin::BasicProperties;
use serde_json::json;

use super::named::start;
use crate::support::broker::Broker;
use crate::support::browser::Browser;
use crate::support::daemon::{Config, Route, program};
use crate::support::messages::body;
use crate::support::rabbit::Rabbit;
use crate::support::recorder::{Recorder, Reply};
use crate::support::redis::RedisServer;

/// How long the fleet works before it is shown: a bar of a plot covers ten seconds.
const SHOWN: Duration = Duration::from_secs(120);
const WIDTH: u32 = 1_280;

async fn publish(broker: &Broker, queue: &str, numbers: std::ops::Range<u64>) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let timestamp = BasicProperties::default().with_timestamp(now.as_secs());
    let messages = numbers.map(|n| (body(n), timestamp.clone()));
    broker.publish(queue, messages).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it writes docs/status.png"]
async fn the_picture_of_the_readme() {
    let mut browser = Browser::start().await.expect("chromium is installed");
    let redis = RedisServer::start_with("--appendonly yes", None);
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    let calls = AtomicU64::new(0);
    let downstream = Recorder::start(move |call| match call.number {
        2_000 | 5_000 => Reply::status(400),
        _ if calls.fetch_add(1, Relaxed) % 300 == 299 => Reply::status(503),
        _ => Reply::status(202),
    })
    .await;
    let routes = [
        (
            "passwords",
            "priority = 9\nmax_delay = \"30s\"\n",
            vec!["provider"],
        ),
        ("marketing", "", vec!["provider", "campaign"]),
    ];
    let routes = routes.map(|(name, keys, limits)| {
        let mut route = Route::new(name, downstream.address);
        (route.keys, route.limits) = (keys.to_owned(), limits);
        route
    });
    let mut config = Config::shared("picture", "100/1s", routes.to_vec());
    config.redis = Some(redis.url());
    config.tables =
        "[limits.campaign]\nkind = \"gcra\"\nrate = \"70/1s\"\nburst = 20\nlost_wait = \"0s\"\n"
            .to_owned();
    for queue in ["passwords", "marketing"] {
        broker.declare(queue, "quorum").await;
    }
    publish(&broker, "marketing", 1_000..21_000).await;
    let names = ["web-1:sluiced", "web-2:sluiced", "web-3:sluiced"];
    let mut replicas = names.map(|name| start(&config, name));
    for replica in &mut replicas {
        replica.ready().await;
    }
    let end = tokio::time::Instant::now() + SHOWN;
    for n in 0.. {
        publish(&broker, "passwords", 100_000 + 10 * n..100_010 + 10 * n).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        if tokio::time::Instant::now() > end {
            break;
        }
    }
    let mut pause = program(&["limits", "pause", "campaign", "--for", "10m", "--config"]);
    let paused = pause
        .arg(replicas[0].config())
        .env("SUDO_USER", "anna")
        .output();
    assert!(paused.unwrap().status.success());
    browser.look("light", WIDTH, 800).await;
    browser
        .open(&format!("http://{}/", replicas[0].admin().await))
        .await;
    // Until the rates of the last seconds are shown without it.
    for n in 0..14 {
        publish(&broker, "passwords", 200_000 + 10 * n..200_010 + 10 * n).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let height = browser.value("document.documentElement.scrollHeight").await;
    browser
        .look("light", WIDTH, height.as_u64().unwrap().try_into().unwrap())
        .await;
    let taken = browser
        .call("Page.captureScreenshot", json!({ "format": "png" }))
        .await;
    let picture = STANDARD.decode(taken["data"].as_str().unwrap()).unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/status.png");
    std::fs::write(file, picture).unwrap();
}
