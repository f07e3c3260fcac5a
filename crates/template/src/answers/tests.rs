//! What templates read from an answer: what is left, what was used, what it means.

use std::time::{Duration, SystemTime};

use super::*;
use sluiced_core::judge::{Meaning, Remaining, TemplateOutcome};
use sluiced_headers::quota::Format;
use sluiced_ports::downstream::{Answer, Facts};
use sluiced_ports::message::Message;

const FACTS: Facts<'_> = Facts {
    route: "llm",
    attempt: 1,
    may_repeat: false,
    max_body: 1 << 20,
};

fn answer(headers: &[(&str, &str)], body: &str) -> Answer {
    let headers = headers
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Answer {
        status: 200,
        headers: headers.collect(),
        body: body.to_owned().into(),
        is_whole: true,
    }
}

#[test]
fn headers_and_templates_say_what_is_left() {
    let headers = QuotaIn::Headers(Format::Pair(("x-left", "x-reset")));
    let templates = QuotaIn::Templates {
        remaining: "{{ answer.body.left }}",
        reset: Some("{{ answer.headers['x-reset'] }}"),
    };
    let each = [("requests", 3, headers), ("tokens", 0, templates)];
    let quotas = RouteQuotas::new("llm", each.into_iter()).unwrap();
    let read = |answer: &Answer| {
        let said = quotas.read(&Message::default(), FACTS, answer, SystemTime::UNIX_EPOCH);
        let left = |said: &QuotaReading<'_>| Some(said.left.as_ref()?[0]);
        [left(&said[0]), left(&said[1])]
    };
    let says = |units, seconds| Remaining {
        units,
        reset: Some(Duration::from_secs(seconds)),
    };
    // A point in time counts from the date of the answer.
    let dated = [
        ("x-left", "7"),
        ("x-reset", "1800000030"),
        ("date", "Fri, 15 Jan 2027 08:00:00 GMT"),
    ];
    let both = read(&answer(&dated, r#"{"left": 900}"#));
    assert_eq!(both, [Some(says(7, 30)), Some(says(900, 30))]);
    let none = read(&answer(&[("x-left", "many")], "no JSON"));
    assert_eq!(none, [None, None]);
}

#[test]
fn a_throttled_answer_names_the_limit_or_nothing() {
    let scope = "{{ 'channel' if answer.headers['x-ratelimit-scope'] == 'user' }}";
    let throttles = RouteThrottles::new("r", Some(scope)).unwrap();
    let read =
        |headers: &[(&str, &str)]| throttles.read(&Message::default(), FACTS, &answer(headers, ""));
    let user = [("x-ratelimit-scope", "user")];
    assert_eq!(read(&user), Some("channel".to_owned()));
    assert_eq!(read(&[("x-ratelimit-scope", "global")]), None);
    assert_eq!(read(&[]), None);
    let fixed = RouteThrottles::new("r", Some("channel")).unwrap();
    let said = fixed.read(&Message::default(), FACTS, &answer(&[], ""));
    assert_eq!(said, Some("channel".to_owned()));
    let none = RouteThrottles::new("r", None).unwrap();
    assert_eq!(
        none.read(&Message::default(), FACTS, &answer(&user, "")),
        None
    );
}

#[test]
fn a_wrong_template_is_reported_with_its_key() {
    let text = QuotaIn::Templates {
        remaining: "{{ anser.status }}",
        reset: None,
    };
    let error = RouteQuotas::new("llm", [("tokens", 0, text)].into_iter()).unwrap_err();
    assert_eq!(error.key, "routes.llm.downstream.quota.tokens.remaining");
}

#[test]
fn answers_say_whole_numbers_or_nothing() {
    let actuals = RouteActuals::new(
        [
            ("tokens", "{{ answer.body.usage.total_tokens }}", None),
            ("bytes", "{{ answer.headers['x-bytes'] }}", None),
        ]
        .into_iter(),
    )
    .unwrap();
    let read = |body: &str, bytes: &str| {
        let answer = answer(&[("x-bytes", bytes)], body);
        actuals.read(&Message::default(), FACTS, &answer)
    };
    let says = |tokens| format!(r#"{{"usage": {{"total_tokens": {tokens}}}}}"#);
    assert_eq!(read(&says("812"), "0"), [Some(812), Some(0)]);
    assert_eq!(read(&says("812.0"), "7.25"), [Some(812), Some(8)]);
    assert_eq!(read(&says("-3"), "many"), [None, None]);
    assert_eq!(read(&says("null"), ""), [None, None]);
    assert_eq!(
        read("no JSON", "99999999999999999999"),
        [None, Some(u64::MAX)]
    );
}

#[test]
fn templates_say_what_an_answer_means_and_when_to_come_back() {
    let outcome = "{% set failed = answer.body.messages | selectattr('status', 'ne', '0') | list %}\
        {{ 'permanent' if failed and failed[0].status == '6' else 'held' if failed }}";
    let wait = "{{ answer.body.parameters.retry_after }}";
    let words = AnswerTemplates::new(Some(outcome), Some(wait)).unwrap();
    let read = |body: &str| {
        let heard = words.read(&Message::default(), FACTS, &answer(&[], body));
        (heard.outcome, heard.wait)
    };
    let found = |meaning| (TemplateOutcome::Meaning(meaning), None);
    assert_eq!(
        read(r#"{"messages": [{"status": "0"}]}"#),
        (TemplateOutcome::Nothing, None)
    );
    let refused = "{\n \"messages\": [\n  {\"status\": \"0\"}, {\"status\": \"6\"}\n ]\n}";
    assert_eq!(read(refused), found(Meaning::Permanent));
    assert_eq!(
        read(r#"{"messages": [{"status": "1"}]}"#),
        found(Meaning::Held)
    );
    // Telegram: docs of the Bot API, ResponseParameters.
    let telegram = r#"{"ok": false, "messages": [], "parameters": {"retry_after": 7}}"#;
    assert_eq!(
        read(telegram),
        (TemplateOutcome::Nothing, Some("7".to_owned()))
    );
    assert_eq!(read("<html>"), (TemplateOutcome::Failed, None));
}

#[test]
fn a_word_that_is_no_outcome_is_a_failure_that_does_not_repeat_it() {
    let words = AnswerTemplates::new(Some("{{ answer.body.status }}"), None).unwrap();
    let read = |body: &str| words.read(&Message::default(), FACTS, &answer(&[], body));
    let heard = read(r#"{"status": "held"}"#);
    assert_eq!(heard.outcome, TemplateOutcome::Meaning(Meaning::Held));
    let heard = read(r#"{"status": "+49170"}"#);
    assert_eq!(heard.outcome, TemplateOutcome::Failed);
    assert!(!heard.why.unwrap().contains("49170"));
    assert_eq!(read("{}").outcome, TemplateOutcome::Failed);
    let error = AnswerTemplates::new(None, Some("{{ anser.status }}")).unwrap_err();
    assert_eq!(error.key, "wait");
}

#[test]
fn a_wrong_template_of_what_was_used_is_reported_with_its_key() {
    let limits = [("tokens", "{{ anser.status }}", None)];
    let error = RouteActuals::new(limits.into_iter()).unwrap_err();
    assert_eq!(error.key, "limits.tokens.actual");
}
