//! The links of the pages: each names a file that is there, and a heading in it. On the site, which is made of
//! the same pages, each link holds too; that is checked where mdBook is installed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// What is not of this repository, or is no page.
const FOREIGN: [&str; 5] = [".git", ".github", "target", "node_modules", "venv"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The files of this repository below a folder, with an ending.
pub(crate) fn files(below: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(below).expect("a folder") {
        let path = entry.expect("an entry").path();
        let is_foreign = FOREIGN.iter().any(|name| path.ends_with(name));
        if path.is_dir() && !is_foreign {
            found.extend(files(&path, ending));
        } else if path.extension().is_some_and(|end| end == ending) {
            found.push(path);
        }
    }
    found
}

/// A path without `.` and `..`, which may name what is not there.
fn plain(path: &Path) -> PathBuf {
    let mut parts = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                parts.pop();
            }
            Component::CurDir => {}
            other => parts.push(other),
        }
    }
    parts
}

/// The lines of a page that are in no block of code.
fn prose(page: &str) -> String {
    let mut fence = None;
    let mut lines = Vec::new();
    for line in page.lines() {
        let mark = ["```", "~~~"]
            .into_iter()
            .find(|mark| line.trim_start().starts_with(mark));
        match (fence, mark) {
            (None, Some(_)) => fence = mark,
            (Some(open), Some(mark)) if open == mark => fence = None,
            (None, None) => lines.push(line),
            (Some(_), _) => {}
        }
    }
    lines.join("\n")
}

/// A paragraph without what stands between backticks.
fn without_code(paragraph: &str) -> String {
    let mut rest = paragraph;
    let mut kept = String::new();
    while let Some(begin) = rest.find('`') {
        let ticks: String = rest[begin..].chars().take_while(|c| *c == '`').collect();
        let after = &rest[begin + ticks.len()..];
        kept.push_str(&rest[..begin]);
        rest = after.split_once(&ticks).map_or(after, |(_, rest)| rest);
    }
    kept + rest
}

/// What a page links to.
fn targets(page: &str) -> Vec<String> {
    let prose = prose(page);
    let mut found = Vec::new();
    for paragraph in prose.split("\n\n") {
        let text = without_code(paragraph);
        let links = text.split("](").skip(1);
        let links = links.filter_map(|rest| rest.split([')', ' ']).next());
        found.extend(links.map(str::to_owned));
    }
    found
}

/// The anchors of a page: each heading in small letters, without marks, with `-` for a space; the second of the
/// same words has `-1`. GitHub and mdBook agree on that.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    let mut found = BTreeSet::new();
    for line in prose(page).lines() {
        let text = line.trim_start_matches('#');
        let Some(text) = text.strip_prefix(' ').filter(|_| line.starts_with('#')) else {
            continue;
        };
        let mut anchor = String::new();
        for c in shown(text.trim()).chars() {
            match c {
                ' ' => anchor.push('-'),
                c if c.is_alphanumeric() || c == '-' || c == '_' => anchor.extend(c.to_lowercase()),
                _ => {}
            }
        }
        let before = times.entry(anchor.clone()).or_default();
        found.insert(match *before {
            0 => anchor,
            n => format!("{anchor}-{n}"),
        });
        *before += 1;
    }
    found
}

/// A heading as it is shown: of a link only its words.
fn shown(heading: &str) -> String {
    let mut parts = heading.split("](");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        text + part.split_once(')').map_or(part, |(_, rest)| rest)
    })
}

/// What is wrong with a link, if anything.
fn fault(page: &Path, text: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let file = if path.is_empty() {
        page.to_owned()
    } else {
        plain(&page.parent().expect("a folder").join(path))
    };
    if !file.starts_with(root()) || !file.is_file() {
        return Some("no such file".to_owned());
    }
    if anchor.is_empty() || file.extension().is_none_or(|end| end != "md") {
        return None;
    }
    let known = if path.is_empty() {
        anchors(text)
    } else {
        anchors(&read(&file))
    };
    let is_known = known.contains(anchor);
    (!is_known).then(|| {
        format!(
            "no such heading; there are {}",
            known.into_iter().collect::<Vec<_>>().join(" ")
        )
    })
}

#[test]
fn every_link_of_the_pages_leads_somewhere() {
    let (mut seen, mut faults) = (0, Vec::new());
    for page in files(root(), "md") {
        let text = read(&page);
        for target in targets(&text) {
            seen += 1;
            if let Some(fault) = fault(&page, &text, &target) {
                faults.push(format!("{}: {target}: {fault}", page.display()));
            }
        }
    }
    assert!(seen > 200, "{seen} links found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The judge of the test above, on a text that stands for a page.
#[test]
fn a_link_that_leads_nowhere_is_found() {
    let page = root().join("docs/limits.md");
    let text = "# A `page`, with [words](limits.md)\n## Twice\n## Twice\n\
        ```text\n## No heading\n[none](none.md)\n```\n`[none](none.md)`\n";
    assert_eq!(targets(text), ["limits.md"]);
    for right in [
        "limits.md",
        "../README.md#figures",
        "#a-page-with-words",
        "#twice-1",
        "https://example.com/none",
    ] {
        assert_eq!(fault(&page, text, right), None, "{right}");
    }
    for wrong in [
        "none.md",
        "limits.md#none",
        "#no-heading",
        "#twice-2",
        "../src",
        "../../outside.md",
    ] {
        assert!(fault(&page, text, wrong).is_some(), "{wrong}");
    }
}

/// A page that is on no list is found by nothing but its search.
#[test]
fn the_site_has_each_page_once() {
    let summary = root().join("docs/SUMMARY.md");
    let folder = summary.parent().expect("a folder");
    let listed: Vec<_> = targets(&read(&summary))
        .iter()
        .map(|page| plain(&folder.join(page)))
        .collect();
    let once: BTreeSet<_> = listed.iter().cloned().collect();
    assert_eq!(once.len(), listed.len(), "a page is listed twice");
    let all = files(root(), "md").into_iter();
    let all: BTreeSet<_> = all.filter(|page| *page != summary).collect();
    let missing: Vec<_> = all.difference(&once).collect();
    assert!(missing.is_empty(), "not in docs/SUMMARY.md: {missing:?}");
}

/// The values of an attribute in a page of the site.
fn values<'a>(html: &'a str, attribute: &str) -> Vec<&'a str> {
    let begin = format!(" {attribute}=\"");
    html.split(&begin)
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .collect()
}

#[test]
fn every_link_of_the_site_leads_somewhere() {
    if Command::new("mdbook").arg("--version").output().is_err() {
        return println!("no mdbook on this machine: not checked");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let site = folder.path().join("site");
    let built = Command::new(root().join("docs/build")).arg(&site).output();
    let built = built.expect("it starts");
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{said}");
    assert!(!said.contains("WARN"), "{said}");

    let book = site.join("book");
    let pages: BTreeMap<PathBuf, String> = files(&book, "html")
        .into_iter()
        .map(|page| (page.clone(), read(&page)))
        .collect();
    let ids: BTreeMap<&PathBuf, BTreeSet<&str>> = pages
        .iter()
        .map(|(page, html)| (page, values(html, "id").into_iter().collect()))
        .collect();
    let (mut seen, mut faults) = (0, Vec::new());
    // A server shows the page of what is not found at any address, so its links begin at the top.
    for (page, html) in pages.iter().filter(|(page, _)| !page.ends_with("404.html")) {
        let links = [values(html, "href"), values(html, "src")].concat();
        for link in links.into_iter().filter(|link| !link.contains(':')) {
            seen += 1;
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let file = match path {
                "" => page.clone(),
                path => plain(&page.parent().expect("a folder").join(path)),
            };
            let is_there = file.is_file()
                && (anchor.is_empty() || ids.get(&file).is_some_and(|ids| ids.contains(anchor)));
            if !is_there {
                faults.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(seen > 500, "{seen} links found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
