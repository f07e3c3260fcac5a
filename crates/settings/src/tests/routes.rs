//! The limits, priority, tenants and hours of a route: valid examples, and the messages about wrong
//! ones.

use super::{Files, GOOD, changed, lines, shown};
use crate::fixed_or_template::Costing;
use crate::fixed_or_template::{Priority, PriorityText, ZoneText};
use crate::types::{Route, WhenUnsendable};
use sluiced_core::time::StoreTime;

/// The good configuration's route with more keys; the first of them is in line 7.
fn with_keys(text: &str) -> String {
    GOOD.replace("[\"provider\"]", &format!("[\"provider\"]\n{text}"))
}

fn said_of(text: &str) -> Vec<String> {
    lines(&[&with_keys(text)], &[])
}

/// The route, without a warning.
fn route(text: &str) -> Route {
    let loaded = Files::new(&[text]).load(&[]);
    let loaded = loaded
        .map_err(|faults| faults.to_string())
        .expect("it loads");
    assert_eq!(loaded.warnings.all(), []);
    loaded.settings.routes["sms"].clone()
}

const KEYED: &str = "[limits.a]\nkind = \"gcra\"\nrate = \"30/1s\"\nkey = \"{{ body.to }}\"\n";

#[test]
fn a_route_may_have_other_limits_beside_the_paced_one_or_alone() {
    let both = GOOD.replace("[\"provider\"]", "[\"provider\", \"a\"]") + KEYED;
    assert_eq!(route(&both).limits, ["provider", "a"]);
    let alone = GOOD
        .replace("[limits.provider]\nrate = \"400/1s\"\n", KEYED)
        .replace("[\"provider\"]", "[\"a\"]");
    let route = route(&alone);
    assert_eq!(route.prefetch_unpaced(), 500);
}

#[test]
fn nack_is_for_a_route_with_a_paced_limit_alone() {
    let nack = "on_denied = \"nack\"";
    assert_eq!(said_of(nack), [] as [&str; 0]);
    let both = with_keys(nack).replace("[\"provider\"]", "[\"provider\", \"a\"]") + KEYED;
    assert_eq!(
        lines(&[&both], &[]),
        [
            "a.toml:7:13: routes.sms.on_denied: a message that `a` denies would come back at once, again and again, for the others of the queue go on; nack is for a route with a paced limit alone; write hold, delay or dead_letter"
        ]
    );
}

#[test]
fn too_many_limits() {
    let limits: String = ('a'..='h')
        .map(|name| KEYED.replace("limits.a", &format!("limits.{name}")))
        .collect();
    let names: Vec<_> = ('a'..='h').map(|name| format!("\"{name}\"")).collect();
    let names = names.join(", ");
    let text = |names: &str| GOOD.replace("\"provider\"]", names) + &limits;
    assert_eq!(
        lines(&[&text(&format!("\"provider\", {names}]"))], &[]),
        [
            "a.toml:6:10: routes.sms.limits: 9 limits: a message asks all of them at once, and 8 is the most; leave some out"
        ]
    );
}

#[test]
fn every_key_of_turns() {
    let route = route(&with_keys(
        "priority = 9\non_invalid = \"drop\"\nfair_by = \"{{ body.tenant }}\"\nweights = { acme = 3, \"B. & Co\" = 2 }\nopen = [\"08:00-12:00\", \"22:00-06:00\"]\ndays = [\"mon-thu\", \"sun\"]\ntimezone = \"Asia/Shanghai\"\ndenied_headers = true",
    ));
    assert_eq!(route.priority, PriorityText::Fixed(Priority(9)));
    assert_eq!(route.on_invalid, WhenUnsendable::Drop);
    let weights = ["acme", "B. & Co", "other"].map(|tenant| route.weight_of(tenant).get());
    assert_eq!(weights, [3, 2, 1]);
    assert!(route.denied_headers);
    let hours = route.opening_hours().expect("a range").expect("hours");
    assert_eq!(hours.zone().name(), "Asia/Shanghai");
    // 2026-01-05 was a Monday: 00:00 UTC is 08:00 in Shanghai.
    let monday = 1_767_571_200;
    let open = |hour: u64| {
        hours
            .stretch(StoreTime::from_micros((monday + hour * 3600) * 1_000_000))
            .open
    };
    assert!(open(0) && !open(4) && open(14) && open(21) && !open(22));
    // Friday is closed, but Thursday's night goes on into it.
    assert!(open(4 * 24 - 8) && open(4 * 24 - 3) && !open(4 * 24));
}

#[test]
fn days_alone_are_whole_days_and_nothing_is_always() {
    let days = route(&with_keys("days = \"sat-sun\""));
    let hours = days.opening_hours().expect("a range").expect("hours");
    let monday = StoreTime::from_micros(1_767_571_200_000_000);
    assert!(!hours.stretch(monday).open);
    let plain = route(GOOD);
    assert_eq!(plain.opening_hours(), Ok(None));
    assert_eq!(plain.on_invalid, WhenUnsendable::DeadLetter);
    assert!(!plain.denied_headers);
}

#[test]
fn wrong_values() {
    assert_eq!(
        said_of(
            "priority = 10\non_invalid = \"ignore\"\nfair_by = \"{{ tenant }}\"\nweights = { acme = 0, b = \"2\" }\nopen = \"8-21\"\ndays = \"mo-fr\"\ntimezone = \"Asia/Shangai\"\ndenied_headers = \"no\""
        ),
        [
            "a.toml:7:12: routes.sms.priority: `10` does not fit; write a whole number from 0 to 9, or a template that makes one, such as \"{{ body.priority }}\"",
            "a.toml:8:14: routes.sms.on_invalid: `ignore` is not possible; write \"drop\" or \"dead_letter\"",
            "a.toml:9:11: routes.sms.fair_by: templates know no `tenant`; known: body, headers, properties, routing_key, exchange, message_id, route, attempt",
            "a.toml:10:20: routes.sms.weights.acme: `0` does not fit; a whole number from 1 to 10000 is needed",
            "a.toml:10:27: routes.sms.weights.b: `2` does not fit; a whole number from 1 to 10000 is needed, without quotes",
            "a.toml:11:8: routes.sms.open: `8` in `8-21` is no time of day; write 00:00 to 24:00, such as \"08:30\"",
            "a.toml:12:8: routes.sms.days: `mo` is no day; write mon, tue, wed, thu, fri, sat or sun, or a range: \"mon-fri\"",
            "a.toml:13:12: routes.sms.timezone: `Asia/Shangai` is no time zone; did you mean \"Asia/Shanghai\", \"Asia/Saigon\" or \"Asia/Khandyga\"?",
            "a.toml:14:18: routes.sms.denied_headers: `no` is no flag; write true or false",
        ]
    );
}

#[test]
fn a_wrong_word_in_a_list_is_one_fault() {
    assert_eq!(
        said_of("results = { routing_key = \"answers\", on = [\"accepted\", \"receipts\"] }"),
        [
            "a.toml:7:56: routes.sms.results.on[1]: `receipts` is not possible; write \"accepted\" or \"dead\" or \"receipt\" or \"inbound\"; did you mean \"receipt\"?"
        ]
    );
}

#[test]
fn wrong_hours() {
    for (written, said) in [
        (
            "\"08:00\"",
            "7:8: routes.sms.open: `08:00` is no range of hours; write two times of day, such as \"08:00-21:00\"",
        ),
        (
            "\"08:00-08:00\"",
            "7:8: routes.sms.open: `08:00-08:00` starts and ends at the same time; write \"00:00-24:00\" for the whole day",
        ),
        (
            "\"24:00-08:00\"",
            "7:8: routes.sms.open: `24:00-08:00` starts at the end of a day; write 00:00 for the start of the next",
        ),
        (
            "[\"08:00-12:00\", \"14:00-25:00\"]",
            "7:24: routes.sms.open[1]: `25:00` in `14:00-25:00` is no time of day; write 00:00 to 24:00, such as \"08:30\"",
        ),
        (
            "[]",
            "7:8: routes.sms.open: 0 elements in this list; write 1 to 24, or leave it out",
        ),
        (
            "8",
            "7:8: routes.sms.open: `8` is no range of hours; write two times of day, such as \"08:00-21:00\"",
        ),
    ] {
        assert_eq!(
            said_of(&format!("open = {written}")),
            [format!("a.toml:{said}")]
        );
    }
}

#[test]
fn keys_without_the_key_that_they_are_for() {
    assert_eq!(
        said_of("timezone = \"UTC\"\nweights = { a = 2 }"),
        [
            "a.toml:7:12: routes.sms.timezone: this route never closes, so no clock counts; write open = \"08:00-21:00\" beside it, or take timezone out",
            "a.toml:8:1: routes.sms.weights: nothing names the tenant of a message; write fair_by = \"{{ body.tenant }}\" beside it, or take the weights out",
        ]
    );
}

#[test]
fn parking_needs_tenants_room_and_its_own_queues() {
    let parked = "fair_by = \"{{ body.t }}\"\nparked = 500";
    assert_eq!(route(&with_keys(parked)).parks(), 500);
    assert_eq!(
        route(&with_keys("fair_by = \"{{ body.t }}\"")).parks(),
        20_000
    );
    assert_eq!(route(GOOD).parks(), 0);
    assert_eq!(
        said_of("parked = 500"),
        [
            "a.toml:7:10: warning: routes.sms.parked: nothing is parked where nothing names the tenant of a message; write fair_by = \"{{ body.tenant }}\" beside it, or take parked out",
        ]
    );
    assert_eq!(
        said_of("fair_by = \"{{ body.t }}\"\nparked = 2000000"),
        [
            "a.toml:8:10: routes.sms.parked: `2000000` does not fit; a whole number from 0 to 1000000 is needed",
        ]
    );
    let small = with_keys("fair_by = \"{{ body.t }}\"\nprefetch = 10").replace("400/1s", "20/1s");
    assert_eq!(
        lines(&[&small], &[]),
        [
            "a.toml:8:12: warning: routes.sms.prefetch: of 10 messages at a time none shows what stands behind them: tenants do not share fairly; write 16 or more",
        ]
    );
    let other = with_keys("fair_by = \"{{ body.t }}\"")
        + "\n[routes.b]\nqueue = \"sms.parked.3\"\nlimits = [\"provider\"]\ndownstream = { kind = \"http\", url = \"http://127.0.0.1/\" }\n";
    let said = lines(&[&other], &[]);
    assert!(
        said.len() == 1 && said[0].contains("where the route of `sms` parks messages"),
        "{said:?}"
    );
}

#[test]
fn variables_set_hours_costs_and_weights() {
    let files = Files::new(&[&with_keys(
        "fair_by = \"{{ body.t }}\"\nweights = { acme = 3 }",
    )]);
    let loaded = files
        .load(&[
            ("SLUICED__ROUTES__SMS__OPEN", "08:00-12:00, 14:00-18:00"),
            ("SLUICED__ROUTES__SMS__DAYS", "mon-fri"),
            ("SLUICED__ROUTES__SMS__WEIGHTS__ACME", "5"),
            ("SLUICED__LIMITS__PROVIDER__COST", "2"),
            ("SLUICED__LIMITS__PROVIDER__RESERVE", "5%"),
        ])
        .map_err(|faults| faults.to_string())
        .expect("it loads");
    let route = &loaded.settings.routes["sms"];
    assert_eq!(route.open.as_ref().map(Vec::len), Some(2));
    assert_eq!(route.weight_of("acme").get(), 5);
    let cost = loaded.settings.limits["provider"].cost();
    assert!(matches!(cost, Costing::Fixed(cost) if cost.get() == 2));
    let shown = shown(&loaded);
    for line in [
        "limits.provider.cost = 2  # SLUICED__LIMITS__PROVIDER__COST",
        "limits.provider.reserve = \"5%\"  # SLUICED__LIMITS__PROVIDER__RESERVE",
        "limits.provider.reserve_priority = 5  # default",
        "routes.sms.days = [\"mon-fri\"]  # SLUICED__ROUTES__SMS__DAYS",
        "routes.sms.fair_by = \"{{ body.t }}\"  # a.toml:7",
        "routes.sms.open = [\"08:00-12:00\", \"14:00-18:00\"]  # SLUICED__ROUTES__SMS__OPEN",
        "routes.sms.priority = 0  # default",
        "routes.sms.weights.acme = 5  # SLUICED__ROUTES__SMS__WEIGHTS__ACME",
    ] {
        let shown: Vec<_> = shown.iter().map(|line| files.short(line)).collect();
        assert!(
            shown.iter().any(|other| other == line),
            "{line}: {shown:#?}"
        );
    }
}

#[test]
fn a_limit_of_the_wrong_kind_in_a_list() {
    assert_eq!(
        changed("[\"provider\"]", "\"provider\""),
        [
            "a.toml:6:10: routes.sms.limits: a text where a list is needed; write it in brackets, such as [\"a\", \"b\"]"
        ]
    );
}

/// A route has one priority and one clock, or each message has its own.
#[test]
fn messages_may_have_a_priority_and_a_clock_of_their_own() {
    let text = with_keys(
        "priority = \"{{ body.priority }}\"\nopen = \"08:00-21:00\"\ntimezone = \"{{ body.timezone }}\"",
    );
    let loaded = Files::new(&[&text]).load(&[]).expect("it loads");
    let route = &loaded.settings.routes["sms"];
    assert_eq!(route.priority.template(), Some("{{ body.priority }}"));
    let zone = route.timezone.as_ref().and_then(ZoneText::template);
    assert_eq!(zone, Some("{{ body.timezone }}"));
    assert_eq!(
        said_of(
            "priority = \"{{ boddy.priority }}\"\nopen = \"08:00-21:00\"\ntimezone = \"{{ zone }}\""
        )
        .len(),
        2
    );
}
