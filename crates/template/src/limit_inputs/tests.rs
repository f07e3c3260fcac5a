//! Keys, costs and tenants made of a message, and why a message cannot be counted.

use std::num::NonZeroU32;

use super::*;
use crate::sms::Encoding;
use crate::{About, WrongTemplate};
use sluiced_ports::message::HeaderValue;

const FACTS: Facts<'_> = Facts {
    route: "sms",
    attempt: 1,
    may_repeat: false,
    max_body: 1 << 20,
};

fn cost(units: u32) -> Cost {
    Cost::new(NonZeroU32::new(units).unwrap())
}

fn counting<'a>(key: Option<&'a str>, made: Option<&'a str>) -> LimitCounting<'a> {
    LimitCounting {
        limit: "sender",
        key,
        cost: made.map_or(CostOf::Units(cost(2)), CostOf::Made),
        once: false,
        largest: Some(cost(10)),
    }
}

fn message(body: &str) -> Message {
    let mut message = Message {
        body: body.to_owned().into(),
        routing_key: "sms.de".to_owned(),
        ..Message::default()
    };
    let tenant = HeaderValue::Text("acme".to_owned());
    message.headers.insert("x-tenant".to_owned(), tenant);
    message
}

fn label(limits: &[LimitCounting<'_>], body: &str) -> Result<LimitInputs, UnfitReason> {
    let templates = LimitTemplates::new(limits, None).unwrap();
    templates.of(&message(body), FACTS)
}

#[test]
fn keys_costs_and_tenants_are_made_of_the_message() {
    let limits = [
        counting(None, Some("{{ body.text | sms_segments }}")),
        counting(Some("{{ body.to }}/{{ routing_key }}"), None),
    ];
    let templates = LimitTemplates::new(&limits, Some("{{ headers['x-tenant'] }}")).unwrap();
    let text = "a".repeat(161);
    let body = format!(r#"{{"to": "+49170", "text": "{text}"}}"#);
    let label = templates.of(&message(&body), FACTS).unwrap();
    let [Some(first), Some(second)] = &*label.charges else {
        panic!("both count it: {label:?}");
    };
    assert_eq!((first.cost, &first.key.0), (cost(2), &None));
    assert_eq!(second.cost, cost(2));
    assert_eq!(second.key.0.as_deref(), Some("+49170/sms.de"));
    assert_eq!(label.tenant.as_deref(), Some("acme"));
    let shown = format!("{label:?}{templates:?}");
    assert!(
        !shown.contains("49170") && !shown.contains("acme"),
        "{shown}"
    );
}

#[test]
fn a_body_that_is_not_asked_for_may_be_anything() {
    let label = label(&[counting(None, None)], "no JSON").unwrap();
    assert_eq!(units(&label), cost(2));
    assert_eq!(label.tenant, None);
}

fn units(label: &LimitInputs) -> Cost {
    label.charges[0].as_ref().expect("it is counted").cost
}

#[test]
fn two_limits_with_opposite_conditions_are_two_classes() {
    let limits = [
        LimitCounting {
            limit: "anonymous",
            ..counting(Some("{{ none if body.user else body.ip }}"), None)
        },
        counting(Some("{{ body.user or none }}"), None),
    ];
    let keys = |body: &str| {
        let label = label(&limits, body).unwrap();
        let keys = label.charges.iter().map(|charge| {
            let key = charge.as_ref()?.key.0.as_deref();
            key.map(str::to_owned)
        });
        keys.collect::<Vec<_>>()
    };
    let known = r#"{"ip": "192.0.2.1", "user": "ann"}"#;
    assert_eq!(keys(known), [None, Some("ann".to_owned())]);
    let anonymous = r#"{"ip": "192.0.2.1", "user": null}"#;
    assert_eq!(keys(anonymous), [Some("192.0.2.1".to_owned()), None]);
}

#[test]
fn a_message_that_no_limit_counts_is_not_sent() {
    let known = counting(Some("{{ body.user or none }}"), None);
    let error = label(&[known, known], r#"{"user": ""}"#).unwrap_err();
    assert_eq!(
        error.to_string(),
        "limits: none of them counts it: each key is none"
    );
    // One that counts all messages together is enough.
    let label = label(&[known, counting(None, None)], r#"{"user": ""}"#).unwrap();
    assert!(label.charges[0].is_none() && label.charges[1].is_some());
}

#[test]
fn a_missing_field_is_said_with_its_limit() {
    for (key, cost, why) in [
        (
            Some("{{ body.to }}"),
            None,
            "limits.sender.key: `body.to` is missing",
        ),
        (
            Some("{{ body.no }}"),
            None,
            "limits.sender.key: `body.no` is null",
        ),
        (
            Some("{{ body.empty }}"),
            None,
            "limits.sender.key: is empty",
        ),
        // Only a template that contains none may return it, and a missing field is an error in
        // any.
        (
            Some("{{ body.no if body.no is none else body.to }}"),
            None,
            "limits.sender.key: `a part of the template` is null",
        ),
        (
            Some("{{ body.to or none }}"),
            None,
            "limits.sender.key: `body.to or none` is missing",
        ),
        (
            None,
            Some("{{ body.text | sms_segments }}"),
            "limits.sender.cost: `body.text | sms_segments` is missing",
        ),
    ] {
        let error = label(&[counting(key, cost)], r#"{"no": null, "empty": ""}"#);
        assert_eq!(error.unwrap_err().to_string(), why);
    }
    let templates = LimitTemplates::new(&[], Some("{{ body.tenant }}")).unwrap();
    let error = templates.of(&message("{}"), FACTS).unwrap_err().to_string();
    assert_eq!(error, "fair_by: `body.tenant` is missing");
}

#[test]
fn a_cost_is_a_whole_number_from_one_that_can_fit() {
    let costs = |n: &str| {
        label(
            &[counting(None, Some("{{ body.n }}"))],
            &format!(r#"{{"n": {n}}}"#),
        )
    };
    for (n, units) in [("1", 1), ("10", 10), ("\" 7 \"", 7), ("3.0", 3)] {
        assert_eq!(self::units(&costs(n).unwrap()), cost(units), "{n}");
    }
    for n in [
        "0",
        "-1",
        "1.5",
        "\"\"",
        "\"x\"",
        "\"+1\"",
        "4294967296",
        "true",
        "[1]",
    ] {
        let error = costs(n).unwrap_err().to_string();
        let wrong = "limits.sender.cost: is no whole number from 1 to 4294967295";
        assert_eq!(error, wrong, "{n}");
    }
    assert_eq!(
        costs("11").unwrap_err().to_string(),
        "limits.sender.cost: is 11, and no more than 10 can ever fit"
    );
}

#[test]
fn a_wrong_template_is_said_with_its_key() {
    let error = LimitTemplates::new(&[counting(Some("{{ bdy }}"), None)], None).unwrap_err();
    assert_eq!(error.key, "limits.sender.key");
    assert_eq!(
        error.wrong,
        WrongTemplate::Variable {
            name: "bdy".to_owned(),
            about: About::Message,
        }
    );
}

#[test]
fn an_id_that_is_made_here_tells_no_repeat() {
    let once = |key| {
        let limit = LimitCounting {
            once: true,
            ..counting(Some(key), None)
        };
        LimitTemplates::new(&[limit], None).unwrap()
    };
    let facts = Facts {
        route: "sms",
        attempt: 1,
        may_repeat: false,
        max_body: 1 << 20,
    };
    let mut made = message(r#"{"message_id": "theirs"}"#);
    made.made_id = Some("made".to_owned());
    let why = once("{{ message_id }}").of(&made, facts).err().unwrap();
    assert!(why.to_string().contains("no message_id of the publisher"));
    assert!(once("{{ body.message_id }}").of(&made, facts).is_ok());
    made.properties.message_id = Some("own".to_owned());
    assert!(once("{{ message_id }}").of(&made, facts).is_ok());
}

/// Whatever the cost of the limit says, the text is counted as it is cut when it is sent.
#[test]
fn segments_are_counted_by_the_text_that_is_sent() {
    let of = |text: &str, cutting: Cutting, body: &str| {
        let limits = [
            counting(Some("{{ body.to }}"), None),
            LimitCounting {
                limit: "account",
                ..counting(None, None)
            },
        ];
        let segments = SegmentCounting {
            limit: "account",
            text,
            cutting,
        };
        let templates = LimitTemplates::new(&limits, None).unwrap();
        let templates = templates.counting_segments(&limits, segments).unwrap();
        let label = templates.of(&message(body), FACTS)?;
        let cost = |place: usize| label.charges[place].as_ref().unwrap().cost.get();
        assert_eq!(cost(0), 2, "other limits have their own costs");
        Ok::<_, UnfitReason>(cost(1))
    };
    let auto = Cutting::default();
    let ucs2 = Cutting {
        encoding: Some(Encoding::Ucs2),
        ..auto
    };
    let body = |length: usize| format!(r#"{{"to": "1", "text": "{}"}}"#, "a".repeat(length));
    let text = "{{ body.text }}";
    assert_eq!(of(text, auto, &body(160)), Ok(1));
    assert_eq!(of(text, auto, &body(161)), Ok(2));
    assert_eq!(of(text, ucs2, &body(71)), Ok(2));
    let composed = "{% if body.name %}{{ body.name }}: {% endif %}{{ body.text }}!";
    assert_eq!(of(composed, auto, &body(160)), Ok(2));
    assert_eq!(of("always the same", auto, &body(1)), Ok(1));
    // Making its request says what is wrong with it.
    assert_eq!(of("{{ body.missing }}", auto, &body(1)), Ok(1));
    let why = of(text, auto, &body(2_000)).unwrap_err().to_string();
    assert_eq!(
        why,
        "downstream.text: takes 14 segments, and the limit lets up to 10 pass (max_cost)"
    );
}
