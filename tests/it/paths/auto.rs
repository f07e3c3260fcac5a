//! `headroom = "auto"`: two replicas beside a downstream on the same host make the headroom shorter, and log
//! why.

use serde_json::Value;

use super::{config, numbered, queue};
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route, program};
use crate::support::recorder::{Recorder, Reply};
use crate::support::wait::{eventually, eventually_by_program};

const MESSAGES: u64 = 1_200;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_headroom_follows_what_the_replicas_measure() {
    let name = "auto";
    let broker = queue(name, "quorum").await;
    broker.publish(name, numbered(1, MESSAGES)).await;
    let downstream = Recorder::start(|_| Reply::status(202)).await;
    let mut config = config(name, vec![Route::new(name, downstream.address)]);
    config.routes[0].limits = vec!["provider", "sender"];
    config.tables = "[limits.sender]\nkind = \"gcra\"\nrate = \"1000/1s\"\nkey = \"{{ body.n }}\"\nheadroom = \"auto\"\n".to_owned();
    let text = config.text();
    let auto = |command: &mut std::process::Command| {
        command.env("SLUICED__LIMITS__PROVIDER__HEADROOM", "auto");
    };
    let daemons = [(); 2].map(|()| Daemon::start_with(&text, auto));
    let limits = |arguments: &[&str]| {
        let mut command = program(&["limits"]);
        command
            .args(arguments)
            .arg("--config")
            .arg(daemons[0].config());
        auto(&mut command);
        let said = command.output().unwrap();
        String::from_utf8([said.stdout, said.stderr].concat()).unwrap()
    };
    for limit in ["provider", "sender"] {
        eventually_by_program(LONG, "it follows", || {
            let shown: Value = serde_json::from_str(&limits(&["show", limit, "--json"])).unwrap();
            let headroom = shown["in_force"]["headroom"].as_str().unwrap_or_default();
            headroom.starts_with("auto(")
        })
        .await;
        let shown = limits(&["show", limit]);
        for part in [
            "for calls that leave late",
            "set by",
            "the way to the downstream varies by",
        ] {
            assert!(shown.contains(part), "{part} in\n{shown}");
        }
        assert!(shown.contains("this file     the same"), "{shown}");
    }
    // One of them updates the policy, each logs the change and its reason.
    for daemon in &daemons {
        daemon.says("headroom=auto(").await;
        daemon.says("the way to the downstream varies by").await;
    }
    // An operator's change keeps the measured headroom; a written headroom replaces it.
    let said = limits(&["set", "provider", "rate=90/1s"]);
    assert!(said.contains("rate=90/1s headroom=auto("), "{said}");
    let said = limits(&["set", "provider", "headroom=7ms"]);
    assert!(said.contains("rate=90/1s headroom=7ms"), "{said}");
    eventually(LONG, "all are called", || {
        downstream.count() as u64 == MESSAGES
    })
    .await;
    for daemon in daemons {
        daemon
            .stop(&[
                NEW_SCHEDULE,
                "differs from the current policy",
                "nothing is kept on disk",
            ])
            .await;
    }
}
