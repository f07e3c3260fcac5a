//! The program itself with the keys of `[redis]`: it runs as the operator configured it.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::secure::{allow, documented, provider, server};
use crate::support::authority::Authority;
use crate::support::daemon::{Config, Daemon, NEW_SCHEDULE, Route, file, program};
use crate::support::recorder::Recorder;
use crate::support::redis::RedisServer;
use crate::support::redis_cluster::RedisCluster;
use crate::support::redis_sentinel::{SERVICE, SentinelGroup};

/// A file that only we can read.
fn secret(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = file(dir, name, text);
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    path
}

/// Checks this `[redis]`, then delivers some messages with it. Returns what the check reported about
/// Redis.
async fn works(redis: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let lines: String = (1..=30).map(|n| format!("{{\"n\":{n}}}\n")).collect();
    let input = file(dir.path(), "in.ndjson", &lines);
    let downstream = Recorder::accepting().await;
    let config = Config {
        tables: format!(
            "[embedded]\ninput = {input:?}\nleftover = {:?}\n[redis]\n{redis}\n",
            dir.path().join("leftover.ndjson")
        ),
        ..Config::embedded("100/1s", vec![Route::new("list", downstream.address)])
    };
    let text = config.text().replace("\"memory\"", "\"redis\"");
    let checked = file(dir.path(), "checked.toml", &text);
    let mut check: Command = program(&["check", "--connect", "--config"]);
    let output = check.arg(&checked).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}\n{text}");
    let mut daemon = Daemon::start_with(&text, |_| {});
    let log = daemon.stopped(&[NEW_SCHEDULE]).await;
    assert_eq!(downstream.count(), 30);
    assert!(!format!("{said}{log}").contains("-secret"), "{said}\n{log}");
    let line = said.lines().find(|line| line.starts_with("redis: "));
    line.expect("a line about Redis").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_by_their_keys() {
    let group = SentinelGroup::start(Some("abc-secret"));
    let dir = tempfile::tempdir().unwrap();
    let servers = secret(dir.path(), "servers", "abc-secret\n");
    let watchers = secret(dir.path(), "watchers", "terces-cba\n");
    let said = works(&format!(
        "mode = \"sentinel\"\nurls = {:?}\nsentinel_service = {SERVICE:?}\n\
         password_file = {servers:?}\nsentinel_password_file = {watchers:?}",
        group.urls()
    ))
    .await;
    assert!(
        said.contains("the primary that the Sentinels name, scripts allowed"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_by_one_seed() {
    let url = &RedisCluster::shared().urls()[2];
    let said = works(&format!("mode = \"cluster\"\nurl = {url:?}")).await;
    assert!(said.contains("a cluster of 3 masters"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_and_a_user_by_their_keys() {
    provider();
    let authority = Authority::new();
    let (server, url) = server(&authority, "yes");
    allow(&server, &documented());
    let client = authority.client();
    let dir = tempfile::tempdir().unwrap();
    let key = secret(dir.path(), "client.key", &client.key);
    let certificate = file(dir.path(), "client.pem", &client.certificate);
    let password = secret(dir.path(), "password", "right-secret\n");
    let said = works(&format!(
        "url = {url:?}\nuser = \"sluiced\"\npassword_file = {password:?}\n\
         ca_file = {:?}\ncert_file = {certificate:?}\nkey_file = {key:?}",
        authority.file("ca.pem")
    ))
    .await;
    assert!(said.contains("one server, scripts allowed"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eviction_is_warned_of() {
    let server = RedisServer::start_with("--maxmemory 50mb --maxmemory-policy allkeys-lru", None);
    let downstream = Recorder::accepting().await;
    let config = Config {
        redis: Some(server.url()),
        prefix: "eviction".to_owned(),
        tables: "[embedded]\ninput = \"/dev/null\"\n".to_owned(),
        ..Config::embedded("100/1s", vec![Route::new("list", downstream.address)])
    };
    let dir = tempfile::tempdir().unwrap();
    let checked = file(dir.path(), "checked.toml", &config.text());
    let mut check = program(&["check", "--connect", "--config"]);
    let output = check.arg(&checked).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        said.contains("warning: maxmemory-policy allkeys-lru may evict limits")
            && said.contains("set maxmemory-policy noeviction"),
        "{said}"
    );
}

/// Keyed limits, with a user that may do what `config/default.toml` lists and nothing else: the whole path
/// of a message, and every command of an operator.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_user_is_enough_for_keyed_limits_and_their_live_control() {
    let server = RedisServer::start();
    let mut rule = documented();
    rule.retain(|word| word != "+cluster|slots");
    allow(&server, &rule);
    let dir = tempfile::tempdir().unwrap();
    let password = secret(dir.path(), "password", "right-secret\n");
    let lines: String = (1..=60)
        .map(|n| format!("{{\"n\":{n},\"to\":\"+4917{}\"}}\n", n % 4))
        .collect();
    let input = file(dir.path(), "in.ndjson", &lines);
    let downstream = Recorder::accepting().await;
    let mut route = Route::new("list", downstream.address);
    route.limits = vec!["account", "recipient", "window", "bucket", "flight"];
    let key = "key = \"{{ body.to }}\"";
    let config = Config {
        tables: format!(
            "[limits.account]\nkind = \"gcra\"\nrate = \"20/1s\"\nburst = 1\n\
             [limits.recipient]\nkind = \"sliding_log\"\nrate = \"30/1s\"\n{key}\n\
             [limits.window]\nkind = \"fixed_window\"\nrate = \"1000/hour\"\n{key}\n\
             [limits.bucket]\nkind = \"token_bucket\"\ncapacity = 50\nrefill = 50\n\
             interval = \"1s\"\n\
             [limits.flight]\nkind = \"concurrency\"\nlimit = 5\n\
             [embedded]\ninput = {input:?}\nleftover = {:?}\n\
             [redis]\nurl = {:?}\nuser = \"sluiced\"\npassword_file = {password:?}\n",
            dir.path().join("leftover.ndjson"),
            server.url(),
        ),
        ..Config::embedded("", vec![route])
    };
    let text = config.text().replace("\"memory\"", "\"redis\"");
    let mut daemon = Daemon::start_with(&text, |_| {});
    daemon.ready().await;
    let path = daemon.config();
    let say = |words: &[&str]| {
        let mut command = program(&["limits"]);
        let output = command
            .args(words)
            .arg("--config")
            .arg(&path)
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8(said).unwrap();
        assert_eq!(output.status.code(), Some(0), "{words:?}: {said}");
        said
    };
    let listed = say(&["list"]);
    for kind in [
        "gcra",
        "sliding_log",
        "fixed_window",
        "token_bucket",
        "concurrency",
    ] {
        assert!(listed.contains(kind), "{kind} in\n{listed}");
    }
    assert!(say(&["pause", "account", "--for", "10m"]).contains("paused for 10m"));
    assert!(say(&["resume", "account"]).contains("resumed"));
    say(&["set", "account", "rate=40/1s", "burst=2"]);
    say(&["set", "bucket", "capacity=40"]);
    say(&["set", "flight", "limit=4"]);
    say(&["set", "window", "rate=2000/hour"]);
    assert!(say(&["show", "recipient", "+49171"]).contains("remaining"));
    assert!(say(&["show", "flight"]).contains("limit         4"));
    let log = daemon
        .stopped(&["file differs from the current policy"])
        .await;
    assert_eq!(downstream.count(), 60);
    assert!(!log.contains("-secret") && !log.contains("NOPERM"), "{log}");
}
