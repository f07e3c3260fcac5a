//! Checks a few rules that no compiler checks. What a crate may know stands in its manifest, and the compiler enforces
//! that.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::links::files;
use crate::names::has_word;

/// The crates that decide or read, and nothing else.
const PURE: [&str; 4] = ["core", "headers", "pdu", "simulation"];

/// What their code must not use. Libraries that do such things are not in their manifests.
const IMPURE: &[&str] = &[
    "std::fs",
    "std::net",
    "std::thread",
    "Instant",
    "SystemTime::now",
];

fn sources(below: &Path) -> Vec<PathBuf> {
    files(below, "rs")
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files of a crate, with their texts.
fn crate_files(name: &str) -> impl Iterator<Item = (PathBuf, String)> {
    let folder = root().join("crates").join(name).join("src");
    sources(&folder).into_iter().map(|path| {
        let text = fs::read_to_string(&path).expect("readable source");
        (path, text)
    })
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

/// The most files that a reader opens to follow one message.
const READ_IN_ORDER: usize = 40;

#[test]
fn the_reading_order_names_files_that_exist() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the page");
    let rows = page.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        let number: usize = cells.next()?.parse().ok()?;
        Some((number, cells.next()?.trim_matches('`'), cells.next()?))
    });
    let files: Vec<(usize, &str, &str)> = rows.collect();
    assert!(
        files.len() > 30 && files.len() <= READ_IN_ORDER,
        "{}",
        files.len()
    );
    for ((number, file, enter_at), place) in files.iter().zip(1..) {
        assert_eq!(*number, place, "{file}");
        let text = fs::read_to_string(root().join(file)).expect(file);
        for name in enter_at.split('`').skip(1).step_by(2) {
            let (_, item) = name.rsplit_once("::").unwrap_or(("", name));
            let kinds = ["fn", "struct", "enum", "trait"];
            let is_there = kinds
                .iter()
                .any(|kind| has_word(&text, &format!("{kind} {item}")));
            assert!(is_there, "{file} has no `{name}`");
        }
    }
    let named: BTreeSet<&str> = files.iter().map(|(_, file, _)| *file).collect();
    assert_eq!(named.len(), files.len(), "a file is named twice");
}

#[test]
fn decisions_are_pure() {
    let mut faults = Vec::new();
    // Whole files of tests may use what they like.
    let is_tests = |path: &Path| {
        path.iter()
            .any(|part| part == "tests" || part == "tests.rs")
    };
    let all = PURE.into_iter().flat_map(crate_files);
    for (path, text) in all.filter(|(path, _)| !is_tests(path)) {
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
    let all = ["src", "crates", "tests", "benches"].map(|folder| sources(&root().join(folder)));
    for path in all.into_iter().flatten() {
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

/// `cargo fmt` leaves comments as they are. Tables have long lines, and the texts of the settings are printed as they
/// stand.
#[test]
fn comments_are_within_their_width() {
    let folders = ["src", "crates", "tests", "benches", "lua"].map(|name| root().join(name));
    let mut wide = Vec::new();
    for path in folders
        .iter()
        .flat_map(|folder| [files(folder, "rs"), files(folder, "lua")].concat())
    {
        let of_settings = path.to_string_lossy().contains("crates/settings/src/types");
        if of_settings {
            continue;
        }
        let text = fs::read_to_string(&path).expect("readable source");
        for (number, line) in (1..).zip(text.lines()) {
            let comment = line.trim_start();
            let is_comment = comment.starts_with("//") || comment.starts_with("--");
            let is_table = comment.starts_with("//! |") || comment.starts_with("/// |");
            if is_comment && !is_table && line.chars().count() > 120 {
                wide.push(format!("{}:{number}", path.display()));
            }
        }
    }
    assert!(wide.is_empty(), "{wide:#?}");
}
