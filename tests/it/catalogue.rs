//! The catalogue: each configuration of `config/providers` calls a double that answers as that provider is documented.
//!
//! With real servers and the program itself: within the limits nothing is refused; without them it is, where so few
//! messages reach one. What each of the provider's limits refuses comes back and is delivered, and spends no attempt. A
//! message that the provider refuses for good is a dead letter with the reason. The provider's id is in the results.
//! Where the provider knows repeats, a call whose answer is lost is harmless.

mod adapted;

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use serde_json::Value;
use sluiced_core::rate::Rate;
use sluiced_provider::{Behaviour, Double, FleetTest, Provider};

use self::adapted::{Adapted, adapted, folder, with_values};
use crate::support::broker::Broker;
use crate::support::daemon::{Daemon, NEW_SCHEDULE, THROTTLED, program};
use crate::support::rabbit::Rabbit;
use crate::support::wait::{eventually, eventually_async};

/// For messages that a limit of one a second paces, on a busy machine.
const BOUND: Duration = Duration::from_secs(150);
/// This many messages of this many keys before the refusals, and this many messages with them.
const FEW: u32 = 24;
const KEYS: u32 = 4;
const MANY: u32 = 15;
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
    // Much too large a limit, to lift it.
    "a log of 10000 units for each key is costly",
    // It refused on purpose.
    "the downstream refused calls though the limit was kept",
    "the answer does not say what is left of the quota",
    "what it used is not known",
];

fn providers() -> BTreeSet<String> {
    let files = fs::read_dir(folder("config/providers")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let names = names.filter(|name| !name.ends_with(".tests.toml"));
    names
        .map(|name| name.trim_end_matches(".toml").to_owned())
        .collect()
}

/// A message with the content of number `n`.
fn message(fleet: &FleetTest, id: String, n: u32) -> (Vec<u8>, BasicProperties) {
    let made = |text: &str| FleetTest::render(text, n).expect("a text of the double");
    let mut headers = FieldTable::default();
    for (name, text) in &fleet.headers {
        headers.insert(
            name.as_str().into(),
            AMQPValue::LongString(made(text).into()),
        );
    }
    let properties = BasicProperties::default()
        .with_message_id(id.into())
        .with_headers(headers);
    (made(&fleet.message).into_bytes(), properties)
}

/// Few recipients, senders or chats with several messages each: more than the tightest limits let pass at once.
fn few(fleet: &FleetTest, name: &str) -> Vec<(Vec<u8>, BasicProperties)> {
    let same = |i| message(fleet, format!("{name}-{i}"), 100 + i % KEYS);
    (0..FEW).map(same).collect()
}

/// Each to another one.
fn many(fleet: &FleetTest) -> Vec<(Vec<u8>, BasicProperties)> {
    (0..MANY)
        .map(|n| message(fleet, format!("m-{n}"), n))
        .collect()
}

fn bad(fleet: &FleetTest) -> (Vec<u8>, BasicProperties) {
    let headers = fleet.bad_headers.clone();
    let like = FleetTest {
        message: fleet.bad.clone(),
        headers: headers.unwrap_or_else(|| fleet.headers.clone()),
        ..fleet.clone()
    };
    message(&like, "bad".to_owned(), 99)
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

/// A provider's double, and a replica that calls it.
struct Pair {
    double: Arc<Double>,
    fleet: FleetTest,
    provider: Provider,
    broker: Broker,
    daemon: Daemon,
    queue: String,
    results: String,
    _dir: tempfile::TempDir,
}

impl Pair {
    /// With its configuration after `change`, and few keys of a queue of this name to send.
    async fn start(name: &str, queue: String, change: impl FnOnce(String) -> String) -> Self {
        let text = folder("crates/provider/doubles").join(format!("{name}.toml"));
        let text = fs::read_to_string(text).unwrap();
        let double = Arc::new(Double::parse(&text).unwrap());
        let fleet = double.fleet().expect("a fleet").clone();
        let behaviour = Behaviour {
            double: Some(Arc::clone(&double)),
            ..Behaviour::judging("1000000/1s".parse::<Rate>().unwrap())
        };
        let provider = Provider::start("127.0.0.1:0".parse().unwrap(), behaviour).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let Adapted {
            text,
            queue,
            results,
        } = adapted(name, queue, &fleet, provider.address(), dir.path());
        let broker = Broker::connect(&Rabbit::shared().url()).await;
        broker.declare(&queue, "quorum").await;
        broker.declare(&results, "quorum").await;
        broker.publish(&queue, few(&fleet, "few")).await;
        let mut daemon = Daemon::start_with(&change(text), |_| {});
        daemon.ready().await;
        Self {
            double,
            fleet,
            provider,
            broker,
            daemon,
            queue,
            results,
            _dir: dir,
        }
    }

    async fn has(&self, queue: &str, count: u32) {
        holds(&self.broker, queue, count, &self.daemon).await;
    }
}

/// Without its limits the double refuses what it does not refuse with them.
async fn refuses_without_limits(name: &str) {
    let lifted = |text: String| {
        let much = [("rate", "\"10000/1s\""), ("burst", "9999")];
        with_values(&text, &much)
    };
    let pair = Pair::start(name, format!("unlimited-{name}"), lifted).await;
    // The limits are new, so that some of the first messages may wait in the ladder, too few to be refused afterwards.
    // Once the first is accepted, nothing holds up this many of the same keys.
    pair.has(&pair.results, 1).await;
    let again = few(&pair.fleet, "again");
    pair.broker.publish(&pair.queue, again).await;
    let refused = || pair.double.counts().1 > 0;
    eventually(BOUND, "a limit of the provider refuses", refused).await;
    pair.daemon.stop(DECLARED).await;
}

async fn proves(name: &str) {
    let pair = Pair::start(name, format!("catalogue-{name}"), |text| text).await;
    pair.has(&pair.results, FEW).await;
    assert_eq!(
        pair.double.counts(),
        (FEW.into(), 0),
        "within the limits nothing is refused"
    );
    pair.double.refuse_next(REFUSALS);
    let lost = u64::from(pair.double.knows_repeats());
    pair.double.lose_next(u32::from(lost > 0));
    pair.broker.publish(&pair.queue, many(&pair.fleet)).await;
    pair.has(&pair.results, FEW + MANY).await;
    let limits = pair.double.limits().count() as u64;
    let refused = pair.double.counts().1;
    assert!(
        refused >= u64::from(REFUSALS) * limits,
        "{refused} refusals of {limits} limits"
    );
    pair.broker.publish(&pair.queue, [bad(&pair.fleet)]).await;
    let dead = format!("{}.dead", pair.queue);
    pair.has(&dead, 1).await;
    let taken: u32 = pair.provider.taken().values().sum();
    assert_eq!(taken, FEW + MANY, "none twice");
    let log = pair.daemon.stop(DECLARED).await;
    spent(&log, lost);
    letter(&pair.broker, &dead, &pair.fleet).await;
    has_ids(&pair.broker, &pair.results, &pair.fleet).await;
}

/// Only the call whose answer was lost has spent an attempt: no refusal has.
fn spent(log: &str, lost: u64) {
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let calls: Vec<_> = lines.filter(|line| line["message"] == "call").collect();
    assert!(calls.len() > (FEW + MANY) as usize, "each call has a line");
    let again = calls
        .iter()
        .filter(|line| line["attempt"].as_u64() > Some(1));
    assert_eq!(again.count() as u64, lost, "{log}");
}

/// The dead letter has the reason.
async fn letter(broker: &Broker, dead: &str, fleet: &FleetTest) {
    let (_, letter) = broker.drain(dead).await.remove(0);
    let headers = letter.headers().as_ref().expect("headers").inner();
    let text = |name: &str| match headers.get(name) {
        Some(AMQPValue::LongString(text)) => text.to_string(),
        other => panic!("{name}: {other:?}"),
    };
    assert_eq!(text("x-sluiced-reason"), "rejected");
    let detail = text("x-sluiced-detail");
    assert!(detail.starts_with(&fleet.dead_reason), "{detail}");
}

/// Each accepted message has a result with an id of its own.
async fn has_ids(broker: &Broker, results: &str, fleet: &FleetTest) {
    let mut seen = BTreeSet::new();
    for (body, _) in broker.drain(results).await {
        let result: Value = serde_json::from_slice(&body).expect("JSON");
        if result["message_id"] == "bad" {
            continue;
        }
        let mut all = Vec::new();
        ids(&result, &mut all);
        // Codes are the same in each result, and an id in none.
        all.retain(|id| id.starts_with(&fleet.id));
        assert!(!all.is_empty(), "no id `{}…` in {result}", fleet.id);
        assert!(
            seen.insert(all.join(" ")),
            "the ids of {result} are in two results"
        );
    }
    assert_eq!(seen.len(), (FEW + MANY) as usize);
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

/// The limits of these bind for so few messages: what the other test shows of them is the work of their limits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_limits_a_provider_refuses() {
    for name in [
        "apns", "aws-sns", "discord", "postmark", "sinch", "slack", "telegram",
    ] {
        refuses_without_limits(name).await;
    }
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
