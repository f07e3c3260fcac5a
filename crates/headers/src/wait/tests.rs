//! Headers that say when to come back are read in each form, and what is no time says nothing.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// The date of every answer here.
const NOW: &str = "Thu, 26 Nov 2026 15:56:19 GMT";

fn said_by(headers: &[(&str, &str)]) -> AskedWait {
    let headers: BTreeMap<&str, &str> = headers.iter().copied().collect();
    let get = |name: &str| headers.get(name).copied();
    waits(&get, None, date(NOW).unwrap())
}

/// What an answer asks for, in milliseconds.
fn asked(headers: &[(&str, &str)]) -> Option<u128> {
    said_by(headers).asked.map(|wait| wait.as_millis())
}

#[test]
fn every_form_of_a_time_is_read() {
    for text in [
        "4",
        " 4 ",
        "4.0",
        "0004",
        "4s",
        "4 s",
        "4.0s",
        "0m4s",
        "4000ms",
        "4 seconds",
        // Two servers in a row.
        "4, 4",
        "4,4",
        "1, 4",
        "4s, 2s",
        // RFC 9110, section 5.6.7: IMF-fixdate, RFC 850, asctime.
        "Thu, 26 Nov 2026 15:56:23 GMT",
        "Thursday, 26-Nov-26 15:56:23 GMT",
        "Thu Nov 26 15:56:23 2026",
        "Thu, 26 Nov 2026 15:56:23 GMT, Thu, 26 Nov 2026 15:56:20 GMT",
        // RFC 5322, section 3.3, and names of the zone that it does not have.
        "Thu, 26 Nov 2026 15:56:23 +0000",
        "Thu, 26 Nov 2026 16:56:23 +0100",
        "Thu, 26 Nov 2026 15:56:23 UTC",
        "Thu, 26 Nov 2026 15:56:23 UT",
        "26 Nov 2026 15:56:23 GMT",
        "Mon, 26 Nov 2026 15:56:23 +0000",
        // ISO 8601.
        "2026-11-26T15:56:23Z",
        "2026-11-26T15:56:23.000Z",
        "2026-11-26T16:56:23+01:00",
        "2026-11-26T15:56:23+00:00",
        "2026-11-26 15:56:23Z",
        "2026-11-26T15:56:23",
        "2026-11-26 15:56:23",
        // ECMAScript.
        "Thu Nov 26 2026 15:56:23 GMT+0000 (Coordinated Universal Time)",
        "Thu Nov 26 2026 16:56:23 GMT+0100",
        // Points in time since 1970.
        "1795708583",
        "1795708583.0",
        "1795708583000",
    ] {
        assert_eq!(asked(&[("retry-after", text)]), Some(4000), "{text}");
    }
    for (text, millis) in [
        ("0.25", 250),
        ("1.5", 1500),
        ("6ms", 6),
        ("4m0s", 240_000),
        ("6m0.5s", 360_500),
        ("1h2m3s", 3_723_000),
        ("1d", 86_400_000),
        ("1795708579.470", 470),
        // Atlassian: to the minute.
        ("2026-11-26T15:57Z", 41_000),
    ] {
        assert_eq!(asked(&[("retry-after", text)]), Some(millis), "{text}");
    }
}

#[test]
fn what_is_no_time_says_nothing() {
    for text in [
        "",
        "0",
        "0.0",
        "0s",
        "-1",
        "-4s",
        "-",
        ".",
        "1.",
        ".5",
        "1e3",
        "soon",
        "NaN",
        "\u{0661}",
        "4 parsecs",
        "4m0",
        "Thu, 26 Nov 2026",
        "Thu, 99 Nov 2026 15:56:23 GMT",
        "2026-11-26",
        "15:56:23",
        ",",
        "0, 0",
        // The past, and the moment itself.
        "Thu, 26 Nov 2026 15:56:19 GMT",
        "1795708579",
        "1000000000",
        "2026-11-26T15:56:18Z",
    ] {
        assert_eq!(asked(&[("retry-after", text)]), None, "{text}");
    }
}

#[test]
fn a_point_in_time_counts_from_the_date_of_the_answer() {
    let date = ("date", "Thu, 26 Nov 2026 15:56:13 GMT");
    assert_eq!(asked(&[("retry-after", "1795708583"), date]), Some(10_000));
    assert_eq!(asked(&[("retry-after", "4"), date]), Some(4000));
    let strange = ("date", "yesterday");
    assert_eq!(asked(&[("retry-after", "1795708583"), strange]), Some(4000));
}

#[test]
fn units_that_are_left_make_a_reset_irrelevant() {
    for headers in [
        [
            ("x-ratelimit-remaining", "4711"),
            ("x-ratelimit-reset", "1795712000"),
        ],
        [("ratelimit-remaining", "3"), ("ratelimit-reset", "41")],
        [("ratelimit", "limit=10, remaining=3, reset=7"), ("x", "")],
        [("ratelimit", "\"a\";r=x;t=y"), ("ratelimit-policy", ";;;")],
    ] {
        assert_eq!(said_by(&headers), AskedWait::default(), "{headers:?}");
    }
}

#[test]
fn a_reset_alone_counts_only_for_an_answer_that_means_not_now() {
    for (name, text) in [
        ("x-rate-limit-reset", "4"),
        ("x-ratelimit-reset", "1795708583"),
        ("x-ratelimit-reset-after", "4"),
        ("x-ratelimit-reset-requests", "4s"),
        ("ratelimit-reset", "4"),
        ("ratelimit", "quota;t=4"),
    ] {
        let waits = said_by(&[(name, text)]);
        assert_eq!(waits.asked, None, "{name}");
        assert_eq!(waits.reset, Some(Duration::from_secs(4)), "{name}");
    }
}

#[test]
fn the_clearest_word_counts() {
    let all = [
        ("retry-after", "2"),
        ("ratelimit", "\"a\";r=0;t=3"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "5"),
    ];
    assert_eq!(asked(&all), Some(2000));
    assert_eq!(
        asked(&[("retry-after", "0"), all[1], all[2], all[3]]),
        Some(3000)
    );
    assert_eq!(
        asked(&[("retry-after", "never"), all[2], all[3]]),
        Some(5000)
    );
    let get = |name: &str| (name == "retry-after").then_some("2");
    let now = date(NOW).unwrap();
    let said = |text| waits(&get, Some(text), now).asked;
    assert_eq!(said("7"), Some(Duration::from_secs(7)));
    assert_eq!(said("2026-11-26T15:56:23Z"), Some(Duration::from_secs(4)));
    assert_eq!(said("no time"), Some(Duration::from_secs(2)));
}

proptest! {
    #[test]
    fn whatever_stands_there_it_never_panics(text in "\\PC{0,40}", form in "[\";=,rtwd0-9.msh:TZ+GMNov -]{0,40}") {
        for text in [&text, &form] {
            for name in ["retry-after", "retry-after-ms", "ratelimit", "x-ratelimit-reset", "date"] {
                let waits = said_by(&[(name, text)]);
                prop_assert!(waits.asked != Some(Duration::ZERO));
            }
        }
    }
}
