//! What the state of a fleet shows, made of what its replicas report.

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::explained::{NO_TURN, gone_at};
use crate::{CLOSED_HOURS, LimitUse};

/// A limit, as `/status.json` shows it.
fn limit(shown: serde_json::Value) -> LimitStatus {
    serde_json::from_value(shown).unwrap()
}

#[test]
fn what_replicas_use_adds_up_but_for_those_that_are_silent() {
    let using = |used, silent| {
        let used = LimitUse {
            used,
            per_second: 10.0,
            ..LimitUse::default()
        };
        let route = RouteState {
            held: 7,
            repeats: 3,
            ..RouteState::default()
        };
        Replica {
            limits: BTreeMap::from([("account".to_owned(), used)]),
            routes: BTreeMap::from([("sms".to_owned(), route)]),
            silent,
            ..Replica::default()
        }
    };
    let fleet = Fleet {
        replicas: vec![using(6.0, 0), using(4.5, 0), using(1.0, 4)],
        used: BTreeMap::from([("account".to_owned(), vec![1.0; BARS])]),
        ..Fleet::default()
    };
    assert_eq!(fleet.rates("account"), (10.0, 10.5));
    let route = fleet.route("sms");
    assert_eq!((route.held, route.repeats), (14, 6));
    assert_eq!(fleet.bars("account"), vec![1.0; BARS]);
    assert_eq!(fleet.bars("another"), vec![0.0; BARS]);
}

#[test]
fn a_way_that_varies_by_more_than_is_kept_is_that_of_the_replica_that_has_it_worst() {
    let of = |way_spread, way_kept| Replica {
        routes: BTreeMap::from([(
            "sms".to_owned(),
            RouteState {
                way_spread,
                way_kept,
                ..RouteState::default()
            },
        )]),
        ..Replica::default()
    };
    let mut fleet = Fleet {
        replicas: vec![of(0.000_5, 0.001_25), of(0.0, 0.001_25)],
        ..Fleet::default()
    };
    assert_eq!(fleet.route("sms").headroom_warning(), None);
    fleet.replicas.insert(1, of(0.02, 0.001_25));
    let said = "the way to the downstream varies by 20 ms, and the headroom keeps 1.3 ms for that";
    assert_eq!(fleet.route("sms").headroom_warning().as_deref(), Some(said));
}

#[test]
fn what_takes_the_rate_is_named_where_messages_wait_for_too_long() {
    let route = |per_second, calls_per_second, oldest| RouteState {
        per_second,
        calls_per_second,
        oldest,
        max_delay: 30.0,
        ready: 900,
        held: 100,
        ..RouteState::default()
    };
    let routes = [
        ("password", route(5.0, 5.0, 40.0)),
        // Nearly all of its calls fail.
        ("bulk", route(1.0, 95.0, 3.0)),
        ("mail", route(500.0, 500.0, 40.0)),
        ("quiet", route(0.0, 0.0, 1.0)),
    ];
    let replica = Replica {
        routes: routes.map(|(name, route)| (name.to_owned(), route)).into(),
        ..Replica::default()
    };
    let mut fleet = Fleet {
        replicas: vec![replica],
        ..Fleet::default()
    };
    let limits = [
        ("password", vec!["person", "account"]),
        ("bulk", vec!["account"]),
        ("mail", vec!["other"]),
        ("quiet", vec!["account"]),
    ];
    let routes = limits.map(|(route, limits)| facts(route, "", limits));
    fleet.say_what_takes(&routes.into());
    let said = "of the routes that share limit account, bulk makes 95 % of the calls";
    assert_eq!(fleet.route("password").taken.as_deref(), Some(said));
    assert_eq!(fleet.route("bulk").taken, None, "it is not late");
    assert_eq!(fleet.route("mail").taken, None, "it shares nothing");
}

#[test]
fn what_takes_the_rate_is_not_named_where_messages_wait_for_something_else() {
    let late = RouteState {
        open: true,
        oldest: 40.0,
        max_delay: 30.0,
        calls_per_second: 1.0,
        ..RouteState::default()
    };
    let closed = |why: &str| RouteState {
        open: false,
        why: Some(why.to_owned()),
        ..late.clone()
    };
    let away = RouteState {
        away: true,
        ..late.clone()
    };
    let moving = RouteState {
        moving: true,
        ..late.clone()
    };
    let routes = [
        ("late", late.clone()),
        ("no-turn", closed(NO_TURN)),
        ("night", closed(CLOSED_HOURS)),
        ("paused", closed("its limit account is paused")),
        ("away", away),
        ("moving", moving),
    ];
    let names = routes.clone().map(|(name, _)| name);
    let mut fleet = Fleet {
        replicas: vec![Replica {
            routes: routes.map(|(name, route)| (name.to_owned(), route)).into(),
            ..Replica::default()
        }],
        ..Fleet::default()
    };
    let facts = names.map(|name| facts(name, "", vec!["account"]));
    fleet.say_what_takes(&facts.into());
    let named = names.map(|name| fleet.route(name).taken.is_some());
    assert_eq!(named, [true, true, false, false, false, false]);
}

/// The configuration of a route.
fn facts(route: &str, queue: &str, limits: Vec<&str>) -> (String, RouteFacts) {
    let limits = limits.into_iter().map(str::to_owned).collect();
    let facts = RouteFacts {
        queue: queue.to_owned(),
        standby_for: None,
        limits,
    };
    (route.to_owned(), facts)
}

#[test]
fn a_backlog_is_gone_when_all_routes_of_its_queue_have_sent_it() {
    let route = |ready, per_second| RouteState {
        ready,
        held: 100,
        per_second,
        ..RouteState::default()
    };
    let routes = [
        ("a", route(1_800, 3.0)),
        ("b", route(0, 7.0)),
        ("mail", route(900, 500.0)),
        ("quiet", route(900, 0.0)),
    ];
    let replica = Replica {
        routes: routes.map(|(name, route)| (name.to_owned(), route)).into(),
        ..Replica::default()
    };
    let mut fleet = Fleet {
        now: "2026-01-01T23:04:00Z".to_owned(),
        replicas: vec![replica],
        ..Fleet::default()
    };
    let queues = [
        ("a", "sms"),
        ("b", "sms"),
        ("mail", "mail"),
        ("quiet", "quiet"),
    ];
    fleet.say_when_gone(
        &queues
            .map(|(route, queue)| facts(route, queue, vec![]))
            .into(),
    );
    // The first of the two counts the queue; 2,000 messages go at ten a second. Those of `mail` are gone in a moment.
    let gone = [("a".to_owned(), "at 23:07 UTC".to_owned())];
    assert_eq!(fleet.gone, gone.into());

    // In an outage the rate of the last seconds says nothing.
    for route in fleet.replicas[0].routes.values_mut() {
        route.away = true;
    }
    fleet.say_when_gone(
        &queues
            .map(|(route, queue)| facts(route, queue, vec![]))
            .into(),
    );
    assert_eq!(fleet.gone, BTreeMap::new());
}

#[test]
fn a_limit_that_blocks_is_why_its_route_stands_still_with_the_time_that_is_left() {
    let mut fleet = Fleet {
        replicas: vec![Replica {
            routes: BTreeMap::from([("sms".to_owned(), RouteState::default())]),
            ..Replica::default()
        }],
        ..Fleet::default()
    };
    let routes = [facts("sms", "sms", vec!["repeats"])].into();
    for state in ["paused", "frozen", "closed"] {
        let mut shown = json!({"name": "repeats", "state": state, "now": "2026-01-01T00:00:02.5Z"});
        shown[format!("{state}_until")] = json!("2026-01-01T00:00:30Z");
        fleet.limits = vec![limit(shown)];
        fleet.replicas[0].routes = BTreeMap::from([("sms".to_owned(), RouteState::default())]);
        fleet.say_why(&routes);
        let said = format!("its limit repeats is {state} for another 28s");
        assert_eq!(fleet.route("sms").why.as_deref(), Some(&*said));
    }
}

#[test]
fn a_backlog_is_gone_at_a_time_of_day() {
    let gone = |left| gone_at("2026-01-01T23:04:00Z", Duration::from_secs(left));
    assert_eq!(gone(40).as_deref(), Some("in 40s"));
    assert_eq!(gone(60).as_deref(), Some("at 23:05 UTC"));
    assert_eq!(gone(120).as_deref(), Some("at 23:06 UTC"));
    assert_eq!(gone(3_600).as_deref(), Some("at 2026-01-02 00:04 UTC"));
    assert_eq!(gone(u64::MAX), None);
}

#[test]
fn a_change_that_all_replicas_saw_stands_once() {
    let line = |at: &str, level: &str, text: &str| RecentLine {
        at: at.to_owned(),
        level: level.to_owned(),
        text: text.to_owned(),
    };
    let of = |name: &str, events: &[RecentLine]| Replica {
        name: name.to_owned(),
        events: events.to_vec(),
        ..Replica::default()
    };
    let paused = |at| line(at, CHANGE, "limit account is paused by anna (version 2)");
    let resumed = || line("12:00:01", CHANGE, "limit account is resumed (version 3)");
    let fleet = Fleet {
        replicas: vec![
            of("a", &[line("12:00:03", "WARN", "late"), paused("12:00:02")]),
            of(
                "b",
                &[
                    line("12:00:04", "WARN", "late"),
                    resumed(),
                    paused("12:00:01"),
                ],
            ),
        ],
        ..Fleet::default()
    };
    let events = fleet.events();
    let shown = events.iter().map(|(name, line)| (*name, &*line.at));
    let expected = [
        ("b", "12:00:04"),
        ("a", "12:00:03"),
        ("fleet", "12:00:01"),
        ("fleet", "12:00:01"),
    ];
    assert_eq!(shown.collect::<Vec<_>>(), expected);
    // Within the same second the later one is above.
    assert_eq!(events[2].1, &resumed());
}

#[test]
fn a_route_is_open_if_one_replica_consumes_it() {
    let route = |open, why: Option<&str>, held| RouteState {
        open,
        why: why.map(str::to_owned),
        held,
        ready: 40,
        ..RouteState::default()
    };
    let of = |route| Replica {
        routes: BTreeMap::from([("sms".to_owned(), route)]),
        ..Replica::default()
    };
    let mut fleet = Fleet {
        replicas: vec![
            of(route(false, Some("closed hours"), 1)),
            of(route(false, None, 2)),
        ],
        ..Fleet::default()
    };
    let sum = fleet.route("sms");
    assert_eq!(
        (sum.open, sum.why.as_deref(), sum.held, sum.ready),
        (false, Some("closed hours"), 3, 40)
    );
    fleet.replicas.push(of(route(true, None, 0)));
    assert_eq!(fleet.route("sms").why, None);
}

#[test]
fn a_route_waits_for_its_own_limits_only() {
    let route = |open, why: Option<&str>| RouteState {
        open,
        why: why.map(str::to_owned),
        ..RouteState::default()
    };
    let moving = RouteState {
        moving: true,
        ..route(true, None)
    };
    let routes = [
        ("sms", route(false, None)),
        ("mail", route(false, None)),
        ("night", route(false, Some("closed hours"))),
        ("free", route(true, None)),
        ("moving", moving),
    ];
    let replica = Replica {
        routes: routes.map(|(name, route)| (name.to_owned(), route)).into(),
        ..Replica::default()
    };
    let mut fleet = Fleet {
        replicas: vec![replica],
        limits: vec![
            limit(json!({"name": "account", "state": "open"})),
            limit(json!({
                "name": "sender", "state": "paused", "now": "2026-01-01T00:00:00Z",
                "paused_until": "2026-12-31T00:00:00Z",
            })),
        ],
        ..Fleet::default()
    };
    let limits = [
        ("sms", vec!["account", "sender"]),
        ("mail", vec!["account"]),
        ("night", vec!["sender"]),
        ("free", vec!["sender"]),
        ("moving", vec!["account", "sender"]),
    ];
    let routes = limits.map(|(route, limits)| facts(route, "", limits));
    fleet.say_why(&routes.into());
    let why = |name| fleet.route(name).why;
    assert_eq!(why("sms").as_deref(), Some("its limit sender is paused"));
    assert_eq!(why("mail").as_deref(), Some(NO_TURN));
    assert_eq!(why("night").as_deref(), Some("closed hours"));
    assert_eq!(why("free"), None);
    assert_eq!(why("moving").as_deref(), Some("its limit sender is paused"));
}
