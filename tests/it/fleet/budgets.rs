//! Limits that are counted in budgets are changed, paused and resumed while replicas run.

use std::time::Duration;

use lapin::BasicProperties;
use rustix::process::Signal;
use serde_json::Value;
use sluiced::proof::provider::{Behaviour, Expect, Provider};

use super::control::{limits, said};
use super::id;
use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, NEW_SCHEDULE, Route};
use crate::support::machine;
use crate::support::rabbit::Rabbit;
use crate::support::redis::RedisServer;
use crate::support::wait::{eventually, within};

/// What replicas may say here.
const DECLARED: &[&str] = &[
    NEW_SCHEDULE,
    "nothing is kept on disk",
    "file differs from what is in force",
    // A wait queue that is used for the first time, on a busy machine.
    "copies are not confirmed",
    "the store lost its budgets",
];
/// A change is in force everywhere after this.
const SOON: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(30);

/// Replicas whose messages a budget counts, all together.
struct Counted {
    name: &'static str,
    broker: Broker,
    provider: Provider,
    replicas: Vec<Daemon>,
    published: u64,
}

impl Counted {
    /// Replicas of a limit `account` with these keys; the provider judges by `rate`.
    async fn start(name: &'static str, replicas: usize, rate: &str, account: &str) -> Self {
        machine::alone();
        let behaviour = Behaviour::judging(rate.parse().unwrap());
        let provider = Provider::start("127.0.0.1:0".parse().unwrap(), behaviour).unwrap();
        let broker = Broker::connect(&Rabbit::shared().url()).await;
        broker.declare(name, "quorum").await;
        let mut fleet = Self {
            name,
            broker,
            provider,
            replicas: Vec::new(),
            published: 0,
        };
        fleet.replicas = (0..replicas).map(|_| fleet.replica(account)).collect();
        for replica in &mut fleet.replicas {
            replica.ready().await;
        }
        fleet
    }

    fn replica(&self, account: &str) -> Daemon {
        let mut route = Route::new(self.name, self.provider.address());
        route.limits = vec!["account"];
        route.keys = "prefetch = 200\nmax_hold = \"20s\"\n".to_owned();
        Daemon::start(&Config {
            rabbit: Some(Rabbit::shared().url()),
            redis: Some(RedisServer::shared().url()),
            prefix: self.name.to_owned(),
            rate: String::new(),
            headroom: "50ms",
            horizon: "200ms",
            routes: vec![route],
            tables: format!("[limits.account]\n{account}\n"),
        })
    }

    async fn publish(&mut self, count: u64) {
        let (first, last) = (self.published + 1, self.published + count);
        let messages = (first..=last).map(|n| {
            let body = format!("{{\"id\":\"{}\",\"to\":\"+4917012\"}}", id(n));
            (body.into_bytes(), BasicProperties::default())
        });
        self.broker.publish(self.name, messages).await;
        self.published = last;
    }

    /// Waits until so many calls arrived since the provider was reset.
    async fn calls(&self, count: u64) {
        let what = format!("{count} calls");
        let seen = tokio::time::timeout(
            LONG,
            eventually(LONG * 2, &what, || self.provider.live().calls >= count),
        );
        if seen.await.is_err() {
            let logs: Vec<_> = self.replicas.iter().map(Daemon::log).collect();
            panic!(
                "not {what}: {:?}\n{}",
                self.provider.live(),
                logs.join("\n\n")
            );
        }
    }

    /// Judges windows that begin from now on, until so many calls have arrived: the worst of them.
    async fn worst(&self, calls: u64) -> u64 {
        self.provider.reset();
        self.calls(calls).await;
        self.provider.live().worst
    }

    fn said(&self, arguments: &[&str]) -> String {
        said(&self.replicas[0], arguments)
    }

    fn shown(&self) -> Value {
        serde_json::from_str(&self.said(&["show", "account", "--json"])).unwrap()
    }

    /// Every replica knows this version, and soon.
    async fn knows(&mut self, version: f64) {
        let series = "sluiced_limit_version{limit=\"account\"}";
        within(LONG, "every replica knows it", async {
            for replica in &mut self.replicas {
                while replica.metric(series).await < version {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        })
        .await;
    }

    async fn stop(self, declared: &[&str]) {
        for replica in self.replicas {
            replica.stop(declared).await;
        }
    }
}

const ACCOUNT: &str = "kind = \"gcra\"\nrate = \"100/1s\"\nheadroom = \"100ms\"";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_budget_is_lowered_raised_paused_and_resumed_and_no_window_is_over() {
    let mut fleet = Counted::start("amended", 3, "100/1s", ACCOUNT).await;
    fleet.publish(300).await;
    assert!(fleet.worst(150).await <= 100);

    // Lowered: from the word on nobody is granted more, and windows around it keep the old rate.
    let told = fleet.said(&["set", "account", "rate=40/1s"]);
    assert!(
        told.contains("rate=40/1s") && told.contains("version 2"),
        "{told}"
    );
    fleet.knows(2.0).await;
    tokio::time::sleep(SOON).await;
    assert!(fleet.provider.live().worst <= 100);
    fleet.publish(200).await;
    let worst = fleet.worst(90).await;
    assert!(worst <= 40, "{worst} calls in a window of 40");

    // Raised: what waited in memory goes at the new rate.
    fleet.said(&["set", "account", "rate=200/1s"]);
    fleet.knows(3.0).await;
    fleet.publish(1_400).await;
    fleet.provider.reset();
    // At the old rate it would take 25 seconds.
    within(
        Duration::from_secs(20),
        "1,000 calls at the new rate",
        fleet.calls(1_000),
    )
    .await;
    let worst = fleet.provider.live().worst;
    assert!(worst <= 200, "{worst} calls in a window of 200");

    // Short enough that what is held stays held: it must be told that the pause is over.
    fleet.said(&["pause", "account", "--for", "10m"]);
    fleet.knows(4.0).await;
    assert_eq!(fleet.shown()["state"], "paused");
    fleet.publish(100).await;
    tokio::time::sleep(SOON).await;
    fleet.provider.reset();
    // The length of what is judged.
    tokio::time::sleep(SOON * 2).await;
    assert_eq!(fleet.provider.live().calls, 0, "paused");
    fleet.said(&["resume", "account"]);
    fleet.provider.reset();
    within(Duration::from_secs(30), "what was held", fleet.calls(100)).await;
    assert!(fleet.provider.live().worst <= 200);
    let state = fleet.shown();
    assert_eq!(state["version"], 5, "{state}");
    assert_eq!(state["replicas"].as_array().unwrap().len(), 3, "{state}");
    fleet.stop(DECLARED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_for_a_while_ends_by_itself_and_nothing_is_lost() {
    let account = "kind = \"token_bucket\"\ncapacity = 20\nrefill = 50\ninterval = \"1s\"";
    let mut fleet = Counted::start("paused", 2, "70/1s", account).await;
    fleet.said(&["pause", "account", "--for", "3s"]);
    let until = fleet.shown()["paused_until_us"].as_u64().unwrap();
    fleet.publish(60).await;
    fleet.calls(60).await;
    let report = fleet
        .provider
        .report(&Expect::Ids((1..=60).map(id).collect()));
    assert_eq!((report.lost, report.repeated), (Some(0), 0), "{report:?}");
    let shown = fleet.shown();
    assert!(shown["now_us"].as_u64().unwrap() >= until, "{shown}");
    assert_eq!(shown["state"], "open", "{shown}");
    fleet.stop(DECLARED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_disagree_say_so_and_the_last_word_counts() {
    let limit = |rate: &str| format!("kind = \"sliding_log\"\nrate = \"{rate}\"");
    let mut fleet = Counted::start("agree", 1, "100/1s", &limit("30/1s")).await;
    // A file that says something else is a word when it is read.
    let mut other = fleet.replica(&limit("50/1s"));
    other.ready().await;
    fleet.replicas.push(other);
    fleet.knows(2.0).await;
    let differs = "sluiced_limit_differs{limit=\"account\"}";
    fleet.replicas[0]
        .says("file differs from what is in force")
        .await;
    assert_eq!(fleet.replicas[0].metric(differs).await, 1.0);
    assert_eq!(fleet.replicas[1].metric(differs).await, 0.0);
    let listed = fleet.said(&["list"]);
    assert!(
        listed.contains("sliding_log") && listed.contains("50/1s"),
        "{listed}"
    );
    assert!(listed.contains("1 with another file"), "{listed}");

    // An operator's word outlives a restart.
    fleet.said(&["set", "account", "rate=20/1s"]);
    let next = fleet.replica(&limit("50/1s"));
    let old = std::mem::replace(&mut fleet.replicas[1], next);
    old.stop(DECLARED).await;
    fleet.replicas[1].says("as an operator set it").await;
    assert_eq!(fleet.shown()["in_force"]["rate"], "20/1s");

    // A reload is a word, of a limit of this kind too.
    let path = fleet.replicas[0].config();
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("30/1s", "10/1s")).unwrap();
    fleet.replicas[0].signal(Signal::HUP);
    fleet.replicas[1]
        .says("\"to\":\"kind=sliding_log rate=10/1s")
        .await;
    assert_eq!(fleet.shown()["origin"], "file");
    assert_eq!(fleet.replicas[0].said("needs a restart"), 0);
    fleet.knows(4.0).await;
    fleet.publish(25).await;
    fleet.calls(25).await;
    let live = fleet.provider.live();
    assert!(live.worst <= 10, "{live:?}");
    fleet.stop(DECLARED).await;
}

/// All that Redis holds.
fn dump(prefix: &str) -> Vec<(String, Vec<u8>)> {
    let mut redis = RedisServer::shared().connection();
    let pattern = format!("{prefix}:*");
    let mut keys: Vec<String> = redis::cmd("KEYS").arg(pattern).query(&mut redis).unwrap();
    keys.sort();
    // Who takes part changes by itself.
    keys.retain(|key| !key.ends_with(":replicas"));
    let state = |key: String| {
        let bytes = redis::cmd("DUMP").arg(&key).query(&mut redis).unwrap();
        (key, bytes)
    };
    keys.into_iter().map(state).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn showing_a_key_tells_how_it_stands_and_changes_nothing() {
    let account = "kind = \"sliding_log\"\nrate = \"3/1h\"\nkey = \"{{ body.to }}\"";
    let mut fleet = Counted::start("shown", 1, "100/1s", account).await;
    fleet.publish(2).await;
    fleet.calls(2).await;
    let before = dump("shown");
    let told = fleet.said(&["show", "account", "+4917012"]);
    for line in ["limit         3", "remaining     1", "retry after   now"] {
        assert!(told.contains(line), "{line} in\n{told}");
    }
    let text = fleet.said(&["show", "account", "+49170999", "--json"]);
    let unused: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(unused["budget"]["remaining"], 3, "{unused}");
    assert_eq!(unused["budget"]["booked"], "nothing that still counts");
    fleet.said(&["list"]);
    fleet.said(&["show", "account"]);
    assert_eq!(dump("shown"), before, "byte for byte");

    // Wrong words say what would be right.
    let refused = |arguments: &[&str], hint: &str| {
        let (code, text) = limits(&fleet.replicas[0], arguments);
        assert_eq!(code, 2, "{arguments:?}: {text}");
        assert!(text.contains(hint), "{arguments:?}: {text}");
    };
    refused(&["set", "account", "burst=3"], "burst");
    refused(&["set", "account", "rate=3"], "rate");
    refused(&["set", "account", "rat=3/1h"], "did you mean `rate`?");
    refused(&["set", "account", "key=x"], "only rate, headroom");
    refused(&["set", "account", "kind=gcra"], "cannot be changed");
    refused(&["set", "accuont", "rate=3/1h"], "did you mean `account`?");
    refused(&["pause", "account", "--for", "soon"], "no duration");
    assert_eq!(dump("shown"), before, "nothing was said");
    fleet.stop(DECLARED).await;
}
