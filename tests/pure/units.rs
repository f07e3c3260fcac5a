//! The systemd units: what they promise, and that systemd itself accepts them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const UNITS: [&str; 2] = ["sluiced.service", "sluiced@.service"];

fn unit(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("systemd")
        .join(name);
    fs::read_to_string(path).expect("the unit is there")
}

fn assignments(text: &str) -> Vec<&str> {
    text.lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect()
}

/// A copy of a unit in `dir` whose program exists on this machine.
fn copy(dir: &Path, name: &str) -> PathBuf {
    let text = unit(name).replace("/usr/local/bin/sluiced", env!("CARGO_BIN_EXE_sluiced"));
    let path = dir.join(name.replace('@', "@sms"));
    fs::write(&path, text).expect("the copy is written");
    path
}

/// `None` where there is no systemd (the container images that this project builds in have none).
fn analyze(arguments: &[&str], unit: &Path) -> Option<Output> {
    Command::new("systemd-analyze")
        .args(arguments)
        .arg(unit)
        .output()
        .ok()
}

#[test]
fn the_template_differs_only_in_its_instance() {
    let single = unit(UNITS[0])
        .replace("Description=sluiced,", "Description=sluiced %i,")
        .replace("sluiced.toml", "%i.toml")
        .replace("StateDirectory=sluiced", "StateDirectory=sluiced@%i")
        .replace("%S/sluiced", "%S/sluiced@%i");
    assert_eq!(assignments(&single), assignments(&unit(UNITS[1])));
}

/// systemd restarts after a failed check unless `Restart` is one that ignores exit codes: the lists
/// of codes apply to the main process only.
#[test]
fn a_failed_check_is_final_and_a_failed_daemon_is_not() {
    for name in UNITS {
        let text = unit(name);
        let lines = assignments(&text);
        for line in [
            "Restart=on-abnormal",
            "RestartForceExitStatus=1 101",
            "RestartPreventExitStatus=2 3 78",
            "StartLimitIntervalSec=0",
        ] {
            assert!(lines.contains(&line), "{name}: {line}");
        }
    }
}

#[test]
fn what_is_checked_is_what_is_run() {
    for name in UNITS {
        let text = unit(name);
        let arguments = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key));
            let line = line.unwrap_or_else(|| panic!("{name} has no {key}"));
            line.split_once(" --config ").expect("a configuration")
        };
        let check = arguments("ExecStartPre=");
        let run = arguments("ExecStart=");
        assert_eq!(check.0, "/usr/local/bin/sluiced check", "{name}");
        assert_eq!(run.0, "/usr/local/bin/sluiced run", "{name}");
        assert_eq!(check.1, run.1, "{name}");
    }
}

#[test]
fn systemd_has_no_complaint() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for name in UNITS {
        let path = copy(dir.path(), name);
        let Some(output) = analyze(&["verify", "--man=no"], &path) else {
            println!("no systemd-analyze on this machine: not checked");
            return;
        };
        let said = String::from_utf8_lossy(&output.stderr);
        let about_us: Vec<&str> = said
            .lines()
            .filter(|line| line.contains("sluiced"))
            .collect();
        assert!(
            output.status.success() && about_us.is_empty(),
            "{name}: {said}"
        );
    }
}

#[test]
fn the_exposure_is_at_most_two() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for name in UNITS {
        let path = copy(dir.path(), name);
        let Some(output) = analyze(&["security", "--offline=true", "--threshold=20"], &path) else {
            println!("no systemd-analyze on this machine: not checked");
            return;
        };
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{name}: {said}");
    }
}
