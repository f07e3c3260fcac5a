//! Reasons for which it does not run: arguments, configuration, an address that is taken.

use std::net::TcpListener;
use std::process::Output;

use crate::support::daemon::{Config, Daemon, Route, file, program};

fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = program(arguments).output().expect("the program starts");
    let text = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
    (status.code(), text)
}

/// Without servers: mistakes are found before any server is asked.
fn config() -> Config {
    Config {
        rabbit: Some("amqp://guest:guest@127.0.0.1:1/%2f".to_owned()),
        redis: Some("redis://127.0.0.1:1/0".to_owned()),
        prefix: "refused".to_owned(),
        ..Config::embedded(
            "200/1s",
            vec![Route::new("refused", "127.0.0.1:1".parse().unwrap())],
        )
    }
}

const WRONG: &str = "[redis]\nurll = \"redis://127.0.0.1/0\"\n\n\
    [limits.provider]\nkind = \"paced\"\nrate = \"400 per second\"\n\n\
    [routes.sms]\nqueue = \"sms\"\nlimits = [\"provder\"]\n\n\
    [routes.sms.downstream]\nkind = \"http\"\nurl = \"http://127.0.0.1/{{ body\"\n";

#[test]
fn a_wrong_configuration_is_told_whole_with_its_places_and_ends_with_78() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), "wrong.toml", WRONG);
    let path = path.to_str().unwrap();
    for command in ["run", "check"] {
        let (code, text) = run(&[command, "--config", path]);
        assert_eq!(code, Some(78), "{command}: {text}");
        for place in [
            "wrong.toml:2:",
            "wrong.toml:6:",
            "wrong.toml:10:",
            "wrong.toml:14:",
        ] {
            assert!(text.contains(place), "{command}: no {place} in {text}");
        }
        for hint in ["url", "provider"] {
            assert!(text.contains(hint), "{command}: no {hint} in {text}");
        }
        for noise in ["panicked", "backtrace", "src/"] {
            assert!(!text.contains(noise), "{command}: {noise} in {text}");
        }
    }
}

#[test]
fn a_file_that_is_missing_is_named() {
    let (code, text) = run(&["run", "--config", "/nowhere/sluiced.toml"]);
    assert_eq!(code, Some(78), "{text}");
    assert!(text.contains("/nowhere/sluiced.toml"), "{text}");
}

#[test]
fn an_unknown_argument_ends_with_2() {
    for arguments in [
        &["run", "--confg", "x"][..],
        &["run"][..],
        &["check", "--nonsense"][..],
        &["rnu"][..],
        &[][..],
    ] {
        let (code, text) = run(arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {text}");
        assert!(text.contains("Usage"), "{arguments:?}: {text}");
    }
}

#[tokio::test]
async fn an_admin_address_that_is_taken_ends_with_1_and_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut config = config();
    config.tables = format!("[admin]\nlisten = \"{address}\"\n");
    let mut daemon = Daemon::start(&config);
    assert_eq!(daemon.ended().await.code(), Some(1), "{}", daemon.log());
    assert_eq!(daemon.said(&address), 1, "{}", daemon.log());
    daemon.complaints(&[&address]);
}

#[test]
fn check_says_whether_the_configuration_is_good_and_whether_the_servers_answer() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), "good.toml", &config().text());
    let path = path.to_str().unwrap();
    let (code, text) = run(&["check", "--config", path]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("configuration ok"), "{text}");
    let (code, text) = run(&["check", "--config", path, "--print"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("routes.refused.queue"), "{text}");
    assert!(!text.contains("guest:guest"), "{text}");
    let (code, text) = run(&["check", "--config", path, "--connect"]);
    assert_eq!(code, Some(1), "{text}");
    for server in [
        "rabbitmq ",
        "routes.refused.queue",
        "redis",
        "routes.refused.downstream",
    ] {
        let line = text.lines().find(|line| line.contains(server));
        assert!(line.is_some_and(|line| line.contains("failed")), "{text}");
    }
}
