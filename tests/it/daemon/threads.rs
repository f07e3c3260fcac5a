//! How many threads it takes: a bound that holds however many connections are opened at once.

use super::{config, filled};
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route};
use crate::support::recorder::Recorder;
use crate::support::wait::eventually;

/// With the one thread for each core, the two of each pacer, those of Redis and of the AMQP client, and
/// one lookup for each host, there is room to spare. A thread for each connection would be 192.
const MOST: usize = 64;

fn threads(status: &str) -> usize {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Threads:"));
    line.map_or(0, |count| count.trim().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_by_name_take_no_thread_each() {
    let downstream = Recorder::accepting().await;
    let names: Vec<_> = (0..6).map(|n| format!("threads-{n}")).collect();
    let mut routes = Vec::new();
    for name in &names {
        drop(filled(name, 5).await);
        let mut route = Route::new(name, downstream.address);
        // Without a limit that paces them they have a pacer each.
        route.limits = vec!["own"];
        route.downstream = "warm_connections = 64\n".to_owned();
        routes.push(route);
    }
    let mut config = config("threads", routes);
    config.tables = "[limits.own]\nkind = \"gcra\"\nrate = \"1000/1s\"\nburst = 100\n".to_owned();
    let text = config.text();
    let by_name = text.replace("http://127.0.0.1:", "http://localhost:");
    let by_name = by_name.replace("redis://127.0.0.1:", "redis://localhost:");
    let daemon = Daemon::start_with(&by_name, |_| {});
    let status = format!("/proc/{}/status", daemon.id());
    let mut most = 0;
    eventually(LONG, "all came", || {
        most = most.max(threads(&std::fs::read_to_string(&status).unwrap()));
        downstream.count() == 30
    })
    .await;
    daemon
        .stop(&[NEW_SCHEDULE, "nothing is kept on disk"])
        .await;
    assert!((1..=MOST).contains(&most), "{most} threads");
}
