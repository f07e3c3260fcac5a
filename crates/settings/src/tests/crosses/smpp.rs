//! Downstreams over SMPP.

use crate::tests::{Files, lines, shown};
use crate::types::Downstream;

const SMPP: &str = r#"limits.provider.rate = "20/1s"
limits.provider.max_cost = 3
[routes.sms]
queue = "sms"
limits = ["provider"]
[routes.sms.downstream]
kind = "smpp"
url = "smpp://127.0.0.1:2775"
system_id = "account"
source = "{{ body.from }}"
destination = "{{ body.to }}"
text = "{{ body.text }}"
"#;

/// The messages about a good downstream with these keys added.
fn below(keys: &str) -> Vec<String> {
    lines(&[&format!("{SMPP}{keys}\n")], &[])
}

#[test]
fn the_keys_that_must_be_there_are_enough() {
    assert_eq!(below("password = \"p\""), [""; 0]);
}

/// The keys of SMPP are not those of HTTP, even if both kinds have a table of the same name.
#[test]
fn variables_set_its_keys() {
    let files = Files::new(&[SMPP]);
    let loaded = files.load(&[
        ("SLUICED__ROUTES__SMS__DOWNSTREAM__PASSWORD", "p"),
        ("SLUICED__ROUTES__SMS__DOWNSTREAM__WINDOW", "12"),
        (
            "SLUICED__ROUTES__SMS__DOWNSTREAM__OUTCOMES__HELD",
            "ESME_RMSGQFUL, 0x45",
        ),
    ]);
    let mut loaded = loaded.unwrap_or_else(|faults| panic!("{faults}"));
    let held = "routes.sms.downstream.outcomes.held = [\"ESME_RMSGQFUL\", \"0x45\"]  \
                # SLUICED__ROUTES__SMS__DOWNSTREAM__OUTCOMES__HELD";
    assert!(shown(&loaded).iter().any(|line| line == held));
    let route = loaded.settings.routes.remove("sms").expect("the route");
    let Downstream::Smpp(smpp) = route.downstream else {
        panic!("another kind");
    };
    assert_eq!(smpp.window.get(), 12);
    assert_eq!(smpp.outcomes.held, ["ESME_RMSGQFUL", "0x45"]);
}

#[test]
fn variables_are_enough_without_a_file() {
    let set = [
        ("SLUICED__LIMITS__P__RATE", "1/1s"),
        ("SLUICED__ROUTES__R__QUEUE", "q"),
        ("SLUICED__ROUTES__R__LIMITS", "p"),
        ("SLUICED__ROUTES__R__DOWNSTREAM__KIND", "smpp"),
        ("SLUICED__ROUTES__R__DOWNSTREAM__URL", "smpp://h"),
        ("SLUICED__ROUTES__R__DOWNSTREAM__SYSTEM_ID", "a"),
        ("SLUICED__ROUTES__R__DOWNSTREAM__PASSWORD", "p"),
        ("SLUICED__ROUTES__R__DOWNSTREAM__SOURCE", "S"),
        ("SLUICED__ROUTES__R__DOWNSTREAM__DESTINATION", "1"),
        ("SLUICED__ROUTES__R__DOWNSTREAM__TEXT", "t"),
        ("SLUICED__ROUTES__R__DOWNSTREAM__OUTCOMES__HELD", "0x45"),
    ];
    assert_eq!(lines(&[], &set), [""; 0]);
}

#[test]
fn keys_of_the_other_kind_are_refused() {
    assert_eq!(
        below("password = \"p\"\nheaders = {}\nbody = \"x\"\nwindw = 1"),
        [
            "a.toml:14:1: routes.sms.downstream.headers: the kind smpp has no such key; kinds that have it: http",
            "a.toml:15:1: routes.sms.downstream.body: the kind smpp has no such key; kinds that have it: http",
            "a.toml:16:1: routes.sms.downstream.windw: unknown key; did you mean `window`?"
        ]
    );
}

#[test]
fn a_password_and_its_place() {
    assert_eq!(
        below(""),
        ["a.toml:6:13: routes.sms.downstream: no password; write password_file or password"]
    );
    assert_eq!(
        below("password_file = \"/nowhere\"\nurl2 = \"\""),
        [
            "a.toml:13:17: routes.sms.downstream.password_file: `/nowhere` cannot be read: No such file or directory (os error 2)",
            "a.toml:14:1: routes.sms.downstream.url2: unknown key; did you mean `url`?"
        ]
    );
    let said = lines(&[&SMPP.replace("smpp://", "smpp://me:hunter2@")], &[]).join("\n");
    assert!(
        said.contains("credentials in this URL are not used"),
        "{said}"
    );
    assert!(!said.contains("hunter2"), "{said}");
}

#[test]
fn statuses_codings_and_numbers() {
    assert_eq!(
        below(
            "password = \"p\"\ndata_coding = 3\nsource_ton = 300\nwindow = 2400\nlatency = \"1m\"\nsystem_type = \"thirteen char\"\n\
             outcomes = { throttled = [\"0x58\", \"5xx\"], accepted = [\"timeout\"] }"
        ),
        [
            "a.toml:14:15: routes.sms.downstream.data_coding: one number cannot stand for two alphabets; write encoding = \"gsm7\", \"latin1\" or \"ucs2\" beside it, or take it out",
            "a.toml:15:14: routes.sms.downstream.source_ton: `300` does not fit; write a whole number from 0 to 255, or a template that makes one",
            "a.toml:17:11: routes.sms.downstream.latency: 1m is longer than timeout of 10s; write 10s or less",
            "a.toml:18:15: routes.sms.downstream.system_type: this has 13 octets; SMPP takes 12 at most",
            "a.toml:19:35: routes.sms.downstream.outcomes.throttled[1]: `5xx` is no status of SMPP; write a name such as \"ESME_RTHROTTLED\" or a number such as \"0x58\" or \"88\", \"timeout\" or \"connection\"",
            "a.toml:19:55: routes.sms.downstream.outcomes.accepted[0]: `timeout` is no answer, so nothing can have been accepted; take it out"
        ]
    );
}

#[test]
fn receipts_need_a_transceiver_and_have_no_message() {
    let results = |on: &str| {
        let head = SMPP.replace(
            "[routes.sms.downstream]",
            &format!("results = {{ routing_key = \"{{{{ body.to }}}}\", on = [{on}] }}\n[routes.sms.downstream]"),
        );
        move |keys: &str| lines(&[&format!("{head}password = \"p\"\n{keys}\n")], &[])
    };
    assert_eq!(
        results("\"receipt\"")("bind = \"transmitter\""),
        [
            "a.toml:6:27: routes.sms.results.routing_key: what a centre delivers has no message, so `body` is not known of it; use only route and answer",
            "a.toml:6:49: routes.sms.results.on: a centre delivers nothing to a transmitter; write bind = \"transceiver\" in its downstream"
        ]
    );
    let fixed = |on: &str| {
        let results =
            format!("results = {{ routing_key = \"out\", on = [{on}] }}\n[routes.sms.downstream]");
        let text = SMPP.replace("[routes.sms.downstream]", &results);
        lines(
            &[&format!("{text}password = \"p\"\nbind = \"transceiver\"\n")],
            &[],
        )
    };
    assert_eq!(fixed("\"inbound\""), [""; 0]);
    assert_eq!(
        results("\"accepted\"")("bind = \"transceiver\""),
        [
            "a.toml:15:8: routes.sms.downstream.bind: nothing takes what the centre delivers; write results.on = [\"receipt\"] or [\"inbound\"] (and what else is to be published), or bind = \"transmitter\""
        ]
    );
}

/// A delivery delays no message, so the words about results do not apply to it.
#[test]
fn deliveries_in_words() {
    let words = |results: &str| {
        let results = format!(
            "results = {{ {results} }}\n[routes.sms.downstream]\npassword = \"p\"\nbind = \"transceiver\""
        );
        let files = Files::new(&[&SMPP.replace("[routes.sms.downstream]", &results)]);
        let settings = files
            .load(&[])
            .unwrap_or_else(|faults| panic!("{faults}"))
            .settings;
        let words = settings.routes["sms"].in_words().into_iter();
        words
            .filter(|words| words.contains("published"))
            .collect::<Vec<_>>()
    };
    let receipt = "a receipt is published to the queue `out`; one that no queue takes";
    assert_eq!(
        words("routing_key = \"out\", on = [\"receipt\"]"),
        [format!(
            "{receipt} stays with the message centre, which delivers it again"
        )]
    );
    assert_eq!(
        words("routing_key = \"out\", on = [\"receipt\", \"dead\"], unroutable = \"drop\""),
        [
            "once a message is dead, a result is published to the queue `out`; a result that no queue takes is dropped".to_owned(),
            format!("{receipt} is dropped"),
        ]
    );
    assert_eq!(
        words("routing_key = \"out\", on = [\"inbound\", \"receipt\"]"),
        [
            "a receipt or a message from a phone is published to the queue `out`; one that no queue takes stays with the message centre, which delivers it again"
        ]
    );
    let keyless = "; one without a valid routing key is dropped";
    assert_eq!(
        words("routing_key = \"{{ answer.body.source }}\", on = [\"receipt\"]"),
        [format!(
            "a receipt is published to the queue `{{{{ answer.body.source }}}}`; one that no queue takes stays with the message centre, which delivers it again{keyless}"
        )]
    );
}

#[test]
fn a_window_that_is_too_small_for_the_rate() {
    assert_eq!(
        below("password = \"p\"\nbinds = 2\nwindow = 3"),
        [
            "a.toml:15:10: warning: routes.sms.downstream.window: 6 segments without an answer do not keep 20/1s busy at a latency of 250ms: one replica alone needs 8 or more, because some answers take longer; write 4, or run more replicas"
        ]
    );
}

#[test]
fn a_window_that_is_too_small_for_the_longest_message() {
    let of_segments = |cost: &str, keys: &str| {
        let rate = format!(
            "limits.provider.rate = \"100/1s\"\nlimits.provider.cost = \"{{{{ {cost} }}}}\"\nlimits.provider.max_cost = 12"
        );
        let text = SMPP.replace(
            "limits.provider.rate = \"20/1s\"\nlimits.provider.max_cost = 3",
            &rate,
        );
        lines(
            &[&format!("{text}password = \"p\"\nbinds = 8\n{keys}\n")],
            &[],
        )
    };
    let segments = "body.text | sms_segments";
    assert_eq!(
        of_segments(segments, "window = 10"),
        [
            "a.toml:16:10: warning: routes.sms.downstream.window: a message of more than 10 segments is a dead letter, for they are sent together, and limits.provider lets up to 12 pass; write window = 12 or more, or max_cost = 10"
        ]
    );
    for (cost, keys) in [
        (segments, "window = 12"),
        // One submit_sm.
        (segments, "long = \"payload\""),
        // Units of something else.
        ("body.price", "long = \"payload\""),
    ] {
        assert_eq!(of_segments(cost, keys), [""; 0], "{cost} {keys}");
    }
}

/// What is counted is what is sent: a cost that says something else is refused, with the one that is right.
#[test]
fn a_cost_that_does_not_count_the_segments_is_refused() {
    let costs = |cost: &str, keys: &str| {
        let text = SMPP.replace(
            "20/1s\"",
            &format!("100/1s\"\nlimits.provider.cost = {cost}"),
        );
        lines(
            &[&format!("{text}password = \"p\"\nwindow = 60\n{keys}\n")],
            &[],
        )
    };
    let segments = "'{{ body.text | sms_segments }}'";
    let ucs2 = r#"'{{ body.text|sms_segments(encoding="ucs2", reference=8) }}'"#;
    let both = "\"{{ body.text | sms_segments(reference=16, encoding='ucs2') }}\"";
    let composed = "text = \"{{ body.name }}: {{ body.text }}\"";
    for (cost, keys) in [
        (segments, ""),
        ("\"{{ body.text | sms_segments(encoding='auto') }}\"", ""),
        (ucs2, "encoding = \"ucs2\""),
        (both, "encoding = \"ucs2\"\nlong = \"udh16\""),
        (
            r#"'{{ body.text | sms_segments(transliterate=true, encoding="latin1") }}'"#,
            "encoding = \"latin1\"\ntransliterate = true",
        ),
        ("1", "long = \"payload\""),
        (segments, "long = \"payload\""),
    ] {
        assert_eq!(costs(cost, keys), [""; 0], "{cost} {keys}");
    }
    let sends = "a.toml:2:24: limits.provider.cost: `routes.sms` takes a slot for each segment that it sends, and this counts otherwise; take cost out";
    let or = |cost: &str| format!("{sends}, or write cost = '{cost}'");
    let plain = "{{ body.text | sms_segments }}";
    for (cost, keys, right) in [
        ("1", "", or(plain)),
        ("3", "", or(plain)),
        ("\"{{ body.title | sms_segments }}\"", "", or(plain)),
        ("\"{{ 2 * (body.text | sms_segments) }}\"", "", or(plain)),
        (
            segments,
            "encoding = \"ucs2\"",
            or("{{ body.text | sms_segments(encoding=\"ucs2\") }}"),
        ),
        (
            segments,
            "long = \"udh16\"",
            or("{{ body.text | sms_segments(reference=16) }}"),
        ),
        (ucs2, "", or(plain)),
        (
            segments,
            "encoding = \"latin1\"\ntransliterate = true",
            or("{{ body.text | sms_segments(encoding=\"latin1\", transliterate=true) }}"),
        ),
    ] {
        assert_eq!(costs(cost, keys), [right], "{cost} {keys}");
    }
    let text = SMPP.replace(
        "20/1s\"",
        "100/1s\"\nlimits.provider.cost = \"{{ body.text | sms_segments }}\"",
    );
    let text = text.replace("text = \"{{ body.text }}\"", composed);
    let said = lines(&[&format!("{text}password = \"p\"\nwindow = 60\n")], &[]);
    assert_eq!(said, [sends]);
}

/// Without a cost a message may take 10 slots, and no more than fit.
#[test]
fn the_most_segments_follow_from_the_rate_and_the_window() {
    let most = |rate: &str, keys: &str| {
        let text = SMPP.replace(
            "\"20/1s\"\nlimits.provider.max_cost = 3",
            &format!("{rate:?}"),
        );
        let files = Files::new(&[&format!("{text}password = \"p\"\n{keys}\n")]);
        let loaded = files.load(&[]).unwrap_or_else(|faults| panic!("{faults}"));
        loaded.settings.limits["provider"].largest_cost().get()
    };
    assert_eq!(most("100/1s", "window = 60"), 10);
    assert_eq!(most("100/1s", "window = 7"), 7);
    assert_eq!(most("12/1s", "window = 60"), 6);
    assert_eq!(most("1/1s", ""), 1);
    assert_eq!(most("100/1s", "long = \"payload\""), 1);
}
