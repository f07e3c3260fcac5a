//! Headers that say what is left of a quota are read in each form, and no text makes the reader panic.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const GITHUB: Format = Format::Pair(("x-ratelimit-remaining", "x-ratelimit-reset"));

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
}

fn said(format: Format, headers: &[(&str, &str)]) -> Option<Vec<(u64, Option<u64>)>> {
    let headers: BTreeMap<&str, &str> = headers.iter().copied().collect();
    let read = read(format, |name| headers.get(name).copied(), now())?;
    let each = read
        .iter()
        .map(|one| (one.units, one.reset.map(|r| r.as_secs())));
    Some(each.collect())
}

#[test]
fn the_headers_of_the_ietf_draft_are_read() {
    let ietf = |limit, policy| {
        said(
            Format::Ietf,
            &[("ratelimit", limit), ("ratelimit-policy", policy)],
        )
    };
    assert_eq!(
        ietf("\"default\";r=50;t=30", ""),
        Some(vec![(50, Some(30))])
    );
    let two = ietf("\"burst\";r=9;t=1, \"day\";r=0;t=3600", "");
    assert_eq!(two, Some(vec![(9, Some(1)), (0, Some(3600))]));
    // A reset that is not named is no later than the window of the policy.
    let policies = "\"burst\";q=100;w=60,\"day\";q=1000;w=86400;pk=:dXNlcg==:";
    assert_eq!(ietf("\"day\";r=7", policies), Some(vec![(7, Some(86_400))]));
    assert_eq!(ietf("\"other\";r=7", policies), Some(vec![(7, None)]));
    assert_eq!(ietf("\"a,b\";r=7;t=2", ""), Some(vec![(7, Some(2))]));
    // Concurrent calls are no count over time.
    let policies =
        "\"calls\";q=10;qu=\"concurrent-requests\", \"hour\";q=100;qu=\"requests\";w=3600";
    let both = ietf("\"calls\";r=1, \"hour\";r=40;t=9", policies);
    assert_eq!(both, Some(vec![(40, Some(9))]));
    // Earlier drafts.
    assert_eq!(
        ietf("limit=100, remaining=50, reset=7", ""),
        Some(vec![(50, Some(7))])
    );
    let three = [
        ("ratelimit-limit", "60"),
        ("ratelimit-remaining", "12"),
        ("ratelimit-reset", "41"),
    ];
    assert_eq!(said(Format::Ietf, &three), Some(vec![(12, Some(41))]));
    for text in [
        "",
        "default",
        ";;;",
        "\"a\";r=x;t=1",
        "\"a\";t=1",
        "remaining=, reset=1",
    ] {
        assert_eq!(ietf(text, ""), None, "{text}");
    }
    assert_eq!(said(Format::Ietf, &[]), None);
}

#[test]
fn a_pair_of_headers_is_read_in_each_form_of_a_reset() {
    let github = |left, reset| {
        said(
            GITHUB,
            &[
                ("x-ratelimit-remaining", left),
                ("x-ratelimit-reset", reset),
            ],
        )
    };
    for (reset, seconds) in [
        ("30", 30),
        ("1.5", 1),
        ("1800000012", 12),
        ("1800000012000", 12),
        ("1799999999", 0),
        ("6m0s", 360),
        ("1h2m3.5s", 3723),
        ("20ms", 0),
        ("2027-01-15T08:00:12Z", 12),
        ("2027-01-15T09:00:12.9+01:00", 12),
        ("Fri, 15 Jan 2027 08:00:12 GMT", 12),
    ] {
        assert_eq!(
            github("4", reset),
            Some(vec![(4, Some(seconds))]),
            "{reset}"
        );
    }
    for reset in ["", "soon", "6m0", "m", "-5", "5x", "2027-01-15"] {
        assert_eq!(github("4", reset), Some(vec![(4, None)]), "{reset}");
    }
    for (left, units) in [
        ("0", 0),
        (" 7 ", 7),
        ("12.9", 12),
        ("-3", 0),
        ("99999999999999999999", u64::MAX),
        // Docker Hub's registry: with the window (docs.docker.com, pull usage).
        ("76;w=21600", 76),
        // Two servers add a header each, and a proxy joins them.
        ("0, 0", 0),
        ("7, 3;w=60", 3),
    ] {
        assert_eq!(github(left, "1"), Some(vec![(units, Some(1))]), "{left}");
    }
    for left in [
        "", "-", ";w=60", "many", "1e3", "1,000", ".", "7, many", "7, ",
    ] {
        assert_eq!(github(left, "1"), None, "{left}");
    }
}

proptest! {
    #[test]
    fn whatever_stands_there_it_never_panics(text in "\\PC{0,40}", policy in "\\PC{0,30}", form in "[\";=,rtwd0-9.msh:TZ+-]{0,30}") {
        for text in [&text, &form] {
            for format in [Format::Ietf, GITHUB] {
                let get = |name: &str| Some(if name.ends_with("policy") { policy.as_str() } else { text.as_str() });
                let _read = read(format, get, now());
            }
        }
    }
}
