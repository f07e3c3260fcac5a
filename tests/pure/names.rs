//! Comments and pages name files, modules and items: each of them exists.
//!
//! Problem: such a name is a signpost, and after something was renamed it leads nowhere. No compiler reads comments. So
//! each path in a comment of Rust or Lua is looked up here, and each file or folder between backticks, in pages too:
//!
//! - `lua/admit.lua`, `core/judge`, `pacer.rs`: a file or a folder ends with that. `crates` and `src` may be left out.
//!   The first word of a path without an ending is a folder of the workspace, a crate, or a folder of the same crate.
//! - `core::limits::admission`, `Outcome::label`: a module ends with the beginning, and the code of its file has the
//!   next word. A type is in the code of the crate where it is declared.
//!
//! Names of libraries pass: their first word is in the workspace's manifest, or the code of the file uses it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Where files stand that may be named.
const FOLDERS: [&str; 11] = [
    "benches",
    "config",
    "crates",
    "deploy",
    "docs",
    "lua",
    "monitoring",
    "src",
    "systemd",
    "tests",
    ".ci",
];
/// What the name of a file ends with.
const ENDINGS: [&str; 7] = ["rs", "lua", "md", "toml", "yml", "yaml", "html"];

/// A file whose names are looked up, or that is named.
struct File {
    path: PathBuf,
    text: String,
    /// Without its comments; empty for what is no code.
    code: String,
}

struct Workspace {
    files: Vec<File>,
    /// The ends of all paths, as they may be named.
    places: BTreeSet<String>,
    /// Modules of Rust by their path, with the index of their file.
    modules: Vec<(Vec<String>, usize)>,
    libraries: BTreeSet<String>,
}

fn is_comment(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("//") || line.starts_with("--")
}

impl Workspace {
    fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut paths: Vec<PathBuf> = Vec::new();
        for folder in FOLDERS {
            below(&root.join(folder), &mut paths);
        }
        let top = fs::read_dir(root).expect("the workspace");
        let top = top.map(|entry| entry.expect("an entry").path());
        paths.extend(top.filter(|path| path.is_file()));
        let mut workspace = Self {
            files: Vec::new(),
            places: BTreeSet::new(),
            modules: Vec::new(),
            libraries: libraries(root),
        };
        for path in paths {
            let relative = path.strip_prefix(root).expect("below it").to_owned();
            // Pictures are named, and have no text.
            let text = fs::read_to_string(&path).unwrap_or_default();
            workspace.add(relative, text);
        }
        workspace
    }

    fn add(&mut self, path: PathBuf, text: String) {
        let parts: Vec<String> = path
            .iter()
            .map(|part| part.to_string_lossy().into_owned())
            .collect();
        let short = match parts.split_first() {
            Some((first, rest)) if first == "crates" => {
                let inner = rest.iter().filter(|part| *part != "src");
                inner.cloned().collect()
            }
            Some((first, rest)) if first == "src" || first == "tests" => rest.to_vec(),
            _ => parts.clone(),
        };
        for parts in [&parts, &short] {
            self.add_places(parts);
        }
        let is_code = has_ending(&path, "rs") || has_ending(&path, "lua");
        if has_ending(&path, "rs") {
            self.modules.push((module(short), self.files.len()));
        }
        let lines = text.lines().filter(|line| is_code && !is_comment(line));
        let code = lines.collect::<Vec<_>>().join("\n");
        self.files.push(File { path, text, code });
    }

    /// Each run of parts, with the ending of the file and without it.
    fn add_places(&mut self, parts: &[String]) {
        for from in 0..parts.len() {
            for to in from + 1..=parts.len() {
                let place = parts[from..to].join("/");
                if let Some((bare, _)) = place.rsplit_once('.') {
                    self.places.insert(bare.to_owned());
                }
                self.places.insert(place);
            }
        }
    }

    /// Whether a file or a folder of this name exists. What can be no such name counts as one.
    fn has_place(&self, name: &str, file: &File) -> bool {
        let name = name.trim_end_matches('/');
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
        let is_file = ENDINGS.iter().any(|end| name.ends_with(&format!(".{end}")));
        let first = name.split('/').next().unwrap_or_default();
        let is_folder =
            FOLDERS.contains(&first) || self.is_crate(first) || self.is_module(first, file);
        let is_path = name.contains('/') && is_folder;
        !name.chars().all(is_plain)
            || name.starts_with(['.', '/'])
            || !(is_file || is_path)
            || self.places.contains(name)
    }

    /// Whether it is a crate, or a folder of the daemon or of the tests.
    fn is_crate(&self, name: &str) -> bool {
        let mut modules = self.modules.iter();
        modules.any(|(path, _)| path.len() > 1 && path[0] == name)
    }

    /// Whether it is a folder with modules in the crate of the file.
    fn is_module(&self, name: &str, file: &File) -> bool {
        self.near(file).any(|other| {
            let folder = other.path.parent();
            let mut parts = folder.into_iter().flatten().skip(2);
            has_ending(&other.path, "rs") && parts.any(|part| part == name)
        })
    }

    /// Whether the module or the item of a path exists.
    fn has_item(&self, path: &str, file: &File) -> bool {
        let parts = path
            .split("::")
            .filter(|part| !matches!(*part, "crate" | "self" | "super"));
        let parts: Vec<&str> = parts.collect();
        // One word behind `super` is a link, which rustdoc resolves.
        let [first, second, ..] = parts[..] else {
            return true;
        };
        if first.starts_with(|c: char| c.is_uppercase()) {
            return self.has_member(first, second, file);
        }
        // The longest module counts: `store::memory` is no item of `store`.
        for known in (1..=parts.len()).rev() {
            let files = self.module(&parts[..known]);
            if !files.is_empty() {
                let next = parts.get(known);
                return next.is_none_or(|next| files.iter().any(|file| offers(&file.code, next)));
            }
        }
        let inline = format!("mod {first} {{");
        let mut inline = self.files.iter().filter(|file| file.code.contains(&inline));
        self.libraries.contains(first)
            || file.code.contains(&format!("{first}::"))
            || inline.any(|file| has_word(&file.code, second))
    }

    /// The files of the modules whose path ends with this.
    fn module(&self, end: &[&str]) -> Vec<&File> {
        let found = self.modules.iter().filter(|(path, _)| ends_with(path, end));
        found.map(|(_, at)| &self.files[*at]).collect()
    }

    /// Whether a type has a member; one of a library must be used in the same crate.
    fn has_member(&self, of: &str, member: &str, file: &File) -> bool {
        let is_owner = |file: &&File| {
            let kinds = ["struct", "enum", "trait", "type", "union"];
            kinds
                .iter()
                .any(|kind| has_word(&file.code, &format!("{kind} {of}")))
        };
        let owners: Vec<&File> = self.files.iter().filter(is_owner).collect();
        if owners.is_empty() {
            return self.near(file).any(|other| has_word(&other.code, of));
        }
        owners.iter().any(|owner| {
            let in_tests = is_test(&owner.path);
            let mut files = self
                .near(owner)
                .filter(|other| in_tests || !is_test(&other.path));
            files.any(|other| declares(&other.code, member))
        })
    }

    /// The files of the same crate.
    fn near<'a>(&'a self, file: &File) -> impl Iterator<Item = &'a File> {
        let depth = if file.path.starts_with("crates") {
            2
        } else {
            1
        };
        let house: PathBuf = file.path.iter().take(depth).collect();
        self.files
            .iter()
            .filter(move |other| other.path.starts_with(&house))
    }
}

fn is_test(path: &Path) -> bool {
    path.iter()
        .any(|part| part == "tests" || part == "tests.rs")
}

/// Whether a function, a constant, a field or a variant of this name is declared.
fn declares(code: &str, member: &str) -> bool {
    let is_item = ["fn", "const", "type"]
        .iter()
        .any(|kind| has_word(code, &format!("{kind} {member}")));
    let begins = |line: &str| {
        let line = line.trim_start();
        let line = match line.strip_prefix("pub") {
            Some(rest) => rest.split_once(' ').map_or("", |(_, name)| name),
            None => line,
        };
        line.strip_prefix(member).is_some_and(|rest| {
            let next = rest.trim_start().chars().next();
            next.is_none_or(|next| ",({:=".contains(next))
        })
    };
    is_item || code.lines().any(begins)
}

/// Whether a module has an item of this name, or imports one.
fn offers(code: &str, name: &str) -> bool {
    let kinds = ["struct", "enum", "trait", "union", "mod", "static"];
    let has_kind = |kind: &&str| has_word(code, &format!("{kind} {name}"));
    let mut imports = code.split("use ").skip(1);
    declares(code, name)
        || kinds.iter().any(has_kind)
        || imports.any(|import| has_word(import.split(';').next().unwrap_or_default(), name))
}

fn below(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of the workspace") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => below(&path, found),
            false => found.push(path),
        }
    }
}

fn has_ending(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|end| end == ending)
}

/// The path of a file as that of a module: `limits/once.rs` is `limits::once`, `it/support/mod.rs` is `it::support`.
fn module(mut parts: Vec<String>) -> Vec<String> {
    let name = parts.pop().unwrap_or_default();
    match name.trim_end_matches(".rs") {
        "mod" | "lib" | "main" => {}
        name => parts.push(name.to_owned()),
    }
    parts
}

fn ends_with(path: &[String], end: &[&str]) -> bool {
    let from = path.len().checked_sub(end.len());
    from.is_some_and(|from| {
        path[from..]
            .iter()
            .zip(end)
            .all(|(one, other)| one == other)
    })
}

/// The libraries that the workspace's manifest names, those of the language, and what targets of the log begin with.
fn libraries(root: &Path) -> BTreeSet<String> {
    let manifest = fs::read_to_string(root.join("Cargo.toml")).expect("the manifest");
    let names = manifest.lines().filter_map(|line| line.split_once(" = "));
    let names = names.map(|(name, _)| name.replace('-', "_"));
    names
        .chain(["std", "alloc", "sluiced"].map(str::to_owned))
        .collect()
}

const fn is_part(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

pub(crate) fn has_word(code: &str, word: &str) -> bool {
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

/// The paths with `::` in a line.
fn paths(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split(|c: char| !(is_part(c) || c == ':'));
    let words = words.map(|word| word.trim_matches(':'));
    words.filter(|word| {
        let mut parts = word.split("::");
        word.contains("::") && parts.all(|part| !part.is_empty() && part.chars().all(is_part))
    })
}

/// What stands between backticks in a line.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2).map(str::trim)
}

#[test]
fn comments_and_pages_name_what_exists() {
    let workspace = Workspace::read();
    let mut faults = Vec::new();
    for file in &workspace.files {
        let is_code = !file.code.is_empty();
        if !is_code && !has_ending(&file.path, "md") {
            continue;
        }
        let lines = file.text.lines().enumerate();
        for (at, line) in lines.filter(|(_, line)| !is_code || is_comment(line)) {
            let places = quoted(line).filter(|name| !workspace.has_place(name, file));
            let items = paths(line).filter(|path| is_code && !workspace.has_item(path, file));
            faults.extend(
                places
                    .chain(items)
                    .map(|name| format!("{}:{}: {name}", file.path.display(), at + 1)),
            );
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The names that led nowhere when this was written are found, and those beside them pass.
#[test]
fn a_name_that_leads_nowhere_is_found() {
    let workspace = Workspace::read();
    let here = workspace
        .files
        .iter()
        .find(|file| file.path.ends_with("pipeline/src/admit.rs"));
    let here = here.expect("the file");
    for (path, exists) in [
        ("core::scheduler::answers", true),
        ("core::scheduler::placing", false),
        ("scheduler::placing", false),
        ("core::limits::waiters", false),
        ("limits::admission", true),
        // A call there, and no item.
        ("core::scheduler::answers::map", false),
        ("Outcome::label", true),
        ("Outcome::no_such_name", false),
        ("std::io::Error", true),
        ("tokio::spawn", true),
        ("nowhere::at_all", false),
    ] {
        assert_eq!(workspace.has_item(path, here), exists, "{path}");
    }
    for (place, exists) in [
        ("core/judge", true),
        ("core/judgement", false),
        ("pacer/events", true),
        ("pacer/no_such_name", false),
        ("lua/admit.lua", true),
        ("limits/admit.lua", false),
        ("pacer.rs", true),
        ("core/limits/admission.rs", true),
        ("no_such_file.rs", false),
        ("application/json", true),
    ] {
        assert_eq!(workspace.has_place(place, here), exists, "{place}");
    }
}
