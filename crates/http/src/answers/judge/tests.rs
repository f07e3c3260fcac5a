//! What an answer means: by its status, by texts in its body, or by a template.

use proptest::prelude::*;

use super::*;
use sluiced_core::judge::Texts;

mod providers;

const DEFAULT_WAIT: Duration = Duration::from_secs(1);
const MAX_WAIT: Duration = Duration::from_secs(3600);
const THROTTLED: Outcome = Outcome::Throttled { wait: DEFAULT_WAIT };

fn list(entries: &[&str]) -> Vec<String> {
    entries.iter().map(|e| (*e).to_owned()).collect()
}

fn default_judge() -> HttpJudge {
    HttpJudge::new(Lists::default(), DEFAULT_WAIT, MAX_WAIT).unwrap()
}

fn judge_with(
    accepted: &[&str],
    throttled: &[&str],
    transient: &[&str],
    permanent: &[&str],
) -> Result<HttpJudge, ListError> {
    HttpJudge::new(
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

/// An answer with no more than a status.
fn plain<'a>(status: u16) -> HttpReply<'a> {
    HttpReply {
        status,
        headers: &|_| None,
        body: b"",
        body_is_incomplete: false,
        may_repeat: false,
        found: TemplateFindings::default(),
    }
}

fn outcome(judge: &HttpJudge, reply: HttpReply<'_>) -> Option<Outcome> {
    let judged = judge.judge_reply(reply, SystemTime::UNIX_EPOCH);
    judged.map(|judged| judged.outcome)
}

fn status(judge: &HttpJudge, status: u16) -> Outcome {
    outcome(judge, plain(status)).expect("nothing is missing")
}

/// An answer that asks to come back after four seconds.
fn asking(judge: &HttpJudge, status: u16) -> Outcome {
    let reply = HttpReply {
        headers: &|name| (name == "retry-after").then_some("4"),
        ..plain(status)
    };
    outcome(judge, reply).expect("nothing is missing")
}

fn throttled_for(text: &str, date: Option<&str>, now: SystemTime) -> Duration {
    let headers = |name: &str| match name {
        "retry-after" => Some(text),
        "date" => date,
        _ => None,
    };
    let reply = HttpReply {
        headers: &headers,
        ..plain(429)
    };
    match default_judge()
        .judge_reply(reply, now)
        .map(|judged| judged.outcome)
    {
        Some(Outcome::Throttled { wait }) => wait,
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
        (401, Outcome::TRANSIENT),
        (404, Outcome::Permanent),
        (408, Outcome::TRANSIENT),
        (409, Outcome::Permanent),
        (413, Outcome::Permanent),
        (420, THROTTLED),
        (421, Outcome::TRANSIENT),
        (423, Outcome::TRANSIENT),
        (425, Outcome::TRANSIENT),
        (429, THROTTLED),
        (430, THROTTLED),
        (499, Outcome::Permanent),
        (500, Outcome::TRANSIENT),
        (502, Outcome::TRANSIENT),
        (503, Outcome::TRANSIENT),
        (504, Outcome::TRANSIENT),
        (529, Outcome::TRANSIENT),
        (599, Outcome::TRANSIENT),
        (600, Outcome::Permanent),
        (999, Outcome::Permanent),
        (0, Outcome::Permanent),
        (1000, Outcome::Permanent),
    ] {
        assert_eq!(status(&judge, code), outcome, "{code}");
    }
    assert_eq!(judge.judge_silence(Silence::Timeout), Outcome::TRANSIENT);
    assert_eq!(judge.judge_silence(Silence::Connection), Outcome::TRANSIENT);
}

#[test]
fn an_answer_that_says_when_to_come_back_is_no_refusal_of_the_message() {
    let judge = default_judge();
    let four = Duration::from_secs(4);
    for code in [403, 420, 429, 430, 477, 503, 529] {
        assert_eq!(
            asking(&judge, code),
            Outcome::Throttled { wait: four },
            "{code}"
        );
    }
    for code in [
        400, 401, 404, 408, 409, 413, 422, 423, 425, 500, 502, 504, 599,
    ] {
        let later = Outcome::Transient { wait: Some(four) };
        assert_eq!(asking(&judge, code), later, "{code}");
    }
    assert_eq!(asking(&judge, 202), Outcome::Accepted);
    // It may say when to follow; nothing follows here.
    assert_eq!(asking(&judge, 301), Outcome::Permanent);
    // What a list says goes before all that.
    let judge = judge_with(&["409"], &[], &["429"], &["503"]).unwrap();
    assert_eq!(asking(&judge, 409), Outcome::Accepted);
    assert_eq!(asking(&judge, 429), Outcome::Transient { wait: Some(four) });
    assert_eq!(asking(&judge, 503), Outcome::Permanent);
}

/// The first call with the same `Idempotency-Key` still runs, or ran.
#[test]
fn a_conflict_of_a_repeat_is_no_refusal() {
    let judge = default_judge();
    let repeat = |status| HttpReply {
        may_repeat: true,
        ..plain(status)
    };
    assert_eq!(outcome(&judge, repeat(409)), Some(Outcome::TRANSIENT));
    assert_eq!(outcome(&judge, repeat(404)), Some(Outcome::Permanent));
    let judge = judge_with(&["409"], &[], &[], &[]).unwrap();
    assert_eq!(outcome(&judge, repeat(409)), Some(Outcome::Accepted));
}

/// GitHub: "If the x-ratelimit-remaining header is 0, you should not make another request until after the time
/// specified by the x-ratelimit-reset header" (docs.github.com, troubleshooting the REST API).
#[test]
fn a_forbidden_call_with_a_spent_quota_is_throttled() {
    let judge = default_judge();
    let github = |left: &'static str| {
        let headers = move |name: &str| match name {
            "x-ratelimit-remaining" => Some(left),
            "x-ratelimit-reset" => Some("1795708587"),
            "date" => Some("Thu, 26 Nov 2026 15:56:23 GMT"),
            _ => None,
        };
        let reply = HttpReply {
            headers: &headers,
            ..plain(403)
        };
        outcome(&judge, reply).expect("nothing is missing")
    };
    let wait = Duration::from_secs(4);
    assert_eq!(github("0"), Outcome::Throttled { wait });
    assert_eq!(github("4711"), Outcome::TRANSIENT);
}

#[test]
fn where_a_wait_is_cut_it_says_from_what() {
    let judge = default_judge();
    let judged = |status, text: &'static str| {
        let headers = move |name: &str| (name == "retry-after").then_some(text);
        let reply = HttpReply {
            headers: &headers,
            ..plain(status)
        };
        judge
            .judge_reply(reply, SystemTime::UNIX_EPOCH)
            .expect("nothing is missing")
    };
    assert_eq!(judged(429, "3600").cut_from, None);
    let day = Duration::from_secs(86_400);
    for status in [429, 503, 500, 413] {
        let judged = judged(status, "86400");
        assert_eq!(judged.cut_from, Some(day), "{status}");
        match judged.outcome {
            Outcome::Throttled { wait } => assert_eq!(wait, MAX_WAIT),
            other => assert_eq!(
                other,
                Outcome::Transient {
                    wait: Some(MAX_WAIT)
                }
            ),
        }
    }
    assert_eq!(judged(200, "86400").cut_from, None);
}

#[test]
fn a_template_goes_before_texts_and_statuses() {
    let texts = list(&["busy"]);
    let lists = Lists {
        texts: Texts {
            throttled: &texts,
            ..Texts::default()
        },
        ..Lists::default()
    };
    let judge = HttpJudge::new(lists, DEFAULT_WAIT, MAX_WAIT).unwrap();
    let found = |status, body: &'static str, found| {
        let reply = HttpReply {
            body: body.as_bytes(),
            found: TemplateFindings {
                outcome: found,
                wait: Some("7"),
            },
            ..plain(status)
        };
        outcome(&judge, reply)
    };
    let seven = Duration::from_secs(7);
    let held = TemplateOutcome::Meaning(Meaning::Held);
    assert_eq!(
        found(200, "busy", held),
        Some(Outcome::Held { wait: seven })
    );
    let throttled = Some(Outcome::Throttled { wait: seven });
    assert_eq!(found(200, "busy", TemplateOutcome::Nothing), throttled);
    assert_eq!(found(200, "busy", TemplateOutcome::Failed), throttled);
    assert_eq!(
        found(200, "", TemplateOutcome::Nothing),
        Some(Outcome::Accepted)
    );
    // What cannot be applied is never accepted; a refusal stays one.
    assert_eq!(found(200, "", TemplateOutcome::Failed), None);
    let transient = Some(Outcome::Transient { wait: Some(seven) });
    assert_eq!(found(502, "<html>", TemplateOutcome::Failed), transient);
}

#[test]
fn an_answer_that_lacks_something_is_not_accepted() {
    let judge = default_judge();
    let lacking = |status, said| {
        let found = TemplateFindings {
            outcome: said,
            wait: None,
        };
        outcome(
            &judge,
            HttpReply {
                body_is_incomplete: true,
                found,
                ..plain(status)
            },
        )
    };
    assert_eq!(lacking(200, TemplateOutcome::Nothing), None);
    assert_eq!(lacking(400, TemplateOutcome::Nothing), None);
    assert_eq!(
        lacking(200, TemplateOutcome::Meaning(Meaning::Accepted)),
        None
    );
    let permanent = TemplateOutcome::Meaning(Meaning::Permanent);
    assert_eq!(lacking(200, permanent), Some(Outcome::Permanent));
    assert_eq!(lacking(429, TemplateOutcome::Nothing), Some(THROTTLED));
    assert_eq!(judge.judge_silence(Silence::Unreadable), Outcome::TRANSIENT);
}

#[test]
fn a_code_beats_a_class_and_a_class_beats_the_default() {
    let judge = judge_with(&["409"], &["403", "timeout"], &["4xx"], &["5xx", "501"]).unwrap();
    assert_eq!(status(&judge, 409), Outcome::Accepted);
    assert_eq!(status(&judge, 403), THROTTLED);
    assert_eq!(status(&judge, 404), Outcome::TRANSIENT);
    assert_eq!(status(&judge, 429), Outcome::TRANSIENT);
    assert_eq!(status(&judge, 503), Outcome::Permanent);
    assert_eq!(judge.judge_silence(Silence::Timeout), THROTTLED);
    assert_eq!(judge.judge_silence(Silence::Connection), Outcome::TRANSIENT);
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
        "12 parsecs",
        "NaN",
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
    let judge = HttpJudge::new(
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
    let judge = HttpJudge::new(lists, DEFAULT_WAIT, MAX_WAIT).unwrap();
    assert!(judge.has_texts() && !default_judge().has_texts());
    let says = |status, body: &'static str| {
        let reply = HttpReply {
            body: body.as_bytes(),
            ..plain(status)
        };
        outcome(&judge, reply).expect("nothing is missing")
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
    let wrong = HttpJudge::new(lists, DEFAULT_WAIT, MAX_WAIT);
    assert_eq!(wrong.err(), Some(ListError::EmptyText));
}
