//! Keyed limits are changed, paused and resumed while replicas run.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use sluiced_core::time::Mono;
use sluiced_ports::clock;
use sluiced_provider::Expect;

use super::control::{checked, limits, said};
use super::keyed::{DECLARED, ROUTE};
use super::{Fleet, Plan, id};
use crate::support::judge::fullest;
use crate::support::redis::RedisServer;
use crate::support::wait::within;

/// Every replica has taken up a change after this.
const SOON: Duration = Duration::from_secs(1);
const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(30);
const DIFFERS: &str = "sluiced_limit_differs{limit=\"account\"}";

/// Replicas whose messages one limit, `account`, counts.
struct Amended {
    fleet: Fleet,
    published: u64,
}

impl Amended {
    /// Replicas of a limit `account` with these keys; the provider judges by `rate`.
    async fn start(name: &'static str, replicas: usize, rate: &'static str, account: &str) -> Self {
        let plan = Plan {
            rate,
            limits: &["account"],
            tables: table(account),
            keys: ROUTE,
            ..Plan::of(name)
        };
        let mut fleet = plan.prepare().await;
        fleet.add(replicas);
        for replica in &mut fleet.replicas {
            replica.ready().await;
        }
        Self {
            fleet,
            published: 0,
        }
    }

    async fn publish(&mut self, count: u64) {
        let (first, last) = (self.published + 1, self.published + count);
        let messages = (first..=last).map(|n| (id(n), "+4917012"));
        self.fleet.publish(messages).await;
        self.published = last;
    }

    /// All calls until now: waits for those that are not in the books yet.
    fn times(&self) -> Vec<Mono> {
        // A report judges all calls that have arrived, while the live numbers lag behind.
        drop(self.fleet.provider.report(&Expect::Nothing));
        let calls = self.fleet.provider.keyed();
        calls.into_iter().map(|(at, _)| at).collect()
    }

    fn now(&self) -> Mono {
        clock::now()
    }

    /// The fullest second of those that begin at or after `since`.
    fn worst(&self, since: Mono) -> usize {
        let calls = self.times();
        let first = calls.partition_point(|at| *at < since);
        fullest(&calls[first..], SECOND)
    }

    fn said(&self, arguments: &[&str]) -> String {
        said(&self.fleet.replicas[0], arguments)
    }

    fn shown(&self) -> Value {
        serde_json::from_str(&self.said(&["show", "account", "--json"])).unwrap()
    }

    /// Waits until every replica knows this version, and notices it soon.
    async fn knows(&mut self, version: f64) {
        let series = "sluiced_limit_version{limit=\"account\"}";
        for replica in &mut self.fleet.replicas {
            replica.until_metric(series, version).await;
        }
    }

    /// All of them have arrived, and nothing was lost, came twice, or was over the provider's rate.
    async fn finish(mut self) {
        let differs = "file differs from the current policy";
        let report = self.fleet.finish(&[DECLARED, &[differs]].concat()).await;
        assert_eq!(report.repeated, 0, "{report:?}");
    }
}

/// The table of `account`; a low rate, for as long as the tests run.
fn table(account: &str) -> &'static str {
    format!("[limits.account]\n{account}\n").leak()
}

const ACCOUNT: &str = "kind = \"gcra\"\nrate = \"100/1s\"\nheadroom = \"100ms\"";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_is_lowered_raised_paused_and_resumed_and_no_window_is_over() {
    // Never more than the highest of its rates.
    let mut amended = Amended::start("amended", 3, "200/1s", ACCOUNT).await;
    amended.publish(300).await;
    amended.fleet.calls(150).await;

    // Lowered: from then on less is granted, and windows around it keep the old rate.
    let told = amended.said(&["set", "account", "rate=40/1s"]);
    assert!(
        told.contains("rate=40/1s") && told.contains("version 2"),
        "{told}"
    );
    amended.knows(2.0).await;
    tokio::time::sleep(SOON).await;
    assert!(amended.worst(Mono::default()) <= 100);
    let lowered = amended.now();
    amended.publish(100).await;
    amended.fleet.calls(400).await;
    let worst = amended.worst(lowered);
    assert!(worst <= 40, "{worst} calls in a window of 40");

    // Raised: messages that waited in memory are called at the new rate. At the old rate they would
    // take 25 seconds.
    amended.publish(1_000).await;
    amended.said(&["set", "account", "rate=200/1s"]);
    amended.knows(3.0).await;
    let raised = amended.fleet.calls(1_400);
    within(
        Duration::from_secs(20),
        "1,000 calls at the new rate",
        raised,
    )
    .await;

    // Short enough that held messages stay held: they must get notice that the pause is over.
    amended.said(&["pause", "account", "--for", "10m"]);
    amended.knows(4.0).await;
    assert_eq!(amended.shown()["state"], "paused");
    tokio::time::sleep(SOON).await;
    let paused = amended.now();
    amended.publish(100).await;
    tokio::time::sleep(SOON * 2).await;
    assert_eq!(amended.worst(paused), 0, "paused");
    amended.said(&["resume", "account"]);
    within(LONG, "what was held", amended.fleet.calls(1_500)).await;
    let state = amended.shown();
    assert_eq!(state["version"], 5, "{state}");
    assert_eq!(state["replicas"].as_array().unwrap().len(), 3, "{state}");
    amended.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_for_a_while_ends_by_itself_and_nothing_is_lost() {
    let account = "kind = \"token_bucket\"\ncapacity = 20\nrefill = 50\ninterval = \"1s\"";
    let mut amended = Amended::start("paused", 2, "70/1s", account).await;
    amended.said(&["pause", "account", "--for", "10s"]);
    let until = amended.shown()["paused_until"].as_str().unwrap().to_owned();
    amended.publish(60).await;
    amended.fleet.calls(60).await;
    let shown = amended.shown();
    assert!(shown["now"].as_str().unwrap() >= &*until, "{shown}");
    assert_eq!(shown["state"], "open", "{shown}");
    amended.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_file_of_two_waits_until_both_have_it_or_an_operator_adopts_it() {
    let limit =
        |rate: &str| format!("kind = \"sliding_log\"\nheadroom = \"100ms\"\nrate = \"{rate}\"");
    let mut amended = Amended::start("agree", 1, "100/1s", &limit("30/1s")).await;
    amended.fleet.plan.tables = table(&limit("50/1s"));
    amended.fleet.add(1);
    amended.fleet.replicas[1].ready().await;
    another_file_of_one_replica_changes_nothing_and_is_named(&mut amended).await;
    an_operator_adopts_it(&mut amended).await;

    // An operator's change outlives a restart.
    amended.said(&["set", "account", "rate=20/1s"]);
    let old = amended.fleet.replace(1);
    old.stop(&[DECLARED, &["file differs from the current policy"]].concat())
        .await;
    let replicas = &amended.fleet.replicas;
    replicas[1].says("as an operator set it").await;
    assert_eq!(amended.shown()["in_force"]["rate"], "20/1s");

    // Files that are changed on both change a limit of this kind, too.
    for (replica, old) in replicas.iter().zip(["30/1s", "50/1s"]) {
        let path = replica.config();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace(old, "10/1s")).unwrap();
        replica.signal(Signal::HUP);
    }
    replicas[1]
        .says("\"to\":\"kind=sliding_log rate=10/1s")
        .await;
    assert_eq!(amended.shown()["origin"], "file");
    assert_eq!(replicas[0].said("needs a restart"), 0);
    amended.knows(4.0).await;
    amended.publish(25).await;
    amended.fleet.calls(25).await;
    let worst = amended.worst(Mono::default());
    assert!(worst <= 10, "{worst} calls in a window of 10");
    amended.finish().await;
}

async fn another_file_of_one_replica_changes_nothing_and_is_named(amended: &mut Amended) {
    let replicas = &mut amended.fleet.replicas;
    replicas[1]
        .says("once more than half of the replicas have it")
        .await;
    assert_eq!(replicas[0].metric(DIFFERS).await, 0.0);
    assert_eq!(replicas[1].metric(DIFFERS).await, 1.0);
    let listed = amended.said(&["list"]);
    assert!(
        listed.contains("30/1s") && listed.contains("1 with another file"),
        "{listed}"
    );
    // The check says so beforehand.
    let replicas = &amended.fleet.replicas;
    let text = checked(&replicas[1]);
    assert!(
        text.contains("in the files of 1 of 2 replicas")
            && text.contains("`sluiced limits adopt account`"),
        "{text}"
    );
    let text = checked(&replicas[0]);
    assert!(!text.contains("in force for limits.account"), "{text}");
}

async fn an_operator_adopts_it(amended: &mut Amended) {
    let adopted = said(&amended.fleet.replicas[1], &["adopt", "account"]);
    assert!(adopted.contains("rate=50/1s"), "{adopted}");
    amended.knows(2.0).await;
    let replicas = &mut amended.fleet.replicas;
    replicas[0]
        .says("file differs from the current policy")
        .await;
    assert_eq!(replicas[0].metric(DIFFERS).await, 1.0);
    assert_eq!(replicas[1].metric(DIFFERS).await, 0.0);
    let listed = amended.said(&["list"]);
    assert!(
        listed.contains("sliding_log") && listed.contains("50/1s"),
        "{listed}"
    );
    assert!(listed.contains("1 with another file"), "{listed}");
}

/// A rollout that gives the limit a reserve: the new replica takes no slots of the row that the old one divides
/// otherwise, and all of them once that has gone. `set`: an operator has set the rate before.
async fn divided_anew(name: &'static str, set: bool) {
    const MESSAGES: u64 = 400;
    let limit = "kind = \"paced\"\nrate = \"100/1s\"";
    let mut amended = Amended::start(name, 1, "100/1s", limit).await;
    if set {
        amended.said(&["set", "account", "rate=90/1s"]);
    }
    amended.publish(MESSAGES).await;
    amended.fleet.calls(10).await;
    amended.fleet.plan.tables = table(&format!("{limit}\nreserve = \"25%\""));
    amended.fleet.add(1);
    let refused = "it has reserve = none, and this file reserve = 25%";
    amended.fleet.replicas[1].says(refused).await;
    amended.fleet.calls(200).await;
    let by_new = |amended: &Amended| {
        let report = amended.fleet.provider.report(&Expect::Nothing);
        report.callers.get("replica 1").copied().unwrap_or(0)
    };
    assert_eq!(by_new(&amended), 0);
    let differs = "file differs from the current policy";
    let old = amended.fleet.replicas.remove(0);
    old.stop(&[DECLARED, &[differs]].concat()).await;
    // The old one may have sent all of them before it stopped.
    amended.publish(100).await;
    amended.fleet.calls(MESSAGES + 100).await;
    assert!(by_new(&amended) > 0, "its file counts now");
    assert_eq!(amended.shown()["in_force"]["reserve"], "25%");
    let declared = [DECLARED, &[differs, refused]].concat();
    let report = amended.fleet.finish(&declared).await;
    assert_eq!(report.repeated, 0, "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_divides_a_row_in_another_way_waits_for_the_old_ones() {
    divided_anew("divided", false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_is_divided_anew_also_where_an_operator_set_its_rate() {
    divided_anew("divided-set", true).await;
}

/// All that Redis holds.
fn dump(prefix: &str) -> Vec<(String, Vec<u8>)> {
    let mut redis = RedisServer::shared().connection();
    let pattern = format!("{prefix}:*");
    let mut keys: Vec<String> = redis::cmd("KEYS").arg(pattern).query(&mut redis).unwrap();
    keys.sort();
    // Which replicas take part, and what they report for the status page, changes by itself.
    let own = [":replicas", ":askers", ":status", ":bars"];
    keys.retain(|key| !own.iter().any(|end| key.ends_with(end)));
    let state = |key: String| {
        let bytes = redis::cmd("DUMP").arg(&key).query(&mut redis).unwrap();
        (key, bytes)
    };
    keys.into_iter().map(state).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn showing_a_key_tells_how_it_stands_and_changes_nothing() {
    let account = "kind = \"sliding_log\"\nrate = \"3/1h\"\nkey = \"{{ body.to }}\"";
    let mut amended = Amended::start("shown", 1, "100/1s", account).await;
    amended.publish(2).await;
    amended.fleet.calls(2).await;
    let before = dump("shown");
    let told = amended.said(&["show", "account", "+4917012"]);
    for line in ["limit         3", "remaining     1", "retry after   now"] {
        assert!(told.contains(line), "{line} in\n{told}");
    }
    let text = amended.said(&["show", "account", "+49170999", "--json"]);
    let unused: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(unused["units"]["remaining"], 3, "{unused}");
    assert_eq!(unused["units"]["taken"], "nothing that still counts");
    amended.said(&["list"]);
    amended.said(&["show", "account"]);
    assert_eq!(dump("shown"), before, "byte for byte");

    // Errors about wrong words name the right ones.
    let refused = |arguments: &[&str], hint: &str| {
        let (code, text) = limits(&amended.fleet.replicas[0], arguments);
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
    assert_eq!(dump("shown"), before, "nothing was set");
    amended.finish().await;
}
