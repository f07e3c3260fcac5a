//! Incidents of what the replicas share, and of one of them.

use serde_json::json;

use super::day::{Day, PASSWORDS, Says};
use crate::support::daemon::LONG;
use crate::support::wait::{eventually, eventually_async, eventually_by_program};

/// (8): Redis is emptied. Limits with keys wait until an operator opens them.
pub(super) async fn redis_is_emptied(day: &mut Day) {
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
        limits.any(|limit| limit.name == "recipient" && limit.state == "closed")
    })
    .await;
    for limit in ["sender", "recipient", "codes"] {
        day.command(&["limits", "open", limit]);
    }
    day.is_well().await;
}

/// (9): an operator pauses a limit, and then a route.
pub(super) async fn an_operator_pauses(day: &mut Day) {
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
            let why = fleet.route("marketing").why;
            why.is_some_and(|why| why.contains("paused"))
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

/// (11): a replica is killed with calls in flight. The journal names each message that was called again, and `find`
/// what is known of it.
pub(super) async fn a_replica_is_killed(day: &mut Day) {
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
