//! Limits are changed, paused and resumed while several replicas run, by the program itself.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tokio::time::sleep;

use super::Fleet;
use crate::support::daemon::{Daemon, NEW_SCHEDULE, program};
use crate::support::redis::RedisServer;
use crate::support::still::Still;
use crate::support::wait::eventually;

/// What replicas may say here.
const DECLARED: &[&str] = &[
    NEW_SCHEDULE,
    "file differs from what is in force",
    // A pause without an end outlasts what may be held.
    "given back to the queue",
];
/// A call may be so late.
const HEADROOM: Duration = Duration::from_millis(50);
/// Of the rate, the headroom leaves this; a busy machine misses some of it.
const USED: f64 = 0.95 * 1.0 / 1.05;
/// A change is in force everywhere after this.
const SOON: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(30);

/// `sluiced limits` with the configuration of a replica. Its exit code and what it printed.
pub(crate) fn limits(replica: &Daemon, arguments: &[&str]) -> (i32, String) {
    let mut command = program(&["limits"]);
    command
        .args(arguments)
        .arg("--config")
        .arg(replica.config());
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.code().unwrap(),
        String::from_utf8(text).unwrap(),
    )
}

pub(crate) fn said(replica: &Daemon, arguments: &[&str]) -> String {
    let (code, text) = limits(replica, arguments);
    assert_eq!(code, 0, "{arguments:?}: {text}");
    text
}

fn shown(replica: &Daemon) -> Value {
    serde_json::from_str(&said(replica, &["show", "provider", "--json"])).unwrap()
}

impl Fleet {
    /// Judges the next `seconds` alone: windows that begin now. The worst of them, and all calls.
    async fn watch(&self, seconds: u64) -> (u64, u64) {
        self.provider.reset();
        // The length of what is judged.
        sleep(Duration::from_secs(seconds)).await;
        let live = self.provider.live();
        (live.worst, live.calls)
    }

    async fn keeps(&self, rate: u64) {
        sleep(SOON).await;
        let (still, clock) = (Still::watch(self.provider.clock()), self.provider.clock());
        let start = clock.now();
        let (worst, calls) = self.watch(4).await;
        assert!(worst <= rate, "{worst} calls in a window of {rate}");
        let still = still.end().and_then(HEADROOM);
        let ran = Duration::from_secs(4).saturating_sub(still.within(start, clock.now()));
        let wanted = ran.as_secs_f64() * rate as f64 * USED;
        assert!(calls as f64 >= wanted, "{calls} of {wanted}: {still:?}");
    }

    async fn stop(self) {
        for replica in self.replicas {
            replica.stop(DECLARED).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_is_in_force_everywhere_within_a_second_and_no_window_is_over() {
    let fleet = Fleet::start_at("100/1s", "control", 3, 6_000).await;
    fleet.arrived(100).await;
    let first = &fleet.replicas[0];
    fleet.keeps(100).await;

    let told = said(first, &["set", "provider", "rate=50/1s"]);
    assert!(
        told.contains("rate=50/1s") && told.contains("version 2"),
        "{told}"
    );
    fleet.keeps(50).await;

    said(first, &["set", "provider", "rate=200/1s"]);
    fleet.keeps(200).await;

    said(first, &["pause", "provider"]);
    sleep(SOON).await;
    assert_eq!(fleet.watch(2).await.1, 0, "paused");
    let state = shown(first);
    assert_eq!(state["state"], "paused", "{state}");
    // Nothing was lost, and nobody bursts.
    said(first, &["resume", "provider"]);
    fleet.keeps(200).await;

    let state = shown(first);
    assert_eq!(state["version"], 5, "{state}");
    assert_eq!(state["replicas"].as_array().unwrap().len(), 3, "{state}");
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_word_counts_over_restarts_reloads_and_losses() {
    let mut fleet = Fleet::start_at("100/1s", "words", 2, 2_000).await;
    fleet.arrived(20).await;
    said(&fleet.replicas[0], &["set", "provider", "rate=60/1s"]);
    let differs = "sluiced_limit_differs{limit=\"provider\"}";
    for replica in &mut fleet.replicas {
        replica.says("file differs from what is in force").await;
        assert_eq!(replica.metric(differs).await, 1.0);
    }

    // A restart with the same file is no word.
    let next = fleet.replica(0);
    let old = std::mem::replace(&mut fleet.replicas[0], next);
    old.stop(DECLARED).await;
    let rate = "sluiced_limit_units_per_second{limit=\"provider\"}";
    fleet.replicas[0].ready().await;
    fleet.replicas[0].says("as an operator set it").await;
    assert_eq!(fleet.replicas[0].metric(rate).await, 60.0);

    // Nor does the store's loss end it: somebody remembers.
    redis::cmd("FLUSHALL")
        .query::<()>(&mut RedisServer::shared().connection())
        .unwrap();
    let first = &fleet.replicas[0];
    eventually(LONG, "the live value is back", || {
        shown(first)["in_force"]["rate"] == "60/1s"
    })
    .await;
    assert_eq!(shown(first)["origin"], "live");

    // A file that says something else is a word when it is read.
    let path = first.config();
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("100/1s", "80/1s")).unwrap();
    first.signal(Signal::HUP);
    first.says("configuration reloaded").await;
    eventually(LONG, "the file's value is in force", || {
        let state = shown(first);
        state["in_force"]["rate"] == "80/1s" && state["origin"] == "file"
    })
    .await;
    fleet.replicas[1]
        .says("\"to\":\"kind=paced rate=80/1s")
        .await;

    // A wrong one changes nothing, and says what is wrong.
    let first = &fleet.replicas[0];
    std::fs::write(&path, text.replace("100/1s", "quick")).unwrap();
    first.signal(Signal::HUP);
    first.says("the one before stays in force").await;
    assert_eq!(first.said("`quick` is no rate"), 1, "{}", first.log());
    assert_eq!(shown(&fleet.replicas[1])["in_force"]["rate"], "80/1s");

    // What no reload can change is named.
    let text = text
        .replace("100/1s", "80/1s")
        .replace("prefetch = 100", "prefetch = 90");
    std::fs::write(&path, text).unwrap();
    first.signal(Signal::HUP);
    first.says("needs a restart: routes.words.prefetch").await;
    let declared = [
        DECLARED,
        &[
            "needs a restart",
            "is no rate",
            "the one before stays in force",
        ],
    ]
    .concat();
    for replica in fleet.replicas {
        replica.stop(&declared).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_words_are_refused_and_say_what_would_be_right() {
    let fleet = Fleet::start_at("100/1s", "refused", 1, 10).await;
    fleet.arrived(1).await;
    let replica = &fleet.replicas[0];
    let refused = |arguments: &[&str], hint: &str| {
        let (code, text) = limits(replica, arguments);
        assert_eq!(code, 2, "{arguments:?}: {text}");
        assert!(text.contains(hint), "{arguments:?}: {text}");
    };
    refused(
        &["set", "provdier", "rate=1/1s"],
        "did you mean `provider`?",
    );
    refused(&["set", "provider", "rte=1/1s"], "did you mean `rate`?");
    refused(&["set", "provider", "rate=quick"], "is no rate");
    refused(&["set", "provider", "rate"], "name=value");
    refused(&["set", "provider", "cost=2"], "cannot be changed");
    refused(&["set", "provider", "kind=gcra"], "cannot be changed");
    refused(&["set", "provider", "headroom=1s"], "half of the window");
    refused(&["pause", "provider", "--for", "ten"], "no duration");
    assert_eq!(shown(replica)["version"], 1);
    fleet.stop().await;
}
