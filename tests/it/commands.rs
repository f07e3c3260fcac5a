//! The program's description of its own commands: help, completions, manual pages, a first
//! configuration.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::daemon::{Config, Route, file, program};
use crate::support::port::free_port;

fn ran(arguments: &[&str]) -> Output {
    program(arguments).output().expect("the program starts")
}

/// What a command prints, which must be a success.
fn printed(arguments: &[&str]) -> String {
    let output = ran(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The commands below `parent` that its help shows, and those below them.
fn commands(parent: &[&str]) -> Vec<Vec<String>> {
    let help = printed(&[parent, &["--help"]].concat());
    let listed = help.split("Commands:\n").nth(1).unwrap_or_default();
    let listed = listed.lines().take_while(|line| line.starts_with("  "));
    // A long description continues below, farther to the right.
    let names = listed.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let mut all = Vec::new();
    for name in names.filter(|name| !["", "help"].contains(name)) {
        let path = [parent, &[name]].concat();
        all.push(path.iter().map(|&step| step.to_owned()).collect());
        all.extend(commands(&path));
    }
    all
}

/// Bash's suggestions for the last of these words, by the function that the program provides.
fn completed(words: &[&str], config: Option<&Path>) -> Vec<String> {
    let program = Path::new(env!("CARGO_BIN_EXE_sluiced"));
    let others = std::env::var("PATH").unwrap();
    let path = format!("{}:{others}", program.parent().unwrap().display());
    let ask = "source <(sluiced completions bash) && COMP_WORDS=(sluiced \"$@\") COMP_CWORD=$# COMP_TYPE=9 \
               && _clap_complete_sluiced sluiced \"${!#}\" && printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    bash.args(["-c", ask, "bash"]).args(words).env("PATH", path);
    match config {
        Some(config) => bash.env("SLUICED_CONFIG", config),
        None => bash.env_remove("SLUICED_CONFIG"),
    };
    let output = bash.output().expect("bash runs");
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    said.lines().map(str::to_owned).collect()
}

#[test]
fn names_of_limits_and_routes_are_those_of_the_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let route = Route::new("letters", "127.0.0.1:1".parse().unwrap());
    let config = Config::shared("completed", "1/1s", vec![route]).text();
    let known = file(dir.path(), "known.toml", &config);
    let other = file(dir.path(), "other.toml", &config.replace("letters", "sms"));
    let other = other.to_str().unwrap();
    for command in ["show", "set", "pause", "resume", "open"] {
        let names = completed(&["limits", command, "pro"], Some(&known));
        assert_eq!(names, ["provider"], "{command}");
    }
    for command in [&["dead", "list"][..], &["try"], &["plan"]] {
        let ask = [command, &["--route", ""]].concat();
        assert_eq!(completed(&ask, Some(&known)), ["letters"], "{command:?}");
        for config in [&["--config", other][..], &["--config", "=", other]] {
            let ask = [command, config, &["--route", ""]].concat();
            assert_eq!(completed(&ask, Some(&known)), ["sms"], "{command:?}");
        }
    }
    let wrong = file(dir.path(), "wrong.toml", "rdis = 1\n");
    for config in [None, Some(&*wrong)] {
        assert_eq!(
            completed(&["limits", "show", "pro"], config),
            [""; 1],
            "no names"
        );
    }
}

/// Completions that a shell loads from a file have to work at once.
#[test]
fn each_shell_has_a_script() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = printed(&["completions", shell]);
        for part in ["SLUICED_COMPLETE", shell, "sluiced"] {
            assert!(script.contains(part), "{shell}: {script}");
        }
    }
    let zsh = printed(&["completions", "zsh"]);
    assert!(zsh.starts_with("#compdef sluiced\n"), "{zsh}");
    let first = "[[ ${funcstack[1]} == _sluiced ]] && _clap_dynamic_completer_sluiced \"$@\"";
    assert!(zsh.ends_with(&format!("{first}\n")), "{zsh}");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let all = [
        &["man"][..],
        &["completions", "bash"],
        &["config", "default"],
        &["config", "schema"],
    ];
    for arguments in all {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = program(arguments).stdout(writer).output().unwrap();
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{arguments:?}: {output:?}"
        );
    }
}

#[test]
fn completions_and_manual_pages_name_every_command() {
    let all = commands(&[]);
    let is = |steps: &[&str]| all.iter().any(|path| path == steps);
    assert!(is(&["run"]) && is(&["limits", "set"]), "{all:?}");
    for path in &all {
        let (name, parent) = path.split_last().unwrap();
        let parent: Vec<_> = parent.iter().map(String::as_str).collect();
        let next = completed(&[&parent[..], &[""]].concat(), None);
        assert!(next.contains(name), "{path:?}: {next:?}");
        assert!(!next.iter().any(|next| next == "provider"), "it is hidden");
    }
    assert!(completed(&["check", "--conn"], None).contains(&"--connect".to_owned()));

    let page = printed(&["man"]);
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("man1");
    assert_eq!(printed(&["man", folder.to_str().unwrap()]), "");
    let pages = fs::read_dir(&folder).unwrap();
    let pages = pages.map(|page| page.unwrap().file_name().into_string().unwrap());
    let named = |path: &Vec<String>| format!("sluiced-{}.1", path.join("-"));
    let mut expected: BTreeSet<_> = all.iter().map(named).collect();
    expected.insert("sluiced.1".to_owned());
    assert_eq!(pages.collect::<BTreeSet<_>>(), expected);
    for path in &all {
        let text = fs::read_to_string(folder.join(named(path))).unwrap();
        for section in [".SH NAME", ".SH SYNOPSIS", ".SH OPTIONS"] {
            assert!(text.contains(section), "{path:?} lacks {section}: {text}");
        }
        if let [name] = &path[..] {
            let roff = format!("sluiced\\-{name}(1)");
            assert!(page.contains(&roff), "{roff} is not in {page}");
        }
    }
}

#[test]
fn a_directory_for_manual_pages_that_cannot_be_made_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let output = ran(&["man", file.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(file.path().to_str().unwrap()), "{said}");
}

#[test]
fn a_first_configuration_passes_the_check_and_is_never_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    for kind in ["sms", "email", "webhook", "llm", "unpaced"] {
        let text = printed(&["config", "init", "--kind", kind]);
        let file = folder.path().join(kind);
        let file = file.to_str().unwrap();
        let init = ["config", "init", "--kind", kind, "--output", file];
        let said = printed(&init);
        assert!(said.contains(file), "{said}");
        let written = format!("#:schema ./sluiced.schema.json\n{text}");
        assert_eq!(fs::read_to_string(file).unwrap(), written);
        let said = printed(&["check", "--config", file]);
        assert!(said.ends_with("\nconfiguration ok\n"), "{said}");
        let said = printed(&["test", "--config", file, &format!("{file}.tests.toml")]);
        assert!(said.ends_with(" passed, 0 failed\n"), "{said}");

        fs::write(file, "mine").unwrap();
        let output = ran(&init);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("exists already"), "{said}");
        assert_eq!(fs::read_to_string(file).unwrap(), "mine");
    }
    for wrong in [
        &["--kind", "fax"][..],
        &["--provider", "fax"],
        &["--kind", "sms", "--provider", "twilio"],
        &[],
    ] {
        let output = ran(&[&["config", "init"], wrong].concat());
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
}

#[test]
fn the_file_that_the_environment_names_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let good = dir.path().join("good.toml");
    fs::write(&good, printed(&["config", "init", "--kind", "sms"])).unwrap();
    let wrong = file(dir.path(), "wrong.toml", "rdis = 1\n");
    let checked = |named: &Path, arguments: &[&str]| {
        let mut command = program(&["check"]);
        command.args(arguments).env("SLUICED_CONFIG", named);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), said)
    };
    let (code, said) = checked(&good, &[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.ends_with("\nconfiguration ok\n"), "{said}");
    let (code, said) = checked(&wrong, &[]);
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("wrong.toml"), "{said}");
    let (code, said) = checked(&wrong, &["--config", good.to_str().unwrap()]);
    assert_eq!(code, Some(0), "the argument counts: {said}");
}

/// It is there for all commands, and some need none.
#[test]
fn an_option_in_place_of_a_configuration_wins_over_that_of_the_environment() {
    let dir = tempfile::tempdir().unwrap();
    let named = file(dir.path(), "named.toml", "rdis = 1\n");
    let nothing = format!("redis://127.0.0.1:{}", free_port());
    let shown = |arguments: &[&str]| {
        let mut command = program(&["limits", "list", "--redis", &nothing]);
        command.args(arguments).env("SLUICED_CONFIG", &named);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    let (code, said) = shown(&[]);
    assert_eq!(code, Some(1), "Redis was asked: {said}");
    let (code, said) = shown(&["--config", "other.toml"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("--redis stands in for --config"), "{said}");
}

#[test]
fn the_help_of_limits_names_each_command_with_its_words() {
    let help = printed(&["limits", "--help"]);
    for name in ["list", "show", "set", "adopt", "pause", "resume", "open"] {
        let named = |line: &str| line.trim_start().starts_with(&format!("{name} "));
        assert!(help.lines().any(named), "{name}: {help}");
    }
    let help = printed(&["--help"]);
    let limits = "list, show, set, adopt, pause, resume, open";
    assert!(help.contains(limits), "{help}");
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
