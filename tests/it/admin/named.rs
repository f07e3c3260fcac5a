//! What replicas are called, and how one of them is found.

use rustix::process::Signal;
use sluiced_status::Fleet;

use super::blocked::said;
use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route, get};
use crate::support::rabbit::Rabbit;
use crate::support::recorder::Recorder;
use crate::support::wait::{eventually, eventually_by_program};

const DECLARED: &[&str] = &[NEW_SCHEDULE, "nothing is kept on disk", "tap closed"];
const INSTANCE: &str = "SLUICED__SERVICE__INSTANCE";

/// A replica of that name.
pub(super) fn start(config: &Config, name: &str) -> Daemon {
    Daemon::start_with(&config.text(), |command| {
        command.env(INSTANCE, name);
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_have_names_and_one_that_was_replaced_is_gone_at_once() {
    let name = "named";
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    broker.declare(name, "quorum").await;
    let downstream = Recorder::accepting().await;
    let config = Config::shared(name, "100/1s", vec![Route::new(name, downstream.address)]);
    let mut one = start(&config, "web-1:sms");
    let other = start(&config, "web-2:sms");
    let admin = one.admin().await;
    let is = |wanted: &[(&str, bool)]| {
        let fleet: Fleet = serde_json::from_str(&get(admin, "/status.json").1).unwrap();
        let replicas = fleet.replicas.iter();
        let seen: Vec<_> = replicas.map(|r| (&*r.name, r.silent == 0)).collect();
        seen == wanted
    };
    let both = [("web-1:sms", true), ("web-2:sms", true)];
    eventually(LONG, "both names", || is(&both)).await;
    other.says("\"replica\":\"web-2:sms\"").await;
    let file = one.config().display().to_string();
    eventually_by_program(LONG, "both names at their limit", || {
        let text = said(&["limits", "show", "provider", "--json", "--config", &file]);
        both.iter().all(|(name, _)| text.contains(name))
    })
    .await;

    // Killed, so it says nothing; and started again.
    other.kill(DECLARED).await;
    eventually(LONG, "it is not heard of", || {
        is(&[both[0], ("web-2:sms", false)])
    })
    .await;
    let other = start(&config, "web-2:sms");
    eventually(LONG, "it is there again, once", || is(&both)).await;
    // Replaced by one of another name.
    other.stop(DECLARED).await;
    eventually(LONG, "it is gone", || is(&both[..1])).await;
    let third = start(&config, "web-3:sms");
    eventually(LONG, "the new one", || is(&[both[0], ("web-3:sms", true)])).await;
    third.stop(DECLARED).await;
    one.stop(DECLARED).await;
}

/// Two replicas of one file have their addresses by variables, and the terminal of the operator does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_whose_address_came_by_a_variable_is_found() {
    let name = "found-status";
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    broker.declare(name, "quorum").await;
    let downstream = Recorder::accepting().await;
    let config = Config::shared(name, "100/1s", vec![Route::new(name, downstream.address)]);
    let free = "listen = \"127.0.0.1:0\"";
    let text = config.text();
    assert!(text.contains(free), "{text}");
    // Nothing can listen there.
    let text = text.replace(free, "listen = \"127.0.0.1:1\"");
    let mut daemon = Daemon::start_with(&text, |command| {
        command.env("SLUICED__ADMIN__LISTEN", "127.0.0.1:0");
    });
    daemon.ready().await;
    let file = daemon.config().display().to_string();
    eventually_by_program(LONG, "it is found", || {
        said(&["status", "--config", &file]).starts_with("sluiced: 1 replica, all ready")
    })
    .await;
    daemon.signal(Signal::TERM);
    daemon.stopped(DECLARED).await;
    let text = said(&["status", "--config", &file]);
    assert!(text.contains("http://127.0.0.1:1/status.json: "), "{text}");
}
