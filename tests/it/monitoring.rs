//! A real Prometheus that scrapes real replicas: each query of the dashboard and each rule finds series.

use std::path::Path;

use serde_json::Value;

use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route, file};
use crate::support::messages::body;
use crate::support::prometheus::Prometheus;
use crate::support::rabbit::Rabbit;
use crate::support::recorder::Recorder;
use crate::support::wait::eventually;

const MESSAGES: u64 = 1_500;
const RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/monitoring/alerts.yml");
const DASHBOARD: &str = include_str!("../../monitoring/grafana-dashboard.json");

/// Scrapes these every second. `None`: there is no Prometheus on this machine.
fn scrape(targets: &[String], dir: &Path) -> Option<Prometheus> {
    let text = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{RULES:?}]\n\
         scrape_configs: [{{job_name: sluiced, static_configs: [{{targets: {targets:?}}}]}}]\n"
    );
    Prometheus::start(&file(dir, "prometheus.yml", &text))
}

/// The queries of the panels, with all values selected.
fn queries() -> Vec<(String, String)> {
    let board: Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut queries = Vec::new();
    for panel in board["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().unwrap();
            let query = query.replace("$__rate_interval", "10s");
            let query = query.replace("$route", ".*").replace("$limit", ".*");
            queries.push((panel["title"].to_string(), query));
        }
    }
    queries
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_panel_and_every_rule_finds_its_series() {
    let name = "monitored";
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    broker.declare(name, "quorum").await;
    let downstream = Recorder::accepting().await;
    let mut route = Route::new(name, downstream.address);
    route.limits = vec!["recipient", "provider"];
    let mut config = Config::shared(name, "100/1s", vec![route]);
    config.tables = "[limits.recipient]\nkind = \"gcra\"\nrate = \"1/1s\"\nlost_wait = \"0s\"\n\
                     key = \"{{ body.n }}\"\n"
        .to_owned();
    let mut replicas = [Daemon::start(&config), Daemon::start(&config)];
    let mut targets = Vec::new();
    for replica in &mut replicas {
        targets.push(replica.admin().await.to_string());
    }
    let dir = tempfile::tempdir().unwrap();
    let Some(prometheus) = scrape(&targets, dir.path()) else {
        println!("no prometheus on this machine: not checked");
        return;
    };
    let up = || prometheus.found("up == 1") == 2;
    eventually(LONG, "both replicas are scraped", up).await;
    let messages = (1..=MESSAGES).map(|n| (body(n), lapin::BasicProperties::default()));
    broker.publish(name, messages).await;

    let queries = queries();
    assert!(queries.len() >= 20, "{} queries", queries.len());
    let empty = || {
        let empty = queries
            .iter()
            .filter(|(_, query)| prometheus.found(query) == 0);
        empty.collect::<Vec<_>>()
    };
    let all = tokio::time::timeout(LONG, eventually(LONG * 2, "all", || empty().is_empty()));
    assert!(all.await.is_ok(), "these find nothing: {:#?}", empty());

    // Each rule can be evaluated, and none fires in a healthy fleet.
    let rules = prometheus.rules();
    assert!(rules.len() >= 10, "{} rules", rules.len());
    for rule in rules {
        assert_eq!(rule["health"], "ok", "{rule:#}");
        assert!(rule["state"] != "firing", "{rule:#}");
    }
    for replica in replicas {
        replica
            .stop(&[NEW_SCHEDULE, "nothing is kept on disk"])
            .await;
    }
}
