//! The alerts, their runbook and the dashboard: they name only metrics that are exported, each alert has
//! its entry and its tests, and promtool runs these where it is installed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use sluiced::wire::all_metrics;
use sluiced_telemetry::MetricKind;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// What follows `mark` on each line that begins with it.
fn after<'a>(text: &'a str, mark: &str) -> BTreeSet<&'a str> {
    let lines = text.lines().map(str::trim_start);
    lines.filter_map(|line| line.strip_prefix(mark)).collect()
}

/// The names of series: `sluiced_…`, without those of recording rules (`limit:sluiced_…`).
fn series(text: &str) -> BTreeSet<&str> {
    let part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let words = text.split(|c: char| !part(c));
    words.filter(|word| word.starts_with("sluiced_")).collect()
}

#[test]
fn every_series_that_is_asked_for_is_exported() {
    let mut exported = BTreeSet::new();
    for metric in all_metrics() {
        exported.insert(metric.name.to_owned());
        if matches!(metric.kind, MetricKind::Histogram(_)) {
            exported.extend(["_bucket", "_sum", "_count"].map(|end| metric.name.to_owned() + end));
        }
    }
    for entry in fs::read_dir(root().join("monitoring")).expect("the folder is there") {
        let path = entry.expect("an entry").path();
        let text = fs::read_to_string(&path).expect("it is text");
        let asked = series(&text);
        assert!(!asked.is_empty(), "{}", path.display());
        for name in asked {
            assert!(exported.contains(name), "{}: {name}", path.display());
        }
    }
    for page in ["docs/runbook.md", "docs/monitoring.md"] {
        for name in series(&read(page)) {
            assert!(exported.contains(name), "{page}: {name}");
        }
    }
    // The state of a replica is made of metrics: their names stand there as text.
    let code = read("crates/status/src/sample.rs");
    let texts = code.split('"').skip(1).step_by(2);
    let names: Vec<_> = texts.filter(|text| text.starts_with("sluiced_")).collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        assert!(exported.contains(name), "sample.rs: {name}");
    }
}

#[test]
fn every_alert_has_a_runbook_entry_and_tests() {
    let (rules, tests) = (
        read("monitoring/alerts.yml"),
        read("monitoring/alerts_test.yml"),
    );
    let (page, table) = (read("docs/runbook.md"), read("docs/monitoring.md"));
    let alerts = after(&rules, "- alert: ");
    assert_eq!(alerts, after(&page, "## "), "the entries of the runbook");
    let links = after(&rules, "runbook: ");
    for alert in &alerts {
        let link = format!("docs/runbook.md#{}", alert.to_lowercase());
        assert!(
            links.contains(link.as_str()),
            "{alert} does not link to its entry"
        );
        assert!(
            table.contains(&format!("`{alert}`")),
            "monitoring.md has no {alert}"
        );
        let fires = format!("alertname: {alert}\n        exp_alerts:");
        assert!(tests.contains(&fires), "no test in which {alert} fires");
        let silent = format!("alertname: {alert}}}");
        assert!(
            tests.contains(&silent),
            "no test in which {alert} is silent"
        );
    }
}

#[test]
fn promtool_accepts_the_rules_and_their_tests_pass() {
    let monitoring = root().join("monitoring");
    for arguments in [
        ["check", "rules", "alerts.yml"],
        ["test", "rules", "alerts_test.yml"],
    ] {
        let done = Command::new("promtool")
            .args(arguments)
            .current_dir(&monitoring)
            .output();
        let Ok(output) = done else {
            println!("no promtool on this machine: not checked");
            return;
        };
        let said = [output.stdout, output.stderr].concat();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&said)
        );
    }
}

/// Panels have queries and do not cover each other.
#[test]
fn the_dashboard_is_whole() {
    let text = fs::read_to_string(Path::new(&root()).join("monitoring/grafana-dashboard.json"));
    let board: Value = serde_json::from_str(&text.expect("it is there")).expect("it is JSON");
    let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
    for panel in board["panels"].as_array().expect("panels") {
        let title = &panel["title"];
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{title}");
        let at = |name: &str| {
            panel["gridPos"][name]
                .as_u64()
                .expect("a place on the grid")
        };
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(
                    x < 24 && cells.insert((x, y)),
                    "{title} covers another panel"
                );
            }
        }
        if panel["type"] != "row" {
            let targets = panel["targets"].as_array().expect("queries");
            let asks = |target: &Value| {
                target["expr"]
                    .as_str()
                    .is_some_and(|e| e.contains("sluiced_"))
            };
            assert!(!targets.is_empty() && targets.iter().all(asks), "{title}");
        }
    }
}

/// An import replaces `${DS_PROMETHEUS}` by the chosen data source. A provisioned dashboard keeps the words, and
/// Grafana takes the first data source where a variable has a value that is none: so only that variable has them.
#[test]
fn the_dashboard_can_be_imported_and_provisioned() {
    let text = read("monitoring/grafana-dashboard.json");
    let board: Value = serde_json::from_str(&text).expect("it is JSON");
    // Grafana and its catalogue of dashboards give these.
    for name in ["id", "gnetId"] {
        assert_eq!(board.get(name), Some(&Value::Null), "{name}");
    }
    let inputs = board["__inputs"].as_array().expect("inputs");
    assert_eq!(inputs.len(), 1);
    let chosen = format!("${{{}}}", inputs[0]["name"].as_str().expect("a name"));
    let variable = &board["templating"]["list"][0];
    assert_eq!(variable["type"], "datasource");
    assert_eq!(variable["query"], inputs[0]["pluginId"]);
    assert_eq!(
        variable["current"],
        json!({ "text": chosen, "value": chosen })
    );
    assert_eq!(text.matches(&chosen).count(), 2);

    let source = json!({ "type": "prometheus", "uid": "${datasource}" });
    assert_eq!(variable["name"], "datasource");
    let mut kinds = BTreeSet::new();
    for panel in board["panels"].as_array().expect("panels") {
        if panel["type"] == "row" {
            continue;
        }
        kinds.insert(panel["type"].as_str().expect("a kind"));
        let targets = panel["targets"].as_array().expect("queries").iter();
        for asked in targets.chain([panel]) {
            assert_eq!(asked["datasource"], source, "{}", panel["title"]);
        }
    }
    let needed = board["__requires"]
        .as_array()
        .expect("what it needs")
        .iter();
    let needed = needed.filter(|part| part["type"] == "panel");
    let needed: BTreeSet<_> = needed.filter_map(|part| part["id"].as_str()).collect();
    assert_eq!(needed, kinds);
}
