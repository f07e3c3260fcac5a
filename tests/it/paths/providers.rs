//! Two providers for one queue: routes that share it use both limits, and messages that one of them cannot
//! send are sent by the other one, without an attempt and without a repeat.

mod once;
mod pair;
mod waits;

use lapin::BasicProperties;

use self::pair::{DECLARED, HANGS, LATE_500, MESSAGES, Pair, SLOW, SOON, taken};
use super::{header, holds, numbered, to};
use crate::support::daemon::{Daemon, LONG, get, program};
use crate::support::recorder::after_an_answer;
use crate::support::soak::at_length;
use crate::support::wait::{eventually, eventually_async};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_limits_are_used() {
    let pair = Pair::of("pair-both").await;
    pair.publish(1, 2 * MESSAGES).await;
    let daemons = vec![Daemon::start(&pair.config), Daemon::start(&pair.config)];
    pair.have(2 * MESSAGES).await;
    let (a, b) = (pair.a.numbers(), pair.b.numbers());
    assert!(a.is_disjoint(&b), "none twice");
    // Either alone would have taken eight seconds; the split depends on nothing but the two rates.
    let (fewer, more) = (a.len().min(b.len()), a.len().max(b.len()));
    assert!(fewer * 2 > more, "{fewer} and {more}");
    pair.proves(daemons).await;
}

async fn fails_over(name: &'static str, status: u16) {
    let mut pair = Pair::of(name).await;
    if status == HANGS {
        for route in &mut pair.config.routes {
            route.downstream += "timeout = \"2s\"\n";
        }
    }
    pair.publish(1, MESSAGES).await;
    let daemons = vec![Daemon::start(&pair.config), Daemon::start(&pair.config)];
    pair.have(60).await;
    pair.a.answers(status);
    let before = pair.a.count();
    pair.publish(MESSAGES + 1, 3 * MESSAGES).await;
    // All of them arrive at the other one, including those that the first one holds.
    eventually(LONG, "the other one takes all", || {
        taken(&pair) >= 3 * MESSAGES
    })
    .await;
    // An account that hangs gets the calls of one timeout, and their messages are sent by the other one, too.
    let most = if status == HANGS { 260 } else { 120 };
    let calls = pair.a.recorder.calls();
    let refused = &calls[before.min(calls.len())..];
    // Whatever was under way before an answer was possible counts only where none comes.
    let during = match status {
        HANGS => refused.len(),
        _ => after_an_answer(refused, LONG),
    };
    assert!(during <= most, "{during} calls while it was away");
    pair.a.answers(202);
    if status != 429 {
        pair.uses_the_first_again(3 * MESSAGES).await;
    }
    let logs = pair.proves(daemons).await;
    assert!(logs.iter().any(|log| log.contains("its messages move")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_provider_that_hangs_cannot_take_the_other_one_takes() {
    fails_over("pair-hangs", HANGS).await;
}

/// Messages of both routes that a dead replica held come again, and are sent by the route that can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_dies_while_one_provider_is_away_loses_nothing() {
    let pair = Pair::of("pair-dies").await;
    pair.publish(1, MESSAGES).await;
    let dies = Daemon::start(&pair.config);
    let stays = Daemon::start(&pair.config);
    pair.have(60).await;
    pair.a.answers(500);
    pair.publish(MESSAGES + 1, 2 * MESSAGES).await;
    dies.says("its messages move").await;
    dies.kill(DECLARED).await;
    eventually(LONG, "the other one takes all", || {
        taken(&pair) >= 2 * MESSAGES
    })
    .await;
    pair.a.answers(202);
    pair.publish(2 * MESSAGES + 1, 3 * MESSAGES).await;
    pair.have(3 * MESSAGES).await;
    pair.proves(vec![stays]).await;
}

/// After both failed, each has messages again, to notice that its provider is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_both_failed_the_one_that_is_back_sends() {
    const ALL: u64 = 3 * MESSAGES;
    let pair = Pair::of("pair-both-away").await;
    pair.publish(1, MESSAGES).await;
    let mut daemons = vec![Daemon::start(&pair.config), Daemon::start(&pair.config)];
    pair.have(60).await;
    pair.a.answers(500);
    pair.publish(MESSAGES + 1, ALL).await;
    for daemon in &daemons {
        daemon.says("its messages move").await;
    }
    let before = pair.b.count();
    eventually(LONG, "the other one sends", || pair.b.count() > before + 10).await;
    pair.b.answers(500);
    let series = format!("sluiced_breaker_open{{route=\"{}-b\"}} 1\n", pair.name);
    for daemon in &mut daemons {
        let admin = daemon.admin().await;
        let is_away = || get(admin, "/metrics").1.contains(&series);
        eventually(LONG, "it is known", is_away).await;
    }
    // The second one holds more messages than it had itself.
    let (a, b) = (pair.a.count(), pair.b.numbers().len());
    pair.a.answers(202);
    eventually(LONG, "the first one sends", || pair.a.count() > a + 60).await;
    pair.b.answers(202);
    pair.have(ALL).await;
    // One that was called before may have been refused: it is called again.
    let mut admins = Vec::new();
    for daemon in &mut daemons {
        admins.push(daemon.admin().await);
    }
    let settled = "sluiced_settled_total{";
    let done = |page: String| -> u64 {
        let lines = page
            .lines()
            .filter(|line| line.starts_with(settled) && line.contains("verdict=\"done\""));
        let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        values.sum()
    };
    eventually(LONG, "all are accepted", || {
        let pages = admins.iter().map(|admin| get(*admin, "/metrics").1);
        pages.map(done).sum::<u64>() >= ALL
    })
    .await;
    assert!(b < ALL as usize, "{b}");
    pair.proves(daemons).await;
}

/// Messages that moved to a slow provider return once the fast one is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fast_provider_gets_back_what_a_slow_one_took_over() {
    let mut pair = Pair::of("pair-slower").await;
    // Alone it would take minutes.
    pair.config.tables = pair.config.tables.replace("100/1s", "2/1s");
    pair.config.routes[1].keys = "prefetch = 10\n".to_owned();
    pair.publish(1, MESSAGES).await;
    let daemon = Daemon::start(&pair.config);
    pair.have(60).await;
    pair.a.answers(500);
    daemon.says("its messages move").await;
    let before = pair.b.count();
    eventually(LONG, "the slow one sends", || pair.b.count() > before + 3).await;
    pair.a.answers(202);
    pair.have(MESSAGES).await;
    let slow = pair.b.numbers().len();
    assert!(slow < 150, "the slow one took {slow}");
    pair.proves(vec![daemon]).await;
}

/// A frozen limit whose messages would be dead letters: the other one has room for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_denied_that_the_other_one_sends() {
    let mut pair = Pair::of("pair-denied").await;
    for route in &mut pair.config.routes {
        route.keys += "on_denied = \"dead_letter\"\n";
    }
    pair.publish(1, MESSAGES).await;
    let daemon = Daemon::start(&pair.config);
    pair.have(60).await;
    pair.a.answers(429);
    eventually(LONG, "the other one takes all", || taken(&pair) >= MESSAGES).await;
    pair.proves(vec![daemon]).await;
}

/// Both go on at their rates: nothing moves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_provider_is_used_all_the_same() {
    let mut pair = Pair::of("pair-slow").await;
    for route in &mut pair.config.routes {
        route.keys = "prefetch = 600\n".to_owned();
    }
    pair.a.answers(SLOW);
    // More than both hold at first.
    let count = at_length(4, 8) * MESSAGES;
    pair.publish(1, count).await;
    let daemon = Daemon::start(&pair.config);
    pair.have(count).await;
    let (a, b) = (pair.a.numbers(), pair.b.numbers());
    assert!(a.is_disjoint(&b), "none twice");
    assert!(a.len() * 2 > b.len(), "{} and {}", a.len(), b.len());
    pair.proves(vec![daemon]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_away_provider_cannot_take_the_other_one_takes() {
    fails_over("pair-away", 500).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_throttling_provider_cannot_take_the_other_one_takes() {
    fails_over("pair-frozen", 429).await;
}

const OPENS_AT_ONCE: &str = "breaker = { failures = 1, max_pause = \"500ms\" }\n";

/// Two routes that share a limit of one message an hour for each recipient, and their first messages sent.
async fn one_an_hour(name: &'static str, breaker: &str) -> (Pair, Vec<Daemon>) {
    let mut pair = Pair::of(name).await;
    pair.config.tables += "[limits.recipient]\nkind = \"sliding_log\"\nrate = \"1/1h\"\nheadroom = \"100ms\"\nkey = \"{{ body.to }}\"\n";
    for route in &mut pair.config.routes {
        route.limits.push("recipient");
        route.downstream = breaker.to_owned();
    }
    let all = (1..=MESSAGES).map(|number| to(number, &format!("r{number}")));
    pair.broker.publish(pair.name, all).await;
    let daemons = vec![Daemon::start(&pair.config), Daemon::start(&pair.config)];
    pair.have(60).await;
    (pair, daemons)
}

/// How many messages wait for the next hour.
async fn denied_for_an_hour(pair: &Pair) -> usize {
    let mut waiting = 0;
    for wait in ["1024s", "2048s", "4096s"] {
        let counts = pair
            .broker
            .counts(&format!("{}.wait.{wait}", pair.name))
            .await;
        waiting += counts.map_or(0, |(ready, _)| ready as usize);
    }
    waiting
}

/// A message returns its units of a limit that both routes have before it asks again for the other route:
/// otherwise it would be denied for an hour.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_moves_is_not_denied_for_what_it_took_itself() {
    let (pair, daemons) = one_an_hour("pair-keyed", SOON).await;
    let before = pair.a.count();
    pair.a.answers(429);
    pair.have(MESSAGES).await;
    assert!(pair.b.numbers().len() > 100, "the other one took them");
    for daemon in daemons {
        daemon
            .stop(&[&["nothing is kept on disk"], DECLARED].concat())
            .await;
    }
    // A message that the first one refused has used its unit, and waits for the next.
    let refused = pair.a.count() - before;
    let waiting = denied_for_an_hour(&pair).await;
    assert!(waiting <= refused, "{waiting} wait, {refused} were refused");
}

/// The same where the first provider was called and refused the credentials: its calls used up nothing of a recipient's
/// limit. The first of them opens the breaker; calls that fail before would count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_whose_credentials_were_refused_is_not_denied_for_that_call() {
    let (pair, daemons) = one_an_hour("pair-keyed-401", OPENS_AT_ONCE).await;
    pair.a.answers(401);
    eventually_async(LONG, "each is sent or denied", || async {
        taken(&pair) + denied_for_an_hour(&pair).await as u64 >= MESSAGES
    })
    .await;
    assert_eq!(denied_for_an_hour(&pair).await, 0);
    for daemon in daemons {
        daemon
            .stop(&[&["nothing is kept on disk"], DECLARED].concat())
            .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_names_the_route_that_gave_up() {
    let name = "pair-dead";
    let mut pair = Pair::of(name).await;
    for route in &mut pair.config.routes {
        route.downstream = "breaker = { max_pause = \"500ms\", dead_letters = 0 }\n".to_owned();
    }
    pair.a.answers(500);
    pair.b.answers(422);
    pair.publish(1, 100).await;
    let mut daemon = Daemon::start(&pair.config);
    holds(&pair.broker, &format!("{name}.dead"), 100).await;
    let series = format!("sluiced_settled_total{{route=\"{name}-b\",verdict=\"dead\"}}");
    let admin = daemon.admin().await;
    eventually(LONG, "each is counted", || {
        let page = get(admin, "/metrics").1;
        page.contains(&format!("{series} 100\n"))
    })
    .await;
    let config = daemon.config();
    let config = config.to_str().expect("a path");
    for (route, count) in [("a", 0), ("b", 100)] {
        let route = format!("{name}-{route}");
        let arguments = [
            "dead", "list", "--config", config, "--route", &route, "--json",
        ];
        let listed = program(&arguments).output().expect("it runs");
        let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).expect("JSON");
        assert_eq!(listed[0]["meant"], count, "{listed}");
    }
    let all = program(&["dead", "list", "--config", config, "--json"]).output();
    let all: serde_json::Value =
        serde_json::from_slice(&all.expect("it runs").stdout).expect("JSON");
    assert_eq!(all.as_array().map(Vec::len), Some(1), "one queue: {all}");
    daemon.stop(&[&["dead letter"], DECLARED].concat()).await;
    let letters = pair.broker.drain(&format!("{name}.dead")).await;
    for (_, properties) in letters {
        let route = header(&properties, "x-sluiced-route");
        assert_eq!(route, Some(format!("{name}-b")));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_sends_only_while_its_main_route_cannot() {
    let pair = Pair::of("pair-standby").await.with_standby("");
    pair.publish(1, MESSAGES).await;
    let daemons = vec![Daemon::start(&pair.config), Daemon::start(&pair.config)];
    eventually(LONG, "the main one takes all", || {
        pair.a.count() as u64 >= MESSAGES
    })
    .await;
    assert_eq!(pair.b.count(), 0, "the standby waits");
    pair.a.answers(500);
    pair.publish(MESSAGES + 1, 2 * MESSAGES).await;
    let taken = || pair.b.numbers().len() as u64;
    eventually(LONG, "the standby takes all", || taken() >= MESSAGES).await;
    pair.a.answers(202);
    let (main, standby) = (pair.a.count(), pair.b.count());
    pair.publish(2 * MESSAGES + 1, 3 * MESSAGES).await;
    pair.have(3 * MESSAGES).await;
    for daemon in &daemons {
        daemon.says("the downstream is back").await;
    }
    // Until a probe passes, the standby sends.
    let (main, standby) = (pair.a.count() - main, pair.b.count() - standby);
    assert!(main > standby, "{main} and {standby} calls");
    pair.proves(daemons).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_helps_a_route_that_is_late() {
    let pair = Pair::of("pair-late")
        .await
        .with_standby("max_delay = \"2s\"\n");
    let ago = |properties: BasicProperties| properties.with_timestamp(super::unix() - 10);
    let all = numbered(1, 3 * MESSAGES).map(|(body, properties)| (body, ago(properties)));
    pair.broker.publish(pair.name, all).await;
    let daemon = Daemon::start(&pair.config);
    pair.have(3 * MESSAGES).await;
    let (a, b) = (pair.a.numbers(), pair.b.numbers());
    assert!(a.is_disjoint(&b), "none twice");
    assert!(b.len() > 100, "the standby took {}", b.len());
    let late = ["max_delay"];
    daemon.stop(&[&late, DECLARED].concat()).await;
}
