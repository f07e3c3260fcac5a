//! A downstream that allows less than is configured: the rate of all replicas follows it.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use super::{config, numbered, queue};
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route, THROTTLED, program};
use crate::support::recorder::{Call, Recorder, Reply};
use crate::support::wait::{eventually, eventually_async};

/// The calls that the downstream allows in any second, and the configured rate.
const ALLOWED: usize = 30;
const CONFIGURED: &str = "40/1s";
const MESSAGES: u64 = 450;
/// As an environment has it, for replicas and commands.
const ADAPTIVE: (&str, &str) = ("SLUICED__LIMITS__PROVIDER__ADAPTIVE", "true");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rate_follows_a_downstream_that_allows_less() {
    let name = "adaptive";
    let broker = queue(name, "quorum").await;
    broker.publish(name, numbered(1, MESSAGES)).await;
    let downstream = Recorder::start(allows_less()).await;
    let text = config_of(name, &downstream);
    let mut daemons = [(); 2].map(|()| {
        Daemon::start_with(&text, |command| {
            command.env(ADAPTIVE.0, ADAPTIVE.1);
        })
    });
    eventually_async(LONG, "all are acknowledged", || async {
        downstream.count() as u64 >= MESSAGES
            && broker
                .counts(name)
                .await
                .is_some_and(|(ready, _)| ready == 0)
    })
    .await;
    let numbers = || downstream.numbers().len() as u64;
    eventually(LONG, "all came", || numbers() == MESSAGES).await;
    let refused = downstream.count() as u64 - MESSAGES;
    assert!(refused > 0, "it did throttle");
    assert!(refused <= MESSAGES / 10, "{refused} refused");
    for daemon in &mut daemons {
        let rate = daemon
            .metric("sluiced_limit_units_per_second{limit=\"provider\"}")
            .await;
        // It grows again while nothing is refused, how far depends on the machine.
        assert!((4.0..40.0).contains(&rate), "{rate} a second");
    }
    assert_an_operator_sees_the_rate_and_sets_another(&daemons[0]);
    for daemon in daemons {
        daemon
            .stop(&[NEW_SCHEDULE, THROTTLED, "differs from the current policy"])
            .await;
    }
    let dead = broker.counts(&format!("{name}.dead")).await;
    assert_eq!(dead, Some((0, 0)));
}

/// Refuses what is more than [`ALLOWED`] in any second.
fn allows_less() -> impl Fn(&Call) -> Reply {
    let accepted = Mutex::new(VecDeque::<Instant>::new());
    move |call| {
        let mut accepted = accepted.lock().unwrap();
        while accepted
            .front()
            .is_some_and(|at| *at + Duration::from_secs(1) <= call.at)
        {
            accepted.pop_front();
        }
        if accepted.len() >= ALLOWED {
            return Reply::retry_after(429, "1");
        }
        accepted.push_back(call.at);
        Reply::status(202)
    }
}

fn assert_an_operator_sees_the_rate_and_sets_another(daemon: &Daemon) {
    let limits = |arguments: &[&str]| {
        let mut command = program(&["limits"]);
        command
            .args(arguments)
            .arg("--config")
            .arg(daemon.config())
            .env(ADAPTIVE.0, ADAPTIVE.1);
        let said = command.output().unwrap();
        String::from_utf8([said.stdout, said.stderr].concat()).unwrap()
    };
    let said = limits(&["list"]);
    assert!(said.contains("(adaptive, of 40/1s)"), "{said}");
    let said = limits(&["show", "provider"]);
    assert!(said.contains("lowered to"), "{said}");
    let said = limits(&["set", "provider", "adapted=40/1s"]);
    assert!(said.contains("`adapted` is not for operators"), "{said}");
    // An operator's value replaces the one that `adaptive` set.
    let said = limits(&["set", "provider", "rate=20/1s"]);
    assert!(said.contains("rate=20/1s"), "{said}");
    let said = limits(&["list"]);
    assert!(
        said.contains("20/1s") && !said.contains("adaptive, of"),
        "{said}"
    );
}

fn config_of(name: &str, downstream: &Recorder) -> String {
    let mut config = config(name, vec![Route::new(name, downstream.address)]);
    config.rate = CONFIGURED.to_owned();
    config.text()
}
