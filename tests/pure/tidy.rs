//! Checks the walls inside the daemon, and a few rules that no compiler checks. What a crate may know stands in its
//! manifest, and the compiler enforces that.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The rooms of the daemon that know no backend, and which crates and rooms each may name.
const ROOMS: &[(&str, &[&str])] = &[
    (
        "pipeline",
        &["core", "ports", "settings", "telemetry", "template"],
    ),
    ("status", &["core", "ports", "telemetry"]),
    ("admin", &["status", "telemetry"]),
];

/// The crates.
const CRATES: &[&str] = &[
    "amqp",
    "core",
    "downstream",
    "ports",
    "provider",
    "settings",
    "simulation",
    "store",
    "telemetry",
    "template",
];

/// What code that decides must not use.
const IMPURE: &[&str] = &[
    "tokio",
    "std::fs",
    "std::net",
    "std::thread",
    "Instant",
    "SystemTime::now",
    "rand::",
];

fn sources(below: &Path) -> Vec<PathBuf> {
    files(below, "rs")
}

fn files(below: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(below).expect("a folder of the source") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.extension().is_some_and(|end| end == ending) {
            found.push(path);
        }
    }
    found
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The source of a crate, or of a room of the daemon.
fn folder(name: &str) -> PathBuf {
    match CRATES.contains(&name) {
        true => root().join("crates").join(name).join("src"),
        false => root().join("src").join(name),
    }
}

fn room(name: &str) -> Vec<(PathBuf, String)> {
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("readable source");
        (path, text)
    };
    sources(&folder(name)).into_iter().map(read).collect()
}

/// The code of a file without its comments and its tests.
fn code(text: &str) -> String {
    let text = text
        .split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or_default();
    let bare = |line: &&str| !line.trim_start().starts_with("//");
    text.lines().filter(bare).collect::<Vec<_>>().join("\n")
}

/// The crates and the rooms of the daemon that code names.
fn names(code: &str) -> BTreeSet<String> {
    let first = |rest: &str| -> String {
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
        rest[..end.unwrap_or(rest.len())].to_owned()
    };
    let crates = code.split("sluiced_").skip(1).map(first);
    let crates = crates.filter(|name| CRATES.contains(&name.as_str()));
    let rooms = code.split("crate::").skip(1).map(first);
    crates.chain(rooms).collect()
}

/// Only `wire` and `cli` name the backends.
#[test]
fn rooms_of_the_daemon_name_only_what_the_architecture_allows() {
    let mut faults = Vec::new();
    for (name, allowed) in ROOMS {
        for (path, text) in room(name) {
            let used = names(&code(&text));
            for other in used.iter().filter(|other| other != name) {
                if !allowed.contains(&other.as_str()) {
                    faults.push(format!("{} names {other}", path.display()));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn decisions_are_pure() {
    let mut faults = Vec::new();
    for (path, text) in room("core") {
        // Whole files of tests may use what they like.
        if path.file_stem().is_some_and(|stem| stem == "tests") {
            continue;
        }
        let code = code(&text);
        for word in IMPURE {
            if code.contains(word) {
                faults.push(format!("{} names {word}", path.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_module_says_what_it_is_for() {
    let all = ["src", "crates"].map(|folder| sources(&root().join(folder)));
    // A file of tests is documented by the names of its tests.
    let is_tests = |path: &PathBuf| path.file_stem().is_some_and(|stem| stem == "tests");
    for path in all.into_iter().flatten().filter(|path| !is_tests(path)) {
        let text = fs::read_to_string(&path).expect("readable source");
        assert!(
            text.starts_with("//!"),
            "{} opens without a comment",
            path.display()
        );
    }
}

#[test]
fn every_script_says_its_keys_arguments_reply_and_invariant() {
    let folder = root().join("lua");
    for path in files(&folder, "lua") {
        let text = fs::read_to_string(&path).expect("readable script");
        let head: String = text
            .lines()
            .take_while(|line| line.starts_with("--"))
            .collect::<Vec<_>>()
            .join("\n");
        for word in ["KEYS", "ARGV", "eply", "nvariant"] {
            assert!(
                head.contains(word),
                "{} does not name its {word}",
                path.display()
            );
        }
    }
}

/// The names between backticks in the comments of a text.
fn named(text: &str) -> Vec<&str> {
    let comments = text.lines().map(str::trim_start);
    let comments = comments.filter(|line| line.starts_with("//") || line.starts_with("--"));
    // Every other part of a line stands between them.
    comments
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .collect()
}

/// After a file or a module is renamed, comments must not name it as before.
#[test]
fn comments_name_files_and_modules_that_exist() {
    let root = root();
    let folders = [
        "src",
        "crates",
        "tests",
        "benches",
        "lua",
        "config",
        "docs",
        "monitoring",
        "systemd",
    ];
    let endings = ["rs", "lua", "md", "toml", "yml", "html"];
    let all = |ending| {
        folders
            .iter()
            .flat_map(move |folder| files(&root.join(folder), ending))
    };
    let mut known: Vec<PathBuf> = endings.iter().flat_map(|ending| all(*ending)).collect();
    known.extend(
        ["README.md", "ARCHITECTURE.md", "Cargo.toml", "clippy.toml"].map(|name| root.join(name)),
    );
    let is_file = |name: &str| {
        let ends = endings.iter().any(|end| name.ends_with(&format!(".{end}")));
        let plain = name
            .chars()
            .all(|c| c.is_alphanumeric() || "_-./".contains(c));
        ends && plain && !name.starts_with('.')
    };
    // `core::limits` and `pipeline::send` are modules; what follows them may be anything.
    let is_missing = |name: &str| {
        let mut parts = name.split("::");
        let (Some(first), Some(second)) = (parts.next(), parts.next()) else {
            return false;
        };
        let is_room = CRATES.contains(&first) || root.join("src").join(first).is_dir();
        let is_module = second.starts_with(|c: char| c.is_lowercase())
            && second.chars().all(|c| c.is_alphanumeric() || c == '_');
        let room = folder(first);
        let text = || {
            fs::read_to_string(room.join("mod.rs"))
                .or_else(|_| fs::read_to_string(room.join("lib.rs")))
        };
        is_room
            && is_module
            && !room.join(format!("{second}.rs")).exists()
            && !room.join(second).exists()
            && !text().is_ok_and(|text| text.contains(&format!("fn {second}(")))
    };
    let mut faults = Vec::new();
    for path in ["rs", "lua"].into_iter().flat_map(all) {
        let text = fs::read_to_string(&path).expect("readable source");
        for name in named(&text) {
            let name = name.trim();
            let gone = is_file(name) && !known.iter().any(|path| path.ends_with(name));
            if gone || is_missing(name) {
                faults.push(format!("{}: `{name}`", path.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
