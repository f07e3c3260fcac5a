//! Every key of every kind of limit: a valid example, and the message about a wrong one.

mod paced;

use std::time::Duration;

use super::{Files, GOOD, lines};
use crate::fixed_or_template::Costing;
use crate::text::WindowRate;
use crate::types::{Limit, OfKind, Start};
use sluiced_core::calendar::CalendarUnit;
use sluiced_core::limits::generation::LostWait;
use sluiced_core::rate::Span;

/// The good configuration with a second limit, `x`, that its route names.
fn with_limit(text: &str) -> String {
    GOOD.replace("[\"provider\"]", "[\"provider\", \"x\"]") + &format!("[limits.x]\n{text}\n")
}

/// The messages about the limit `x`; its header is in line 11.
fn said_of(text: &str) -> Vec<String> {
    lines(&[&with_limit(text)], &[])
}

/// The limit `x`, without a warning.
fn limit(text: &str) -> Limit {
    let loaded = Files::new(&[&with_limit(text)]).load(&[]);
    let loaded = loaded
        .map_err(|faults| faults.to_string())
        .expect("it loads");
    assert_eq!(loaded.warnings.all(), []);
    loaded.settings.limits["x"].clone()
}

/// A grant that runs out before its answer arrives sends nothing.
#[test]
fn a_headroom_that_no_grant_outlives() {
    assert_eq!(
        said_of("kind = \"gcra\"\nrate = \"30/1s\"\nheadroom = \"1ms\""),
        [
            "a.toml:14:12: warning: limits.x.headroom: a call may leave up to 750us after Redis allowed it, less than the answer takes to arrive: hardly a message would be sent; write 2ms or more, or leave it out"
        ]
    );
}

#[test]
fn a_key_without_braces_is_the_same_for_every_message() {
    assert_eq!(
        said_of("kind = \"gcra\"\nrate = \"30/1s\"\nkey = \"body.to\""),
        [
            "a.toml:14:7: warning: limits.x.key: `body.to` is the same for every message; write a template, such as \"{{ body.to }}\", or take key out"
        ]
    );
}

#[test]
fn gcra_with_every_key() {
    let limit = limit(
        "kind = \"gcra\"\nrate = \"30/1s\"\nburst = 5\nkey = \"{{ body.from }}\"\ncost = 2\nheadroom = \"20ms\"\nlost_wait = \"0s\"",
    );
    assert!(matches!(&limit, Limit::Gcra(gcra) if gcra.own.burst == 5));
    assert_eq!(limit.largest_cost().get(), 6);
    assert_eq!(limit.key().map(|key| key.as_str()), Some("{{ body.from }}"));
    assert_eq!(limit.headroom().all(), Duration::from_millis(20));
    assert_eq!(limit.lost_wait(), LostWait::For(Duration::ZERO));
}

#[test]
fn gcra_wrong_values() {
    assert_eq!(
        said_of(
            "kind = \"gcra\"\nrate = \"30\"\nburst = 0.5\nkey = 5\ncost = true\nheadroom = 20\nlost_wait = \"for ever\"\nborrow = 1"
        ),
        [
            "a.toml:13:8: limits.x.rate: `30` is no rate; write units per window, such as \"400/1s\" or \"5/1h\"",
            "a.toml:14:9: limits.x.burst: a number with a fraction does not fit; a whole number from 0 to 10000000 is needed",
            "a.toml:15:7: limits.x.key: a number where a text is needed; write it in quotes",
            "a.toml:16:8: limits.x.cost: `true` is no cost; write a whole number from 1 to 10000000, or a template such as \"{{ body.text | sms_segments }}\"",
            "a.toml:17:12: limits.x.headroom: `20` is no duration; write a number with its unit, such as \"250ms\", \"10s\", \"5m\", \"1h30m\" or \"2d\", or \"auto\"",
            "a.toml:18:13: limits.x.lost_wait: `for ever` is no time to wait; write a duration such as \"1m\", \"0s\" for none, or \"forever\" for as long as anything that was spent can count",
            "a.toml:19:1: limits.x.borrow: the kind gcra has no such key; kinds that have it: token_bucket",
        ]
    );
    assert_eq!(
        said_of("kind = \"gcra\""),
        ["a.toml:11:9: limits.x.rate: missing; write it, such as `rate = \"30/1s\"`"]
    );
}

#[test]
fn templates_of_keys_and_costs() {
    assert_eq!(
        said_of(
            "kind = \"gcra\"\nrate = \"30/1s\"\nkey = \"{{ bdy.to }}\"\ncost = \"{{ body.text | sms_segmets }}\""
        ),
        [
            "a.toml:14:7: limits.x.key: templates know no `bdy`; did you mean `body`?",
            "a.toml:15:8: limits.x.cost: templates know no filter `sms_segmets`; besides those of minijinja: sms_segments, pointer, host",
        ]
    );
    assert_eq!(
        said_of(
            "kind = \"gcra\"\nrate = \"30/1s\"\nkey = \"{{ body.to\"\ncost = \"{{ body.text | sms_segments(encoding='utf8') }}\""
        ),
        [
            "a.toml:14:7: limits.x.key: this template is wrong in line 1: unexpected end of input, expected end of variable block; write {{ body.field }} for a value",
            "a.toml:15:8: limits.x.cost: sms_segments: encoding is \"auto\", \"gsm7\", \"latin1\" or \"ucs2\"",
        ]
    );
    assert_eq!(
        said_of("kind = \"gcra\"\nrate = \"30/1s\"\ncost = \"body.n\""),
        [
            "a.toml:14:8: limits.x.cost: `body.n` is no cost; write a whole number from 1 to 10000000, or a template such as \"{{ body.text | sms_segments }}\""
        ]
    );
}

#[test]
fn costs_that_can_never_fit() {
    for (text, said) in [
        (
            "kind = \"gcra\"\nrate = \"30/1s\"\ncost = 2",
            "a.toml:14:8: limits.x.cost: a message of 2 can never pass, for 1 is the most that fits; write 1 or less, or burst = 1",
        ),
        (
            "kind = \"token_bucket\"\ncapacity = 3\nrefill = 1\ninterval = \"1s\"\nborrow = 1\ncost = 5",
            "a.toml:17:8: limits.x.cost: a message of 5 can never pass, for 4 is the most that fits; write 4 or less, or capacity = 5",
        ),
        (
            "kind = \"fixed_window\"\nrate = \"4/day\"\ncost = 5",
            "a.toml:14:8: limits.x.cost: a message of 5 can never pass, for 4 is the most that fits; write 4 or less, or a larger rate",
        ),
        (
            "kind = \"sliding_log\"\nrate = \"4/1d\"\ncost = 5",
            "a.toml:14:8: limits.x.cost: a message of 5 can never pass, for 4 is the most that fits; write 4 or less, or a larger rate",
        ),
        (
            "kind = \"concurrency\"\nlimit = 4\ncost = 5",
            "a.toml:14:8: limits.x.cost: a message of 5 can never pass, for 4 is the most that fits; write 4 or less, or limit = 5",
        ),
    ] {
        assert_eq!(said_of(text), [said]);
    }
}

/// The cost is a template, and the limit holds no more than one unit: messages with a higher cost
/// would be dead letters.
#[test]
fn costs_of_which_only_the_least_fits() {
    for (text, said) in [
        (
            "kind = \"gcra\"\nrate = \"30/1s\"\ncost = \"{{ body.n }}\"",
            "a.toml:14:8: warning: limits.x.cost: a message of more than 1 can never pass, for 1 is the most that fits; write a larger burst, or take cost out",
        ),
        (
            "kind = \"fixed_window\"\nrate = \"1/day\"\ncost = \"{{ body.n }}\"",
            "a.toml:14:8: warning: limits.x.cost: a message of more than 1 can never pass, for 1 is the most that fits; write a larger rate, or take cost out",
        ),
    ] {
        assert_eq!(said_of(text), [said]);
    }
}

/// An expensive message waits for as long as small ones come.
#[test]
fn costs_of_which_the_largest_takes_all() {
    for (text, most) in [
        ("kind = \"sliding_log\"\nrate = \"5/1h\"", 5),
        ("kind = \"gcra\"\nrate = \"5/1h\"\nburst = 3", 4),
    ] {
        let said = said_of(&format!("{text}\ncost = \"{{{{ body.n }}}}\""));
        let words =
            format!("limits.x.cost: a message of {most} fits only while nothing else counts");
        assert!(said.len() == 1 && said[0].contains(&words), "{said:?}");
    }
    // All of it is back within a second.
    let quick = said_of("kind = \"gcra\"\nrate = \"12/1s\"\nburst = 5\ncost = \"{{ body.n }}\"");
    assert_eq!(quick, [""; 0]);
    let many = said_of("kind = \"sliding_log\"\nrate = \"10/1h\"\ncost = \"{{ body.n }}\"");
    assert_eq!(many, [""; 0]);
}

#[test]
fn headroom_against_what_it_is_a_part_of() {
    for (text, said) in [
        (
            "kind = \"gcra\"\nrate = \"30/1s\"\nheadroom = \"500ms\"",
            "a.toml:14:12: limits.x.headroom: 500ms is half of the window of 1s or more, and would cost as much of the limit; write less than 500ms",
        ),
        (
            "kind = \"sliding_log\"\nrate = \"3/20ms\"",
            "a.toml:13:8: limits.x.rate: this window of 20ms is too short for the default headroom of 35ms; write a longer one, or a headroom of less than 10ms",
        ),
        (
            "kind = \"token_bucket\"\ncapacity = 3\nrefill = 1\ninterval = \"5ms\"",
            "a.toml:15:12: limits.x.interval: this interval of 5ms is too short for the default headroom of 35ms; write a longer one, or a headroom of less than 2ms500us",
        ),
        (
            "kind = \"concurrency\"\nlimit = 3\nlease = \"10s\"\nheadroom = \"5s\"",
            "a.toml:15:12: limits.x.headroom: 5s is half of the lease of 10s or more, and would cost as much of the limit; write less than 5s",
        ),
    ] {
        assert_eq!(said_of(text), [said]);
    }
    for (text, headroom) in [
        ("kind = \"gcra\"\nrate = \"30/1s\"", "35ms"),
        ("kind = \"gcra\"\nrate = \"30/1m\"", "600ms"),
        ("kind = \"sliding_log\"\nrate = \"5/1h\"", "5s"),
        ("kind = \"fixed_window\"\nrate = \"5/minute\"", "600ms"),
        ("kind = \"fixed_window\"\nrate = \"5/month\"", "5s"),
        ("kind = \"concurrency\"\nlimit = 3", "300ms"),
        (
            "kind = \"sliding_log\"\nrate = \"3/20ms\"\nheadroom = \"2ms\"",
            "2ms",
        ),
    ] {
        assert_eq!(
            Span(limit(text).headroom().all()).to_string(),
            headroom,
            "{text}"
        );
    }
}

#[test]
fn token_bucket_with_every_key() {
    let limit = limit(
        "kind = \"token_bucket\"\ncapacity = 100\nrefill = 15\ninterval = \"2s\"\ncontinuous = false\nstart = \"empty\"\nborrow = 7\nkey = \"{{ body.a }}\"\ncost = \"{{ body.n }}\"\nheadroom = \"15ms\"\nlost_wait = \"forever\"",
    );
    assert_eq!(limit.largest_cost().get(), 107);
    assert_eq!(limit.window(), Duration::from_secs(2));
    let Limit::TokenBucket(OfKind { own: bucket, .. }) = limit else {
        panic!("a bucket");
    };
    assert!(!bucket.continuous);
    assert_eq!((bucket.start, bucket.borrow), (Start::Empty, 7));
}

#[test]
fn token_bucket_wrong_values() {
    assert_eq!(
        said_of(
            "kind = \"token_bucket\"\ncapacity = 0\nrefill = -1\ninterval = \"0s\"\ncontinuous = \"yes\"\nstart = \"ful\"\nborrow = -1\nrate = \"1/1s\""
        ),
        [
            "a.toml:13:12: limits.x.capacity: `0` does not fit; a whole number from 1 to 10000000 is needed",
            "a.toml:14:10: limits.x.refill: `-1` does not fit; a whole number from 1 to 10000000 is needed",
            "a.toml:15:12: limits.x.interval: `0s` is no time at all; it must be above zero",
            "a.toml:16:14: limits.x.continuous: `yes` is no flag; write true or false",
            "a.toml:17:9: limits.x.start: `ful` is not possible; write \"full\" or \"empty\"; did you mean \"full\"?",
            "a.toml:18:10: limits.x.borrow: `-1` does not fit; a whole number from 0 to 10000000 is needed",
            "a.toml:19:1: limits.x.rate: the kind token_bucket has no such key; kinds that have it: paced, gcra, fixed_window, sliding_log",
        ]
    );
    assert_eq!(
        said_of("kind = \"token_bucket\""),
        [
            "a.toml:11:9: limits.x.capacity: missing; write it, such as `capacity = 100`",
            "a.toml:11:9: limits.x.refill: missing; write it, such as `refill = 10`",
            "a.toml:11:9: limits.x.interval: missing; write it, such as `interval = \"1s\"`",
        ]
    );
}

#[test]
fn fixed_window_by_duration_and_by_the_calendar() {
    let window = |text: &str| match limit(&format!("kind = \"fixed_window\"\n{text}")) {
        Limit::FixedWindow(window) => window.own,
        other => panic!("{other:?}"),
    };
    let first = window("rate = \"10/1d\"");
    assert!(matches!(first.rate, WindowRate::Every(_)));
    assert!(!first.follows_clock());
    let aligned = window("rate = \"10/1d\"\naligned = true");
    assert!(matches!(aligned.rate, WindowRate::Every(_)));
    assert!(aligned.follows_clock());
    let month = window("rate = \"1_000/month\"\ntimezone = \"Europe/Berlin\"");
    assert!(month.follows_clock());
    assert!(matches!(
        month.rate,
        WindowRate::Calendar {
            each: CalendarUnit::Month,
            ..
        }
    ));
    assert_eq!(month.zone().name(), "Europe/Berlin");
    assert_eq!(window("rate = \"1000/day\"").zone().name(), "UTC");
}

#[test]
fn fixed_window_wrong_values() {
    assert_eq!(
        said_of(
            "kind = \"fixed_window\"\nrate = \"10/fortnight\"\naligned = 1\ntimezone = \"Europe/Berln\""
        ),
        [
            "a.toml:13:8: limits.x.rate: window `fortnight`: write a duration such as 1d, or a word of the calendar: second, minute, hour, day, week, month",
            "a.toml:14:11: limits.x.aligned: `1` is no flag; write true or false",
            "a.toml:15:12: limits.x.timezone: `Europe/Berln` is no time zone; did you mean \"Europe/Berlin\", \"Europe/Dublin\" or \"Europe/Belgrade\"?",
        ]
    );
    for (text, said) in [
        (
            "rate = \"10/day\"\naligned = true",
            "a.toml:14:11: limits.x.aligned: a day of the calendar begins when the calendar says; take aligned out, or write a duration in the rate",
        ),
        (
            "rate = \"10/1d\"\ntimezone = \"Asia/Shanghai\"",
            "a.toml:14:12: limits.x.timezone: a window of 1d is as long everywhere; write a word of the calendar in the rate, such as \"10/day\", or take timezone out",
        ),
        (
            "rate = \"10\"",
            "a.toml:13:8: limits.x.rate: `10` is no rate; write units per window, such as \"400/1s\" or \"5/1h\"",
        ),
        (
            "rate = \"0/day\"",
            "a.toml:13:8: limits.x.rate: `0` units: a whole number from 1 to 10000000 is needed",
        ),
    ] {
        assert_eq!(said_of(&format!("kind = \"fixed_window\"\n{text}")), [said]);
    }
}

#[test]
fn sliding_log_is_for_small_numbers() {
    let limit = limit("kind = \"sliding_log\"\nrate = \"5/1h\"\nkey = \"{{ body.to }}\"");
    assert_eq!(limit.largest_cost().get(), 5);
    assert_eq!(
        said_of("kind = \"sliding_log\"\nrate = \"1001/1h\""),
        [
            "a.toml:13:8: warning: limits.x.rate: a log of 1001 units for each key is costly; sliding_log is for 1000 or less: gcra, fixed_window and paced keep one number"
        ]
    );
}

#[test]
fn concurrency_with_a_lease() {
    let limit = limit("kind = \"concurrency\"\nlimit = 10\nlease = \"1m\"");
    assert_eq!(limit.window(), Duration::from_secs(60));
    assert_eq!(
        said_of("kind = \"concurrency\"\nlimit = 10\nlease = \"1s\""),
        [
            "a.toml:14:9: warning: limits.x.lease: 1s hardly leaves time to renew it while a call runs; write 2s or more, 30s is good"
        ]
    );
    assert_eq!(
        said_of("kind = \"concurrency\"\nlimit = \"ten\"\nlease = 30"),
        [
            "a.toml:13:9: limits.x.limit: `ten` does not fit; a whole number from 1 to 10000 is needed",
            "a.toml:14:9: limits.x.lease: `30` is no duration; write a number with its unit, such as \"250ms\", \"10s\", \"5m\", \"1h30m\" or \"2d\"",
        ]
    );
}

#[test]
fn once_with_a_key_and_a_lease() {
    let limit = limit("kind = \"once\"\nkey = \"{{ message_id }}\"\non_unknown = \"dead_letter\"");
    let once = limit.as_once().expect("it is");
    assert_eq!(once.ttl.get(), Duration::from_secs(86_400));
    assert_eq!(limit.window(), Duration::from_secs(30));
    for (text, said) in [
        (
            "kind = \"once\"\ncost = 2",
            "a.toml:11:9: limits.x.key: missing; write it, such as `key = \"{{ message_id }}\"`\na.toml:13:1: limits.x.cost: the kind once has no such key; kinds that have it: paced, gcra, token_bucket, fixed_window, sliding_log, concurrency",
        ),
        (
            "kind = \"once\"\nkey = \"{{ message_id }}\"\nlease = \"5s\"",
            "a.toml:8:13: routes.sms.downstream.timeout: 10s is longer than limits.x.lease of 5s: the claim of a dead replica would end before its call; write 5s or less, or a longer lease",
        ),
        (
            "kind = \"once\"\nkey = \"{{ message_id }}\"\non_unknown = \"drop\"",
            "a.toml:14:14: limits.x.on_unknown: `drop` is not possible; write \"resend\" or \"dead_letter\"",
        ),
    ] {
        assert_eq!(said_of(text).join("\n"), said);
    }
}

#[test]
fn numbers_too_large_to_wait_for() {
    for (text, said) in [
        (
            "kind = \"gcra\"\nrate = \"1/1d\"\nburst = 400",
            "a.toml:14:9: limits.x.burst: a burst that was used up would take 401d to be whole again; write numbers that make it 366d or less",
        ),
        (
            "kind = \"token_bucket\"\ncapacity = 100\nborrow = 50\nrefill = 2\ninterval = \"5d\"",
            "a.toml:13:12: limits.x.capacity: a bucket that was used up would take 375d to be whole again; write numbers that make it 366d or less",
        ),
        (
            "kind = \"sliding_log\"\nrate = \"10001/1h\"",
            "a.toml:13:8: limits.x.rate: a log of 10001 units for each key is too long; write 10000 or less, or another kind: gcra, fixed_window and paced keep one number",
        ),
        (
            "kind = \"concurrency\"\nlimit = 3\nlease = \"2d\"",
            "a.toml:14:9: limits.x.lease: `2d` is too long; write 1d or less",
        ),
    ] {
        assert_eq!(said_of(text), [said]);
    }
}

#[test]
fn a_cost_that_is_known_afterwards() {
    let tokens = "kind = \"gcra\"\nrate = \"30/1s\"\nburst = 99\n";
    let actual = "actual = \"{{ answer.body.used }}\"\n";
    let known = limit(&format!("{tokens}cost = 20\n{actual}"));
    assert_eq!(
        known.actual().map(|text| text.as_str()),
        Some("{{ answer.body.used }}")
    );
    assert_eq!(
        known
            .in_words(Some("Redis"))
            .join("\n")
            .matches("estimate")
            .count(),
        3
    );
    assert_eq!(
        said_of(&format!("{tokens}{actual}")),
        [
            "a.toml:15:10: warning: limits.x.actual: each call counts 1 until its answer says more, so that as many are under way as the limit has units, and an answer is believed up to 100; write a cost beside it: about what a call uses"
        ]
    );
    assert_eq!(
        said_of(&format!(
            "{tokens}cost = 2\nactual = \"{{{{ answr.body }}}}\""
        )),
        ["a.toml:16:10: limits.x.actual: templates know no `answr`; did you mean `answer`?"]
    );
    assert_eq!(
        said_of(&format!(
            "{tokens}cost = 2\nactual = \"{{{{ answer.boddy.n }}}}\""
        )),
        [
            "a.toml:16:10: limits.x.actual: templates know no `answer.boddy`; did you mean `answer.body`?"
        ]
    );
    // Kinds that cannot be corrected give the reason.
    assert_eq!(
        said_of(&format!("{tokens}max_actual = 9")),
        [
            "a.toml:15:14: warning: limits.x.max_actual: no answer says what a call used; write actual beside it, or take max_actual out"
        ]
    );
    assert_eq!(
        said_of(&format!("{tokens}cost = 20\nmax_actual = 9\n{actual}")),
        [
            "a.toml:16:14: limits.x.max_actual: 9 is less than the estimate of 20, so no answer that says more than the estimate would be believed; write more, or leave it out for 2000"
        ]
    );
    let of_kind = |kind: &str| said_of(&format!("{kind}\n{actual}"));
    assert_eq!(
        of_kind("kind = \"concurrency\"\nlimit = 3"),
        [
            "a.toml:14:1: limits.x.actual: the kind concurrency has no such key, for a call counts while it is in flight, and not for what it used; kinds that have it: gcra, token_bucket, fixed_window, sliding_log"
        ]
    );
    assert!(
        of_kind("kind = \"paced\"\nrate = \"3/1s\"")
            .iter()
            .any(|said| said
                .contains("a pace cannot be corrected afterwards; kinds that have it: gcra")),
    );
}
