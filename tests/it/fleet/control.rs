//! Limits are changed, paused and resumed while several replicas run, by the program itself.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use sluiced_core::time::Mono;
use sluiced_ports::clock;
use sluiced_provider::Behaviour;
use tokio::time::sleep;

use super::{Fleet, PATIENCE, Plan};
use crate::support::daemon::{Daemon, NEW_SCHEDULE, program};
use crate::support::judge::{History, fullest};
use crate::support::wait::{eventually, eventually_by_program};

/// What replicas may log here.
const DECLARED: &[&str] = &[
    NEW_SCHEDULE,
    "file differs from the current policy",
    // A pause without an end lasts longer than messages may be held.
    "returned to the queue",
];
/// Every replica has taken up a change after this.
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

/// What `sluiced check --connect` prints about the configuration of a replica.
pub(crate) fn checked(replica: &Daemon) -> String {
    let mut command = program(&["check", "--connect", "--config"]);
    let output = command.arg(replica.config()).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8(text).unwrap()
}

fn shown(replica: &Daemon) -> Value {
    serde_json::from_str(&said(replica, &["show", "provider", "--json"])).unwrap()
}

const WINDOW: Duration = Duration::from_secs(1);

/// A fleet and the values to which its limit was set.
struct Told {
    fleet: Fleet,
    history: History,
}

impl Told {
    /// Runs `sluiced limits` with `words`, which make the limit `units` a second.
    fn run(&mut self, words: &[&str], units: u64) -> String {
        let begun = clock::now();
        let told = said(&self.fleet.replicas[0], words);
        self.history.changed(begun..clock::now(), units);
        told
    }

    /// When the calls since the last change came, from the moment when every replica had taken it
    /// up.
    fn settled(&self) -> Vec<Mono> {
        let settled = self.history.settled();
        let calls = self.fleet.provider.keyed().into_iter();
        let calls = calls.map(|(at, _)| at).filter(|at| *at >= settled);
        calls.collect()
    }

    /// Waits until there is enough to judge: two full windows of `units` after the change.
    async fn flows(&self, units: usize) {
        let what = format!("{units} a second flow");
        eventually(PATIENCE, &what, || {
            let calls = self.settled();
            let enough = calls.len() >= 2 * units;
            if enough {
                let span = calls[calls.len() - 1].since(calls[0]).as_secs_f64();
                eprintln!("{:.1} a second of {units}", calls.len() as f64 / span);
            }
            enough
        })
        .await;
    }
}

/// Every window is judged, even while a change is on its way: then the higher of both rates
/// applies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_is_in_force_everywhere_within_a_second_and_no_window_is_over() {
    let plan = Plan {
        rate: "100/1s",
        judged: Some(Behaviour::judging("200/1s".parse().unwrap())),
        ..Plan::of("control")
    };
    let fleet = plan.start(3, 3_000).await;
    let history = History::of(100, WINDOW, SOON);
    let mut told = Told { fleet, history };
    told.flows(100).await;

    let answer = told.run(&["set", "provider", "rate=50/1s"], 50);
    assert!(
        answer.contains("rate=50/1s") && answer.contains("version 2"),
        "{answer}"
    );
    told.flows(50).await;

    told.run(&["set", "provider", "rate=200/1s"], 200);
    told.flows(200).await;
    eventually(PATIENCE, "it is faster than before", || {
        fullest(&told.settled(), WINDOW) > 100
    })
    .await;

    told.run(&["pause", "provider"], 0);
    // The time until the change is taken up, and the time that is judged.
    sleep(SOON + 2 * WINDOW).await;
    let state = shown(&told.fleet.replicas[0]);
    assert_eq!(state["state"], "paused", "{state}");
    // Nothing was lost, and nothing bursts.
    told.run(&["resume", "provider"], 200);
    told.flows(200).await;

    let state = shown(&told.fleet.replicas[0]);
    assert_eq!(state["version"], 5, "{state}");
    assert_eq!(state["replicas"].as_array().unwrap().len(), 3, "{state}");
    let report = told.fleet.stop_early(DECLARED).await;
    assert_eq!(report.repeated, 0, "{report:?}");
    let calls = told.fleet.provider.keyed().into_iter();
    let over = told
        .history
        .over(&calls.map(|(at, _)| at).collect::<Vec<_>>());
    assert!(over.is_empty(), "{}", over.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_word_counts_over_restarts_reloads_and_losses() {
    let plan = Plan {
        rate: "100/1s",
        own_redis: true,
        ..Plan::of("words")
    };
    let mut fleet = plan.start(2, 2_000).await;
    fleet.arrived(20).await;
    said(&fleet.replicas[0], &["set", "provider", "rate=60/1s"]);
    let differs = "sluiced_limit_differs{limit=\"provider\"}";
    for replica in &mut fleet.replicas {
        replica.says("file differs from the current policy").await;
        assert_eq!(replica.metric(differs).await, 1.0);
    }
    a_restart_with_the_same_file_is_no_update(&mut fleet).await;
    a_replica_remembers_it_when_the_store_loses_it(&fleet).await;
    let text = std::fs::read_to_string(fleet.replicas[0].config()).unwrap();
    a_changed_file_waits_until_both_have_it(&fleet).await;
    an_invalid_file_changes_nothing(&fleet, &text).await;
    keys_that_no_reload_can_change_are_named(&fleet.replicas[0], &text).await;
    let declared = [
        DECLARED,
        &["needs a restart", "is no rate", "the one before is kept"],
    ]
    .concat();
    fleet.stop_early(&declared).await;
}

async fn a_restart_with_the_same_file_is_no_update(fleet: &mut Fleet) {
    let old = fleet.replace(0);
    old.stop(DECLARED).await;
    let rate = "sluiced_limit_units_per_second{limit=\"provider\"}";
    fleet.replicas[0].ready().await;
    fleet.replicas[0].says("as an operator set it").await;
    assert_eq!(fleet.replicas[0].metric(rate).await, 60.0);
}

async fn a_replica_remembers_it_when_the_store_loses_it(fleet: &Fleet) {
    redis::cmd("FLUSHALL")
        .query::<()>(&mut fleet.servers.redis().connection())
        .unwrap();
    let first = &fleet.replicas[0];
    eventually_by_program(LONG, "the live value is back", || {
        shown(first)["in_force"]["rate"] == "60/1s"
    })
    .await;
    assert_eq!(shown(first)["origin"], "live");
}

/// Replaces the file of a replica, which reads it again.
fn reload(replica: &Daemon, text: &str) {
    std::fs::write(replica.config(), text).unwrap();
    replica.signal(Signal::HUP);
}

async fn a_changed_file_waits_until_both_have_it(fleet: &Fleet) {
    let [first, second] = [&fleet.replicas[0], &fleet.replicas[1]];
    let [text_of_first, text_of_second] = [first, second].map(|replica| {
        let text = std::fs::read_to_string(replica.config()).unwrap();
        text.replace("100/1s", "80/1s")
    });
    reload(first, &text_of_first);
    first.says("configuration reloaded").await;
    first
        .says("once more than half of the replicas have it")
        .await;
    assert_eq!(shown(first)["in_force"]["rate"], "60/1s");
    reload(second, &text_of_second);
    eventually_by_program(LONG, "the file's value is in force", || {
        let state = shown(first);
        state["in_force"]["rate"] == "80/1s" && state["origin"] == "file"
    })
    .await;
    second.says("\"to\":\"kind=paced rate=80/1s").await;
}

/// And its error is logged.
async fn an_invalid_file_changes_nothing(fleet: &Fleet, text: &str) {
    let [first, second] = [&fleet.replicas[0], &fleet.replicas[1]];
    reload(first, &text.replace("100/1s", "quick"));
    first.says("the one before is kept").await;
    assert_eq!(first.said("`quick` is no rate"), 1, "{}", first.log());
    assert_eq!(shown(second)["in_force"]["rate"], "80/1s");
}

async fn keys_that_no_reload_can_change_are_named(replica: &Daemon, text: &str) {
    let text = text
        .replace("100/1s", "80/1s")
        .replace("prefetch = 100", "prefetch = 90");
    reload(replica, &text);
    replica.says("needs a restart: routes.words.prefetch").await;
    // Also those whose values are never shown.
    let text = text.replace(
        "[routes.words.downstream]\n",
        "[routes.words.downstream]\nbody = \"{{ body.n }}\"\n",
    );
    reload(replica, &text);
    replica
        .says("needs a restart: routes.words.downstream.body")
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_words_are_refused_and_say_what_would_be_right() {
    let mut fleet = Plan::of("refused").start(1, 10).await;
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
    refused(
        &["pause", "provider", "--for", "999d"],
        "lasts 366d at most",
    );
    assert_eq!(shown(replica)["version"], 1);
    fleet.finish(DECLARED).await;
}

/// It has left when it stopped, so its old file counts no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_only_replica_changes_the_limit_when_it_starts_with_another_file() {
    let plan = Plan {
        rate: "100/1s",
        own_redis: true,
        ..Plan::of("only-one")
    };
    let mut fleet = plan.start(1, 20).await;
    fleet.arrived(20).await;
    assert_eq!(shown(&fleet.replicas[0])["in_force"]["rate"], "100/1s");
    fleet.replicas.remove(0).stop(DECLARED).await;
    fleet.plan.rate = "80/1s";
    fleet.add(1);
    fleet.replicas[0].ready().await;
    let state = shown(&fleet.replicas[0]);
    assert_eq!(state["in_force"]["rate"], "80/1s", "{state}");
    assert_eq!(state["origin"], "file");
    fleet.finish(DECLARED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_far_above_the_file_is_confirmed_and_one_for_a_while_ends_by_itself() {
    let plan = Plan {
        rate: "100/1s",
        // An operator sets it for a moment.
        judged: Some(Behaviour::judging("201/1s".parse().unwrap())),
        own_redis: true,
        ..Plan::of("for-a-while")
    };
    let mut fleet = plan.start(2, 500).await;
    fleet.arrived(20).await;
    let first = &fleet.replicas[0];
    let (code, text) = limits(first, &["set", "provider", "rate=201/1s"]);
    assert_eq!(code, 2, "{text}");
    let sentence = "rate=201/1s, the file says 100/1s: that is more than twice as much; add --yes";
    assert!(text.contains(sentence), "{text}");
    assert_eq!(shown(first)["version"], 1);
    said(first, &["set", "provider", "rate=201/1s", "--yes"]);
    assert_eq!(shown(first)["in_force"]["rate"], "201/1s");

    // A percentage is one of the file's value, not of the current one.
    let text = said(first, &["set", "provider", "rate=50%", "--for", "10s"]);
    assert!(
        text.contains("for 10s; then the file counts again: rate=100/1s"),
        "{text}"
    );
    let state = shown(first);
    assert_eq!(state["in_force"]["rate"], "50/1s", "{state}");
    assert!(state["ends"].as_str() > state["now"].as_str(), "{state}");
    // The command has ended, and the replica whose configuration it used stops: the other one
    // ends the change.
    let old = fleet.replace(0);
    old.stop(DECLARED).await;
    let other = &fleet.replicas[1];
    eventually_by_program(LONG, "the file counts again", || {
        let state = shown(other);
        state["in_force"]["rate"] == "100/1s" && state["ends"].is_null()
    })
    .await;
    assert_eq!(shown(other)["origin"], "file");
    for (wrong, why) in [
        ("headroom=50%", "a share is taken of a rate"),
        ("until=7", "`until` is not for operators"),
        ("rate=x%", "whole percents"),
    ] {
        let (code, text) = limits(other, &["set", "provider", wrong]);
        assert!(code == 2 && text.contains(why), "{text}");
    }

    // An operator's pause is no freeze.
    said(other, &["pause", "provider"]);
    other.says("tap closed: an operator paused the limit").await;
    said(other, &["resume", "provider"]);
    // A paced limit waits for nothing that was lost.
    let text = said(other, &["open", "provider"]);
    assert!(text.contains("nothing was to be opened"), "{text}");
    fleet.stop_early(DECLARED).await;
}
