//! The workflows, deploy/release and deploy/packaging/: what can be told of them without a build of the release.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::yaml::documents;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The files of these folders, with their first lines.
fn scripts() -> Vec<(PathBuf, String)> {
    let mut files = vec![root().join("deploy/release"), root().join(".ci/run")];
    for folder in ["deploy/packaging", "deploy/release.d"] {
        let entries = fs::read_dir(root().join(folder)).expect("a folder");
        files.extend(entries.map(|entry| entry.expect("an entry").path()));
    }
    files.retain(|file| file.is_file());
    let first = |file: &PathBuf| {
        let text = fs::read_to_string(file).expect("text");
        text.lines().next().unwrap_or_default().to_owned()
    };
    files
        .into_iter()
        .map(|file| (file.clone(), first(&file)))
        .collect()
}

fn run(program: &str, arguments: &[&str]) -> Option<Output> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root());
    command.output().ok()
}

fn workflow(name: &str) -> Option<Value> {
    let mut found = documents(&format!(".github/workflows/{name}"))?;
    Some(found.remove(0))
}

/// What a workflow runs: the same can be run, and repaired, on any machine.
#[test]
fn the_workflows_call_the_scripts_and_nothing_else() {
    let wanted = [
        ("test.yml", vec![".ci/run"]),
        (
            "release.yml",
            vec![
                "deploy/release",
                "gh release create \"$GITHUB_REF_NAME\" --draft --verify-tag target/artefacts/*",
            ],
        ),
    ];
    for (name, wanted) in wanted {
        let Some(workflow) = workflow(name) else {
            println!("no python3-yaml on this machine: not checked");
            return;
        };
        let jobs = workflow["jobs"].as_object().expect("jobs").values();
        let steps = jobs.flat_map(|job| job["steps"].as_array().expect("steps"));
        let (runs, uses): (Vec<&Value>, Vec<&Value>) =
            steps.partition(|step| step["uses"].is_null());
        let runs: Vec<&str> = runs
            .iter()
            .map(|step| step["run"].as_str().expect("a command"))
            .collect();
        assert_eq!(runs, wanted, "{name}");
        for step in uses {
            let action = step["uses"].as_str().expect("a name");
            assert!(action.starts_with("actions/"), "{name}: {action}");
        }
    }
}

#[test]
fn one_compiler_makes_releases_and_images_and_runs_the_tests() {
    let script = read("deploy/release");
    let (_, rest) = script.split_once("\nRUST=").expect("it names one");
    let version = rest.lines().next().expect("a version");
    let short = version.rsplit_once('.').expect("three numbers").0;
    assert!(read("Dockerfile").contains(&format!("ARG RUST_VERSION={short}\n")));
    for name in ["test.yml", "release.yml"] {
        let text = read(&format!(".github/workflows/{name}"));
        assert!(
            text.contains(&format!("RUSTUP_TOOLCHAIN: \"{version}\"\n")),
            "{name}"
        );
    }
    // A number there would be fetched wherever it is missing.
    assert!(read("rust-toolchain.toml").contains("\nchannel = \"stable\"\n"));
}

/// With the feature, wherever a program for users is built.
#[test]
fn every_program_that_is_released_has_traces() {
    for file in ["Dockerfile", "deploy/release"] {
        let text = read(file).replace("\\\n", " ");
        let builds = text.lines().filter(|line| line.contains("--profile dist"));
        let builds: Vec<&str> = builds.filter(|line| !line.starts_with('#')).collect();
        assert!(!builds.is_empty(), "{file}");
        for build in builds {
            assert!(build.contains("--features traces"), "{file}: {build}");
        }
    }
}

#[test]
fn the_scripts_can_be_read() {
    for (file, first) in scripts() {
        let path = file.to_str().expect("a name");
        let read = match first.as_str() {
            "#!/usr/bin/env bash" => run("bash", &["-n", path]),
            "#!/bin/sh" => run("sh", &["-n", path]),
            "#!/usr/bin/env python3" => {
                let code = "import ast, sys; ast.parse(open(sys.argv[1]).read())";
                run("python3", &["-c", code, path])
            }
            _ => continue,
        };
        if let Some(output) = read {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{path}: {said}");
        }
    }
}

#[test]
fn the_packages_name_files_that_exist() {
    let tree = read("deploy/packaging/tree").replace("\\\n", " ");
    let copies = tree
        .lines()
        .map(|line| line.trim())
        .filter(|line| line.starts_with("cp ") || line.contains("|| cp "));
    let mut count = 0;
    for word in copies.flat_map(str::split_whitespace) {
        let named = word.contains('/') || word.starts_with("LICENSE") || word.ends_with(".md");
        if !named || word.contains('$') {
            continue;
        }
        count += 1;
        if let Some((folder, ending)) = word.split_once('*') {
            let entries = fs::read_dir(root().join(folder)).expect(word);
            let mut names = entries.map(|entry| entry.expect("an entry").file_name());
            let found = names.any(|name| name.to_string_lossy().ends_with(ending));
            assert!(found, "{word}");
        } else {
            assert!(root().join(word).is_file(), "{word}");
        }
    }
    assert!(count > 10, "{count}");
}

/// The image is made without the Dockerfile, from what its last stage says.
#[test]
fn the_image_of_a_release_runs_as_the_dockerfile_says() {
    let Some(output) = run("python3", &["deploy/packaging/image", "--config"]) else {
        println!("no python3 on this machine: not checked");
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let config: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(config["User"], "10001:10001");
    assert_eq!(config["StopSignal"], "SIGTERM");
    assert_eq!(config["Entrypoint"][0], "/usr/local/bin/sluiced");
    assert_eq!(config["Cmd"][0], "run");
    assert_eq!(config["Env"][1], "SLUICED__ADMIN__LISTEN=0.0.0.0:9464");
    assert!(config["ExposedPorts"]["9464/tcp"].is_object(), "{config}");
    assert_eq!(config["Healthcheck"]["Test"][2], "health");
    assert_eq!(config["Healthcheck"]["Interval"], 15_000_000_000_u64);
    let licences = &config["Labels"]["org.opencontainers.image.licenses"];
    assert_eq!(licences, "MIT OR Apache-2.0");
}

/// Each library with its version, its licence and the sum of what was built.
#[test]
fn the_libraries_of_the_program_are_known() {
    let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
    let list = |kind| run("deploy/packaging/libraries", &[kind, &triple]);
    let Some(output) = list("sbom") else {
        println!("no python3 on this machine: not checked");
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let made: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let components = made["components"].as_array().expect("components");
    let find = |name: &str| components.iter().find(|part| part["name"] == name);
    let tokio = find("tokio").expect("it is linked");
    assert_eq!(tokio["licenses"][0]["expression"], "MIT");
    assert_eq!(
        tokio["hashes"][0]["content"].as_str().map(str::len),
        Some(64)
    );
    assert!(find("opentelemetry").is_some(), "of the feature traces");
    for only_tests in ["proptest", "rcgen", "standardwebhooks"] {
        assert!(find(only_tests).is_none(), "{only_tests}");
    }
    let text = list("notices").expect("it ran before").stdout;
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("\ntokio "), "{text:.300}");
    assert!(text.contains("Permission is hereby granted"));
}

/// A wrong call is refused before anything is built.
#[test]
fn the_script_of_releases_says_what_is_wrong() {
    for (arguments, said) in [
        (&["--only", "sparc"][..], "x86_64 or aarch64"),
        (&["--fast"][..], "--fast is not known"),
    ] {
        let output = run("deploy/release", arguments).expect("it runs");
        assert!(!output.status.success());
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(said), "{text}");
    }
}
