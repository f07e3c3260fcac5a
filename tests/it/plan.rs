//! `sluiced plan`: its report before anything runs. It needs no server.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::daemon::{file, program};

/// A route with a rate for the account and further limits.
fn config(limits: &str, route: &str, tables: &str) -> String {
    format!(
        "[rabbitmq]\nurls = [\"amqp://127.0.0.1:1/%2f\"]\n[redis]\nurl = \"redis://127.0.0.1:1/0\"\n\
         [limits.provider]\nkind = \"paced\"\nrate = \"100/1s\"\n\
         [routes.sms]\nqueue = \"sms\"\nlimits = [{limits}]\n{route}\n\
         [routes.sms.downstream]\nkind = \"http\"\nurl = \"http://127.0.0.1:1/send\"\n\
         auth = {{ kind = \"bearer\", token_file = \"/nowhere/token\" }}\n{tables}"
    )
}

struct Planned {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Planned {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|_| panic!("{} {}", self.out, self.err))
    }

    /// Everything that it found, with its weight.
    fn findings(&self) -> Vec<(String, String)> {
        let json = self.json();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let each = json["findings"].as_array().unwrap().iter();
        each.map(|one| (text(&one["weight"]), text(&one["text"])))
            .collect()
    }

    fn found(&self, weight: &str, words: &str) {
        let findings = self.findings();
        let hit = |(w, text): &(String, String)| w == weight && text.contains(words);
        assert!(
            findings.iter().any(hit),
            "no {weight} `{words}` in {findings:?}"
        );
    }
}

fn plan_in(dir: &Path, config: &str, arguments: &[&str]) -> Planned {
    let path = file(dir, "sluiced.toml", config).display().to_string();
    let mut command = program(&["plan", "--config", &path]);
    let output = command.args(arguments).current_dir(dir).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Planned {
        code: output.status.code(),
        out: text(output.stdout),
        err: text(output.stderr),
    }
}

fn plan(config: &str, arguments: &[&str]) -> Planned {
    let dir = tempfile::tempdir().unwrap();
    plan_in(dir.path(), config, arguments)
}

fn plain() -> String {
    config("\"provider\"", "", "")
}

const RECIPIENT: &str =
    "[limits.recipient]\nkind = \"sliding_log\"\nrate = \"5/1m\"\nkey = \"{{ body.to }}\"\n";

fn two() -> String {
    config("\"provider\", \"recipient\"", "", RECIPIENT)
}

#[test]
fn a_backlog_that_ends_is_good_and_told_for_people() {
    let planned = plan(
        &plain(),
        &["--arrivals", "50/1s", "--burst", "1000@10s", "--for", "1m"],
    );
    assert_eq!(planned.code, Some(0), "{} {}", planned.out, planned.err);
    let said = &planned.out;
    for words in [
        "route sms: 1m, 1 replica",
        "4,000  50/1s, 1000 at 10s",
        "limits.provider",
        "% used of 99.5 a second",
        "messages that wait",
        "calls a second",
        "GOOD: the backlog is gone after",
    ] {
        assert!(said.contains(words), "no `{words}` in\n{said}");
    }
    assert!(
        said.lines().all(|line| line.chars().count() <= 80),
        "{said}"
    );
}

#[test]
fn more_than_the_limit_grows_and_is_not_good() {
    let planned = plan(&plain(), &["--arrivals", "120/1s", "--for", "1m", "--json"]);
    assert_eq!(planned.code, Some(1));
    planned.found("grows", "grows by 1,230 messages a minute and never ends");
    let json = planned.json();
    assert_eq!(json["ends"], false);
    assert_eq!(json["messages"]["arrived"], 7_200);
    assert!(
        json["limits"][0]["share"].as_f64().unwrap() > 0.995,
        "{json}"
    );
    let waiting = json["series"]["waiting"].as_array().unwrap();
    assert_eq!(waiting.last(), Some(&json["messages"]["waiting"]));
}

#[test]
fn a_burst_that_takes_longer_is_late() {
    let planned = plan(&plain(), &["--burst", "1000@0", "--for", "5s", "--json"]);
    assert_eq!(planned.code, Some(1));
    planned.found("late", "it takes about 5.0s more");
}

#[test]
fn a_key_that_gets_more_than_its_limit_lets_pass_is_named() {
    let dir = tempfile::tempdir().unwrap();
    // Half of all messages are for one number.
    let numbers: String = (0..50).map(|n| format!("+49{n}\n+1555\n")).collect();
    fs::write(dir.path().join("numbers"), numbers).unwrap();
    let arguments = [
        "--arrivals",
        "2/1s",
        "--keys",
        "recipient=@numbers",
        "--for",
        "5m",
        "--json",
    ];
    let planned = plan_in(dir.path(), &two(), &arguments);
    assert_eq!(planned.code, Some(1), "{}", planned.err);
    planned.found("grows", "keys want more: `+1555` wants");
    let json = planned.json();
    let longest = &json["longest_waits"][0];
    assert_eq!(
        (&longest["limit"], &longest["key"]),
        (&"recipient".into(), &"+1555".into())
    );
    // The others pass at once.
    assert_eq!(json["limits"][1]["keys_held_up"], 1, "{json}");
    assert!(json["wait"]["p50_us"].as_u64().unwrap() < 50_000, "{json}");
}

#[test]
fn what_can_never_pass_stands_still() {
    let costly = two().replace(
        "rate = \"5/1m\"",
        "rate = \"5/1m\"\ncost = \"{{ body.parts }}\"",
    );
    let arguments = ["--burst", "10@0", "--keys", "10", "--cost", "6", "--json"];
    let planned = plan(&costly, &arguments);
    assert_eq!(planned.code, Some(1));
    planned.found(
        "stands_still",
        "limits.recipient: a message that costs 6 never passes; 5 is the most",
    );
    let hours = config("\"provider\"", "open = \"08:00-09:00\"", "");
    let at_night = [
        "--burst",
        "10@0",
        "--start",
        "2026-03-02T22:00",
        "--for",
        "1h",
        "--json",
    ];
    let planned = plan(&hours, &at_night);
    assert_eq!(planned.code, Some(1));
    planned.found("stands_still", "it opens at 2026-03-03T08:00:00+00:00[UTC]");
    let by_day = plan(&hours, &["--burst", "10@0", "--for", "2h", "--json"]);
    assert_eq!(
        by_day.code,
        Some(0),
        "it begins with an opening: {}",
        by_day.out
    );
}

/// Four small messages a minute take what comes free of 5/1m before one of five fits.
#[test]
fn a_dear_message_that_smaller_ones_pass_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let line = |at: u32, parts: u32| {
        format!("{{\"at\": {at}, \"body\": {{\"to\": \"a\", \"parts\": {parts}}}}}\n")
    };
    let dear = |n: u32| if n == 10 { line(151, 5) } else { String::new() };
    let trace: String = (0..120).map(|n| line(n * 15, 1) + &dear(n)).collect();
    fs::write(dir.path().join("trace"), trace).unwrap();
    let costly = two().replace(
        "rate = \"5/1m\"",
        "rate = \"5/1m\"\ncost = \"{{ body.parts }}\"",
    );
    let arguments = ["--trace", "trace", "--for", "30m", "--json"];
    let planned = plan_in(dir.path(), &costly, &arguments);
    planned.found(
        "note",
        "limits.recipient: a message of 5 waited for 27m29s, smaller ones for",
    );
    let all_small = plan_in(dir.path(), &two(), &arguments);
    let findings = all_small.findings();
    let told = findings
        .iter()
        .any(|(_, text)| text.contains("smaller ones"));
    assert!(!told, "{findings:?}");
}

#[test]
fn a_route_of_a_shared_queue_is_planned_alone() {
    let other = "[routes.b]\nqueue = \"sms\"\nlimits = [\"provider\"]\n\
                 downstream = { kind = \"http\", url = \"http://127.0.0.1:9/\" }\n";
    let config = config("\"provider\"", "", other);
    let arguments = [
        "--route", "sms", "--burst", "200@0", "--for", "1m", "--json",
    ];
    plan(&config, &arguments).found(
        "note",
        "Its queue is shared with routes.b, which is not in this plan",
    );
}

#[test]
fn calls_at_once_that_cap_the_account_are_told() {
    let calls = "[limits.calls]\nkind = \"concurrency\"\nlimit = 5\n";
    let config = config("\"provider\", \"calls\"", "", calls);
    let planned = plan(&config, &["--burst", "200@0", "--for", "1m", "--json"]);
    assert_eq!(planned.code, Some(0), "{}", planned.out);
    planned.found(
        "note",
        "limits.calls lets 20.0 a second pass, less than the 99.5 a second",
    );
    let planned = plan(&config, &["--arrivals", "30/1s", "--for", "1m", "--json"]);
    assert_eq!(planned.code, Some(1));
    planned.found(
        "grows",
        "limits.calls lets 20.0 a second pass, and 30.0 a second come",
    );
}

#[test]
fn a_trace_is_counted_by_the_templates_of_the_route() {
    let dir = tempfile::tempdir().unwrap();
    let line = |n: u32| {
        let at = f64::from(n) / 10.0;
        let to = if n < 8 { 1 } else { n };
        format!("{{\"at\": {at}, \"body\": {{\"to\": \"+{to}\"}}}}\n")
    };
    let trace: String = (0..20).map(line).collect();
    fs::write(
        dir.path().join("trace"),
        trace + "{\"at\": 3, \"body\": {}}\n",
    )
    .unwrap();
    let planned = plan_in(dir.path(), &two(), &["--trace", "trace", "--json"]);
    assert_eq!(planned.code, Some(1), "{}", planned.err);
    planned.found("stands_still", "line 21: ");
    planned.found("stands_still", "1 of 21 messages can never be sent");
    let json = planned.json();
    // Five pass at once; the other three of that number a minute later.
    assert_eq!(json["messages"]["delivered"], 20, "{json}");
    assert_eq!(
        (
            &json["longest_waits"][0]["key"],
            &json["longest_waits"][0]["messages"]
        ),
        (&"+1".into(), &8.into())
    );
    fs::write(dir.path().join("trace"), "{\"at\": 1}\n").unwrap();
    let planned = plan_in(dir.path(), &two(), &["--trace", "trace"]);
    assert_eq!(planned.code, Some(2));
    assert!(
        planned.err.contains("line 1: missing field `body`"),
        "{}",
        planned.err
    );
}

#[test]
fn the_same_seed_says_the_same_and_another_does_not() {
    let run = |seed| {
        plan(
            &plain(),
            &[
                "--arrivals",
                "90/1s",
                "--for",
                "20s",
                "--seed",
                seed,
                "--replicas",
                "3",
                "--json",
            ],
        )
    };
    let first = run("1");
    assert_eq!(first.code, Some(0), "{}", first.out);
    assert_eq!(first.out, run("1").out);
    assert_ne!(first.json()["series"], run("2").json()["series"]);
}

#[test]
fn the_picture_is_well_formed() {
    let dir = tempfile::tempdir().unwrap();
    let arguments = ["--burst", "500@1s", "--for", "1m", "--svg", "plan.svg"];
    let planned = plan_in(dir.path(), &plain(), &arguments);
    assert_eq!(planned.code, Some(0), "{}", planned.err);
    let svg = fs::read_to_string(dir.path().join("plan.svg")).unwrap();
    // Every element is closed in order.
    let mut open = Vec::new();
    for tag in svg
        .split('<')
        .skip(1)
        .map(|rest| rest.split('>').next().unwrap())
    {
        let name = tag
            .trim_start_matches('/')
            .split([' ', '/'])
            .next()
            .unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
    for words in [
        "xmlns=",
        "messages that wait",
        "messages a second",
        "prefers-color-scheme: dark",
        ">1s<",
    ] {
        assert!(svg.contains(words), "no `{words}` in\n{svg}");
    }
}

#[test]
fn what_is_missing_or_wrong_is_said_with_what_would_be_right() {
    let burst = ["--burst", "5@0"];
    for (config, more, code, words) in [
        (plain(), &[][..], 2, "what comes? --arrivals 300/1s"),
        (plain(), &["--arrivals", "300"], 2, "400/1s"),
        (
            plain(),
            &["--arrivals", "500/1s", "--for", "2h"],
            2,
            "give a shorter --for",
        ),
        (
            two(),
            &burst,
            2,
            "--keys recipient=1000, or --keys recipient=@FILE",
        ),
        (
            two(),
            &["--burst", "5@0", "--keys", "provider=3"],
            2,
            "limits.provider has no key",
        ),
        (
            two(),
            &["--burst", "5@0", "--keys", "sender=3"],
            2,
            "it has: provider, recipient",
        ),
        (
            plain(),
            &["--burst", "5@0", "--start", "8"],
            2,
            "2026-01-05T08:00",
        ),
        (
            plain().replace("100/1s", "100"),
            &burst,
            78,
            "sluiced.toml:7:8",
        ),
    ] {
        let planned = plan(&config, more);
        assert_eq!(planned.code, Some(code), "{more:?}: {}", planned.err);
        assert!(
            planned.err.contains(words),
            "no `{words}` in {}",
            planned.err
        );
    }
}

/// Windows that started a whole length after the last call of a full one let 56 % through: 594 s.
#[test]
fn windows_of_the_first_call_lose_no_rate_beside_another_limit() {
    for (second, ten) in [
        ("fixed_window", "fixed_window"),
        ("paced", "fixed_window"),
        ("paced", "sliding_log"),
    ] {
        let limits = format!(
            "[limits.second]\nkind = \"{second}\"\nrate = \"10/1s\"\n\
             [limits.ten]\nkind = \"{ten}\"\nrate = \"100/10s\"\n"
        );
        let config = config("\"second\", \"ten\"", "", &limits);
        let config = config.replace(
            "[limits.provider]\nkind = \"paced\"\nrate = \"100/1s\"\n",
            "",
        );
        let planned = plan(&config, &["--burst", "3000@0s", "--for", "10m"]);
        assert_eq!(planned.code, Some(0), "{} {}", planned.out, planned.err);
        // 300 s and the headrooms.
        let gone = "the backlog is gone after 5m";
        assert!(
            planned.out.contains(gone),
            "{second} {ten}: {}",
            planned.out
        );
    }
}
