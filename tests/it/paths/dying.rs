//! Messages that die in a row: a route that no message passes keeps its backlog and logs why; those that can be sent
//! pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use lapin::BasicProperties;
use serde_json::Value;

use super::{config, header, holds, numbered, queue};
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route, get, program};
use crate::support::recorder::{Recorder, Reply};
use crate::support::wait::{eventually, eventually_async, eventually_by_program};

const MESSAGES: u64 = 300;
/// After this many dead letters in a row the breaker opens, or messages are set aside.
const BREAKER: &str = "breaker = { dead_letters = 20 }\n";
/// Probes, and calls that are in flight when the breaker opens.
const FEW: u32 = 60;
const STOPPED: &str = "died in a row";
/// The Redis of the tests, to a replica with keyed limits.
const NOT_ON_DISK: &str = "nothing is kept on disk";
/// Those that were set aside are back by then.
const ROUND: Duration = Duration::from_secs(150);
/// Far longer than the backlog would take.
const WHILE: Duration = Duration::from_secs(5);

async fn a_template_that_fits_no_message(name: &str, reason: &str, change: impl Fn(&mut Route)) {
    let broker = queue(name, "quorum").await;
    broker.publish(name, numbered(1, MESSAGES)).await;
    let downstream = Recorder::accepting().await;
    let mut route = Route::new(name, downstream.address);
    route.downstream = BREAKER.to_owned();
    let good = route.clone();
    change(&mut route);
    let mut config = config(name, vec![route]);
    config.rate = "1000/1s".to_owned();
    if reason == "invalid" {
        config.tables = "[limits.recipient]\nkind = \"gcra\"\nrate = \"1000/1s\"\nkey = \"{{ body.absent }}\"\n".to_owned();
    }
    let mut daemon = Daemon::start(&config);
    daemon.says(STOPPED).await;
    let admin = daemon.admin().await;
    let says_so = || {
        let (status, page) = get(admin, "/readyz");
        status == 503 && page.contains("20 messages died in a row") && page.contains(reason)
    };
    eventually(LONG, "it is not ready, with the reason", says_so).await;
    the_route_says_so(&daemon, admin, name, "dying").await;
    let dead = format!("{name}.dead");
    eventually_async(LONG, "those before the stop are dead", || async {
        broker
            .counts(&dead)
            .await
            .is_some_and(|(ready, _)| ready >= 20)
    })
    .await;
    let aside = format!("{name}.wait.64s");
    holds(&broker, &aside, MESSAGES as u32 - 20).await;
    holds(&broker, &dead, 20).await;
    assert_eq!(
        daemon
            .metric(&format!("sluiced_setting_aside{{route=\"{name}\"}}"))
            .await,
        1.0
    );
    daemon
        .stop(&[NEW_SCHEDULE, "dead letter", STOPPED, NOT_ON_DISK])
        .await;
    // The template is right again: all messages that were not tried are there.
    config.routes = vec![good];
    config.tables = String::new();
    let daemon = Daemon::start(&config);
    let rest = MESSAGES as usize - 20;
    eventually(ROUND, "the rest is delivered", || {
        downstream.count() >= rest
    })
    .await;
    assert_eq!(downstream.count(), rest, "each once");
    daemon.stop(&[NEW_SCHEDULE]).await;
    assert_eq!(broker.counts(name).await, Some((0, 0)));
}

/// Also while its tap is open: on the page, in `status`, and for a message that is tried.
async fn the_route_says_so(daemon: &Daemon, admin: std::net::SocketAddr, name: &str, field: &str) {
    let says_so = || {
        let page = serde_json::from_str::<Value>(&get(admin, "/status.json").1).unwrap();
        let why = &page["replicas"][0]["routes"][name][field];
        why.as_str().is_some_and(|why| why.contains(STOPPED))
    };
    eventually(LONG, "the page says it of the route", says_so).await;
    let url = format!("http://{admin}");
    let status = program(&["status", "--url", &url]).output().unwrap();
    let status = String::from_utf8(status.stdout).unwrap();
    let route = status.split("REPLICA").next().unwrap_or_default();
    assert!(route.contains(STOPPED), "{status}");
    let config = daemon.config().display().to_string();
    let message = "{\"n\":7,\"absent\":7}";
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), message).unwrap();
    let says_so = || {
        let mut tried = program(&["try", "--config", &config]);
        let tried = tried.stdin(file.reopen().unwrap()).output().unwrap();
        let said = String::from_utf8(tried.stdout).unwrap();
        let when = said.lines().find(|line| line.starts_with("it would go"));
        when.is_some_and(|when| when.contains(STOPPED))
    };
    eventually_by_program(LONG, "`try` says it", says_so).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_body_makes_no_dead_letters_of_a_backlog() {
    a_template_that_fits_no_message("dying-undecodable", "undecodable", |route| {
        route.caller = "{{ body.absent }}".to_owned();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_key_makes_no_dead_letters_of_a_backlog() {
    a_template_that_fits_no_message("dying-invalid", "invalid", |route| {
        route.limits = vec!["recipient", "provider"];
    })
    .await;
}

/// One publisher's wrong messages hold up no other message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_messages_of_one_publisher_let_good_ones_pass() {
    let name = "dying-mixed";
    let broker = queue(name, "quorum").await;
    let text = |n: u64, to: &str| {
        let body = format!("{{\"n\":{n},\"{to}\":7}}").into_bytes();
        (body, BasicProperties::default())
    };
    broker
        .publish(name, (1..=150).map(|n| text(n, "wrong")))
        .await;
    broker
        .publish(name, (151..=200).map(|n| text(n, "to")))
        .await;
    let downstream = Recorder::accepting().await;
    let mut route = Route::new(name, downstream.address);
    route.downstream = BREAKER.to_owned();
    route.caller = "{{ body.to }}".to_owned();
    let config = config(name, vec![route]);
    let daemon = Daemon::start(&config);
    eventually(LONG, "good ones pass", || downstream.count() == 50).await;
    daemon.says(STOPPED).await;
    daemon.says("a message can be sent again").await;
    let (dead, aside) = (format!("{name}.dead"), format!("{name}.wait.64s"));
    holds(&broker, &dead, 20).await;
    holds(&broker, &aside, 130).await;
    let (_, properties) = broker.drain(&aside).await.remove(0);
    let why = header(&properties, "x-sluiced-set-aside").expect("the reason");
    assert!(why.starts_with("undecodable: "), "{why}");
    assert_eq!(
        header(&properties, "x-sluiced-attempts").as_deref(),
        Some("0")
    );
    daemon
        .stop(&[NEW_SCHEDULE, "dead letter", STOPPED, NOT_ON_DISK])
        .await;
    assert_eq!(broker.counts(name).await, Some((0, 0)));
}

/// Also messages that are in memory already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_that_is_lowered_below_a_cost_makes_no_dead_letters_of_a_backlog() {
    let name = "dying-lowered";
    let broker = queue(name, "quorum").await;
    broker.publish(name, numbered(1, MESSAGES)).await;
    let downstream = Recorder::accepting().await;
    let mut route = Route::new(name, downstream.address);
    route.downstream = BREAKER.to_owned();
    route.limits = vec!["size", "provider"];
    route.keys = "prefetch = 200\n".to_owned();
    let mut config = config(name, vec![route]);
    config.rate = "5/1s".to_owned();
    config.tables =
        "[limits.size]\nkind = \"gcra\"\nrate = \"1000/1s\"\nburst = 1000\ncost = \"{{ body.n * 0 + 5 }}\"\n"
            .to_owned();
    let daemon = Daemon::start(&config);
    let some = || downstream.count() > 1;
    eventually(LONG, "some pass", some).await;
    set(&daemon, "size", "burst=2");
    daemon.says(STOPPED).await;
    tokio::time::sleep(WHILE).await;
    let dead = format!("{name}.dead");
    let died = broker.counts(&dead).await.expect("the dead letters").0;
    assert_eq!(died, 20, "are dead");
    set(&daemon, "size", "burst=1000");
    set(&daemon, "provider", "rate=1000/1s");
    eventually_async(ROUND, "each message has its verdict", || async {
        let died = broker.counts(&dead).await.expect("the dead letters").0;
        downstream.count() as u64 + u64::from(died) == MESSAGES
            && broker.counts(name).await.map(|(ready, _)| ready) == Some(0)
    })
    .await;
    let differs = "file differs";
    daemon
        .stop(&[NEW_SCHEDULE, "dead letter", STOPPED, NOT_ON_DISK, differs])
        .await;
    holds(&broker, name, 0).await;
}

/// A message that the file would never grant is not dead while the current policy grants it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_that_is_raised_above_a_cost_lets_it_pass() {
    let name = "dying-raised";
    let broker = queue(name, "quorum").await;
    let downstream = Recorder::accepting().await;
    let mut route = Route::new(name, downstream.address);
    route.limits = vec!["size"];
    let mut config = config(name, vec![route]);
    config.tables =
        "[limits.size]\nkind = \"gcra\"\nrate = \"1000/1s\"\nburst = 2\ncost = \"{{ body.n * 0 + 5 }}\"\n"
            .to_owned();
    let daemon = Daemon::start(&config);
    daemon.says("tap open").await;
    set(&daemon, "size", "burst=1000");
    // Also where the replica learns of no policy before this one.
    daemon.says("burst=1000").await;
    broker.publish(name, numbered(1, FEW.into())).await;
    let all = || downstream.count() == FEW as usize;
    eventually(LONG, "all pass", all).await;
    daemon.stop(&[NOT_ON_DISK, "file differs"]).await;
}

fn set(daemon: &Daemon, limit: &str, change: &str) {
    let file = daemon.config().display().to_string();
    let set = program(&["limits", "set", limit, change, "--yes", "--config", &file]).output();
    let set = set.unwrap();
    let said = String::from_utf8_lossy(&set.stderr);
    assert!(set.status.success(), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_downstream_that_rejects_all_gets_no_backlog() {
    let name = "dying-rejected";
    let broker = queue(name, "quorum").await;
    let answer = Arc::new(AtomicU16::new(400));
    let says = Arc::clone(&answer);
    let downstream = Recorder::start(move |_| Reply::status(says.load(Ordering::SeqCst))).await;
    let mut route = Route::new(name, downstream.address);
    route.downstream = BREAKER.to_owned();
    broker.publish(name, numbered(1, MESSAGES)).await;
    let mut daemon = Daemon::start(&config(name, vec![route]));
    daemon.says(STOPPED).await;
    let admin = daemon.admin().await;
    let says_so = || get(admin, "/readyz").1.contains("messages died in a row");
    eventually(LONG, "it is not ready, with the reason", says_so).await;
    the_route_says_so(&daemon, admin, name, "away_why").await;
    tokio::time::sleep(WHILE).await;
    let dead = format!("{name}.dead");
    let died = broker.counts(&dead).await.expect("the dead letters").0;
    assert!((20..=FEW).contains(&died), "{died} are dead");
    answer.store(202, Ordering::SeqCst);
    eventually_async(LONG, "each message has its verdict", || async {
        downstream.count() == MESSAGES as usize
            && broker.counts(name).await.map(|(ready, _)| ready) == Some(0)
    })
    .await;
    let died = broker.counts(&dead).await.expect("the dead letters").0;
    assert!(died <= FEW, "{died} are dead");
    daemon
        .stop(&[NEW_SCHEDULE, "dead letter", STOPPED, NOT_ON_DISK])
        .await;
    holds(&broker, name, 0).await;
}
