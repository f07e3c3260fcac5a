//! A downstream that is away: no message dies, no attempt is spent, few calls are made, and afterwards
//! everything continues by itself.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpListener;

use super::{config, numbered, queue, to};
use crate::support::broker::Broker;
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route, get};
use crate::support::recorder::{Recorder, Reply};
use crate::support::wait::eventually;

const MESSAGES: u64 = 300;
/// Failures that open the breaker, of each of two replicas; calls that are in flight then; and the
/// probes of some seconds.
const FEW: usize = 40;
const AWAY: &str = "the downstream is away";
const BACK: &str = "the downstream is back";

fn replicas(name: &str, route: &Route) -> [Daemon; 2] {
    [(); 2].map(|()| {
        let mut route = route.clone();
        route.keys = "prefetch = 40\n".to_owned();
        Daemon::start(&config(name, vec![route]))
    })
}

async fn nothing_died(broker: &Broker, name: &str, daemons: [Daemon; 2]) {
    for daemon in daemons {
        let log = daemon
            .stop(&[NEW_SCHEDULE, AWAY, "no connection to the downstream yet"])
            .await;
        assert!(log.contains(AWAY) && log.contains(BACK), "both know: {log}");
    }
    assert_eq!(broker.counts(name).await, Some((0, 0)));
    let dead = broker.counts(&format!("{name}.dead")).await;
    assert_eq!(dead, Some((0, 0)));
}

async fn answers(name: &str, status: u16) {
    let broker = queue(name, "quorum").await;
    broker.publish(name, numbered(1, MESSAGES)).await;
    let answer = Arc::new(AtomicU16::new(202));
    let accepted = Arc::new(Mutex::new(BTreeSet::new()));
    let (says, took) = (Arc::clone(&answer), Arc::clone(&accepted));
    let downstream = Recorder::start(move |call| {
        let status = says.load(Ordering::SeqCst);
        if status == 202 {
            assert!(took.lock().unwrap().insert(call.number), "taken twice");
        }
        Reply::status(status)
    })
    .await;
    let mut route = Route::new(name, downstream.address);
    route.caller = "{{ attempt }}".to_owned();
    let mut daemons = replicas(name, &route);
    eventually(LONG, "the flow", || downstream.count() >= 60).await;
    answer.store(status, Ordering::SeqCst);
    for daemon in &mut daemons {
        daemon.says(AWAY).await;
        let admin = daemon.admin().await;
        let says_so = || get(admin, "/readyz").1.contains("downstream of route");
        eventually(LONG, "it is not ready", says_so).await;
    }
    let since = downstream.count();
    // Far longer than all retries of a message would last.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let during = downstream.count() - since;
    assert!(during <= FEW, "{during} calls while it was away");
    answer.store(202, Ordering::SeqCst);
    let all = || accepted.lock().unwrap().len() as u64 == MESSAGES;
    eventually(LONG, "it goes on", all).await;
    for daemon in &daemons {
        daemon.says(BACK).await;
    }
    let calls = downstream.calls();
    // Messages that spent an attempt may come several times after it.
    let spent = calls.iter().filter(|call| call.caller != "1");
    let spent: BTreeSet<u64> = spent.map(|call| call.number).collect();
    // Calls that failed before it was known: at most as many as open the breaker of each replica.
    assert!(spent.len() <= 10, "{} attempts were spent", spent.len());
    nothing_died(&broker, name, daemons).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_its_own_kill_no_message() {
    answers("away-500", 500).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_token_kills_no_message() {
    answers("away-401", 401).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_connections_kill_no_message() {
    let name = "away-refused";
    let broker = queue(name, "quorum").await;
    broker.publish(name, numbered(1, MESSAGES)).await;
    // A port that is taken, and that no one listens on for a while.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let daemons = replicas(name, &Route::new(name, address));
    for daemon in &daemons {
        daemon.says(AWAY).await;
    }
    let downstream = Recorder::at(address, |_| Reply::status(202)).await;
    let all = || downstream.count() >= MESSAGES as usize;
    eventually(LONG, "it goes on", all).await;
    assert_eq!(downstream.count(), MESSAGES as usize, "each once");
    nothing_died(&broker, name, daemons).await;
}

/// If the answers of an outage change, the last one is reported, in the log of one replica and on its page.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reason_is_the_last_answer() {
    let name = "away-reason";
    let broker = queue(name, "quorum").await;
    broker.publish(name, numbered(1, 50)).await;
    let answer = Arc::new(AtomicU16::new(500));
    let says = Arc::clone(&answer);
    let downstream = Recorder::start(move |_| Reply::status(says.load(Ordering::SeqCst))).await;
    let mut daemon = Daemon::start(&config(name, vec![Route::new(name, downstream.address)]));
    daemon.says(AWAY).await;
    let admin = daemon.admin().await;
    for status in [500, 401, 503, 500] {
        answer.store(status, Ordering::SeqCst);
        let says_so = || {
            let (code, page) = get(admin, "/readyz");
            code == 503 && page.contains(&status.to_string())
        };
        eventually(LONG, &format!("it says {status}"), says_so).await;
    }
    answer.store(202, Ordering::SeqCst);
    daemon.says(BACK).await;
    daemon
        .stop(&[NEW_SCHEDULE, AWAY, "no connection to the downstream yet"])
        .await;
}

/// A recipient may get three messages a day. The second refused call opens the breaker, and only the first one counts.
/// However often the only message is the probe then, it is accepted once the credentials are right.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_credentials_use_up_nothing_of_a_recipient() {
    let name = "away-recipient";
    let broker = queue(name, "quorum").await;
    let answer = Arc::new(AtomicU16::new(401));
    let says = Arc::clone(&answer);
    let downstream = Recorder::start(move |_| Reply::status(says.load(Ordering::SeqCst))).await;
    let mut route = Route::new(name, downstream.address);
    route.limits = vec!["provider", "recipient"];
    // Else the fifth call is its last, if all before it were its own.
    route.keys = "max_attempts = 20\n".to_owned();
    route.downstream = "breaker = { failures = 2, pause = \"100ms\" }\n".to_owned();
    let mut config = config(name, vec![route]);
    config.tables =
        "[limits.recipient]\nkind = \"sliding_log\"\nrate = \"3/1d\"\nkey = \"{{ body.to }}\"\n"
            .to_owned();
    let mut daemon = Daemon::start(&config);
    broker.publish(name, [to(1, "+491700000001")]).await;
    daemon.says(AWAY).await;
    let refused = || downstream.count() >= 6;
    eventually(LONG, "more calls than its recipient may get", refused).await;
    answer.store(202, Ordering::SeqCst);
    daemon.says(BACK).await;
    let admin = daemon.admin().await;
    let accepted = |count: u32| {
        let line = format!("sluiced_settled_total{{route=\"{name}\",verdict=\"done\"}} {count}\n");
        move || get(admin, "/metrics").1.contains(&line)
    };
    eventually(LONG, "it is accepted", accepted(1)).await;
    // The probes did not count: one more passes, and the third message waits.
    broker.publish(name, [to(2, "+491700000001")]).await;
    eventually(LONG, "one more is", accepted(2)).await;
    let before = downstream.count();
    broker.publish(name, [to(3, "+491700000001")]).await;
    daemon.says("denied: the message waits in the ladder").await;
    assert_eq!(downstream.count(), before);
    daemon
        .stop(&[NEW_SCHEDULE, AWAY, "nothing is kept on disk"])
        .await;
}
