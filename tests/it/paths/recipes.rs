//! Every recipe of the documentation runs as it stands, on real servers.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use lapin::BasicProperties;
use sluiced_provider::{Behaviour, Expect, Provider};
use tempfile::TempDir;

use crate::support::broker::Broker;
use crate::support::daemon::{Daemon, LONG};
use crate::support::rabbit::Rabbit;
use crate::support::redis::RedisServer;
use crate::support::wait::eventually;

const PAGE: &str = include_str!("../../../docs/recipes.md");
const EACH: u64 = 6;
/// Other files that a new user starts with.
const FIRST: [(&str, &str); 2] = [
    ("README", include_str!("../../../README.md")),
    ("sms.toml", include_str!("../../../config/sms.toml")),
];

/// The configurations of the page, under their headings.
pub(super) fn recipes() -> Vec<(&'static str, &'static str)> {
    PAGE.split("\n## ")
        .skip(1)
        .map(|section| {
            let (heading, rest) = section.split_once('\n').unwrap();
            let (_, block) = rest.split_once("```toml\n").unwrap();
            (heading, block.split_once("```").unwrap().0)
        })
        .collect()
}

/// The values of the keys `queue`, each once.
fn queues(recipe: &str) -> BTreeSet<&str> {
    let values = recipe
        .lines()
        .filter_map(|line| line.strip_prefix("queue = \""));
    values.filter_map(|rest| rest.strip_suffix('"')).collect()
}

/// Messages of one sender; every second one has two segments.
fn message(queue: &str, n: u64) -> (Vec<u8>, BasicProperties) {
    let text = "Your code is 123456. ".repeat(if n.is_multiple_of(2) { 9 } else { 1 });
    let mut body = serde_json::json!({
        "id": format!("{queue}-{n}"), "to": format!("+49155501{n:05}"), "from": "ACME", "text": text,
        "api_key": format!("key-{}", n % 2), "country": "DE", "tenant": if n.is_multiple_of(2) { "acme" } else { "other" },
        "ip": "192.0.2.1", "timezone": "Europe/Berlin", "messages": [{ "role": "user", "content": "Say hello." }],
    });
    if n.is_multiple_of(2) {
        body["user"] = "ann".into();
    }
    let properties = BasicProperties::default().with_message_id(format!("{queue}-{n}").into());
    (body.to_string().into_bytes(), properties)
}

/// The same, without an id.
fn bare(queue: &str, n: u64) -> (Vec<u8>, BasicProperties) {
    let (body, _) = message(queue, n);
    (body, BasicProperties::default())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_recipe_of_the_documentation_runs() {
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    let aws = "[default]\naws_access_key_id = AKIDEXAMPLE\naws_secret_access_key = secret\n";
    let secrets = secrets(&[
        ("webhook", "whsec_aHVudGVyMg=="),
        ("smpp-password", "secret"),
        ("aws", aws),
    ]);
    let recipes = recipes();
    assert!(recipes.len() >= 12, "{} recipes found", recipes.len());
    for (number, (heading, recipe)) in recipes.into_iter().enumerate() {
        let provider = generous_provider();
        let mut text = on_servers_of_the_tests(recipe, number, &provider);
        // The queue of the results of a recipe.
        let answers = format!("recipe-{number}-answers");
        let has_results = text.contains(&answers);
        if has_results {
            broker.declare(&answers, "quorum").await;
        }
        let mut ids = Vec::new();
        for queue in queues(recipe) {
            let own = format!("recipe-{number}-{queue}");
            text = text.replace(
                &format!("queue = \"{queue}\""),
                &format!("queue = \"{own}\""),
            );
            ids.extend(fill(&broker, &own, message).await);
        }
        let all = ids.len() as u64;
        let what = format!("`{heading}` delivers");
        // The provider of the tests reports neither what is left nor what was used.
        let declared = [
            "the schedule was lost",
            "nothing is kept on disk",
            "does not say what is left",
            "its cost stands as it was estimated",
        ];
        delivers(&text, &secrets, &provider, ids, &what, &declared).await;
        if has_results {
            let results = broker.drain(&answers).await;
            assert_eq!(results.len() as u64, all, "{heading}: each has a result");
        }
    }
}

/// A directory of secrets, by their names.
fn secrets(contents: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, secret) in contents {
        std::fs::write(dir.path().join(name), secret).unwrap();
    }
    dir
}

/// No recipe is as fast as it allows.
fn generous_provider() -> Provider {
    let judging = Behaviour::judging("10000/1s".parse().unwrap());
    Provider::start("127.0.0.1:0".parse().unwrap(), judging).unwrap()
}

/// With the servers and names of this test, and hours that are open whenever it runs. The queues are still those of the
/// recipe.
fn on_servers_of_the_tests(recipe: &str, number: usize, provider: &Provider) -> String {
    let address = provider.address().to_string();
    let mut text = recipe
        .replace("127.0.0.1:8080", &address)
        .replace("127.0.0.1:2775", &address)
        // By this the provider recognizes a message.
        .replace(
            "destination = ",
            "tlvs = { 0x1403 = \"{{ body.id }}\" }\ndestination = ",
        )
        .replace("open = \"08:00-21:00\"", "open = \"00:00-24:00\"")
        .replace(
            "routing_key = \"sms.answers\"",
            &format!("routing_key = \"recipe-{number}-answers\""),
        );
    // A recipe may have keys of this table.
    if !text.contains("[rabbitmq]\n") {
        text += "\n[rabbitmq]\n";
    }
    let urls = format!("[rabbitmq]\nurls = [\"{}\"]\n", Rabbit::shared().url());
    text = text.replace("[rabbitmq]\n", &urls);
    write!(
        text,
        "\n[redis]\nurl = \"{}\"\nresponse_timeout = \"5s\"\nprefix = \"recipe-{number}\"\n[admin]\nlisten = \"127.0.0.1:0\"\n",
        RedisServer::shared().url(),
    )
    .unwrap();
    text
}

/// Declares a queue and publishes to it. Returns the ids of the messages.
async fn fill(
    broker: &Broker,
    queue: &str,
    message: fn(&str, u64) -> (Vec<u8>, BasicProperties),
) -> Vec<String> {
    broker.declare(queue, "quorum").await;
    let messages = (1..=EACH).map(|n| message(queue, n));
    broker.publish(queue, messages).await;
    (1..=EACH).map(|n| format!("{queue}-{n}")).collect()
}

/// A daemon with this configuration delivers each message.
async fn delivers(
    text: &str,
    secrets: &TempDir,
    provider: &Provider,
    ids: Vec<String>,
    what: &str,
    declared: &[&str],
) {
    let daemon = Daemon::start_with(text, |command| {
        command.env("CREDENTIALS_DIRECTORY", secrets.path());
    });
    let all = ids.len() as u64;
    let done = eventually(LONG * 2, what, || provider.live().unique >= all);
    let done = tokio::time::timeout(LONG, done).await;
    assert!(
        done.is_ok(),
        "{what} {:?}\n{}",
        provider.live(),
        daemon.log()
    );
    daemon.stop(declared).await;
    let report = provider.report(&Expect::Ids(ids));
    assert_eq!(
        (report.lost, report.unexpected),
        (Some(0), 0),
        "{what}: {report:?}"
    );
}

/// The publisher sets no property at all, as most do at first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_configurations_deliver_messages_without_any_property() {
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    let secrets = secrets(&[("sms-token", "a token")]);
    for (name, page) in FIRST {
        let provider = generous_provider();
        let text = page.split("```toml\n").nth(1).unwrap_or(page);
        let mut text = text.split("```").next().unwrap().to_owned();
        let queue = format!("first-{name}");
        let redis = RedisServer::shared().url();
        for (theirs, own) in [
            (
                "amqp://guest:guest@127.0.0.1:5672/%2f",
                &*Rabbit::shared().url(),
            ),
            ("prefix = \"sluiced\"\n", ""),
            (
                "url = \"redis://127.0.0.1:6379/0\"",
                &format!("prefix = \"{queue}\"\nresponse_timeout = \"5s\"\nurl = \"{redis}\""),
            ),
            ("[admin]\nlisten = \"127.0.0.1:9464\"", ""),
            ("127.0.0.1:8080", &provider.address().to_string()),
            ("queue = \"sms\"", &format!("queue = \"{queue}\"")),
        ] {
            text = text.replace(theirs, own);
        }
        text += "\n[admin]\nlisten = \"127.0.0.1:0\"\n";
        let ids = fill(&broker, &queue, bare).await;
        let declared = ["the schedule was lost"];
        delivers(&text, &secrets, &provider, ids, name, &declared).await;
    }
}
