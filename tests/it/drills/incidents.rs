//! Twelve incidents of a second day, one after the other, on the recipe of passwords and marketing with three replicas.
//!
//! After each one the tools must say what is wrong (`/readyz`, `sluiced status`, the series that alerts use, the log),
//! and once it has ended none of them may name it any more. At the end nothing was over, nothing was lost but what an
//! operator deleted, and nothing came twice but calls of the replica that was killed.

mod day;

use std::collections::BTreeSet;

use serde_json::json;
use sluiced_provider::{Behaviour, Provider};
use sluiced_status::Fleet;

use self::day::{ANSWERS, DECLARED, Day, MARKETING, OF_A_RECIPIENT, PASSWORDS, RATE, Says};
use crate::fleet::PATIENCE;
use crate::paths::journal::asked;
use crate::support::daemon::{LONG, get};
use crate::support::recorder::{Recorder, Reply};
use crate::support::wait::{eventually, eventually_async, eventually_by_program};

/// Rungs of the ladder of wait queues.
const RUNGS: std::ops::Range<u32> = 0..13;

/// (1) and (3): one replica is refused, and the others are not. It says that it is alone.
async fn one_is_refused(day: &mut Day, status: u16, marketing: usize) {
    let refusing = Recorder::start(move |_| Reply::status(status)).await;
    let (right, wrong) = (day.provider().address(), refusing.address);
    let replaced = |text: String| text.replace(&right.to_string(), &wrong.to_string());
    day.swap(&format!("refused-{status}"), replaced).await;
    day.publish('m', marketing).await;
    let alone = Says {
        ready: 503,
        page: &[
            "downstream of route marketing",
            "only this replica",
            &status.to_string(),
        ],
        series: &[
            "sluiced_breaker_open{route=\"marketing\"} 1",
            "sluiced_ready 0",
        ],
        log: "only this replica stops",
    };
    day.says(&[2], "it says that it is alone", alone).await;
    let others = Says {
        ready: 200,
        series: &[
            "sluiced_ready 1",
            "sluiced_breaker_open{route=\"marketing\"} 0",
        ],
        ..Says::default()
    };
    day.says(&[0, 1], "the others go on", others).await;
    day.status("one replica is named", |fleet| {
        let missing = fleet
            .reporting_replicas()
            .filter(|replica| !replica.missing.is_empty());
        missing.count() == 1
    })
    .await;
    day.swap(&format!("right-{status}"), |text| text).await;
    day.is_well().await;
}

/// (2): an operator purges the dead letters of the wrong template. Returns how many there were. Before any command
/// reads them: for a minute after that, a replica takes what is missing for read.
async fn the_dead_letters_are_purged(day: &mut Day) -> u32 {
    let dead = format!("{MARKETING}.dead");
    let letters = day.ready_in(&dead).await;
    assert!((1..=45).contains(&letters), "{letters} dead letters");
    let series = format!("sluiced_queue_messages{{route=\"marketing\",part=\"dead\"}} {letters}\n");
    let counted = || {
        let mut all = day.admins.iter();
        all.all(|admin| get(*admin, "/metrics").1.contains(&series))
    };
    eventually(LONG, "they are counted", counted).await;
    day.broker.purge(&dead).await;
    are_gone(
        day,
        "dead",
        letters.into(),
        "messages are gone from a queue",
    )
    .await;
    letters
}

/// The counter of messages that are gone: on any replica that knew of them, in `sluiced status`, and in its log.
async fn are_gone(day: &Day, part: &str, count: u64, log: &str) {
    let series =
        format!("sluiced_vanished_messages_total{{route=\"marketing\",part=\"{part}\"}} {count}");
    eventually(LONG, "they are counted", || {
        let mut all = day.admins.iter().zip(&day.replicas);
        all.any(|(admin, replica)| {
            let (code, _) = get(*admin, "/readyz");
            let (_, page) = get(*admin, "/metrics");
            code == 200 && page.lines().any(|line| line == series) && replica.said(log) > 0
        })
    })
    .await;
    day.status("they are shown", |fleet| {
        fleet.route("marketing").vanished.get(part) == Some(&count)
    })
    .await;
}

/// (4): one replica has another rate in its file.
async fn one_has_another_rate(day: &mut Day) {
    day.swap("rate", |text| text.replace(RATE, "300/1s")).await;
    let differs = Says {
        ready: 200,
        series: &["sluiced_limit_differs{limit=\"account\"} 1"],
        log: "this replica's file differs from the current policy",
        ..Says::default()
    };
    day.says(&[2], "its file differs", differs).await;
    day.feed().await;
    day.status("the rate is that of the others", |fleet| {
        fleet.rates("account").0 <= 200.0
    })
    .await;
    day.swap("right-rate", |text| text).await;
    day.is_well().await;
}

/// (5) and (6): nothing listens, and then each call is answered by 403. The reason is that of now.
async fn the_provider_is_away(day: &mut Day) {
    let address = day.provider().address();
    day.providers.last_mut().unwrap().close();
    day.feed().await;
    let series = [
        "sluiced_breaker_open{route=\"marketing\"} 1",
        "sluiced_ready 0",
    ];
    let away = Says {
        ready: 503,
        page: &["downstream of route marketing", "refused"],
        series: &series,
        log: "the downstream is away",
    };
    day.says(&[0, 1, 2], "the provider refuses connections", away)
        .await;
    let says = |word: &'static str| {
        move |fleet: &Fleet| {
            let route = fleet.route("marketing");
            route.away && route.away_why.contains(word)
        }
    };
    day.status("the reason", says("refused")).await;

    let judging = Behaviour::judging(RATE.parse().unwrap());
    let provider = Provider::start(address, judging).unwrap();
    provider
        .script(serde_json::from_value(json!({ "status": 403 })).unwrap())
        .unwrap();
    day.providers.push(provider);
    day.feed().await;
    let page = [
        r#""downstream of route passwords","reason":"403"#,
        r#""downstream of route marketing","reason":"403"#,
    ];
    let forbidden = Says {
        page: &page,
        ..away
    };
    day.says(&[0, 1, 2], "the provider forbids", forbidden)
        .await;
    for admin in &day.admins {
        let (_, page) = get(*admin, "/readyz");
        assert!(!page.contains("refused"), "an old reason: {page}");
    }
    day.status("the reason of now", says("403")).await;
    day.provider().unscript();
    day.is_well().await;
}

/// (7): the account is frozen while passwords wait.
async fn the_account_is_frozen(day: &mut Day) {
    let step = json!({ "status": 429, "retry_after": "12" });
    day.provider()
        .script(serde_json::from_value(step).unwrap())
        .unwrap();
    day.feed().await;
    let frozen = Says {
        ready: 200,
        page: &[
            "\"limit\":\"account\"",
            "frozen, as the downstream asked",
            "\"seconds\":",
        ],
        series: &["sluiced_frozen{limit=\"account\"} 1"],
        log: "tap closed: the limit is frozen",
    };
    day.says(&[0, 1, 2], "the freeze is named", frozen).await;
    day.status("passwords wait for it", |fleet| {
        let why = fleet.route("passwords").why;
        why.starts_with("its limit account is frozen for another ")
    })
    .await;
    day.provider().unscript();
    day.is_well().await;
}

/// (8): Redis is emptied. Limits with keys wait until an operator opens them.
async fn redis_is_emptied(day: &mut Day) {
    let () = redis::cmd("FLUSHALL")
        .query(&mut day.redis.connection())
        .unwrap();
    day.feed().await;
    let lost = Says {
        ready: 200,
        page: &["\"limit\":\"recipient\"", "the store lost its state"],
        series: &["sluiced_limit_waits_until_time_seconds{limit=\"recipient\",what=\"lost\"} 1"],
        ..Says::default()
    };
    day.says(&[0, 1, 2], "the loss is named", lost).await;
    day.status("the limit is closed", |fleet| {
        let mut limits = fleet.limits.iter();
        limits.any(|limit| limit["name"] == "recipient" && limit["state"] == "closed")
    })
    .await;
    for limit in ["sender", "recipient", "codes"] {
        day.command(&["limits", "open", limit]);
    }
    day.is_well().await;
}

/// (9): an operator pauses a limit, and then a route.
async fn an_operator_pauses(day: &mut Day) {
    for (what, name, waits) in [
        ("limits", "account", "account"),
        ("routes", "marketing", "route.marketing"),
    ] {
        // Redis was emptied before: until a replica has told it of the route, there is nothing to pause.
        let known = || day.try_command(&[what, "pause", name]).0;
        eventually_by_program(LONG, "it can be paused", known).await;
        day.feed().await;
        let command = format!("paused by an operator (`sluiced {what} resume` ends it)");
        let series =
            format!("sluiced_limit_waits_until_time_seconds{{limit=\"{waits}\",what=\"pause\"}} 1");
        let paused = Says {
            ready: 200,
            page: &[&format!("\"limit\":\"{waits}\""), &command],
            series: &[&series],
            log: &format!("the {} is paused", what.trim_end_matches('s')),
        };
        day.says(&[0, 1, 2], "the pause is named", paused).await;
        day.status("the route waits for it", |fleet| {
            fleet.route("marketing").why.contains("paused")
                && fleet
                    .events()
                    .iter()
                    .any(|(_, event)| event.text.contains("is paused by "))
        })
        .await;
        if what == "routes" {
            let sent = || async { day.ready_in(PASSWORDS).await == 0 };
            eventually_async(LONG, "passwords go on", sent).await;
        }
        day.command(&[what, "resume", name]);
        day.is_well().await;
    }
}

/// (10): a wait queue is deleted. Returns the messages that were in it.
async fn a_wait_queue_is_deleted(day: &mut Day) -> Vec<String> {
    let idle = Says {
        ready: 200,
        series: &[
            "sluiced_queue_messages{route=\"marketing\",part=\"ready\"} 0",
            "sluiced_queue_messages{route=\"marketing\",part=\"waiting\"} 0",
        ],
        ..Says::default()
    };
    day.says(&[0, 1, 2], "all else is sent", idle).await;
    let ids: Vec<_> = (0..OF_A_RECIPIENT + 3)
        .map(|n| format!("deleted-{n}"))
        .collect();
    let messages: Vec<_> = ids
        .iter()
        .map(|id| day.message(id, "+491700000000"))
        .collect();
    day.broker.publish(MARKETING, messages).await;
    day.published.extend(ids.iter().cloned());
    // Those that put one there count the queue at once, the others look for it every minute.
    let series = "sluiced_queue_messages{route=\"marketing\",part=\"waiting\"} 3\n";
    let counted = || {
        let mut all = day.admins.iter();
        all.any(|admin| get(*admin, "/metrics").1.contains(series))
    };
    eventually(LONG, "a replica has counted them", counted).await;
    for rung in RUNGS {
        day.broker
            .delete(&format!("{MARKETING}.wait.{}s", 1_u32 << rung))
            .await;
    }
    are_gone(day, "waiting", 3, "a queue is gone with the messages").await;
    day.is_well().await;
    ids
}

/// (11): a replica is killed with calls under way. The journal names each message that was called again, and `find`
/// what is known of it.
async fn a_replica_is_killed(day: &mut Day) {
    day.swap("killed", |text| text).await;
    day.provider()
        .script(serde_json::from_value(json!({ "delay": "2s" })).unwrap())
        .unwrap();
    day.feed().await;
    let victim = &day.replicas[2];
    let ends = " killed";
    let called = || {
        let calls = day.provider().keyed();
        let own = calls.iter().filter(|(_, key)| key.ends_with(ends)).count();
        own >= 5 && victim.said("\"message\":\"calling\"") >= 5
    };
    eventually(LONG, "its calls are under way", called).await;
    let victim = day.replicas.pop().unwrap();
    let mut gone = victim;
    gone.signal(rustix::process::Signal::KILL);
    gone.ended().await;
    day.logs.push(gone.log());
    day.provider().unscript();
    let mut new = day.replica("new", |text| text);
    day.admins[2] = new.admin().await;
    day.replicas.push(new);
    let again = || day.taken().into_values().any(|times| times > 1);
    eventually(LONG, "another one calls again", again).await;
    day.is_well().await;
}

/// (12): no queue takes the results.
async fn results_are_not_confirmed(day: &mut Day) {
    day.broker.delete(ANSWERS).await;
    day.feed().await;
    let unconfirmed = Says {
        ready: 503,
        page: &["results are not confirmed"],
        series: &["sluiced_ready 0"],
        log: "confirmed",
    };
    day.says(&[0, 1, 2], "results are not confirmed", unconfirmed)
        .await;
    day.broker.declare(ANSWERS, "quorum").await;
    day.is_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twelve_incidents_are_named_while_they_last_and_forgotten_when_they_end() {
    let begun = tokio::time::Instant::now();
    let mut day = Day::begin().await;
    let told = |what: &str| eprintln!("{:>5.0?}: {what}", begun.elapsed());
    one_is_refused(&mut day, 422, 600).await;
    told("a wrong template");
    let purged = the_dead_letters_are_purged(&mut day).await;
    told("the dead letters are purged");
    one_is_refused(&mut day, 401, 200).await;
    told("a wrong credential");
    one_has_another_rate(&mut day).await;
    told("a wrong rate");
    the_provider_is_away(&mut day).await;
    told("refused, and 403");
    the_account_is_frozen(&mut day).await;
    told("frozen");
    redis_is_emptied(&mut day).await;
    told("Redis is emptied");
    an_operator_pauses(&mut day).await;
    told("a limit and a route are paused");
    let deleted = a_wait_queue_is_deleted(&mut day).await;
    told("a wait queue is deleted");
    a_replica_is_killed(&mut day).await;
    told("a replica is killed");
    results_are_not_confirmed(&mut day).await;
    told("results are not confirmed");

    assert_eq!(day.ready_in(&format!("{MARKETING}.dead")).await, 0);
    let gone = purged as usize + 3;
    let all = || day.taken().len() + gone >= day.published.len();
    eventually(PATIENCE, "all are sent", all).await;
    let empty = || async { day.ready_in(PASSWORDS).await + day.ready_in(MARKETING).await == 0 };
    eventually_async(LONG, "the queues are empty", empty).await;
    let taken = day.taken();
    let twice: BTreeSet<_> = taken
        .iter()
        .filter(|(_, times)| **times > 1)
        .map(|(id, _)| id.as_str())
        .collect();
    // What is known of one of them.
    let id = *twice.first().unwrap();
    let (limit, number) = (
        if id.starts_with('p') {
            "codes"
        } else {
            "recipient"
        },
        &id[1..],
    );
    let key = format!("{limit}=+4915{number:0>8}");
    let found = day.command(&["find", id, "--key", &key]);
    assert!(found.contains("it is no dead letter"), "{found}");
    for replica in std::mem::take(&mut day.replicas) {
        day.logs.push(replica.stop(DECLARED).await);
    }
    let over: u64 = day
        .providers
        .iter()
        .map(|provider| provider.live().over)
        .sum();
    assert_eq!(over, 0);
    let lost: Vec<_> = day
        .published
        .iter()
        .filter(|id| !taken.contains_key(*id))
        .collect();
    assert_eq!(lost.len(), gone, "{lost:?}");
    let of_the_queue = lost.iter().filter(|id| deleted.contains(*id)).count();
    assert_eq!(of_the_queue, 3, "{lost:?}");
    let calls: Vec<_> = day.providers.iter().flat_map(Provider::keyed).collect();
    let by_killed = |id: &str| calls.iter().any(|(_, key)| **key == format!("{id} killed"));
    assert!(twice.iter().all(|id| by_killed(id)), "{twice:?}");
    let named: BTreeSet<_> = asked("# Why did it get there twice?", &day.logs)
        .iter()
        .map(|line| line[0].as_str().unwrap().to_owned())
        .collect();
    // The last line of a replica that is killed may be missing.
    let unnamed: Vec<_> = twice.iter().filter(|id| !named.contains(**id)).collect();
    assert!(unnamed.len() <= 1, "{unnamed:?} of {twice:?}");
    for queue in [PASSWORDS, MARKETING, ANSWERS] {
        day.broker.delete(queue).await;
    }
}
