//! What every command does with its options and its output.

use std::process::{Command, Output, Stdio};

use crate::support::daemon::{Config, Route, file, program};

fn ran(arguments: &[&str]) -> Output {
    program(arguments).output().expect("the program starts")
}

/// A run without servers whose list is empty, with `log.level = "error"` in its file. What it logged.
fn logged(arguments: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let input = file(dir.path(), "in.ndjson", "");
    let route = Route::new("list", "127.0.0.1:1".parse().unwrap());
    let config = Config {
        tables: format!(
            "[log]\nlevel = \"error\"\n[embedded]\ninput = {input:?}\nleftover = {:?}\n",
            dir.path().join("leftover.ndjson")
        ),
        ..Config::embedded("100/1s", vec![route])
    };
    let config = file(dir.path(), "sluiced.toml", &config.text());
    let run = ["run", "--config", config.to_str().unwrap()];
    ran(&[&run, arguments].concat())
}

#[test]
fn the_level_of_the_command_line_beats_that_of_the_configuration() {
    let quiet = logged(&[]);
    assert!(quiet.status.success(), "{quiet:?}");
    assert_eq!(String::from_utf8_lossy(&quiet.stderr), "");
    let told = logged(&["--log-level", "info"]);
    assert!(told.status.success(), "{told:?}");
    let told = String::from_utf8_lossy(&told.stderr);
    assert!(told.contains("\"message\":\"started\""), "{told}");

    let wrong = logged(&["--log-level", "inof"]);
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
    let said = String::from_utf8_lossy(&wrong.stderr);
    for part in ["inof", "--log-level", "error, warn, info, debug"] {
        assert!(said.contains(part), "{said}");
    }
}

/// On a terminal, which `script` of util-linux provides.
#[test]
fn colours_come_on_a_terminal_unless_no_color_forbids_them() {
    let sluiced = env!("CARGO_BIN_EXE_sluiced");
    let dir = tempfile::tempdir().unwrap();
    let wrong = file(dir.path(), "wrong.toml", "rdis = 1\n");
    let coloured = |command: &str, no_color: Option<&str>| {
        let mut script = Command::new("script");
        script.args(["-qec", command, "/dev/null"]);
        script.env("TERM", "xterm").env_remove("NO_COLOR");
        script.envs(no_color.map(|value| ("NO_COLOR", value)));
        let output = script.stdin(Stdio::null()).output().expect("`script` runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.contains("sluiced") || said.contains("rdis"), "{said}");
        said.contains("\x1b[")
    };
    let wrong = wrong.display();
    for command in [
        format!("{sluiced} check --config {wrong}"),
        format!("{sluiced} run --config {wrong}"),
        format!("{sluiced} limits list --config {wrong}"),
        format!("{sluiced} throttle a 1 1 1 --config {wrong}"),
        format!("{sluiced} run --nonsense"),
    ] {
        assert!(coloured(&command, None), "{command}");
        assert!(coloured(&command, Some("")), "{command}");
        assert!(!coloured(&command, Some("1")), "{command}");
    }
}
