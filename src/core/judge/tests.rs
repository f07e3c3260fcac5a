use proptest::prelude::*;

use super::*;

const DEFAULT_WAIT: Duration = Duration::from_secs(1);
const MAX_WAIT: Duration = Duration::from_secs(3600);
const THROTTLED: Outcome = Outcome::Throttled { wait: DEFAULT_WAIT };

fn list(entries: &[&str]) -> Vec<String> {
    entries.iter().map(|e| (*e).to_owned()).collect()
}

fn default_judge() -> Judge<Code> {
    Judge::new(Lists::default(), DEFAULT_WAIT, MAX_WAIT).unwrap()
}

fn judge_with(
    accepted: &[&str],
    throttled: &[&str],
    transient: &[&str],
    permanent: &[&str],
) -> Result<Judge<Code>, ListError> {
    Judge::new(
        Lists {
            accepted: &list(accepted),
            throttled: &list(throttled),
            transient: &list(transient),
            permanent: &list(permanent),
            ..Lists::default()
        },
        DEFAULT_WAIT,
        MAX_WAIT,
    )
}

fn status(judge: &Judge<Code>, status: u16) -> Outcome {
    let reply = Reply {
        status,
        ..Reply::default()
    };
    judge.reply(reply, SystemTime::UNIX_EPOCH)
}

fn throttled_for(text: &str, date: Option<&str>, now: SystemTime) -> Duration {
    let reply = Reply {
        status: 429,
        hints: Hints {
            retry_after: Some(text),
            date,
            ..Hints::default()
        },
        body: b"",
    };
    match default_judge().reply(reply, now) {
        Outcome::Throttled { wait } => wait,
        other => panic!("{other:?}"),
    }
}

#[test]
fn defaults_by_status() {
    let judge = default_judge();
    for (code, outcome) in [
        (100, Outcome::Permanent),
        (101, Outcome::Permanent),
        (199, Outcome::Permanent),
        (200, Outcome::Accepted),
        (204, Outcome::Accepted),
        (299, Outcome::Accepted),
        (301, Outcome::Permanent),
        (302, Outcome::Permanent),
        (308, Outcome::Permanent),
        (400, Outcome::Permanent),
        (401, Outcome::Transient),
        (404, Outcome::Permanent),
        (408, Outcome::Transient),
        (409, Outcome::Permanent),
        (425, Outcome::Transient),
        (429, THROTTLED),
        (499, Outcome::Permanent),
        (500, Outcome::Transient),
        (502, Outcome::Transient),
        (503, Outcome::Transient),
        (504, Outcome::Transient),
        (599, Outcome::Transient),
        (600, Outcome::Permanent),
        (999, Outcome::Permanent),
        (0, Outcome::Permanent),
        (1000, Outcome::Permanent),
    ] {
        assert_eq!(status(&judge, code), outcome, "{code}");
    }
    assert_eq!(judge.silence(Silence::Timeout), Outcome::Transient);
    assert_eq!(judge.silence(Silence::Connection), Outcome::Transient);
}

#[test]
fn unavailable_is_throttled_only_if_it_says_when() {
    let judge = default_judge();
    let reply = Reply {
        status: 503,
        hints: Hints {
            retry_after: Some("7"),
            ..Hints::default()
        },
        body: b"",
    };
    assert_eq!(
        judge.reply(reply, SystemTime::UNIX_EPOCH),
        Outcome::Throttled {
            wait: Duration::from_secs(7)
        }
    );
    assert_eq!(status(&judge, 503), Outcome::Transient);
}

#[test]
fn a_code_beats_a_class_and_a_class_beats_the_default() {
    let judge = judge_with(&["409"], &["403", "timeout"], &["4xx"], &["5xx", "501"]).unwrap();
    assert_eq!(status(&judge, 409), Outcome::Accepted);
    assert_eq!(status(&judge, 403), THROTTLED);
    assert_eq!(status(&judge, 404), Outcome::Transient);
    assert_eq!(status(&judge, 429), Outcome::Transient);
    assert_eq!(status(&judge, 503), Outcome::Permanent);
    assert_eq!(judge.silence(Silence::Timeout), THROTTLED);
    assert_eq!(judge.silence(Silence::Connection), Outcome::Transient);
}

#[test]
fn wrong_lists_are_refused() {
    for entry in ["", "5x", "5XX", "6xx", "20", "2000", "099", "+20", "ok"] {
        assert!(
            matches!(
                judge_with(&[], &[], &[entry], &[]),
                Err(ListError::Unknown { .. })
            ),
            "{entry}"
        );
    }
    assert_eq!(
        judge_with(&["409"], &[], &[], &["409"]).unwrap_err(),
        ListError::Twice {
            entry: "409".to_owned(),
            first: "accepted",
            second: "permanent",
        }
    );
    assert_eq!(
        judge_with(&["connection"], &[], &[], &[]).unwrap_err(),
        ListError::AcceptedUnsent
    );
    assert!(judge_with(&["409", "409", "4xx"], &[], &[], &[]).is_ok());
}

#[test]
fn retry_after_in_seconds() {
    let now = SystemTime::UNIX_EPOCH;
    for (text, secs) in [
        ("1", 1),
        (" 30 ", 30),
        ("0030", 30),
        ("1.5", 2),
        ("2.0", 2),
        ("3599", 3599),
        ("3600", 3600),
        ("3601", 3600),
        ("18446744073709551616", 3600),
        ("99999999999999999999999999", 3600),
    ] {
        assert_eq!(
            throttled_for(text, None, now),
            Duration::from_secs(secs),
            "{text}"
        );
    }
}

#[test]
fn retry_after_that_says_nothing_useful_is_as_if_not_given() {
    for text in [
        "",
        "0",
        "0.0",
        "-1",
        "-",
        ".",
        "1.",
        ".5",
        "1e3",
        "soon",
        "12 s",
        "NaN",
        "1,5",
        "\u{0661}",
        "Sun, 06 Nov 1994",
        "Sun, 99 Nov 1994 08:49:37 GMT",
    ] {
        assert_eq!(
            throttled_for(text, None, SystemTime::UNIX_EPOCH),
            DEFAULT_WAIT,
            "{text}"
        );
    }
}

#[test]
fn a_retry_after_date_is_compared_with_the_answers_own_clock() {
    let until = "Sun, 06 Nov 1994 08:49:37 GMT";
    let at = httpdate::parse_http_date(until).unwrap();
    let far = at + Duration::from_secs(1_000_000_000);
    let minute_before = Some("Sun, 06 Nov 1994 08:48:37 GMT");
    assert_eq!(
        throttled_for(until, minute_before, far),
        Duration::from_secs(60)
    );
    // Without a usable Date: the caller's now.
    let now = at - Duration::from_secs(20);
    assert_eq!(throttled_for(until, None, now), Duration::from_secs(20));
    assert_eq!(
        throttled_for(until, Some("yesterday"), now),
        Duration::from_secs(20)
    );
    // The past, and the very moment.
    assert_eq!(throttled_for(until, None, far), DEFAULT_WAIT);
    assert_eq!(throttled_for(until, Some(until), now), DEFAULT_WAIT);
    // Far away.
    let long_ago = at - Duration::from_secs(86_400);
    assert_eq!(throttled_for(until, None, long_ago), MAX_WAIT);
}

#[test]
fn no_wait_is_longer_than_the_maximum() {
    let judge = Judge::new(
        Lists::default(),
        Duration::from_secs(10),
        Duration::from_secs(2),
    )
    .unwrap();
    assert_eq!(
        status(&judge, 429),
        Outcome::Throttled {
            wait: Duration::from_secs(2)
        }
    );
}

proptest! {
    #[test]
    fn whatever_it_says_the_wait_is_bounded_and_never_nothing(
        text in "\\PC{0,40}", date in proptest::option::of("\\PC{0,40}"), now in 0_u64..10_000_000_000,
    ) {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(now);
        let wait = throttled_for(&text, date.as_deref(), now);
        prop_assert!(wait > Duration::ZERO && wait <= MAX_WAIT);
    }

    #[test]
    fn every_pair_of_dates_has_an_answer(until in 0_u64..200_000_000_000, date in 0_u64..200_000_000_000) {
        let text = |secs| httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(secs));
        let wait = throttled_for(&text(until), Some(&text(date)), SystemTime::UNIX_EPOCH);
        let wanted = if until > date { Duration::from_secs(until - date).min(MAX_WAIT) } else { DEFAULT_WAIT };
        prop_assert_eq!(wait, wanted);
    }
}

#[test]
fn a_text_in_the_body_beats_the_status() {
    let (throttled, held) = (list(&["LIMIT_EXCEEDED"]), list(&["recipient busy"]));
    let lists = Lists {
        texts: Texts {
            throttled: &throttled,
            held: &held,
            ..Texts::default()
        },
        ..Lists::default()
    };
    let judge = Judge::new(lists, DEFAULT_WAIT, MAX_WAIT).unwrap();
    assert!(judge.reads() && !default_judge().reads());
    let says = |status, body: &'static str| {
        let reply = Reply {
            status,
            body: body.as_bytes(),
            ..Reply::default()
        };
        judge.reply(reply, SystemTime::UNIX_EPOCH)
    };
    assert_eq!(says(200, "{\"code\":\"LIMIT_EXCEEDED\"}"), THROTTLED);
    let wait = DEFAULT_WAIT;
    assert_eq!(says(400, "the recipient busy"), Outcome::Held { wait });
    assert_eq!(says(200, "{\"code\":\"OK\"}"), Outcome::Accepted);
    assert_eq!(says(200, "LIMIT"), Outcome::Accepted);
    let empty = list(&[""]);
    let lists = Lists {
        texts: Texts {
            permanent: &empty,
            ..Texts::default()
        },
        ..Lists::default()
    };
    let wrong = Judge::<Code>::new(lists, DEFAULT_WAIT, MAX_WAIT);
    assert_eq!(wrong.err(), Some(ListError::EmptyText));
}
