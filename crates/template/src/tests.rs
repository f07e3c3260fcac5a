//! What templates can read of a message, and which mistakes are found.

use super::*;
use sluiced_ports::downstream::{Answer, Facts, UnfitReason};
use sluiced_ports::message::{HeaderValue, Message, Properties};

const FACTS: Facts<'_> = Facts {
    route: "sms",
    attempt: 3,
    may_repeat: true,
    max_body: 1 << 20,
};

fn message(body: &str) -> Message {
    Message {
        body: body.to_owned().into(),
        ..Message::default()
    }
}

fn render(source: &str, message: &Message) -> Result<String, UnfitReason> {
    let mut templates = Templates::new();
    let template = templates.add("body", source).unwrap();
    templates.render(&template, &templates.context(message, FACTS)?)
}

fn why(source: &str, body: &str) -> String {
    render(source, &message(body)).unwrap_err().to_string()
}

#[test]
fn everything_that_is_documented_can_be_used() {
    let mut message = message(r#"{"to": "+49170", "parts": [1, 2]}"#);
    message
        .headers
        .insert("x-tenant".to_owned(), HeaderValue::Text("acme".to_owned()));
    message
        .headers
        .insert("n".to_owned(), HeaderValue::Int(i64::MAX));
    message.properties = Properties {
        message_id: Some("id-1".to_owned()),
        timestamp: Some(7),
        ..Properties::default()
    };
    message.exchange = "ex".to_owned();
    message.routing_key = "key".to_owned();
    let source = "{{ body.to }} {{ body.parts[1] }} {{ headers['x-tenant'] }} {{ headers.n }} \
                  {{ properties.timestamp }} {{ message_id }} {{ exchange }} {{ routing_key }} \
                  {{ route }} {{ attempt }}";
    assert_eq!(
        render(source, &message).unwrap(),
        "+49170 2 acme 9223372036854775807 7 id-1 ex key sms 3"
    );
}

#[test]
fn a_missing_field_is_an_error_that_names_the_template_and_not_the_message() {
    let body = r#"{"secret": "4711", "field": "4711"}"#;
    for (source, error) in [
        ("{{ body.to }}", "body: `body.to` is missing"),
        ("{{ body.to.name }}", "body: `body.to.name` is missing"),
        (
            "{{ body.to | urlencode }}",
            "body: `body.to | urlencode` is missing",
        ),
        (
            "{{ body.to | tojson }}",
            "body: `body.to | tojson` is missing",
        ),
        (
            "{{ body[body.field] }}",
            "body: `body[body.field]` is missing",
        ),
        ("{{ message_id }}", "body: `message_id` is missing"),
        (
            "{{ headers['4711'] }}",
            "body: `headers['4711']` is missing",
        ),
        (
            "{{ properties.message_id }}",
            "body: `properties.message_id` is null",
        ),
    ] {
        assert_eq!(why(source, body), error, "{source}");
    }
    for source in [
        "{{ body.secret + 1 }}",
        "{{ body.secret | int // 0 }}",
        "{{ body.secret() }}",
        "{{ body.secret | int(base=body.secret) }}",
        "{{ 1 + body.to }}",
        "{% for x in body.to %}{% endfor %}",
        "{{ body.to ~ 'x' }}",
        "{{ body.to | upper }}",
    ] {
        let error = why(source, body);
        let without_source = error.replace(source.trim_matches(['{', '}', ' ']), "");
        assert!(!without_source.contains("4711"), "{source}: {error}");
    }
}

#[test]
fn fields_that_may_be_missing_can_say_so() {
    let body = message(r#"{"null": null}"#);
    for (source, text) in [
        ("{{ body.to | default('x') }}", "x"),
        ("{{ body['null'] | tojson }}", "null"),
        ("{% if body.to is defined %}a{% else %}b{% endif %}", "b"),
        ("{% if body.to %}a{% else %}b{% endif %}", "b"),
        ("{% if not body.to %}a{% endif %}", "a"),
        ("{{ 'a' if body.to else 'b' }}", "b"),
        ("{% if body.to and body.cc %}a{% else %}b{% endif %}", "b"),
    ] {
        assert_eq!(render(source, &body).unwrap(), text);
    }
    assert_eq!(
        why("{{ body.n }}", r#"{"n": null}"#),
        "body: `body.n` is null"
    );
    assert_eq!(
        why("{{ body.n | urlencode }}", r#"{"n": null}"#),
        "body: `body.n | urlencode` is null"
    );
}

#[test]
fn integers_are_exact_or_refused() {
    let source = "{{ body.n }}";
    for n in [
        "0",
        "-9223372036854775808",
        "9223372036854775807",
        "18446744073709551615",
    ] {
        let body = message(&format!(r#"{{"n": {n}}}"#));
        assert_eq!(render(source, &body).unwrap(), n);
        assert_eq!(render("{{ body.n | tojson }}", &body).unwrap(), n);
    }
    for n in [
        "18446744073709551616",
        "-9223372036854775809",
        "123456789012345678901234567890",
    ] {
        let body = format!(r#"{{"n": {n}, "other": 1}}"#);
        for source in [
            source,
            "{{ body.n | tojson }}",
            "{{ body | tojson }}",
            "{{ body.n | urlencode }}",
        ] {
            assert!(
                why(source, &body).ends_with("has a number with more digits than can be kept"),
                "{source} {n}: {}",
                why(source, &body)
            );
        }
        assert_eq!(render("{{ body.other }}", &message(&body)).unwrap(), "1");
    }
    assert_eq!(render(source, &message(r#"{"n": 1.25}"#)).unwrap(), "1.25");
}

#[test]
fn a_body_is_parsed_only_if_a_template_wants_it() {
    let binary = Message {
        body: bytes::Bytes::from_static(&[0xff, 0x00]),
        routing_key: "key".to_owned(),
        ..Message::default()
    };
    assert_eq!(render("{{ routing_key }}", &binary).unwrap(), "key");
    let error = render("{{ body.to }}", &binary).unwrap_err();
    assert_eq!(error.what, "body");
    assert!(error.why.starts_with("is no JSON"), "{error}");
    for body in ["", "{", "{} x", "{\"a\":1,}", "1e999", "\"\u{0}\""] {
        assert!(
            why("{{ body }}", body).starts_with("body: is no JSON"),
            "{body}"
        );
    }
    let deep = "[".repeat(100_000);
    assert!(why("{{ body }}", &deep).starts_with("body: is no JSON"));
}

#[test]
fn values_can_be_made_safe_for_where_they_go() {
    let body = message(r#"{"v": "a/b?c&d=\"é\" \r\n{{ route }}"}"#);
    assert_eq!(
        render("{{ body.v | urlencode }}", &body).unwrap(),
        "a%2Fb%3Fc%26d%3D%22%C3%A9%22%20%0D%0A%7B%7B%20route%20%7D%7D"
    );
    let json = render(r#"{"v": {{ body.v | tojson }}}"#, &body).unwrap();
    let back: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(back["v"], "a/b?c&d=\"é\" \r\n{{ route }}");
    // Nothing is escaped automatically, and a value is never a template.
    assert!(
        render("{{ body.v }}", &body)
            .unwrap()
            .contains("\"é\" \r\n{{ route }}")
    );
}

#[test]
fn wrong_templates_are_found_when_they_are_compiled() {
    let syntax = WrongTemplate::Syntax {
        line: 1,
        detail: "unexpected end of input, expected end of variable block".to_owned(),
    };
    let unknown = |name: &str| WrongTemplate::Variable {
        name: name.to_owned(),
        about: About::Message,
    };
    for (source, fault) in [
        ("{{ body.to", syntax),
        ("{{ boddy.to }}", unknown("boddy")),
        ("{{ debug() }}", unknown("debug")),
    ] {
        let error = Templates::new().add("url", source).unwrap_err();
        assert_eq!(error, fault);
        assert_eq!(check(source, About::Message), [fault]);
    }
    assert_eq!(
        check("{{ b }} {{ a }}", About::Message),
        [unknown("a"), unknown("b")]
    );
    let fine = "{% for i in range(2) %}{{ i }}{% endfor %}{% set x = 1 %}{{ x }}";
    assert!(Templates::new().add("b", fine).is_ok());
    assert_eq!(check(fine, About::Message), []);
}

#[test]
fn unknown_filters_and_options_are_found_when_they_are_compiled() {
    let filter = |name: &str| WrongTemplate::Filter(name.to_owned());
    for (source, names) in [
        ("{{ body.x | sms_segmnts }}", vec!["sms_segmnts"]),
        ("{{ body.x|upper|lenght|b }}", vec!["b", "lenght"]),
        ("{% if body.x | nope %}{% endif %}", vec!["nope"]),
        ("{{ 'a | no' }} | none {{ \"}} | no\" }}", vec![]),
        ("{% raw %}{{ x | no }}{% endraw %}", vec![]),
        ("{{ body.x | sms_segments | upper }}", vec![]),
        ("{# {{ x | no }} #}{{ body.x|no2 }}", vec!["no2"]),
        (r#"{{ "\" | no" ~ body.x|no2 }}"#, vec!["no2"]),
    ] {
        let wrong: Vec<_> = names.into_iter().map(filter).collect();
        assert_eq!(check(source, About::Message), wrong, "{source}");
    }
    for (source, why) in [
        (
            "{{ body.x | sms_segments(encoding='utf8') }}",
            "sms_segments: encoding is \"auto\", \"gsm7\", \"latin1\" or \"ucs2\"",
        ),
        (
            "{{ body.x | sms_segments(reference=32) }}",
            "sms_segments: reference is 8 or 16 (bits)",
        ),
        (
            "{{ body.x | sms_segments(bits=8) }}",
            "sms_segments: its options are encoding, reference and transliterate",
        ),
        (
            "{{ body | pointer('to/0') }}",
            "pointer: a path starts with `/`, such as \"/to/0\"",
        ),
    ] {
        let wrong = WrongTemplate::Option(why.to_owned());
        assert_eq!(check(source, About::Message), [wrong], "{source}");
    }
}

#[test]
fn pointers_lead_to_values() {
    // The document of RFC 6901, section 5, as far as it differs from member to member.
    let body = message(
        r#"{"foo": ["bar", "baz"], "": 0, "a/b": 1, "m~n": 8, "~1": 9, "i": {"j": [{"k": "v"}]}}"#,
    );
    for (path, text) in [
        ("/foo/0", "bar"),
        ("/foo/1", "baz"),
        ("/", "0"),
        ("/a~1b", "1"),
        ("/m~0n", "8"),
        ("/~01", "9"),
        ("/i/j/0/k", "v"),
    ] {
        let source = format!("{{{{ body | pointer(\"{path}\") }}}}");
        assert_eq!(render(&source, &body).unwrap(), text, "{path}");
    }
    for path in [
        "/no", "/foo/2", "/foo/00", "/foo/-", "/foo/+1", "/foo/0/x", "/i/j/k",
    ] {
        let source = format!("{{{{ body | pointer(\"{path}\") }}}}");
        let error = render(&source, &body).unwrap_err();
        assert!(error.why.ends_with("is missing"), "{path}: {error}");
        let source = format!("{{{{ body | pointer(\"{path}\") | default('-') }}}}");
        assert_eq!(render(&source, &body).unwrap(), "-", "{path}");
    }
    assert_eq!(
        render("{{ (body | pointer(\"\")).foo[1] }}", &body).unwrap(),
        "baz"
    );
}

#[test]
fn segments_are_counted_as_the_options_say() {
    let text = message(&format!(
        r#"{{"t": "{}", "n": 5, "z": null}}"#,
        "a".repeat(153 * 2)
    ));
    for (options, count) in [
        ("", "2"),
        ("(encoding=\"auto\")", "2"),
        ("(encoding=\"ucs2\")", "5"),
        ("(reference=16)", "3"),
        ("(encoding=\"gsm7\", reference=8)", "2"),
    ] {
        let source = format!("{{{{ body.t | sms_segments{options} }}}}");
        assert_eq!(render(&source, &text).unwrap(), count, "{options}");
    }
    assert_eq!(
        render("{{ 2 * (body.t | sms_segments) }}", &text).unwrap(),
        "4"
    );
    let why = |source| render(source, &text).unwrap_err().why;
    assert!(why("{{ body.x | sms_segments }}").ends_with("is missing"));
    assert!(why("{{ body.z | sms_segments }}").ends_with("is null"));
    assert!(why("{{ body.n | sms_segments }}").contains("cannot be worked out"));
}

proptest::proptest! {
    /// Any text of an operator gets a result.
    #[test]
    fn any_text_can_be_looked_at(source in "[{}%|#'\"\\\\ a-c.é()-]{0,40}") {
        let wrong = check(&source, About::Message);
        proptest::prop_assert_eq!(Templates::new().add("x", &source).is_err(), !wrong.is_empty());
    }
}

#[test]
fn a_template_about_an_answer_sees_its_body_as_json_or_as_text() {
    let printed = |source: &str, answer: Option<&Answer>| {
        let mut templates = Templates::about(About::Answer);
        let template = templates.add("routing_key", source).unwrap();
        let context = templates.context_with(&Message::default(), FACTS, answer)?;
        templates.render(&template, &context)
    };
    let json = Answer {
        status: 202,
        headers: [("x-id".to_owned(), "7".to_owned())].into(),
        body: br#"{"id": 18446744073709551615}"#.as_slice().into(),
        is_whole: true,
    };
    let all = "{{ answer.status }} {{ answer.headers['x-id'] }} {{ answer.body.id }}";
    assert_eq!(
        printed(all, Some(&json)).unwrap(),
        "202 7 18446744073709551615"
    );
    let text = Answer {
        body: b"OK 7".as_slice().into(),
        ..Answer::default()
    };
    assert_eq!(printed("{{ answer.body }}", Some(&text)).unwrap(), "OK 7");
    // A missing field is an error, and can be tested for.
    assert!(printed("{{ answer.body.id }}", Some(&text)).is_err());
    assert!(printed("{{ answer.status }}", None).is_err());
    let asked = "{% if answer is defined %}{{ answer.status }}{% else %}none{% endif %}";
    assert_eq!(printed(asked, None).unwrap(), "none");
    assert!(Templates::new().add("body", all).is_err(), "before a call");
    assert_eq!(
        check("{{ answr.status }}", About::Answer)[0].to_string(),
        "templates know no `answr`; known: body, headers, properties, routing_key, exchange, message_id, route, \
         attempt, answer, answer.status, answer.headers, answer.body"
    );
    for wrong in [
        "{{ answer.boddy.id }}",
        "{% if answer.boddy is defined %}{{ answer.body.id }}{% endif %}",
    ] {
        let found = check(wrong, About::Answer);
        assert_eq!(found.len(), 1, "{wrong}");
        assert!(found[0].to_string().contains("no `answer.boddy`; known"));
    }
}

#[test]
fn a_member_that_stands_twice_in_one_object_makes_a_body_unreadable() {
    let unread = "twice in one object";
    let deep = r#"{"to": "+49170", "parts": [{"lines": {"text": "4711", "text": "4712"}}]}"#;
    // Written differently, it is the same name.
    let escaped = r#"{"to": "4711", "t\u006f": "4712"}"#;
    for body in [r#"{"to": "4711", "to": "4712"}"#, escaped] {
        assert_eq!(
            why("{{ body.to }}", body),
            format!(
                "body: has the member `to` {unread} (line 1, column {}), and the downstream could read the other one",
                if body == escaped { 24 } else { 19 }
            )
        );
    }
    let why_deep = why("{{ body.to }}", deep);
    assert!(
        why_deep.contains("a member twice in one object"),
        "{why_deep}"
    );
    assert!(
        !why_deep.contains("47") && !why_deep.contains("text"),
        "{why_deep}"
    );
    // The name of a member can be content, too.
    let named = why("{{ body.to }}", r#"{"to": 1, "+49170": 1, "+49170": 2}"#);
    assert!(!named.contains("49170"), "{named}");

    let apart = message(r#"{"to": "a", "parts": [{"to": "b"}, {"to": "c"}], "by": {"to": "d"}}"#);
    assert_eq!(render("{{ body.to }}", &apart).unwrap(), "a");
    let unused = message(r#"{"to": "a", "to": "b"}"#);
    assert_eq!(render("{{ route }}", &unused).unwrap(), "sms", "not read");
}

#[test]
fn of_an_answer_the_last_of_two_members_counts() {
    let mut templates = Templates::about(About::Answer);
    let template = templates
        .add("used", "{{ answer.body.used }} {{ body.to }}")
        .unwrap();
    let answer = Answer {
        body: r#"{"used": 3, "used": 4}"#.into(),
        ..Answer::default()
    };
    let message = message(r#"{"to": "a", "to": "b"}"#);
    let context = templates
        .context_with(&message, FACTS, Some(&answer))
        .unwrap();
    assert_eq!(templates.render(&template, &context).unwrap(), "4 b");
}

/// What is around a body is undone before a template sees it, and a body that is something else is named.
#[test]
fn a_body_is_read_as_its_publisher_meant_it() {
    let body = "\u{feff}{\"to\": \"+49170\"}";
    assert_eq!(render("{{ body.to }}", &message(body)).unwrap(), "+49170");
    assert!(json::answer(body.as_bytes()).is_ok());
    assert_eq!(
        why("{{ body.to }}", "a:1:{s:2:\"to\";s:4:\"+491\";}"),
        "body: is no JSON, which the templates need (line 1, column 1); it looks like a serialised object of PHP"
    );
}

/// JavaScript cuts texts between the halves of a character.
#[test]
fn half_a_character_is_read_as_its_replacement() {
    for (body, text) in [
        (r#"{"text": "a\ud83d"}"#, "a\u{fffd}"),
        (r#"{"text": "\ude00b"}"#, "\u{fffd}b"),
        (r#"{"text": "\ud83d\ud83d\ude00"}"#, "\u{fffd}😀"),
        (r#"{"text": "\uD83D\uDE00 \u00fc"}"#, "😀 ü"),
        // No escape but a backslash and letters.
        (r#"{"text": "\\ud83d"}"#, r"\ud83d"),
        (r#"{"text": "\\\ud83d"}"#, "\\\u{fffd}"),
    ] {
        assert_eq!(
            render("{{ body.text }}", &message(body)).unwrap(),
            text,
            "{body}"
        );
    }
    for body in ["\\", r#"{"a": "\u"#, r#"{"a": "\ud83"#] {
        assert!(
            why("{{ body }}", body).starts_with("body: is no JSON"),
            "{body}"
        );
    }
}
