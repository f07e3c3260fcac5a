//! The modules of the pipeline import in the direction that its first page draws: downwards in the list of layers, or
//! to the right in a line.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::links::files;

/// The layers in the page of a crate, each with its modules from left to right.
fn layers(page: &str) -> Vec<Vec<&str>> {
    let drawing = page
        .split("//! ```text\n//! pipeline\n")
        .nth(1)
        .expect("the drawing of the layers");
    let lines = drawing.lines().take_while(|line| !line.contains("```"));
    let below = lines.map(|line| {
        let modules = line.trim_start_matches("//!").split_whitespace();
        modules.collect()
    });
    std::iter::once(vec!["pipeline"]).chain(below).collect()
}

/// The modules of the crate that a file names, by `crate::` or by as many `super::` as lead to the root of the crate.
fn imports(text: &str, depth: usize) -> BTreeSet<String> {
    let product = text.split("#[cfg(test)]\nmod tests").next().unwrap_or("");
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    let code: Vec<&str> = product.lines().filter(is_code).collect();
    let code = code.join(" ");
    let mut found = BTreeSet::new();
    for start in ["crate::".to_owned(), "super::".repeat(depth)] {
        for (at, _) in code.match_indices(&start) {
            let (before, after) = (&code[..at], &code[at + start.len()..]);
            let is_longer = before.ends_with("super::") || after.starts_with("super::");
            if !is_longer && !before.ends_with("(in ") {
                found.extend(first_names(after));
            }
        }
    }
    // Types that the crate shows are no modules.
    found.retain(|name| name.starts_with(char::is_lowercase));
    found
}

/// The name that a path goes on with, or all of them if a list in braces follows.
fn first_names(path: &str) -> Vec<String> {
    let name = |text: &str| {
        let is_part = |c: &char| c.is_alphanumeric() || *c == '_';
        text.trim_start().chars().take_while(is_part).collect()
    };
    let Some(list) = path.strip_prefix('{') else {
        return vec![name(path)];
    };
    let (mut level, mut names) = (1, vec![name(list)]);
    for (at, c) in list.char_indices() {
        match c {
            '{' => level += 1,
            '}' => level -= 1,
            ',' if level == 1 => names.push(name(&list[at + 1..])),
            _ => {}
        }
        if level == 0 {
            break;
        }
    }
    names
}

#[test]
fn modules_of_the_pipeline_import_in_one_direction() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/pipeline/src");
    let page = fs::read_to_string(folder.join("lib.rs")).expect("the page");
    let layers = layers(&page);
    let place = |module: &str| {
        layers.iter().zip(0..).find_map(|(line, layer)| {
            let column = line.iter().position(|name| *name == module)?;
            Some((layer, column))
        })
    };
    let (mut checked, mut wrong) = (0, Vec::new());
    for path in files(&folder, "rs") {
        let inside = path.strip_prefix(&folder).expect("it is below");
        let parts: Vec<_> = inside.components().collect();
        let first = Path::new(&parts[0]).with_extension("");
        let module = first.to_str().expect("a name");
        if module == "lib" || inside.ends_with("tests.rs") {
            continue;
        }
        let from = place(module).unwrap_or_else(|| panic!("`{module}` is in no layer"));
        let text = fs::read_to_string(&path).expect("readable source");
        for to in imports(&text, parts.len()) {
            checked += 1;
            if to != module && place(&to).is_none_or(|at| at <= from) {
                wrong.push(format!("{}: {to}", inside.display()));
            }
        }
    }
    assert!(checked > 100, "{checked}");
    assert!(
        wrong.is_empty(),
        "upwards, to the left, or in no layer: {wrong:#?}"
    );
}

#[test]
fn all_forms_of_imports_are_read() {
    let text = "use super::{a, b::{c, d}, Type};\nuse crate::e::f;\n// use crate::comment;\n\
                use super::super::other;\nlet x = crate::g(crate::h::I);\n#[cfg(test)]\nmod tests {\nuse crate::t;";
    let found = imports(text, 1);
    let found: Vec<&str> = found.iter().map(String::as_str).collect();
    assert_eq!(found, ["a", "b", "e", "g", "h"]);
}
