//! `docs/providers.md` is made of the doubles' files, so what is told of a provider and how its double answers come
//! from one place. Where the page is not as they are, the test says how to write it.

#![allow(
    clippy::unwrap_used,
    reason = "a test may stop at the first surprise, in its own functions too"
)]

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

const PAGE: &str = "docs/providers.md";
/// The way to write it: `SLUICED_WRITE=1 cargo test --test pure providers`.
const WRITE: &str = "SLUICED_WRITE";

const HEAD: &str = "\
# Providers: what they limit, and what they answer

For operators who write the configuration of one of these providers.

For each of these providers there is a configuration, with tests of it:

```sh
sluiced config init --provider twilio --output sms.toml
sluiced test --config sms.toml sms.tests.toml
```

It has the provider's limits, its authentication, what its answers mean, where a wait stands and what a refusal is about,
as documented. Write your account, your own rates and your secrets. A double of each provider, which answers as this page
says, proves it with 40 messages (`tests/it/catalogue.rs`): within the limits nothing is refused (so few messages reach
the limits of APNs, Discord, Postmark, Sinch, Slack, SNS and Telegram: without its limits the same configuration is
refused there); what a limit refuses comes back, is delivered and spends no attempt; what is refused for good becomes a
dead letter with the reason; the provider's id is in the results; and where the provider knows repeats, a call whose
answer is lost is harmless. None of them was run against the provider itself.

This page is made of the files in `crates/provider/doubles`.

**How a fact is marked.** `[page]`: the provider's own page, mostly its first part. `[repo]`: the provider's own
repository (client library, server, OpenAPI), read whole, with the date of its last commit. `[copy]`: the provider's
words, read in a copy on another site: check the page. `[third]`: words of others, a hint and no source.
`[silent]`: looked for, not found. Words in quotes are the source's own.

What a throttle is about decides between `throttled` (mostly the account: the other calls show it), `held` (this
message or recipient) and `throttles = \"<limit>\"` (one key).

| provider | limits | how it says no | when to come back | repeats | receipts |
|---|---|---|---|---|---|
";

/// What a file tells.
#[derive(Deserialize)]
struct Told {
    title: String,
    date: String,
    table: Row,
    fact: Vec<Fact>,
}

#[derive(Deserialize)]
struct Row {
    limits: String,
    refuses: String,
    comes_back: String,
    idempotency: String,
    receipts: String,
    #[serde(default)]
    unclear: Vec<String>,
}

#[derive(Deserialize)]
struct Fact {
    what: String,
    says: String,
    source: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files by their names, in order.
fn told() -> Vec<(String, Told)> {
    let files = fs::read_dir(root().join("crates/provider/doubles")).unwrap();
    let mut paths: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "toml"));
    paths.sort();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        let told = toml::from_str(&text).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        (path.file_stem().unwrap().to_str().unwrap().to_owned(), told)
    };
    paths.into_iter().map(read).collect()
}

/// A text in a cell: on one line, with no bar that ends the cell.
fn cell(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut escaped = String::new();
    let mut before = ' ';
    for letter in line.chars() {
        if letter == '|' && before != '\\' {
            escaped.push('\\');
        }
        escaped.push(letter);
        before = letter;
    }
    escaped
}

fn page() -> String {
    let all = told();
    let mut page = HEAD.to_owned();
    for (name, Told { table, .. }) in &all {
        let Row {
            limits,
            refuses,
            comes_back,
            idempotency,
            receipts,
            ..
        } = table;
        let cells = [limits, refuses, comes_back, idempotency, receipts].map(|text| cell(text));
        writeln!(page, "| [{name}](#{name}) | {} |", cells.join(" | ")).unwrap();
    }
    for (name, told) in &all {
        let (title, date) = (&told.title, &told.date);
        write!(
            page,
            "\n## {name}\n{title}. Looked up on {date}. Configuration: \
             [`config/providers/{name}.toml`](../config/providers/{name}.toml).\n\n\
             | what | fact | source |\n|---|---|---|\n"
        )
        .unwrap();
        for Fact { what, says, source } in &told.fact {
            let cells = [what, says, source].map(|text| cell(text));
            writeln!(page, "| {} |", cells.join(" | ")).unwrap();
        }
        for (number, unclear) in told.table.unclear.iter().enumerate() {
            let head = if number == 0 { "\n**Unclear**:\n" } else { "" };
            writeln!(page, "{head}- {}", cell(unclear)).unwrap();
        }
    }
    let others = root().join("crates/provider/doubles/others.txt");
    page + "\n" + &fs::read_to_string(others).unwrap()
}

#[test]
fn the_page_of_providers_is_as_the_doubles_say() {
    let (path, page) = (root().join(PAGE), page());
    if std::env::var_os(WRITE).is_some() {
        fs::write(&path, &page).unwrap();
    }
    let is = fs::read_to_string(&path).unwrap();
    assert!(
        is == page,
        "{PAGE} is not as crates/provider/doubles; write it with {WRITE}=1 cargo test --test pure providers"
    );
}

/// Each fact has a source, and a configuration says where its numbers are from.
#[test]
fn each_fact_has_a_source() {
    for (name, told) in told() {
        assert!(told.fact.len() >= 5, "{name} has few facts");
        for fact in &told.fact {
            assert!(!fact.source.trim().is_empty(), "{name}: {}", fact.what);
        }
        let config = root().join(format!("config/providers/{name}.toml"));
        let config = fs::read_to_string(config).unwrap();
        let known = ["202", "our choice", "contract"];
        let has = known.iter().any(|word| config.contains(word));
        assert!(
            has,
            "{name}: neither a date of a source nor whose choice its numbers are"
        );
    }
}
