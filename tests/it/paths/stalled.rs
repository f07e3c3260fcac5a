//! A route that could send and makes no call: the replica reports it, with the reason, until a call leaves.

use std::time::Duration;

use super::{config, queue, to};
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route, get, program};
use crate::support::proxy::{Mode, Proxy};
use crate::support::recorder::Recorder;
use crate::support::redis::RedisServer;
use crate::support::wait::{eventually, eventually_by_program};

const MESSAGES: u64 = 60;
const STALLED: &str = "stalled: no call for";
const FAR: &str = "permits run out before their calls leave";

/// What is logged about the Redis of the tests.
const UNKEPT: &str = "nothing is kept on disk";

/// The headroom in milliseconds that a text advises.
fn named(text: &str) -> u64 {
    let text = text.replace('\\', "");
    let figure = text.split_once("write headroom = \"").expect(&text).1;
    let (figure, _) = figure.split_once("ms\"").expect(figure);
    figure.parse().expect(figure)
}

/// A replica with Redis 8 ms away in each direction, and permits that are valid for 7.5 ms: each has
/// expired when it arrives.
async fn far(name: &str, downstream: &Recorder, limits: Vec<&'static str>) -> (Proxy, Daemon) {
    let redis = Proxy::to(RedisServer::shared().port()).await;
    redis.set(Mode::Delay(Duration::from_millis(8), Duration::ZERO));
    let mut route = Route::new(name, downstream.address);
    route.limits = limits;
    let mut config = config(name, vec![route]);
    config.redis = Some(format!("redis://{}", redis.address()));
    config.tables = "[limits.recipient]\nkind = \"gcra\"\nrate = \"30/1s\"\nheadroom = \"10ms\"\n\
                     lost_wait = \"0s\"\nkey = \"{{ body.to }}\"\n"
        .to_owned();
    let daemon = Daemon::start(&config);
    (redis, daemon)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_that_never_live_until_their_call_make_a_replica_not_ready() {
    let name = "stalled";
    let broker = queue(name, "quorum").await;
    let downstream = Recorder::accepting().await;
    let (redis, mut daemon) = far(name, &downstream, vec!["recipient"]).await;
    let admin = daemon.admin().await;
    daemon.ready().await;
    broker
        .publish(name, (1..=MESSAGES).map(|n| to(n, &format!("r{}", n % 20))))
        .await;

    let part = format!("progress of route {name}");
    let is_red = || get(admin, "/readyz").1.contains(&part);
    eventually(LONG, "it is not ready", is_red).await;
    let (code, why) = get(admin, "/readyz");
    assert_eq!(code, 503, "{why}");
    for said in ["limits.recipient: ", "headroom of 10 ms", "good for 7.5 ms"] {
        assert!(why.contains(said), "no `{said}` in {why}");
    }
    // (16 ms + 2 ms) * 4 / 3, and more on a busy machine.
    let headroom = named(&why);
    assert!(headroom >= 24, "{why}");
    assert_eq!(downstream.count(), 0, "no call was made");
    let series = format!("sluiced_stalled{{route=\"{name}\"}}");
    assert_eq!(daemon.metric(&series).await, 1.0);
    assert!(daemon.said(STALLED) == 1, "{}", daemon.log());
    eventually(LONG, "it warns of the distance, too", || {
        daemon.said(FAR) > 1
    })
    .await;
    // Replicas report to each other every four seconds.
    let url = format!("http://{admin}");
    let status = || program(&["status", "--url", &url]).output().unwrap().stdout;
    let shows = || {
        String::from_utf8(status())
            .unwrap()
            .contains("  stalled: no call for")
    };
    eventually_by_program(LONG, "the status shows it", shows).await;

    redis.set(Mode::Pass);
    eventually(LONG, "it is ready again", || get(admin, "/readyz").0 == 200).await;
    let all = || downstream.count() as u64 >= MESSAGES;
    eventually(LONG, "all messages", all).await;
    assert_eq!(downstream.count() as u64, MESSAGES, "each once");
    daemon.says("no longer stalled").await;
    assert_eq!(daemon.metric(&series).await, 0.0);
    daemon.stop(&[STALLED, FAR, UNKEPT]).await;
}

/// The figure that a replica names is enough: written while the fleet runs, it makes the route send.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_headroom_that_is_named_makes_the_route_send() {
    let name = "stalled-mended";
    let broker = queue(name, "quorum").await;
    let downstream = Recorder::accepting().await;
    let (_redis, mut daemon) = far(name, &downstream, vec!["provider", "recipient"]).await;
    let admin = daemon.admin().await;
    broker
        .publish(name, (1..=MESSAGES).map(|n| to(n, &format!("r{}", n % 20))))
        .await;
    let part = format!("progress of route {name}");
    let is_red = || get(admin, "/readyz").1.contains(&part);
    eventually(LONG, "it is not ready", is_red).await;
    // Twice as much, because the machine may be busier later.
    let headroom = named(&get(admin, "/readyz").1) * 2;
    let change = format!("headroom={headroom}ms");
    let file = daemon.config().display().to_string();
    let set = program(&["limits", "set", "recipient", &change, "--config", &file]).output();
    let set = set.unwrap();
    assert!(
        set.status.success(),
        "{}",
        String::from_utf8_lossy(&set.stderr)
    );
    let all = || downstream.count() as u64 >= MESSAGES;
    eventually(LONG, "all messages", all).await;
    eventually(LONG, "it is ready", || get(admin, "/readyz").0 == 200).await;
    assert_eq!(downstream.count() as u64, MESSAGES, "each once");
    daemon
        .stop(&[NEW_SCHEDULE, STALLED, FAR, UNKEPT, "file differs"])
        .await;
}
