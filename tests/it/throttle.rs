//! `sluiced throttle`, the real binary on a real Redis.

use std::process::{Command, Output};

use crate::support::redis::RedisServer;

fn throttle(url: &str, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluiced"))
        .arg("throttle")
        .args(["--redis", url])
        .args(arguments)
        .output()
        .unwrap()
}

fn numbers(output: &Output) -> Vec<i64> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn it_answers_the_five_values_of_cl_throttle() {
    let url = RedisServer::shared().url();
    // 3 at once, then 30 in an hour: one every 120 s.
    let ask = |quantity: &str| throttle(&url, &["user", "2", "30", "3600", quantity, "--plain"]);
    let first = ask("1");
    // All are back 120 s later but for the microseconds since: cut, as there.
    let [0, 3, 2, -1, 119 | 120] = numbers(&first)[..] else {
        panic!("{first:?}");
    };
    assert_eq!(first.status.code(), Some(0));
    assert_eq!(numbers(&ask("2"))[..4], [0, 3, 0, -1]);
    let limited = ask("1");
    let [1, 3, 0, retry, reset] = numbers(&limited)[..] else {
        panic!("{limited:?}");
    };
    // A few seconds may have gone since.
    assert!(
        (60..=120).contains(&retry) && (300..=360).contains(&reset),
        "{limited:?}"
    );
    assert_eq!(limited.status.code(), Some(0));
    let failing = throttle(&url, &["user", "2", "30", "3600", "--fail", "--plain"]);
    assert_eq!(failing.status.code(), Some(1));
    assert_eq!(numbers(&failing)[0], 1);
    // It never fits; and another key has a state of its own, which a look does not change.
    assert_eq!(numbers(&ask("4"))[..4], [1, 3, 0, -1]);
    for _ in 0..2 {
        let other = throttle(&url, &["other", "2", "30", "3600", "0", "--plain"]);
        assert_eq!(numbers(&other), [0, 3, 3, -1, 0]);
    }
    let json = throttle(&url, &["user", "2", "30", "3600", "--json"]);
    let answer: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(answer["limited"], true);
    assert!(answer["retry_after_us"].as_u64().unwrap() > 60_000_000);
}

/// The example of redis-cell's manual: `CL.THROTTLE user_1 200 500 60 2` on a new key.
#[test]
fn the_example_of_cl_throttle_is_answered_as_there() {
    let url = RedisServer::shared().url();
    let ask = |more: &str| throttle(&url, &["user_1", "200", "500", "60", "2", more]);
    // Two units are back after 0.24 s.
    assert_eq!(numbers(&ask("--plain")), [0, 201, 199, -1, 0]);
    let json: serde_json::Value = serde_json::from_slice(&ask("--json").stdout).unwrap();
    let reset = json["reset_after_us"].as_u64().unwrap();
    assert!((240_000..=480_000).contains(&reset), "{json}");
}

#[test]
fn a_person_reads_labels() {
    let url = RedisServer::shared().url();
    let said = |quantity: &str| {
        let output = throttle(&url, &["labels", "2", "30", "3600", quantity]);
        String::from_utf8(output.stdout).unwrap()
    };
    let fits =
        "limited    no\nlimit      3\nremaining  0\ntry again  after 2m\nall back   after 6m\n";
    assert_eq!(said("3"), fits);
    // Nothing was taken, and nothing is left either.
    assert!(said("0").contains("try again  after "), "{}", said("0"));
    let limited = said("1");
    for part in ["limited    yes\n", "remaining  0\n", "try again  after "] {
        assert!(limited.contains(part), "{limited}");
    }
    let never = said("4");
    assert!(never.contains("try again  never: more than"), "{never}");
    let both = throttle(&url, &["labels", "2", "30", "3600", "--json", "--plain"]);
    assert_eq!(both.status.code(), Some(2), "{both:?}");
}

#[test]
fn what_goes_wrong_has_its_exit_code() {
    let url = RedisServer::shared().url();
    for (arguments, code) in [
        (&["user", "2", "30"][..], 2),
        (&["user", "2", "0", "60"], 2),
        (&["user", "-1", "30", "60"], 2),
        (&["user", "4000000000", "1", "30000000"], 2),
        (&["user", "2", "30", "60", "--config", "none.toml"], 2),
    ] {
        let output = throttle(&url, arguments);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty());
    }
    let unreachable = throttle("redis://127.0.0.1:1/0", &["user", "2", "30", "60"]);
    assert_eq!(unreachable.status.code(), Some(1), "{unreachable:?}");
    let missing = Command::new(env!("CARGO_BIN_EXE_sluiced"))
        .args(["throttle", "user", "2", "30", "60", "--config", "none.toml"])
        .output()
        .unwrap();
    assert_eq!(missing.status.code(), Some(78), "{missing:?}");
}
