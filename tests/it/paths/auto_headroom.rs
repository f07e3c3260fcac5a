//! `headroom = "auto"`: two replicas beside a downstream on the same host make the headroom shorter, and log
//! why.

use std::time::Duration;

use serde_json::Value;
use sluiced_provider::{Behaviour, Provider};

use super::{config, numbered, queue, to};
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route, THROTTLED, get, program};
use crate::support::proxy::{Mode, Proxy};
use crate::support::recorder::{Recorder, Reply};
use crate::support::redis::RedisServer;
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
    // The headroom of all other tests is fixed.
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

/// Redis is 25 ms away in each direction: the permits of a keyed limit have run out when they arrive, until its
/// headroom, which is the default, follows the round trip.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keyed_limit_follows_the_way_to_redis_by_default() {
    let name = "auto-far";
    let broker = queue(name, "quorum").await;
    let downstream = Recorder::accepting().await;
    let redis = Proxy::to(RedisServer::shared().port()).await;
    redis.set(Mode::Delay(Duration::from_millis(25), Duration::ZERO));
    let mut route = Route::new(name, downstream.address);
    route.limits = vec!["recipient"];
    let mut config = config(name, vec![route]);
    config.redis = Some(format!("redis://{}", redis.address()));
    config.tables =
        "[limits.recipient]\nkind = \"gcra\"\nrate = \"30/1s\"\nkey = \"{{ body.to }}\"\n\
                     lost_wait = \"0s\"\n"
            .to_owned();
    let daemon = Daemon::start(&config);
    let messages = (1..=60).map(|n| to(n, &format!("r{}", n % 20)));
    broker.publish(name, messages).await;
    eventually(LONG, "all are called", || downstream.count() == 60).await;
    daemon.says("permits must be valid for").await;
    daemon
        .stop(&["permits run out", "nothing is kept on disk"])
        .await;
}

/// A proxy on this host ends the connections, and the way behind it varies by 20 ms in each direction: handshakes do
/// not see that, and the provider refuses what comes too early. The headroom rises to what its answers show, and then
/// no call is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_way_that_handshakes_do_not_see_is_shown_by_refusals_and_answers() {
    let name = "auto-unseen";
    let broker = queue(name, "quorum").await;
    let rate = "100/1s";
    let strict = Behaviour {
        enforce: true,
        ..Behaviour::judging(rate.parse().unwrap())
    };
    let provider = Provider::start(([127, 0, 0, 1], 0).into(), strict).unwrap();
    let proxy = Proxy::to(provider.address().port()).await;
    let ms = Duration::from_millis;
    proxy.set(Mode::Delay(ms(10), ms(20)));
    let mut config = config(name, vec![Route::new(name, proxy.address())]);
    config.rate = rate.to_owned();
    let auto = |command: &mut std::process::Command| {
        command.env("SLUICED__LIMITS__PROVIDER__HEADROOM", "auto");
    };
    let mut daemon = Daemon::start_with(&config.text(), auto);
    let admin = daemon.admin().await;
    broker.publish(name, numbered(1, 2_000)).await;
    let unseen = "its answers show and handshakes do not";
    let count = |answer: &str| {
        let series = format!("sluiced_answers_total{{route=\"{name}\",answer=\"{answer}\"}} ");
        let (_, page) = get(admin, "/metrics");
        let mut values = page.lines().filter_map(|line| line.strip_prefix(&series));
        values
            .next()
            .map_or(0, |value| value.parse::<u64>().unwrap())
    };
    eventually(LONG * 2, "it says so, or all are taken", || {
        daemon.said(unseen) > 0 || count("2xx") == 2_000
    })
    .await;
    // On a busy machine calls leave late, and what is kept for that may be enough for the way too: then nothing is
    // refused.
    if count("429") > 0 {
        daemon.says(unseen).await;
    }
    let before = count("2xx");
    eventually(LONG, "what was leased before has been called", || {
        count("2xx") >= (before + 300).min(2_000)
    })
    .await;
    let early = count("429");
    eventually(LONG * 2, "all are taken", || count("2xx") == 2_000).await;
    // This process is a part of the way. Where it stands still, a few calls come together; before that, every tenth one
    // came too early.
    let late = count("429") - early;
    assert!(late <= 20, "{late} calls came too early after that");
    daemon
        .stop(&[NEW_SCHEDULE, THROTTLED, unseen, "nothing is kept on disk"])
        .await;
}
