//! Every recipe of the documentation runs as it stands, on real servers.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use lapin::BasicProperties;
use sluiced_provider::{Behaviour, Expect, Provider};

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_recipe_of_the_documentation_runs() {
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    let secrets = tempfile::tempdir().unwrap();
    std::fs::write(secrets.path().join("webhook"), "whsec_aHVudGVyMg==").unwrap();
    std::fs::write(secrets.path().join("smpp-password"), "secret").unwrap();
    let aws = "[default]\naws_access_key_id = AKIDEXAMPLE\naws_secret_access_key = secret\n";
    std::fs::write(secrets.path().join("aws"), aws).unwrap();
    let recipes = recipes();
    assert!(recipes.len() >= 12, "{} recipes found", recipes.len());
    for (number, (heading, recipe)) in recipes.into_iter().enumerate() {
        let rate = "10000/1s".parse().unwrap();
        let provider = Provider::start("127.0.0.1:0".parse().unwrap(), Behaviour::judging(rate));
        let provider = provider.unwrap();
        // The servers and names of this test, and hours that are open whenever it runs.
        let mut text = recipe
            .replace("127.0.0.1:8080", &provider.address().to_string())
            .replace("127.0.0.1:2775", &provider.address().to_string())
            // By this the provider recognizes a message.
            .replace(
                "destination = ",
                "tlvs = { 0x1403 = \"{{ body.id }}\" }\ndestination = ",
            )
            .replace("open = \"08:00-21:00\"", "open = \"00:00-24:00\"");
        // The queue of the results of a recipe.
        let answers = format!("recipe-{number}-answers");
        text = text.replace(
            "routing_key = \"sms.answers\"",
            &format!("routing_key = \"{answers}\""),
        );
        let has_results = text.contains(&answers);
        if has_results {
            broker.declare(&answers, "quorum").await;
        }
        let mut ids = Vec::new();
        for queue in queues(recipe) {
            let ours = format!("recipe-{number}-{queue}");
            text = text.replace(
                &format!("queue = \"{queue}\""),
                &format!("queue = \"{ours}\""),
            );
            broker.declare(&ours, "quorum").await;
            broker
                .publish(&ours, (1..=EACH).map(|n| message(&ours, n)))
                .await;
            ids.extend((1..=EACH).map(|n| format!("{ours}-{n}")));
        }
        // A recipe may have keys of this table.
        if !text.contains("[rabbitmq]\n") {
            text += "\n[rabbitmq]\n";
        }
        let urls = format!("[rabbitmq]\nurls = [\"{}\"]\n", Rabbit::shared().url());
        text = text.replace("[rabbitmq]\n", &urls);
        write!(
            text,
            "\n[redis]\nurl = \"{}\"\nprefix = \"recipe-{number}\"\n[admin]\nlisten = \"127.0.0.1:0\"\n",
            RedisServer::shared().url(),
        )
        .unwrap();
        let daemon = Daemon::start_with(&text, |command| {
            command.env("CREDENTIALS_DIRECTORY", secrets.path());
        });
        let all = ids.len() as u64;
        let what = format!("`{heading}` delivers");
        let done = tokio::time::timeout(
            LONG,
            eventually(LONG * 2, &what, || provider.live().unique >= all),
        );
        assert!(
            done.await.is_ok(),
            "{what} {:?}\n{}",
            provider.live(),
            daemon.log()
        );
        daemon
            // The provider of the tests reports neither what is left nor what was used.
            .stop(&[
                "the schedule was lost",
                "nothing is kept on disk",
                "does not say what is left",
                "its cost stands as it was estimated",
            ])
            .await;
        let report = provider.report(&Expect::Ids(ids));
        assert_eq!(
            (report.lost, report.unexpected),
            (Some(0), 0),
            "{heading}: {report:?}"
        );
        if has_results {
            let results = broker.drain(&answers).await;
            assert_eq!(results.len() as u64, all, "{heading}: each has a result");
        }
    }
}

/// The publisher sets no property at all, as most do at first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_configurations_deliver_messages_without_any_property() {
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    let secrets = tempfile::tempdir().unwrap();
    std::fs::write(secrets.path().join("sms-token"), "a token").unwrap();
    for (name, page) in FIRST {
        let provider = Provider::start(
            "127.0.0.1:0".parse().unwrap(),
            Behaviour::judging("10000/1s".parse().unwrap()),
        )
        .unwrap();
        let text = page.split("```toml\n").nth(1).unwrap_or(page);
        let mut text = text.split("```").next().unwrap().to_owned();
        let queue = format!("first-{name}");
        let redis = RedisServer::shared().url();
        for (theirs, ours) in [
            (
                "amqp://guest:guest@127.0.0.1:5672/%2f",
                &*Rabbit::shared().url(),
            ),
            ("prefix = \"sluiced\"\n", ""),
            (
                "url = \"redis://127.0.0.1:6379/0\"",
                &format!("prefix = \"{queue}\"\nurl = \"{redis}\""),
            ),
            ("[admin]\nlisten = \"127.0.0.1:9464\"", ""),
            ("127.0.0.1:8080", &provider.address().to_string()),
            ("queue = \"sms\"", &format!("queue = \"{queue}\"")),
        ] {
            text = text.replace(theirs, ours);
        }
        text += "\n[admin]\nlisten = \"127.0.0.1:0\"\n";
        broker.declare(&queue, "quorum").await;
        let messages = (1..=EACH).map(|n| message(&queue, n));
        broker.publish(&queue, messages).await;
        let daemon = Daemon::start_with(&text, |command| {
            command.env("CREDENTIALS_DIRECTORY", secrets.path());
        });
        let done = eventually(LONG * 2, name, || provider.live().unique >= EACH);
        let done = tokio::time::timeout(LONG, done).await;
        assert!(done.is_ok(), "{:?}\n{}", provider.live(), daemon.log());
        daemon.stop(&["the schedule was lost"]).await;
        let ids = (1..=EACH).map(|n| format!("{queue}-{n}")).collect();
        let report = provider.report(&Expect::Ids(ids));
        assert_eq!((report.lost, report.unexpected), (Some(0), 0), "{report:?}");
    }
}
