//! Incidents of the provider, and of a replica that is wrong about it.

use serde_json::json;
use sluiced_provider::{Behaviour, Provider};
use sluiced_status::Fleet;

use super::day::{Day, RATE, Says};
use crate::support::daemon::get;
use crate::support::recorder::{Recorder, Reply};

/// (1) and (3): one replica is refused, and the others are not. It says that it is alone.
pub(super) async fn one_is_refused(day: &mut Day, status: u16, marketing: usize) {
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

/// (4): one replica has another rate in its file.
pub(super) async fn one_has_another_rate(day: &mut Day) {
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
pub(super) async fn the_provider_is_away(day: &mut Day) {
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
            route.away && route.away_why.is_some_and(|why| why.contains(word))
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
pub(super) async fn the_account_is_frozen(day: &mut Day) {
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
        why.is_some_and(|why| why.starts_with("its limit account is frozen for another "))
    })
    .await;
    day.provider().unscript();
    day.is_well().await;
}
