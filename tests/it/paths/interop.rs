//! SMPP with message centres that others wrote: the libraries `smpp` of npm and `smpp.twisted3` of PyPI. If
//! they are not installed (`tests/interop/install`), the test prints a note and tests nothing.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lapin::BasicProperties;
use serde_json::{Value, json};

use super::{config, holds, queue};
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route, THROTTLED};
use crate::support::process::Leash;
use crate::support::wait::eventually;

/// The centre as a process, and what it has printed.
struct Centre {
    child: std::process::Child,
    _leash: Leash,
    port: u16,
    said: Arc<Mutex<Vec<Value>>>,
}

impl Centre {
    /// A program of `tests/interop`. `None`: what it needs is not installed there.
    fn start(program: [&str; 2], needs: &str) -> Option<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop");
        if !folder.join(needs).exists() {
            return None;
        }
        // Starts a program by its path from that directory.
        let mut command = Command::new("env");
        command.args(program).current_dir(folder);
        let mut child = command.stdout(Stdio::piped()).spawn().ok()?;
        let leash = Leash::on(&child);
        let mut lines = BufReader::new(child.stdout.take()?).lines();
        let first: Value = serde_json::from_str(&lines.next()?.ok()?).ok()?;
        let said = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let line = serde_json::from_str(&line).expect("JSON");
                shared.lock().unwrap().push(line);
            }
        });
        Some(Self {
            child,
            _leash: leash,
            port: u16::try_from(first["port"].as_u64()?).ok()?,
            said,
        })
    }

    /// What it printed with this word.
    fn said(&self, word: &str) -> Vec<Value> {
        let said = self.said.lock().unwrap();
        let with = said.iter().filter(|line| line.get(word).is_some());
        with.cloned().collect()
    }
}

impl Drop for Centre {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_centre_of_npm_understands_what_is_sent_and_is_understood() {
    let centre = Centre::start(["node", "centre.js"], "node_modules/smpp");
    understands("interop-npm", centre).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_centre_of_twisted_understands_what_is_sent_and_is_understood() {
    let python = "venv/bin/python";
    let centre = Centre::start([python, "centre.py"], python);
    understands("interop-twisted", centre).await;
}

async fn understands(name: &'static str, centre: Option<Centre>) {
    let Some(centre) = centre else {
        eprintln!(
            "not tested: run tests/interop/install, which installs message centres of others"
        );
        return;
    };
    let into = &format!("{name}.out");
    let broker = queue(name, "quorum").await;
    broker.declare(into, "quorum").await;
    let long = "ж".repeat(100);
    // The first one is throttled once.
    let texts = ["later", "Hi, €5 {now}", "привет", &long];
    let messages = texts.map(|text| {
        let body = json!({ "id": "an id", "text": text }).to_string();
        (body.into_bytes(), BasicProperties::default())
    });
    broker.publish(name, messages).await;
    let mut route = Route::new(name, ([127, 0, 0, 1], centre.port).into());
    route.smpp = true;
    route.caller = "account".to_owned();
    route.downstream =
        "bind = \"transceiver\"\nregistered_delivery = 1\nenquire_link = \"100ms\"\n".to_owned();
    route.tables = format!(
        "[routes.{name}.results]\nrouting_key = \"{into}\"\non = [\"accepted\", \"receipt\"]\n"
    );
    let daemon = Daemon::start(&config(name, vec![route]));
    // Four results, and a receipt for each of the five segments.
    holds(&broker, into, 9).await;
    eventually(LONG, "all receipts are answered", || {
        centre.said("receipt").len() == 5
    })
    .await;
    // It stays bound while there is nothing to send: the silence itself is what is tested.
    tokio::time::sleep(Duration::from_millis(500)).await;
    daemon.stop(&[NEW_SCHEDULE, THROTTLED]).await;
    eventually(LONG, "it unbinds", || !centre.said("unbind").is_empty()).await;
    assert_eq!(centre.said("error"), [""; 0]);
    assert_eq!(centre.said("throttled").len(), 1);
    let receipts = centre.said("receipt");
    assert!(
        receipts.iter().all(|receipt| receipt["status"] == 0),
        "{receipts:?}"
    );
    let submits = centre.said("submit");
    let mut read: Vec<_> = submits
        .iter()
        .filter(|one| one["part"].is_null())
        .map(|one| one["text"].clone())
        .collect();
    read.sort_by_key(|text| texts.iter().position(|sent| text == sent));
    assert_eq!(read, texts[..3]);
    let mut parts: Vec<_> = submits
        .iter()
        .filter(|one| !one["part"].is_null())
        .collect();
    parts.sort_by_key(|one| one["part"][1].as_u64());
    let joined: String = parts
        .iter()
        .filter_map(|one| one["text"].as_str())
        .collect();
    assert_eq!((parts.len(), joined), (2, long));
    for one in &submits {
        assert_eq!(one["source"], json!(["Test", 5, 0]));
        assert_eq!(one["destination"], json!(["4915112345678", 1, 1]));
    }
}
