//! The number of threads has a bound, however many connections are opened at once and whatever the name
//! server does.

use super::{config, filled};
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route};
use crate::support::name_server::NameServer;
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
        // Routes without a paced limit have a pacer each.
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

/// Every lookup hangs for ten seconds (resolv.conf(5): 2 attempts, 5 s each), while each connection is
/// tried again and again. A lookup cannot be cancelled, so one for each attempt would add up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_are_never_answered_pile_up_no_threads() {
    let Some(names) = NameServer::start("127.0.53.1", "timeout:5") else {
        println!("no right to stand in for a name server: not checked");
        return;
    };
    names.set_silent(true);
    let name = "nameless";
    let downstream = Recorder::accepting().await;
    let text = config(name, vec![Route::new(name, downstream.address)]).text();
    let text = ["amqp://guest:guest@", "redis://", "http://"]
        .iter()
        .fold(text, |text, scheme| {
            text.replace(
                &format!("{scheme}127.0.0.1:"),
                &format!("{scheme}never.example:"),
            )
        });
    // Attempts follow each other much faster than lookups end.
    let text = text.replacen(
        "[rabbitmq]\n",
        "[rabbitmq]\nconnect_timeout = \"100ms\"\n",
        1,
    );
    let text = text.replace("connect_timeout = \"5s\"", "connect_timeout = \"100ms\"");
    let launcher = names.launcher();
    let launcher = launcher.each_ref().map(String::as_str);
    let mut daemon = Daemon::start_by(&text, &launcher);
    let status = format!("/proc/{}/status", daemon.id());
    let mut most = 0;
    // Each lookup asks for two kinds of addresses, twice: with more, lookups have ended and begun
    // again.
    eventually(LONG, "lookups that hang, and those after them", || {
        let now = std::fs::read_to_string(&status).unwrap_or_default();
        most = most.max(threads(&now));
        names.questions() >= 16
    })
    .await;
    assert!((1..=24).contains(&most), "{most} threads\n{}", daemon.log());
    assert_eq!(daemon.page("/healthz").await.0, 200, "away is not stuck");
    assert_eq!(daemon.page("/readyz").await.0, 503);
    let away = ["cannot connect to Redis", "no connection to"];
    daemon.stop(&away).await;
    assert_eq!(downstream.count(), 0);
}
