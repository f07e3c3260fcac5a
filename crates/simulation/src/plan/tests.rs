//! What a plan shows: the rate is kept, keys wait for their own limits, one seed makes one run.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::window::Tally;
use sluiced_core::gate::OnDenied;
use sluiced_core::hours::OpeningHours;
use sluiced_core::limits::Rule;
use sluiced_core::limits::concurrency::Concurrency;
use sluiced_core::limits::gcra::Gcra;
use sluiced_core::limits::sliding_log::SlidingLog;
use sluiced_core::message::TenantShare;
use sluiced_core::rate::{Cost, Rate};
use sluiced_core::schedule::{DEFAULT_HORIZON, Pace};
use sluiced_core::time::{Mono, StoreTime};
use sluiced_core::zone::Zone;

use super::{KeyCost, KeyedRule, Message, Plan, PlanOutcome, PlannedEnd, SimulatedRoute, run};

const HEADROOM: Duration = Duration::from_millis(10);
/// Monday, 5 January 2026, 00:00 UTC.
const MONDAY: u64 = 1_767_571_200_000_000;

fn rate(text: &str) -> Rate {
    text.parse().expect("a rate")
}

fn pace(text: &str) -> Pace {
    Pace::new(rate(text), Duration::from_millis(5), DEFAULT_HORIZON)
}

fn log(text: &str) -> Rule {
    Rule::SlidingLog(SlidingLog::new(rate(text), HEADROOM).expect("a rule"))
}

fn route(rows: Vec<Pace>, keyed: Vec<KeyedRule>) -> SimulatedRoute {
    SimulatedRoute {
        rows,
        keyed,
        prefetch: 500,
        max_hold: Duration::from_secs(1),
        on_denied: OnDenied::Hold,
        max_age: None,
        hours: None,
        call: Duration::from_millis(100),
    }
}

fn by_key(rule: Rule) -> KeyedRule {
    let for_all = false;
    KeyedRule { rule, for_all }
}

fn for_all(rule: Rule) -> KeyedRule {
    let for_all = true;
    KeyedRule { rule, for_all }
}

/// One message a second by `every`, of this many keys in turn.
fn messages(count: u32, every: u64, keys: u32, limits: usize) -> Vec<Message> {
    let message = |number: u32| {
        let key = number % keys.max(1);
        let charge = KeyCost {
            limit: (),
            key,
            cost: Cost::ONE,
        };
        Message {
            at: u64::from(number) * every,
            slots: Cost::ONE,
            priority: 0,
            urgent: false,
            share: TenantShare::default(),
            charges: vec![charge; limits].into(),
        }
    };
    (0..count).map(message).collect()
}

fn plan(route: SimulatedRoute, messages: Vec<Message>, seconds: u64) -> Plan {
    Plan {
        seed: 1,
        length: Duration::from_secs(seconds),
        start: StoreTime::from_micros(MONDAY),
        replicas: 3,
        route,
        messages,
    }
}

fn calls(outcome: &PlanOutcome) -> Vec<u64> {
    let at = |end| match end {
        PlannedEnd::Called(at) => Some(at),
        _ => None,
    };
    let mut calls: Vec<u64> = outcome.fates.iter().filter_map(|f| at(f.end)).collect();
    calls.sort_unstable();
    calls
}

fn none_over(calls: &[u64], text: &str) {
    let mut tally = Tally::new(rate(text));
    for at in calls {
        tally.record(Mono::from_micros(*at));
    }
    assert_eq!(tally.usage().over, 0, "{:?}", tally.usage());
}

#[test]
fn a_burst_is_sent_at_the_rate_and_never_faster() {
    let plan = plan(
        route(vec![pace("400/1s")], vec![]),
        messages(4_000, 0, 1, 0),
        60,
    );
    let calls = calls(&run(&plan));
    assert_eq!(calls.len(), 4_000);
    none_over(&calls, "400/1s");
    // Ten seconds and half a percent; the guard passed before.
    assert!(
        (10_000_000..10_300_000).contains(&calls[3_999]),
        "{}",
        calls[3_999]
    );
    assert!(calls[0] < 100_000, "{}", calls[0]);
}

#[test]
fn the_same_seed_is_the_same_run_and_another_is_not() {
    let mut plan = plan(
        route(vec![pace("50/1s")], vec![]),
        messages(200, 9_000, 1, 0),
        60,
    );
    let first = calls(&run(&plan));
    assert_eq!(first, calls(&run(&plan)));
    plan.seed = 2;
    assert_ne!(first, calls(&run(&plan)));
}

#[test]
fn a_slow_rate_needs_no_guard_at_the_beginning() {
    let plan = plan(
        route(vec![pace("5/1h")], vec![]),
        messages(3, 0, 1, 0),
        3_600,
    );
    let calls = calls(&run(&plan));
    assert_eq!(calls.len(), 3);
    assert!(calls[0] < 15 * 60 * 1_000_000, "{calls:?}");
}

#[test]
fn a_keyed_limit_holds_its_keys_up_and_no_others() {
    let keyed = vec![by_key(log("5/1m"))];
    let mut messages = messages(2_000, 10_000, 2_000, 1);
    // Every second message is for one key.
    for message in messages.iter_mut().step_by(2) {
        message.charges[0].key = 7;
    }
    let plan = plan(route(vec![pace("400/1s")], keyed), messages, 120);
    let outcome = run(&plan);
    let mut hot = Vec::new();
    for (message, fate) in plan.messages.iter().zip(&outcome.fates) {
        match fate.end {
            PlannedEnd::Called(at) if message.charges[0].key == 7 => hot.push(at),
            PlannedEnd::Called(at) => assert!(at - message.at < 300_000, "{message:?} {fate:?}"),
            _ => assert!(message.charges[0].key == 7 && fate.by == Some(0)),
        }
    }
    hot.sort_unstable();
    none_over(&hot, "5/1m");
    assert!((10..=15).contains(&hot.len()), "{}", hot.len());
    let trips = outcome.fates.iter().map(|fate| fate.trips).max();
    assert!(
        trips.is_some_and(|trips| trips > 0),
        "the hot key waits in queues"
    );
}

#[test]
fn a_limit_for_all_holds_and_what_it_lets_pass_is_used() {
    let rule = Rule::Gcra(Gcra::new(rate("20/1m"), 19, HEADROOM).expect("a rule"));
    let plan = plan(
        route(vec![], vec![for_all(rule)]),
        messages(60, 0, 1, 1),
        300,
    );
    let outcome = run(&plan);
    let calls = calls(&outcome);
    assert_eq!(calls.len(), 60);
    // 20 at once, 40 at three seconds each.
    assert!(
        (119_000_000..130_000_000).contains(&calls[59]),
        "{}",
        calls[59]
    );
    assert!(outcome.fates.iter().all(|fate| fate.trips == 0), "it holds");
}

#[test]
fn calls_in_flight_are_bounded_and_their_room_is_used() {
    let limit = NonZeroU32::new(10).expect("not zero");
    let rule = Concurrency::new(limit, Duration::from_secs(30), HEADROOM).expect("a rule");
    let keyed = vec![for_all(Rule::Concurrency(rule))];
    let plan = plan(route(vec![], keyed), messages(1_000, 0, 1, 1), 60);
    let calls = calls(&run(&plan));
    assert_eq!(calls.len(), 1_000);
    // 100 a second: ten at once, a tenth of a second each.
    let seconds = calls[999] as f64 / 1e6;
    assert!((9.5..13.0).contains(&seconds), "{seconds}");
}

/// One key has more messages than places in memory: the others are sent away without a question.
#[test]
fn a_key_that_is_known_to_be_full_is_not_asked_for_each_message() {
    let limit = NonZeroU32::new(1).expect("not zero");
    let rule = Concurrency::new(limit, Duration::from_secs(30), HEADROOM).expect("a rule");
    let mut route = route(vec![], vec![by_key(Rule::Concurrency(rule))]);
    route.prefetch = 40;
    let plan = plan(route, messages(400, 0, 1, 1), 120);
    let outcome = run(&plan);
    let trips: u32 = outcome.fates.iter().map(|fate| u32::from(fate.trips)).sum();
    let calls = calls(&outcome).len() as u64;
    assert!(
        calls == 400 && trips > 1_000,
        "{calls} calls, {trips} trips"
    );
    // Each of three replicas gets a notice of each call that ends here, and has its heartbeat.
    assert!(
        outcome.asks <= (calls + 120) * 3,
        "{} asks, {trips} trips",
        outcome.asks
    );
}

#[test]
fn nothing_is_sent_in_closed_hours() {
    let ranges = ["00:01-00:02".parse().expect("a range")];
    let monday = "mon".parse().expect("a day");
    let hours = OpeningHours::new(&ranges, monday, Zone::utc()).expect("hours");
    let mut route = route(vec![pace("400/1s")], vec![by_key(log("100/1s"))]);
    route.hours = Some(hours);
    let plan = plan(route, messages(600, 500_000, 5, 1), 600);
    let outcome = run(&plan);
    let calls = calls(&outcome);
    assert!(
        calls
            .iter()
            .all(|at| (60_000_000..120_000_000).contains(at)),
        "{calls:?}"
    );
    assert!(calls.len() >= 239, "{}", calls.len());
}

#[test]
fn what_costs_too_much_or_is_too_old_ends() {
    let mut route = route(vec![pace("1/1s")], vec![by_key(log("5/1m"))]);
    route.max_age = Some(Duration::from_secs(10));
    let mut messages = messages(60, 0, 60, 1);
    messages[3].charges[0].cost = Cost::new(NonZeroU32::new(6).unwrap());
    let outcome = run(&plan(route, messages, 60));
    assert!(
        matches!(outcome.fates[3].end, PlannedEnd::Never(_, 0)),
        "{:?}",
        outcome.fates[3]
    );
    let old = |end| matches!(end, PlannedEnd::TooOld(_));
    let old = outcome.fates.iter().filter(|fate| old(fate.end)).count();
    assert!((48..51).contains(&old), "{old}");
}

#[test]
fn a_route_may_make_denied_messages_dead() {
    let mut route = route(vec![pace("400/1s")], vec![by_key(log("5/1m"))]);
    route.on_denied = OnDenied::DeadLetter;
    let outcome = run(&plan(route, messages(20, 0, 1, 1), 120));
    let dead = |end| matches!(end, PlannedEnd::Denied(_));
    assert_eq!(calls(&outcome).len(), 5);
    assert_eq!(outcome.fates.iter().filter(|f| dead(f.end)).count(), 15);
}
