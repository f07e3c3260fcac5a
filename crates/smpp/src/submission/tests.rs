//! The submit_sm that a message becomes, and which messages are dead letters.

use super::*;
use sluiced_pdu::frame;
use sluiced_settings::types::Downstream;
use sluiced_settings::{Extra, Needs, load_with};

fn smpp(keys: &str) -> Smpp {
    let mut text = format!(
        "[limits.account]\nrate = \"1/1s\"\n[routes.sms]\nqueue = \"sms\"\nlimits = [\"account\"]\n\
         [routes.sms.downstream]\nkind = \"smpp\"\nurl = \"smpp://h\"\nsystem_id = \"a\"\npassword = \"b\"\n\
         {keys}\n"
    );
    for (name, usual) in [("source", "from"), ("destination", "to"), ("text", "text")] {
        if !keys.contains(&format!("{name} =")) {
            text += &format!("{name} = \"{{{{ body.{usual} }}}}\"\n");
        }
    }
    let name = "a test".to_owned();
    let loaded = load_with(
        Needs::All,
        &[],
        Some(Extra { name, text }),
        std::iter::empty(),
    );
    let mut routes = loaded
        .unwrap_or_else(|faults| panic!("{faults}"))
        .settings
        .routes;
    match routes.remove("sms").expect("the route").downstream {
        Downstream::Smpp(smpp) => *smpp,
        Downstream::Http(_) => panic!("another kind"),
    }
}

fn made(keys: &str, body: &str) -> Result<Submission, UnfitReason> {
    let template = SubmitTemplate::new(&smpp(keys)).expect("good keys");
    let message = Message {
        body: body.to_owned().into(),
        made_id: Some("an id".to_owned()),
        ..Message::default()
    };
    let facts = Facts {
        route: "sms",
        attempt: 1,
        may_repeat: false,
        max_body: 1 << 20,
    };
    template.submission(&message, facts)
}

fn body(text: &str) -> String {
    serde_json::json!({ "from": "Bank", "to": "+4915112345678", "text": text }).to_string()
}

#[test]
fn a_short_text_is_one_submit_sm() {
    let submission = made("", &body("Hi €")).expect("it is made");
    let [part] = &submission.parts[..] else {
        panic!("{submission:?}");
    };
    assert_eq!(part.text, b"Hi \x1b\x65");
    assert_eq!((part.data_coding, part.esm_class), (0, 0));
    let (source, destination) = (&part.source, &part.destination);
    assert_eq!(
        (source.ton, source.npi, &source.digits[..]),
        (5, 0, &b"Bank"[..])
    );
    assert_eq!(
        (destination.ton, destination.npi, &destination.digits[..]),
        (1, 1, &b"4915112345678"[..])
    );
    let pdus = submission.pdus().expect("it fits");
    assert!(frame(&pdus[0]).expect("a PDU").is_some());
}

/// The number of segments that are sent is what the limit and `sms_segments` count.
#[test]
fn a_long_text_is_as_many_as_are_counted() {
    let counting = |text: &str, options: &str| {
        let mut templates = Templates::new();
        let source = format!("{{{{ body.text | sms_segments{options} }}}}");
        let template = templates.add("cost", &source).expect("a template");
        let message = Message {
            body: body(text).into(),
            ..Message::default()
        };
        let facts = Facts {
            route: "sms",
            attempt: 1,
            may_repeat: false,
            max_body: 1 << 20,
        };
        let context = templates.context(&message, facts).expect("JSON");
        let count = templates.render(&template, &context).expect("a count");
        count.parse::<usize>().expect("a number")
    };
    for text in [
        "a".repeat(160),
        "a".repeat(161),
        "€".repeat(153),
        "ж".repeat(71),
        "a".repeat(305) + "😀",
        "a".repeat(158) + "…",
        "ç".repeat(135),
        "’".repeat(141),
    ] {
        for (keys, options) in [
            ("", ""),
            ("long = \"udh16\"", "(reference=16)"),
            ("encoding = \"ucs2\"", "(encoding=\"ucs2\")"),
            ("encoding = \"gsm7\"", "(encoding=\"gsm7\")"),
            ("encoding = \"latin1\"", "(encoding=\"latin1\")"),
            ("transliterate = true", "(transliterate=true)"),
            (
                "encoding = \"latin1\"\nlong = \"udh16\"\ntransliterate = true",
                "(encoding=\"latin1\", reference=16, transliterate=true)",
            ),
        ] {
            let sent = made(keys, &body(&text)).expect("it is made").parts.len();
            assert_eq!(sent, counting(&text, options), "{keys} {text}");
            let counted = smpp(keys).cutting().count(&text).get();
            assert_eq!(sent, counted as usize, "{keys} {text}");
        }
    }
}

#[test]
fn a_text_in_latin_1_and_with_plain_signs() {
    let first = |keys: &str, text: &str| {
        let part = made(keys, &body(text)).expect("it is made").parts.remove(0);
        (part.data_coding, part.text)
    };
    let latin = "encoding = \"latin1\"";
    assert_eq!(first(latin, "Grüß ж"), (3, b"Gr\xfc\xdf ?".to_vec()));
    // A centre whose default alphabet it is.
    let default = format!("{latin}\ndata_coding = 0");
    assert_eq!(first(&default, "ç"), (0, b"\xe7".to_vec()));
    let plain = b"It's \"fine\" - really...".to_vec();
    let typed = "It’s “fine” – really…";
    assert_eq!(first("transliterate = true", typed), (0, plain));
    assert_eq!(first("", typed).0, 8);
}

#[test]
fn segments_carry_one_reference_which_a_repeat_has_too() {
    let submission = made("", &body(&"a".repeat(200))).expect("it is made");
    let again = made("", &body(&"a".repeat(200))).expect("it is made");
    assert_eq!(submission, again);
    let [first, second] = &submission.parts[..] else {
        panic!("{submission:?}");
    };
    assert!(first.has_header() && second.has_header());
    assert_eq!(first.text[..3], [5, 0, 3]);
    assert_eq!(first.text[3], second.text[3]);
    assert_eq!(
        (&first.text[4..6], &second.text[4..6]),
        (&[2, 1][..], &[2, 2][..])
    );
    assert_eq!((first.text.len(), second.text.len()), (159, 53));
    let wide = made("long = \"udh16\"", &body(&"ж".repeat(71))).expect("it is made");
    assert_eq!(wide.parts[0].text[..3], [6, 8, 4]);
    assert_eq!(wide.parts[0].data_coding, 8);
    assert_eq!(wide.parts[0].text.len(), 7 + 66 * 2);
}

#[test]
fn a_payload_is_one_submit_sm_of_any_length() {
    let submission = made("long = \"payload\"", &body(&"a".repeat(5000))).expect("it is made");
    let [part] = &submission.parts[..] else {
        panic!("{submission:?}");
    };
    assert!(part.text.is_empty() && !part.has_header());
    assert_eq!(part.content().len(), 5000);
    let short = made("long = \"payload\"", &body("a")).expect("it is made");
    assert_eq!(short.parts[0].text, b"a");
    let long = made("long = \"payload\"", &body(&"a".repeat(66_000))).expect("it is made");
    let why = long.pdus().expect_err("too long").to_string();
    assert_eq!(
        why,
        "submit_sm: a text has 66000 octets, and 65535 is the most"
    );
}

#[test]
fn more_segments_than_the_window_are_refused() {
    let why = made("", &body(&"a".repeat(1531)))
        .expect_err("too long")
        .to_string();
    assert_eq!(
        why,
        "text: takes 11 segments, which are sent together, and the window has room for 10"
    );
    assert!(made("", &body(&"a".repeat(1530))).is_ok());
    let why = made("window = 1000", &body(&"a".repeat(153 * 256))).expect_err("too long");
    assert_eq!(
        why.to_string(),
        "text: takes 256 segments, and a header can count 255 at most"
    );
}

#[test]
fn fields_can_be_templates() {
    let keys = r#"
        source = "{{ body.sender | default('12345') }}"
        source_npi = 9
        dest_ton = "{{ body.ton }}"
        registered_delivery = "{{ body.report }}"
        validity = "{{ body.keep }}"
        service_type = "OTP"
        tlvs = { 0x1400 = "{{ body.entity }}\u0000", 5121 = "0x00ff", 0x1402 = "" }
    "#;
    let body = r#"{"to":"0151","ton":2,"report":1,"keep":"26h","entity":"E1","text":"x"}"#;
    let submission = made(keys, body).expect("it is made");
    let part = &submission.parts[0];
    assert_eq!((part.source.ton, part.source.npi), (3, 9));
    assert_eq!((part.destination.ton, part.destination.npi), (2, 1));
    assert_eq!(
        (part.registered_delivery, &part.service_type[..]),
        (1, &b"OTP"[..])
    );
    assert_eq!(part.validity, b"000001020000000R");
    let tlvs: Vec<_> = part
        .tlvs
        .iter()
        .map(|tlv| (tlv.tag, &tlv.value[..]))
        .collect();
    assert_eq!(tlvs, [(0x1400, &b"E1\0"[..]), (5121, &[0, 0xff][..])]);
}

#[test]
fn what_no_centre_takes_is_a_dead_letter_with_its_reason() {
    for (keys, to, why) in [
        ("", "", "destination: is empty"),
        (
            "",
            "123456789012345678901",
            "destination: has more than 20 octets",
        ),
        (
            "",
            "Müller",
            "destination: has a character that is not ASCII",
        ),
        (
            "validity = \"{{ body.text }}\"",
            "1",
            "validity: is no duration up to 30 days, and no time of SMPP, which has 16 characters",
        ),
        (
            "registered_delivery = \"{{ body.text }}\"",
            "1",
            "registered_delivery: is no whole number from 0 to 255",
        ),
        (
            "tlvs = { 0x1400 = \"0x1{{ body.text }}\" }",
            "1",
            "tlvs.0x1400: is not hexadecimal behind 0x",
        ),
    ] {
        let body = format!("{{\"from\":\"1\",\"text\":\"x\",\"to\":\"{to}\"}}");
        let wrong = made(keys, &body).expect_err("wrong");
        assert_eq!(wrong.to_string(), why);
    }
}

#[test]
fn a_tag_that_is_none_is_refused() {
    let smpp = smpp("tlvs = { entity = \"1\" }");
    let wrong = SubmitTemplate::new(&smpp).expect_err("no tag");
    assert_eq!(
        wrong.to_string(),
        "tlvs.entity: is no tag; write a number such as \"0x1401\" or \"5121\""
    );
}
