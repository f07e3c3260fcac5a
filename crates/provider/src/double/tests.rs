//! How the double of a provider answers, and that each file of a double can be read.

use std::fs;
use std::path::Path;

use http::Request;

use super::*;

const DOUBLE: &str = r#"
title = "T"
date = "2026-11-28"
[table]
[[fact]]
what = "x"
[[answer]]
name = "bad"
when = "body.to == '0'"
status = 400
body = "{{ body.to }} is no number"
[[limit]]
name = "sender"
rate = "2/1s"
key = "body.from"
status = 429
headers = { Retry-After = "{{ wait | round(0, 'ceil') | int }}" }
[[limit]]
name = "calls"
at_once = 3
status = 503
[accepted]
status = 201
headers = { x-id = "SM{{ id }}" }
body = '{"to": {{ body.to | tojson }}}'
[idempotency]
key = "headers['idempotency-key']"
[fleet]
url = "/v1/*/send"
message = "{}"
bad = "{}"
dead_reason = "400"
"#;

fn ask(double: &Double, key: &str, body: &str, ms: u64) -> DoubleAnswer {
    let request = Request::post("/v1/a/send?x=1").header("idempotency-key", key);
    let (head, ()) = request.body(()).expect("a request").into_parts();
    double.answer(&head, body.as_bytes(), Mono::from_micros(ms * 1000))
}

#[test]
fn it_refuses_by_content_by_limits_and_knows_repeats() {
    let double = Double::parse(DOUBLE).expect("a double");
    let bad = ask(&double, "a", r#"{"to": "0"}"#, 0).response;
    assert_eq!(
        (bad.status().as_u16(), &**bad.body()),
        (400, &b"0 is no number"[..])
    );
    let good = r#"{"to": "1", "from": "A"}"#;
    let first = ask(&double, "b", good, 0);
    assert!(
        first.accepted
            && first.response.headers()["x-id"]
                .to_str()
                .is_ok_and(|id| id.starts_with("SM"))
    );
    let again = ask(&double, "b", good, 1);
    assert!(!again.accepted);
    assert_eq!(
        again.response.headers()["x-id"],
        first.response.headers()["x-id"]
    );
    assert!(ask(&double, "c", good, 2).accepted);
    let full = ask(&double, "d", good, 3).response;
    assert_eq!(
        (full.status().as_u16(), &full.headers()["retry-after"]),
        (429, &"1".parse().expect("a value"))
    );
    // Two calls are still in flight, and one more fits.
    assert!(ask(&double, "e", r#"{"to": "1", "from": "B"}"#, 4).accepted);
    assert_eq!(
        ask(&double, "f", r#"{"to": "1", "from": "C"}"#, 5)
            .response
            .status(),
        503
    );
    double.free(first.slots);
    assert!(ask(&double, "f", r#"{"to": "1", "from": "C"}"#, 6).accepted);
    assert_eq!(double.counts(), (8, 2));
}

#[test]
fn each_limit_refuses_in_turn_where_that_is_wanted() {
    let double = Double::parse(DOUBLE).expect("a double");
    double.refuse_next(1);
    let good = r#"{"to": "1", "from": "A"}"#;
    let statuses: Vec<u16> = (0..3)
        .map(|_| ask(&double, "a", good, 0).response.status().as_u16())
        .collect();
    assert_eq!(statuses, [429, 503, 201]);
}

#[test]
fn other_paths_are_not_there_and_forms_are_read() {
    let double = Double::parse(DOUBLE).expect("a double");
    let (head, ()) = Request::post("/v2/a/send")
        .body(())
        .expect("a request")
        .into_parts();
    assert_eq!(
        double
            .answer(&head, b"{}", Mono::default())
            .response
            .status(),
        404
    );
    let form = ask(&double, "a", "to=%2B1&from=A", 0).response;
    assert_eq!(&**form.body(), br#"{"to": "+1"}"#);
}

#[test]
fn a_fault_of_a_file_is_said_with_its_place() {
    for (from, to, said) in [
        ("body.to == '0'", "body.to ==", "answer bad: "),
        ("at_once = 3", "", "limit calls: write one of"),
        ("rate = \"2/1s\"", "rate = \"2\"", "2/1s"),
        ("[fleet]", "[fleat]", "unknown field `fleat`"),
    ] {
        let why = Double::parse(&DOUBLE.replace(from, to))
            .expect_err(said)
            .to_string();
        assert!(
            why.contains(said) || said == "2/1s" && why.contains("rate"),
            "{why}"
        );
    }
}

#[test]
fn every_double_can_be_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("doubles");
    let files = fs::read_dir(folder).expect("a folder");
    let mut files: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    files.retain(|path| path.extension().is_some_and(|end| end == "toml"));
    assert!(files.len() >= 16);
    for path in files {
        let text = fs::read_to_string(&path).expect("a text");
        if let Err(why) = Double::parse(&text) {
            panic!("{}: {why}", path.display());
        }
    }
}
