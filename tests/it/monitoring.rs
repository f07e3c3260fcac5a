//! A real Prometheus that scrapes real replicas: each query of the dashboard and each rule finds series.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route, file};
use crate::support::messages::body;
use crate::support::port::free_port;
use crate::support::process::Leash;
use crate::support::rabbit::Rabbit;
use crate::support::recorder::Recorder;
use crate::support::wait::eventually;

const MESSAGES: u64 = 1_500;
const RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/monitoring/alerts.yml");
const DASHBOARD: &str = include_str!("../../monitoring/grafana-dashboard.json");

struct Prometheus {
    port: u16,
    process: Child,
    _leash: Leash,
    _dir: tempfile::TempDir,
}

impl Prometheus {
    /// Scrapes these every second. `None`: there is no Prometheus on this machine.
    fn start(targets: &[String]) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let text = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{RULES:?}]\n\
             scrape_configs: [{{job_name: sluiced, static_configs: [{{targets: {targets:?}}}]}}]\n"
        );
        let config = file(dir.path(), "prometheus.yml", &text);
        let port = free_port();
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                dir.path().join("data").display()
            ))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        Some(Self {
            port,
            _leash: Leash::on(&process),
            process,
            _dir: dir,
        })
    }

    /// The answer of its API, once there is one.
    fn ask(&self, path: &str) -> Option<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .ok()?;
        // In version 1.0 the answer ends with the connection.
        write!(stream, "GET {path} HTTP/1.0\r\nhost: x\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }

    /// How many series a query finds.
    fn found(&self, query: &str) -> usize {
        let query: String = url::form_urlencoded::byte_serialize(query.as_bytes()).collect();
        let answer = self.ask(&format!("/api/v1/query?query={query}"));
        let answer = answer.unwrap_or_default();
        answer["data"]["result"].as_array().map_or(0, Vec::len)
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// What the panels ask, as they ask for everything.
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
    let Some(prometheus) = Prometheus::start(&targets) else {
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

    // Each rule can be evaluated, and none fires in a fleet that is well.
    let rules = prometheus.ask("/api/v1/rules").unwrap();
    let groups = rules["data"]["groups"].as_array().unwrap().iter();
    let rules: Vec<_> = groups
        .flat_map(|group| group["rules"].as_array().unwrap())
        .collect();
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
