//! The catalogue: each configuration of `config/providers` calls a double that answers as that provider is documented.
//!
//! With real servers and the program itself: within the limits nothing is refused. What each of the provider's limits
//! refuses comes back and is delivered. A message that the provider refuses for good is a dead letter with the reason. The
//! provider's id is in the results. Where the provider knows repeats, a call whose answer is lost is harmless.
//!
//! The files are used as they are, but for the addresses, the files of secrets, the names of queues, the results, which
//! are switched on, and waits that nothing says, which are short.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use serde_json::Value;
use sluiced_core::rate::Rate;
use sluiced_provider::{Behaviour, Double, Fleet, Provider};

use crate::support::broker::Broker;
use crate::support::daemon::{Daemon, NEW_SCHEDULE, THROTTLED, file, program};
use crate::support::rabbit::Rabbit;
use crate::support::redis::RedisServer;
use crate::support::wait::eventually_async;

/// For messages that a limit of one a second paces, on a busy machine.
const BOUND: Duration = Duration::from_secs(150);
/// So many messages before the refusals, and as many with them.
const HALF: u32 = 15;
/// So often each limit refuses although it has room.
const REFUSALS: u32 = 3;
/// What a replica may log.
const DECLARED: &[&str] = &[
    NEW_SCHEDULE,
    THROTTLED,
    "dead letter",
    "refuses",
    "no connection to the downstream yet",
    "nothing is kept on disk",
    // A refused message has no id of the provider.
    "a result gets the default body",
    // It refused on purpose.
    "the downstream refused calls though the limit was kept",
    "the answer does not say what is left of the quota",
    "what it used is not known",
];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn providers() -> BTreeSet<String> {
    let files = fs::read_dir(folder("config/providers")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let names = names.filter(|name| !name.ends_with(".tests.toml"));
    names
        .map(|name| name.trim_end_matches(".toml").to_owned())
        .collect()
}

/// A configuration of the catalogue, for the servers of the tests.
struct Adapted {
    text: String,
    queue: String,
    results: String,
}

/// The value of a key that is a text, wherever it stands.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let start = text.find(&format!("{key} = \""))? + key.len() + 4;
    text[start..].split('"').next()
}

fn adapted(name: &str, fleet: &Fleet, to: SocketAddr, dir: &Path) -> Adapted {
    let text = fs::read_to_string(folder("config/providers").join(format!("{name}.toml"))).unwrap();
    for (key, secret) in &fleet.credentials {
        let key = key
            .strip_prefix("secret.")
            .map_or_else(|| format!("{key}_file"), str::to_owned);
        let path = value(&text, &key).unwrap_or_else(|| panic!("{name}: no {key}"));
        let _path = file(
            dir,
            Path::new(path).file_name().unwrap().to_str().unwrap(),
            secret,
        );
    }
    let (head, results) = text
        .split_once("\n#[routes.")
        .expect("results to switch on");
    // The last of the lines that are switched off are the results.
    let results: Vec<_> = format!("#[routes.{results}")
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(key) if !key.starts_with(' ') => key.to_owned(),
            _ => line.to_owned(),
        })
        .collect();
    let results = results.join("\n");
    let (old, queue) = (
        value(head, "queue").unwrap().to_owned(),
        format!("catalogue-{name}"),
    );
    let into = value(&results, "routing_key").unwrap();
    let (begin, downstream) = head.split_once(".downstream]").unwrap();
    let url = downstream.find("\nurl = ").expect("a URL");
    let origin = &downstream[url + downstream[url..].find("https://").unwrap()..];
    let origin = &origin[..8 + origin[8..].find(['/', '"']).unwrap()];
    let downstream = downstream.replace(origin, &format!("http://{to}"));
    let text = format!(
        "{begin}.downstream]{downstream}\n{}",
        results.replace(
            &format!("routing_key = \"{into}\""),
            &format!("routing_key = \"{queue}.out\"")
        )
    )
    .replace(
        "amqp://guest:guest@127.0.0.1:5672/%2f",
        &Rabbit::shared().url(),
    )
    .replace("redis://127.0.0.1:6379/0", &RedisServer::shared().url())
    .replace(
        "#prefix = \"sluiced\"",
        &format!("prefix = \"{queue}\"\nresponse_timeout = \"5s\""),
    )
    .replace(
        &format!("queue = \"{old}\""),
        &format!("queue = \"{queue}\""),
    )
    .replace("/etc/sluiced/secrets", dir.to_str().unwrap());
    let waits = text
        .lines()
        .filter(|line| line.starts_with("throttle_wait = "));
    let waits: Vec<_> = waits.map(str::to_owned).collect();
    let text = waits.iter().fold(text, |text, wait| {
        text.replace(wait, "throttle_wait = \"1s\"")
    });
    Adapted {
        text: format!("{text}\n[admin]\nlisten = \"127.0.0.1:0\"\n"),
        results: format!("{queue}.out"),
        queue,
    }
}

fn messages(fleet: &Fleet, which: std::ops::Range<u32>) -> Vec<(Vec<u8>, BasicProperties)> {
    let made = |text: &str, n| Fleet::made(text, n).expect("a text of the double");
    let message = |n| {
        let mut headers = FieldTable::default();
        for (name, text) in &fleet.headers {
            headers.insert(
                name.as_str().into(),
                AMQPValue::LongString(made(text, n).into()),
            );
        }
        let properties = BasicProperties::default()
            .with_message_id(format!("m-{n}").into())
            .with_headers(headers);
        (made(&fleet.message, n).into_bytes(), properties)
    };
    which.map(message).collect()
}

fn bad(fleet: &Fleet) -> (Vec<u8>, BasicProperties) {
    let like = Fleet {
        message: fleet.bad.clone(),
        headers: fleet
            .bad_headers
            .clone()
            .unwrap_or_else(|| fleet.headers.clone()),
        ..fleet.clone()
    };
    messages(&like, 99..100).remove(0)
}

async fn holds(broker: &Broker, queue: &str, count: u32, daemon: &Daemon) {
    let what = format!("{count} messages in {queue}");
    let waiting = eventually_async(BOUND, &what, || async {
        broker.counts(queue).await.map(|(ready, _)| ready) >= Some(count)
    });
    if tokio::time::timeout(BOUND - Duration::from_secs(1), waiting)
        .await
        .is_err()
    {
        panic!(
            "{what} do not come: {:?}\n{}",
            broker.counts(queue).await,
            daemon.log()
        );
    }
}

/// The texts and numbers in a result that may be the provider's id: all but those that sluiced makes.
fn ids(result: &Value, found: &mut Vec<String>) {
    match result {
        Value::Object(members) => {
            let ours = ["message_id", "status", "route", "verdict", "correlation_id"];
            let theirs = members
                .iter()
                .filter(|(name, _)| !ours.contains(&name.as_str()));
            theirs.for_each(|(_, value)| ids(value, found));
        }
        Value::Array(all) => all.iter().for_each(|value| ids(value, found)),
        Value::String(text) => found.push(text.clone()),
        Value::Number(number) => found.push(number.to_string()),
        Value::Null | Value::Bool(_) => {}
    }
}

async fn proves(name: &str) {
    let text = fs::read_to_string(folder("crates/provider/doubles").join(format!("{name}.toml")));
    let double = Arc::new(Double::parse(&text.unwrap()).unwrap());
    let fleet = double.fleet().expect("a fleet").clone();
    let provider = Provider::start(
        "127.0.0.1:0".parse().unwrap(),
        Behaviour {
            double: Some(Arc::clone(&double)),
            ..Behaviour::judging("1000000/1s".parse::<Rate>().unwrap())
        },
    )
    .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let Adapted {
        text,
        queue,
        results,
    } = adapted(name, &fleet, provider.address(), dir.path());
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    broker.declare(&queue, "quorum").await;
    broker.declare(&results, "quorum").await;
    broker.publish(&queue, messages(&fleet, 0..HALF)).await;
    let mut daemon = Daemon::start_with(&text, |_| {});
    daemon.ready().await;
    holds(&broker, &results, HALF, &daemon).await;
    assert_eq!(
        double.counts(),
        (HALF.into(), 0),
        "within the limits nothing is refused"
    );
    double.refuse_next(REFUSALS);
    if double.knows_repeats() {
        double.lose_next(1);
    }
    broker
        .publish(&queue, messages(&fleet, HALF..2 * HALF))
        .await;
    holds(&broker, &results, 2 * HALF, &daemon).await;
    let limits = u32::try_from(double.limits().count()).unwrap();
    let refused = double.counts().1;
    assert!(
        refused >= u64::from(REFUSALS * limits),
        "{refused} refusals of {limits} limits"
    );
    broker.publish(&queue, [bad(&fleet)]).await;
    let dead = format!("{queue}.dead");
    holds(&broker, &dead, 1, &daemon).await;
    let taken = provider.taken();
    assert_eq!(taken.len(), 2 * HALF as usize);
    assert!(taken.values().all(|times| *times == 1), "none twice");
    let lost = u64::from(double.knows_repeats());
    let log = daemon.stop(DECLARED).await;
    // Only the call whose answer was lost has spent an attempt: no refusal has.
    let again = log.lines().filter(|line| {
        let line: Value = serde_json::from_str(line).unwrap_or_default();
        line["message"] == "call" && line["attempt"].as_u64() > Some(1)
    });
    assert_eq!(again.count() as u64, lost, "{log}");
    let (_, letter) = broker.drain(&dead).await.remove(0);
    let headers = letter.headers().as_ref().expect("headers").inner();
    let text = |name: &str| match headers.get(name) {
        Some(AMQPValue::LongString(text)) => text.to_string(),
        other => panic!("{name}: {other:?}"),
    };
    assert_eq!(text("x-sluiced-reason"), "rejected");
    let detail = text("x-sluiced-detail");
    assert!(detail.starts_with(&fleet.dead_reason), "{detail}");
    let mut seen = BTreeSet::new();
    for (body, _) in broker.drain(&results).await {
        let result: Value = serde_json::from_slice(&body).expect("JSON");
        if result["message_id"] == "m-99" {
            continue;
        }
        let mut all = Vec::new();
        ids(&result, &mut all);
        // Codes and numbers of parts are shorter.
        let like = all.iter().filter(|id| id.starts_with(&fleet.id));
        let id = like.max_by_key(|id| id.len());
        let id = id.unwrap_or_else(|| panic!("no id `{}…` in {result}", fleet.id));
        assert!(seen.insert(id.clone()), "{id} is in two results");
    }
    assert_eq!(seen.len(), 2 * HALF as usize);
}

macro_rules! providers {
    ($($test:ident = $name:literal),* $(,)?) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            proves($name).await;
        })*

        #[test]
        fn none_is_left_out() {
            // The message centre is a double of its own, with the tests of SMPP.
            let here = BTreeSet::from(["smpp-generic".to_owned(), $($name.to_owned()),*]);
            assert_eq!(here, providers());
        }
    };
}

providers! {
    anthropic = "anthropic",
    apns = "apns",
    aws_sns = "aws-sns",
    bird = "bird",
    discord = "discord",
    fcm = "fcm",
    github = "github",
    infobip = "infobip",
    openai = "openai",
    postmark = "postmark",
    sendgrid = "sendgrid",
    shopify = "shopify",
    sinch = "sinch",
    slack = "slack",
    telegram = "telegram",
    twilio = "twilio",
    vonage = "vonage",
}

#[test]
fn each_configuration_is_as_its_own_tests_say() {
    for name in providers() {
        let path = |end: &str| folder("config/providers").join(format!("{name}{end}"));
        let (config, tests) = (path(".toml"), path(".tests.toml"));
        let mut command = program(&["test", "--quiet", "--config"]);
        let ran = command.arg(config).arg(tests).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        let complaint = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{name}: {said}{complaint}");
    }
}
