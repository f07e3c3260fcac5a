//! The text of `status` and `top` fits any width and hides no number.

use std::collections::BTreeMap;

use serde_json::json;

use super::*;
use sluiced_status::{Curve, LimitUse, Missing};
use sluiced_telemetry::RecentLine;

fn limit(shown: serde_json::Value) -> LimitStatus {
    serde_json::from_value(shown).unwrap()
}

fn fleet() -> Fleet {
    let used = LimitUse {
        per_second: 400.0,
        used: 268.0,
        total: 9_000,
        actual: 8_500,
        ..LimitUse::default()
    };
    let mut bars = vec![0.0; BARS - 5];
    bars.extend([200.0, 400.0, 400.0, 400.0, 4.0]);
    let route = RouteState {
        open: false,
        why: Some("the downstream is away".to_owned()),
        dead: 3,
        stalled: Some("no call for 6 s".to_owned()),
        ready: 12_000,
        way_spread: 0.012,
        way_kept: 0.001_25,
        per_second: 100.0,
        delay: Some(0.25),
        oldest: 95.0,
        max_delay: 30.0,
        results: BTreeMap::from([("confirmed".to_owned(), 40), ("unroutable".to_owned(), 2)]),
        taken: Some(
            "of the routes that share limit account, bulk makes 95 % of the calls".to_owned(),
        ),
        ..RouteState::default()
    };
    let curve = Curve {
        delay: vec![None, Some(130.0), Some(0.25)],
        backlog: vec![None, Some(6_000), Some(12_000)],
    };
    let died = RouteState {
        open: true,
        repeats: 7,
        vanished: BTreeMap::from([("waiting".to_owned(), 16)]),
        dying: Some("50 messages died in a row, invalid: no field `to`".to_owned()),
        away: true,
        away_why: Some("503 Service Unavailable".to_owned()),
        ..RouteState::default()
    };
    let replica = Replica {
        name: "host:1".to_owned(),
        version: "0.1.0".to_owned(),
        seconds: 200,
        missing: vec![Missing {
            name: "downstream of sms".to_owned(),
            reason: "away".to_owned(),
            seconds: 4,
        }],
        routes: BTreeMap::from([("sms".to_owned(), route), ("mail".to_owned(), died)]),
        limits: BTreeMap::from([("account".to_owned(), used)]),
        events: vec![RecentLine {
            at: "2026-01-01T00:03:00Z".to_owned(),
            level: "WARN".to_owned(),
            text: "too\nlate\u{1b}[2J ".repeat(20),
        }],
        ..Replica::default()
    };
    Fleet {
        complete: true,
        now: "2026-01-01T00:04:00Z".to_owned(),
        used: BTreeMap::from([("account".to_owned(), bars)]),
        curves: BTreeMap::from([("sms".to_owned(), curve)]),
        gone: BTreeMap::from([("sms".to_owned(), "at 00:06 UTC".to_owned())]),
        replicas: vec![
            replica,
            Replica {
                name: "host:2".to_owned(),
                silent: 75,
                ..Replica::default()
            },
        ],
        limits: vec![limit(
            json!({"name": "account", "kind": "paced", "state": "paused", "now": "2026-01-01T00:00:00Z", "paused_until": "2026-01-01T00:01:30Z", "paused_by": "anna@ops"}),
        )],
        ..Fleet::default()
    }
}

#[test]
fn everything_fits_the_width() {
    for width in [0, 20, 80, 200] {
        for line in view(&fleet(), width, false) {
            assert!(line.chars().count() <= width, "{width}: {line}");
            assert!(!line.contains(char::is_control), "{line:?}");
        }
        let gone = view(&fleet(), width, false)
            .join("\n")
            .contains(" at this rate");
        assert_eq!(gone, width >= 80, "{width}");
    }
}

/// On a terminal of 80 columns too.
#[test]
fn a_long_name_hides_no_number() {
    let mut fleet = fleet();
    let long = "transactional-messages-of-germany";
    fleet.replicas[0].name = long.repeat(2);
    let route = RouteState {
        dead: 98_765,
        ..RouteState::default()
    };
    fleet.replicas[0].routes.insert(long.to_owned(), route);
    fleet.limits.push(limit(
        json!({"name": long, "kind": "concurrency", "state": "frozen"}),
    ));
    let lines = view(&fleet, 80, false);
    for (name, said) in [
        (long.to_owned(), "frozen"),
        (long.to_owned(), " 98765"),
        (long.repeat(2), "not ready"),
    ] {
        let mut pairs = lines.windows(2);
        let shown = pairs.any(|pair| pair[0] == name && pair[1].contains(said));
        assert!(shown, "{said}\n{}", lines.join("\n"));
    }
}

/// The curve is from one replica, the current delay from all.
#[test]
fn a_delay_is_never_longer_now_than_in_ten_minutes() {
    let mut fleet = fleet();
    let route = fleet.replicas[0].routes.get_mut("sms").expect("a route");
    route.delay = Some(300.0);
    let text = view(&fleet, 120, false).join("\n");
    assert!(text.contains("delay: 5m now, up to 5m in 10 min"), "{text}");
}

/// A number that lost a digit at the edge would be wrong.
#[test]
fn a_reason_is_whole_at_any_width() {
    let fleet = fleet();
    let words = |text: &str| {
        text.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let reasons = [
        "longer than max_delay (30 s); of the routes that share limit account, bulk makes 95 % of the calls",
        "downstream of sms: away",
        "50 messages died in a row, invalid: no field `to`",
    ];
    for width in 40..140 {
        let shown = words(&view(&fleet, width, false).join("\n"));
        for reason in reasons.map(words) {
            let is_whole = shown.windows(reason.len()).any(|part| part == reason);
            assert!(is_whole, "{width}: {reason:?}");
        }
    }
}

#[test]
fn what_is_wrong_is_said() {
    let text = view(&fleet(), 120, false).join("\n");
    for said in [
        "2 replicas, 1 not ready, 1 not heard of",
        "not heard of for 1m15s",
        "paused by anna@ops for another 1m30s",
        "closed: the downstream is away",
        "stalled: no call for 6 s",
        "sets messages aside: 50 messages died in a row, invalid: no field `to`",
        "only single probes are sent: 503 Service Unavailable",
        "the way to the downstream varies by 12 ms, and the headroom keeps 1.3 ms for that",
        "downstream of sms: away",
        "the oldest message waits for 95 s, longer than max_delay (30 s); of the routes that share limit account, bulk",
        "  delay: 0.2s now, up to 2m10s in 10 min   gone at 00:06 UTC at this rate   backlog:  ▄█",
        "\n  results since start: confirmed: 40, unroutable: 2",
        "\n  repeats without a call since start: 7",
        "messages gone with a queue of sluiced that was deleted or purged: 16 waiting",
        "268      400   67%",
        "  since start: 9000 taken by estimate, 8500 used by answers",
        "▄███▁",
        "00:03:00 WARN host:1 too late",
        "\n    late",
    ] {
        assert!(text.contains(said), "no `{said}` in\n{text}");
    }
    assert!(view(&fleet(), 120, true).join("\n").contains(RED));
}
