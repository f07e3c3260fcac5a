//! The guides of the documentation: their configurations and commands are right.
//!
//! Their commands stand behind `$ ` in blocks of the language `console`, their configurations in blocks of
//! the language `toml`. Those of the first ten minutes (`started`) run in their order on real servers; each of the
//! others is at least a command that the program knows. Blocks that need Python are checked where it is
//! installed. Their links: `pure/links`.

mod started;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use sluiced_provider::{Behaviour, Provider};

use crate::support::broker::Broker;
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, file, program};
use crate::support::rabbit::Rabbit;
use crate::support::redis::RedisServer;

const STARTED: &str = include_str!("../../../docs/getting-started.md");
const MIGRATION: &str = include_str!("../../../docs/migration.md");
const PACING: &str = include_str!("../../../docs/pacing.md");
const COMPARISON: &str = include_str!("../../../docs/comparison.md");
const OPERATING: &str = include_str!("../../../docs/operating.md");
const RABBITMQ: &str = include_str!("../../../docs/rabbitmq.md");
const JOURNAL: &str = include_str!("../../../docs/journal.md");
const MONITORING: &str = include_str!("../../../docs/monitoring.md");
const LIMITS: &str = include_str!("../../../docs/limits.md");
const ANSWERS: &str = include_str!("../../../docs/answers.md");
const OPTIONS: &str = include_str!("../../../docs/route-options.md");
const DEAD: &str = include_str!("../../../docs/dead-letters.md");
const SMPP: &str = include_str!("../../../docs/smpp.md");
const RUNBOOK: &str = include_str!("../../../docs/runbook.md");
const CALLERS: &str = include_str!("../../../docs/callers.md");
const README: &str = include_str!("../../../README.md");
const PAGES: [&str; 16] = [
    STARTED, MIGRATION, PACING, COMPARISON, OPERATING, RABBITMQ, JOURNAL, MONITORING, LIMITS,
    ANSWERS, OPTIONS, DEAD, RUNBOOK, README, SMPP, CALLERS,
];
const SLUICED: &str = env!("CARGO_BIN_EXE_sluiced");
const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The blocks of a language, in their order.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("\n```{language}\n");
    let after = page.split(&*fence).skip(1);
    after
        .map(|rest| rest.split("\n```").next().unwrap())
        .collect()
}

fn commands(text: &str) -> impl Iterator<Item = &str> {
    let shown = [blocks(text, "console"), blocks(text, "text")].concat();
    let shown = shown.into_iter();
    shown.flat_map(|block| block.lines().filter_map(|line| line.strip_prefix("$ ")))
}

/// The program's commands in blocks of the language `sh`, which show no output.
fn bare_commands(text: &str) -> impl Iterator<Item = &str> {
    let lines = blocks(text, "sh").into_iter().flat_map(str::lines);
    lines.filter(|line| line.starts_with("sluiced "))
}

/// A shell in a folder, with another folder first in its search path.
fn shell(folder: &Path, programs: &Path, line: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("sh");
    command.args(["-c", line]).current_dir(folder);
    command.env("PATH", format!("{}:{path}", programs.display()));
    command.stdin(Stdio::null());
    command
}

fn succeeded(line: &str, output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}\n{said}{complaint}");
    said
}

/// What a command says that must end well. Between many tests a machine has slow moments, and `check --connect` rightly
/// fails where Redis is then too slow for the headroom of a limit: such a moment is waited for.
async fn succeeds(line: &str, mut command: Command) -> String {
    let end = tokio::time::Instant::now() + LONG;
    loop {
        let output = command.output().unwrap();
        let said = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said));
        let is_slow = said.concat().contains("a slow round trip to Redis takes");
        if !is_slow || tokio::time::Instant::now() > end {
            return succeeded(line, &output);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// `None` where there is no Python.
fn python(arguments: &[&str], folder: &Path) -> Option<Output> {
    let mut command = Command::new("python3");
    command.args(arguments).current_dir(folder).output().ok()
}

/// Each command with `--help` behind it: the program refuses what it does not know before that.
#[test]
fn every_command_of_the_guides_is_one() {
    let folder = tempfile::tempdir().unwrap();
    let help = format!("#!/bin/sh\nexec {SLUICED} \"$@\" --help\n");
    // Other commands that the pages use; one that is not listed would fail here.
    let known = [
        ("sluiced", &*help),
        ("sed", "#!/bin/sh\n"),
        ("python3", "#!/bin/sh\n"),
        ("curl", "#!/bin/sh\n"),
    ];
    for (name, script) in known {
        let path = file(folder.path(), name, script);
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    // The file that `sluiced try` of the pages reads.
    fs::write(folder.path().join("message.json"), "").unwrap();
    let shown = PAGES.iter().flat_map(|page| commands(page));
    let bare = PAGES.iter().flat_map(|page| bare_commands(page));
    let lines: Vec<_> = shown.chain(bare).collect();
    assert!(lines.len() >= 40, "{} commands found", lines.len());
    for line in lines {
        let only = format!("PATH={}; {line}", folder.path().display());
        let output = shell(folder.path(), folder.path(), &only).output().unwrap();
        succeeded(line, &output);
    }
}

#[test]
fn every_configuration_of_the_guides_is_right() {
    let folder = tempfile::tempdir().unwrap();
    let all: Vec<_> = PAGES.iter().flat_map(|page| blocks(page, "toml")).collect();
    assert!(all.len() >= 8, "{} configurations found", all.len());
    for text in all {
        let path = file(folder.path(), "sluiced.toml", text);
        let path = path.to_str().unwrap();
        let output = program(&["check", "--no-secrets", "--config", path]).output();
        let said = succeeded(text, &output.unwrap());
        assert!(said.ends_with("configuration ok\n"), "{text}\n{said}");
    }
}

/// The messages have the form that Celery and Dramatiq publish.
#[test]
fn messages_of_other_systems_become_the_requests_that_the_guide_shows() {
    let folder = tempfile::tempdir().unwrap();
    symlink(SLUICED, folder.path().join("sluiced")).unwrap();
    let mut tried = 0;
    for section in MIGRATION.split("\n## ") {
        let Some(config) = blocks(section, "toml").first().copied() else {
            continue;
        };
        fs::write(folder.path().join("sluiced.toml"), config).unwrap();
        for block in blocks(section, "console") {
            let (line, shown) = block.split_once('\n').unwrap();
            let line = line.strip_prefix("$ ").unwrap();
            let mut command = shell(folder.path(), folder.path(), line);
            command.env("SLUICED__REDIS__URL", RedisServer::shared().url());
            command.env("SLUICED__REDIS__PREFIX", "guide-migration");
            let said = succeeded(line, &command.output().unwrap());
            for expected in shown.lines().filter(|line| *line != "…") {
                assert!(said.lines().any(|line| line == expected), "{line}\n{said}");
            }
            tried += 1;
        }
    }
    assert_eq!(tried, 2);
}

#[test]
fn the_pictures_are_made_by_their_command() {
    let folder = tempfile::tempdir().unwrap();
    let into = folder.path().to_str().unwrap();
    let script = format!("{ROOT}/docs/pictures/draw.py");
    let Some(output) = python(
        &[&script, "--sluiced", SLUICED, "--into", into],
        folder.path(),
    ) else {
        eprintln!("no python3 on this machine: not checked");
        return;
    };
    succeeded(&script, &output);
    let named = [PACING, LIMITS].into_iter();
    let named = named.flat_map(|page| page.split("](pictures/").skip(1));
    let named: BTreeSet<_> = named.map(|rest| rest.split(')').next().unwrap()).collect();
    assert_eq!(named.len(), 4);
    for name in named {
        let drawn = fs::read_to_string(folder.path().join(name)).unwrap();
        assert!(drawn.trim_end().ends_with("</svg>"), "{name}");
    }
}

/// README's own list of commands, with the servers of this test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_of_the_readme_run_as_they_stand() {
    let queue = "guide-readme";
    let provider = Provider::start(
        "127.0.0.1:0".parse().unwrap(),
        Behaviour::judging("100/1s".parse().unwrap()),
    )
    .unwrap();
    let ours = variables(queue, &provider);
    let folder = tempfile::tempdir().unwrap();
    symlink(SLUICED, folder.path().join("sluiced")).unwrap();
    let list = README
        .split("\n```sh\n")
        .find(|block| block.contains("config init"));
    let list = list.unwrap().split("\n```").next().unwrap();
    let lines: Vec<_> = list.lines().collect();
    assert_eq!(lines.len(), 4);
    let (run, others) = lines.split_last().unwrap();
    assert_eq!(*run, "sluiced run --config sms.toml");
    for line in others {
        // The queue is the publisher's.
        if line.contains("--connect") {
            let broker = Broker::connect(&Rabbit::shared().url()).await;
            broker.declare(queue, "quorum").await;
        }
        let mut command = shell(folder.path(), folder.path(), line);
        command.envs(ours.clone());
        succeeds(line, command).await;
    }
    let text = fs::read_to_string(folder.path().join("sms.toml")).unwrap();
    let mut daemon = Daemon::start_with(&text, |command| {
        command.envs(ours.clone());
    });
    daemon.ready().await;
    daemon
        .stop(&[NEW_SCHEDULE, "nothing is kept on disk"])
        .await;
}

/// The servers and names of this test, instead of those on the page.
fn variables(queue: &str, provider: &Provider) -> Vec<(String, String)> {
    let url = format!("http://{}/send", provider.address());
    let ours = [
        ("RABBITMQ__URLS", Rabbit::shared().url()),
        ("REDIS__URL", RedisServer::shared().url()),
        ("REDIS__PREFIX", queue.to_owned()),
        ("REDIS__RESPONSE_TIMEOUT", "5s".to_owned()),
        ("ADMIN__LISTEN", "127.0.0.1:0".to_owned()),
        ("ROUTES__SMS__QUEUE", queue.to_owned()),
        ("ROUTES__SMS__DOWNSTREAM__URL", url),
    ];
    let named = ours.into_iter();
    named
        .map(|(name, value)| (format!("SLUICED__{name}"), value))
        .collect()
}
