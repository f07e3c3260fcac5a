//! Which expectations of a file of tests hold, and what is printed where one does not.

use super::*;

const CONFIG: &str = r#"
[secrets]
bot = "/nowhere/bot"
[limits.account]
rate = "10/1s"
[limits.sender]
kind = "gcra"
rate = "1/1s"
burst = 9
key = "{{ body.from | default(none) }}"
cost = "{{ body.text | sms_segments }}"
[routes.sms]
queue = "sms"
limits = ["account", "sender"]
journal = "after"
journal_id = "{{ answer.body.id }}"
max_attempts = 2
[routes.sms.downstream]
kind = "http"
url = "http://127.0.0.1:8080/{{ secret.bot }}/send"
throttles = "{{ answer.body.about | default('') }}"
outcome = "{{ 'permanent' if answer.body.code | default(0) == 7 }}"
ca_file = "/nowhere/ca.pem"
[routes.sms.downstream.auth]
kind = "bearer"
token_file = "/nowhere/token"
"#;

fn ran(config: &str, tests: &str, junit: Option<&Path>) -> (Result<Exit, String>, String) {
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).expect("a file");
        path
    };
    let args = TestArgs {
        config: vec![file("c.toml", config)],
        tests: vec![file("t.toml", tests)],
        junit: junit.map(Path::to_owned),
        quiet: false,
    };
    let mut out = Vec::new();
    let exit = run(&args, std::iter::empty(), &mut out).map_err(|why| why.to_string());
    let out = String::from_utf8(out).expect("text");
    let folder = dir.path().display().to_string();
    (exit, out.replace(&format!("{folder}/"), ""))
}

#[test]
fn a_request_keys_costs_and_answers_are_as_expected_without_a_secret_that_exists() {
    let tests = r#"
[[test]]
name = "a text"
[test.message]
id = "m-1"
body = { from = "ACME", text = "Hello" }
headers = { tenant = "a", number = 3 }
[test.request]
method = "POST"
url = "http://127.0.0.1:8080/secret-bot/send"
headers = { Authorization = "Bearer secret" }
body = { text = "Hello" }
[test.limits]
account = { cost = 1 }
sender = { key = "ACME", cost = 1 }
[[test.answers]]
name = "accepted"
status = 201
body = { id = "SM1" }
outcome = "accepted"
then = "done"
id = "SM1"
spends_attempt = false
[[test.answers]]
name = "too many of this sender"
status = 429
headers = { Retry-After = "3" }
body = { about = "sender" }
outcome = "throttled"
wait = "3s"
throttles = "sender"
then = "again"
spends_attempt = false
[[test.answers]]
name = "refused for good"
status = 200
body = { code = 7 }
outcome = "permanent"
then = "dead"
[[test.answers]]
name = "away"
silence = "timeout"
outcome = "transient"
then = "again"
spends_attempt = true

[[test]]
name = "a redelivery"
message = { redelivered = true, body = { from = "ACME", text = "Hello" } }
[[test.answers]]
name = "the first call may still run"
status = 409
outcome = "transient"

[[test]]
name = "the last call"
attempt = 2
message = { body = { from = "ACME", text = "Hello" } }
[[test.answers]]
name = "fails"
status = 500
then = "dead"

[[test]]
name = "without a sender"
message = { body = { text = "Hello" } }
limits = { sender = false }

[[test]]
name = "without a text"
message = { body = { from = "ACME" } }
invalid = "body.text"
"#;
    let (exit, out) = ran(CONFIG, tests, None);
    assert_eq!(exit, Ok(Exit::Done), "{out}");
    assert!(out.ends_with("11 passed, 0 failed\n"), "{out}");
    assert!(
        out.contains("ok    a text: too many of this sender\n"),
        "{out}"
    );
}

#[test]
fn what_is_not_as_expected_is_said_with_its_place() {
    let tests = r#"
[[test]]
name = "a text"
message = { id = "m-1", body = { from = "ACME", text = "Hello" } }
limits = { account = { cost = 2 }, sender = { key = "OTHER" } }
request = { method = "PUT", headers = { x-missing = "1" } }
[[test.answers]]
name = "accepted"
status = 404
outcome = "accepted"
then = "done"
wait = "1s"

[[test]]
name = "no text"
message = { body = { from = "ACME" } }
"#;
    let (exit, out) = ran(CONFIG, tests, None);
    assert_eq!(exit, Ok(Exit::Failed), "{out}");
    let said = r#"FAIL  a text (t.toml:3)
      limits.account.cost: expected 2, got 1
      limits.sender.key: expected "OTHER", got "ACME"
      request.headers.x-missing: expected "1", but there is none
      request.method: expected "PUT", got "POST"
FAIL  a text: accepted (t.toml:8)
      outcome: expected accepted, got permanent
      wait: expected 1s, but there is none
      then: expected done, got dead (rejected)
"#;
    assert!(out.starts_with(said), "{out}");
    assert!(
        out.contains("FAIL  no text (t.toml:15)\n      a limit cannot count it: "),
        "{out}"
    );
    assert!(out.ends_with("0 passed, 3 failed\n"), "{out}");
}

#[test]
fn a_file_that_cannot_be_read_is_a_wrong_argument_with_its_place() {
    for (tests, said) in [
        ("", "t.toml: there is no [[test]]"),
        (
            "[[test]]\nname = \"a\"\nmesage = {}\n",
            "unknown field `mesage`",
        ),
        (
            "[[test]]\nname = \"a\"\nmessage = \"Hello\"\n",
            "expected a message: write [test.message] and its keys below",
        ),
        (
            "[[test]]\nname = \"a\"\nanswers = [200]\n",
            "expected an answer: write [[test.answers]] and its keys below",
        ),
        (
            "[[test]]\nname = \"a\"\n[[test]]\nname = \"a\"\n",
            "t.toml: line 4: a second test is called `a`",
        ),
        (
            "[[test]]\nname = \"a\"\nmessage = { body = { from = \"x\", text = \"y\" } }\nlimits = { acount = false }\n",
            "t.toml: line 2: a: limits.acount: the route has no such limit",
        ),
        (
            "[[test]]\nname = \"a\"\nroute = \"smss\"\n",
            "there is no route `smss`; did you mean `sms`?",
        ),
        (
            "[[test]]\nname = \"a\"\n[[test.answers]]\nname = \"b\"\noutcome = \"maybe\"\n",
            "`maybe` is no outcome; write one of accepted, throttled, held, transient, permanent",
        ),
        (
            "[[test]]\nname = \"a\"\nmessage = { body = { from = \"x\", text = \"y\" } }\n[[test.answers]]\nname = \"b\"\n",
            "t.toml: line 5: a: answer `b`: write one of `status`, `smpp` and `silence`",
        ),
        (
            "[[test]]\nname = \"a\"\nmessage = { body = { from = \"x\", text = \"y\" } }\n[[test.answers]]\nname = \"b\"\nstatus = 42\n",
            "answer `b`: 42 is no status of HTTP: write one from 100 to 999",
        ),
        (
            "[[test]]\nname = \"a\"\nmessage = { body = { from = \"x\", text = \"y\" } }\n[[test.answers]]\nname = \"b\"\nstatus = 200\nheaders = { \"Retry After\" = \"3\" }\n",
            "answer `b`: headers: `Retry After` is no name of a header",
        ),
        (
            "[[test]]\nname = \"a\"\nmessage = { body = { from = \"x\", text = \"y\" } }\n[[test.answers]]\nname = \"b\"\nstatus = 200\n[[test.answers]]\nname = \"b\"\nstatus = 500\n",
            "t.toml: line 8: a second answer of this test is called `b`",
        ),
    ] {
        let (exit, _) = ran(CONFIG, tests, None);
        let why = exit.expect_err(said);
        assert!(why.contains(said), "{said}: {why}");
    }
}

#[test]
fn a_wrong_configuration_is_said_first() {
    let wrong = CONFIG.replace("10/1s", "ten");
    let (exit, _) = ran(&wrong, "[[test]]\nname = \"a\"\n", None);
    assert!(exit.expect_err("wrong").contains("limits.account.rate"));
}

#[test]
fn junit_has_each_test_and_why_it_failed() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("results.xml");
    let tests = "[[test]]\nname = \"a <b>\"\nmessage = { body = { from = \"x\", text = \"y\" } }\nlimits = { account = { cost = 2 } }\n[[test]]\nname = \"c\"\nmessage = { body = { from = \"x\", text = \"y\" } }\n";
    let (exit, _) = ran(CONFIG, tests, Some(&file));
    assert_eq!(exit, Ok(Exit::Failed));
    let xml = fs::read_to_string(&file).expect("written");
    assert!(
        xml.contains(r#"tests="2" skipped="0" failures="1""#),
        "{xml}"
    );
    assert!(xml.contains(r#"name="a &lt;b&gt;""#), "{xml}");
    assert!(
        xml.contains("limits.account.cost: expected 2, got 1"),
        "{xml}"
    );
}

/// The example of the guide, with the configuration that it names.
#[test]
fn the_guide_is_right() {
    let guide = include_str!("../../../docs/testing.md");
    let example = guide
        .split("```toml\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    let twilio = include_str!("../../../config/providers/twilio.toml");
    let (exit, out) = ran(twilio, example.expect("an example"), None);
    assert_eq!(exit, Ok(Exit::Done), "{out}");
    assert!(out.ends_with("4 passed, 0 failed\n"), "{out}");
}

#[test]
fn a_limit_that_does_not_count_the_message_has_refused_nothing() {
    let tests = r#"
[[test]]
name = "no sender"
message = { body = { text = "Hello" } }
[[test.answers]]
name = "refused for the sender"
status = 429
body = { about = "sender" }
throttles = "sender"
"#;
    let (exit, out) = ran(CONFIG, tests, None);
    assert_eq!(exit, Ok(Exit::Failed), "{out}");
    assert!(
        out.contains("throttles: expected sender, got no limit"),
        "{out}"
    );
    let none = tests.replace("throttles = \"sender\"", "throttles = false");
    let (exit, out) = ran(CONFIG, &none, None);
    assert_eq!(exit, Ok(Exit::Done), "{out}");
}

#[test]
fn a_message_that_must_not_be_repeated_dies_where_it_may_have_been_taken() {
    let once = "[limits.once]\nkind = \"once\"\nkey = \"{{ message_id }}\"\non_unknown = \"dead_letter\"\n[routes.sms]\n";
    let config = CONFIG.replace("[routes.sms]\n", once).replace(
        r#"["account", "sender"]"#,
        r#"["account", "sender", "once"]"#,
    );
    let tests = r#"
[[test]]
name = "an order"
message = { id = "m-1", body = { from = "ACME", text = "Hello" } }
limits = { once = { key = "m-1" } }
[[test.answers]]
name = "no answer"
silence = "timeout"
then = "dead"
[[test.answers]]
name = "no connection"
silence = "connection"
then = "again"
"#;
    let (exit, out) = ran(&config, tests, None);
    assert_eq!(exit, Ok(Exit::Done), "{out}");
}

#[test]
fn a_message_that_is_too_large_is_invalid() {
    let config = CONFIG.replace("max_attempts = 2", "max_attempts = 2\nmax_body = \"100 B\"");
    let tests = format!(
        "[[test]]\nname = \"long\"\nmessage = {{ body = {{ from = \"x\", text = \"{}\" }} }}\ninvalid = \"max_body is 100\"\n",
        "y".repeat(100)
    );
    let (exit, out) = ran(&config, &tests, None);
    assert_eq!(exit, Ok(Exit::Done), "{out}");
}

#[test]
fn the_results_replace_no_file_that_was_read() {
    let dir = tempfile::tempdir().expect("a directory");
    let tests = dir.path().join("t.toml");
    fs::write(&tests, "[[test]]\nname = \"a\"\n").expect("a file");
    let config = dir.path().join("c.toml");
    fs::write(&config, CONFIG).expect("a file");
    for over in [&tests, &config] {
        let args = TestArgs {
            config: vec![config.clone()],
            tests: vec![tests.clone()],
            junit: Some(
                dir.path()
                    .join("./")
                    .join(over.file_name().expect("a name")),
            ),
            quiet: false,
        };
        let refused = run(&args, std::iter::empty(), &mut Vec::new());
        let why = refused.expect_err("refused").to_string();
        assert!(why.contains("is one of the files that are read"), "{why}");
    }
    assert_eq!(fs::read_to_string(&config).expect("a file"), CONFIG);
}
