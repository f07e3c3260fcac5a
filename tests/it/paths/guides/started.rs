//! The first ten minutes of `docs/getting-started.md`, command by command.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use lapin::BasicProperties;
use serde_json::{Value, json};
use sluiced_provider::{Behaviour, Expect, Provider};

use super::{SLUICED, STARTED, blocks, commands, python, shell, succeeded, succeeds, variables};
use crate::support::broker::Broker;
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE};
use crate::support::rabbit::Rabbit;
use crate::support::wait::{eventually, eventually_async};

/// Stands in for the AMQP library of the publisher: prints what would be published.
const PIKA: &str = r#"
import json
class BasicProperties:
    def __init__(self, **named):
        self.named = named
class Channel:
    def confirm_delivery(self):
        pass
    def basic_publish(self, exchange, routing_key, body, properties):
        print(json.dumps([exchange, routing_key, body, properties.named]))
class BlockingConnection:
    def __init__(self, parameters):
        pass
    def channel(self):
        return Channel()
    def close(self):
        pass
def URLParameters(url):
    return url
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_ten_minutes_run() {
    let queue = "guide-started";
    let provider = Provider::start(
        "127.0.0.1:0".parse().unwrap(),
        Behaviour::judging("100/1s".parse().unwrap()),
    )
    .unwrap();
    let mut user = User {
        broker: Broker::connect(&Rabbit::shared().url()).await,
        queue,
        folder: tempfile::tempdir().unwrap(),
        variables: variables(queue, &provider),
        daemons: Vec::new(),
        sent: Vec::new(),
    };
    symlink(SLUICED, user.folder.path().join("sluiced")).unwrap();
    for line in commands(STARTED) {
        user.enters(line).await;
    }
    let table = |text: &str| text.parse::<toml::Table>().unwrap();
    assert_eq!(
        table(blocks(STARTED, "toml")[0]),
        table(&user.configuration())
    );
    let orders = user.sent.len() as u64 - 1;
    eventually(LONG, "all delivered", || provider.live().unique >= orders).await;
    assert_eq!(user.daemons.len(), 2);
    let declared = [
        NEW_SCHEDULE,
        "nothing is kept on disk",
        "differs from the current policy",
        "dead letter",
    ];
    for daemon in user.daemons {
        daemon.stop(&declared).await;
    }
    let ids = (0..orders).map(|n| format!("order-{n}")).collect();
    let report = provider.report(&Expect::Ids(ids));
    assert_eq!(
        (report.lost, report.unexpected, report.over),
        (Some(0), 0, 0),
        "{report:?}"
    );
}

/// A user that follows the page, in a folder of its own.
struct User {
    broker: Broker,
    queue: &'static str,
    folder: tempfile::TempDir,
    variables: Vec<(String, String)>,
    daemons: Vec<Daemon>,
    /// What they published.
    sent: Vec<(Vec<u8>, BasicProperties)>,
}

impl User {
    fn configuration(&self) -> String {
        fs::read_to_string(self.folder.path().join("sms.toml")).unwrap()
    }

    async fn enters(&mut self, line: &str) {
        let mut line = line.to_owned();
        if line.starts_with("sluiced provider") {
            // The provider of the test is there already.
            return;
        } else if line.ends_with("sluiced run --config sms.toml") {
            let daemon = Daemon::start_with(&self.configuration(), |command| {
                command.envs(self.variables.clone());
            });
            self.daemons.push(daemon);
            return;
        } else if line == "python3 publish.py" {
            return self.publishes().await;
        } else if line == "sluiced status" {
            let admin = self.daemons[0].admin().await;
            line += &format!(" --url http://{admin}");
        } else if line.starts_with("sluiced dead list") {
            let dead = format!("{}.dead", self.queue);
            eventually_async(LONG, "a dead letter", || async {
                let counts = self.broker.counts(&dead).await;
                counts.is_some_and(|(ready, _)| ready == 1)
            })
            .await;
        }
        let mut command = shell(self.folder.path(), self.folder.path(), &line);
        command.envs(self.variables.clone());
        succeeds(&line, command).await;
    }

    async fn publishes(&mut self) {
        self.sent = published(self.folder.path());
        eventually_async(LONG, "a queue", || async {
            self.broker.counts(self.queue).await.is_some()
        })
        .await;
        self.broker.publish(self.queue, self.sent.clone()).await;
    }
}

/// The first messages of the guide's publisher, and its last one.
fn published(folder: &Path) -> Vec<(Vec<u8>, BasicProperties)> {
    let message = |body: &Value, id: &str| {
        let properties = BasicProperties::default().with_message_id(id.into());
        (body.as_str().unwrap().as_bytes().to_vec(), properties)
    };
    fs::write(folder.join("pika.py"), PIKA).unwrap();
    fs::write(folder.join("publish.py"), blocks(STARTED, "python")[0]).unwrap();
    let Some(output) = python(&["publish.py"], folder) else {
        eprintln!("no python3 on this machine: the publisher is not run");
        let order = json!(r#"{"from":"shop-0","text":"Hello"}"#);
        let unknown = json!(r#"{"text":"Who sent this?"}"#);
        return vec![message(&order, "order-0"), message(&unknown, "no-sender")];
    };
    let said = succeeded("publish.py", &output);
    let lines: Vec<Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 10_001);
    let some = lines.iter().take(5).chain(lines.last());
    some.map(|line| {
        assert_eq!((&line[0], &line[1]), (&json!(""), &json!("sms")));
        message(&line[2], line[3]["message_id"].as_str().unwrap())
    })
    .collect()
}
