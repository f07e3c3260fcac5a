//! The recipe "Passwords and marketing of one exchange, complete" with its numbers: one-time passwords come while
//! three replicas have 20,000 marketing messages to send, some of them to recipients where it is night.
//!
//! How long a password waits is counted in marketing messages that are called between the broker's confirm and its
//! call: that depends little on how fast the machine is. At the account's rate, two seconds are twice the rate.

use std::time::Duration;

use lapin::BasicProperties;
use sluiced_core::time::Mono;
use sluiced_ports::clock;
use sluiced_provider::{Behaviour, Provider};
use tokio::time::sleep;

use super::keyed::DECLARED;
use crate::support::broker::Broker;
use crate::support::daemon::{Daemon, LONG};
use crate::support::machine;
use crate::support::rabbit::Rabbit;
use crate::support::redis::RedisServer;
use crate::support::wait::eventually;

const PAGE: &str = include_str!("../../../docs/recipes.md");
const RATE: usize = 400;
const MARKETING: usize = 20_000;
/// At most this many. A busy machine publishes fewer before half of marketing is gone, and at least [`ENOUGH`].
const PASSWORDS: usize = 60;
const ENOUGH: usize = 10;
/// Marketing has this many senders, each with a limit of its own.
const SENDERS: usize = 50;
/// Every this many of marketing go to a recipient where it is night.
const NIGHT: usize = 10;
/// Of passwords, of marketing, and of the results of passwords.
const QUEUES: [&str; 3] = [
    "recipe-sms.passwords",
    "recipe-sms.marketing",
    "recipe-sms.answers",
];

/// The recipe as it stands, with the servers of this test, and queues and keys of this name.
pub(crate) fn recipe(name: &str, provider: &Provider, redis: &RedisServer) -> String {
    let (_, section) = PAGE
        .split_once("\n## Passwords and marketing of one exchange")
        .unwrap();
    let (_, block) = section.split_once("```toml\n").unwrap();
    let (text, _) = block.split_once("```").unwrap();
    let send = format!("http://{}/send", provider.address());
    let text = text
        .replace(
            "[rabbitmq]\n",
            &format!("[rabbitmq]\nurls = [\"{}\"]\n", Rabbit::shared().url()),
        )
        // The provider knows a message by this. A busy machine calls later than an idle one.
        .replace(
            "timeout = \"5s\"",
            "timeout = \"5s\"\nheaders = { x-key = \"{{ body.id }}\" }",
        )
        .replace(
            "rate = \"400/1s\"",
            "rate = \"400/1s\"\nheadroom = \"50ms\"",
        )
        .replace("http://127.0.0.1:8080/send", &send)
        .replace("\"sms.", &format!("\"{name}."));
    format!(
        "{text}\n[redis]\nurl = \"{}\"\nprefix = \"{name}\"\nresponse_timeout = \"5s\"\n[admin]\nlisten = \"127.0.0.1:0\"\n",
        redis.url()
    )
}

/// The zone in which the clock shows this hour now.
pub(crate) fn zone(hour: i64) -> String {
    let utc = jiff::Timestamp::now().as_second() / 3600 % 24;
    // Names of Etc have the opposite sign.
    format!("Etc/GMT{:+}", 12 - (hour - utc + 36) % 24)
}

fn marketing(number: usize, noon: &str, night: &str) -> (Vec<u8>, BasicProperties) {
    let zone = if number.is_multiple_of(NIGHT) {
        night
    } else {
        noon
    };
    let kind = if zone == noon { 'm' } else { 'n' };
    let body = serde_json::json!({
        "id": format!("{kind}{number}"), "to": format!("+4915{number:08}"), "from": format!("shop{}", number % SENDERS),
        "text": "Sale.", "timezone": zone, "priority": number % 3,
    });
    (body.to_string().into_bytes(), BasicProperties::default())
}

fn password(number: usize) -> (Vec<u8>, BasicProperties) {
    let body = serde_json::json!({ "id": format!("p{number}"), "to": format!("+4917{number:08}"), "from": "shop1",
        "text": "Your code is 123456." });
    (body.to_string().into_bytes(), BasicProperties::default())
}

/// How many of marketing were called between the confirm of each password and its call.
fn overtaken(confirmed: &[Mono], calls: &[(Mono, Box<str>)]) -> Vec<usize> {
    let passwords = calls.iter().enumerate().filter_map(|(place, (_, id))| {
        let confirmed = confirmed[id.strip_prefix('p')?.parse::<usize>().ok()?];
        let before = calls[..place].iter().rev();
        let between = before.take_while(|(at, _)| *at > confirmed);
        Some(between.filter(|(_, id)| id.starts_with('m')).count())
    });
    passwords.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passwords_pass_20_000_marketing_messages_and_none_of_these_goes_out_at_night() {
    machine::two();
    let behaviour = Behaviour::judging(format!("{RATE}/1s").parse().unwrap());
    let provider = Provider::start("127.0.0.1:0".parse().unwrap(), behaviour).unwrap();
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    for queue in QUEUES {
        broker.declare(queue, "quorum").await;
    }
    let (noon, night) = (zone(12), zone(1));
    let all = (0..MARKETING).map(|number| marketing(number, &noon, &night));
    broker.publish(QUEUES[1], all).await;
    let text = recipe("recipe-sms", &provider, RedisServer::shared());
    let replicas: Vec<_> = (0..3).map(|_| Daemon::start_with(&text, |_| {})).collect();
    let flows = || provider.live().unique > RATE as u64;
    eventually(LONG, "marketing flows", flows).await;

    let confirmed = publish_passwords_while_marketing_flows(&broker, &provider).await;
    let passwords = confirmed.len();
    assert!(passwords >= ENOUGH, "{passwords} passwords");
    let came = || overtaken(&confirmed, &provider.keyed());
    eventually(LONG, "all passwords are sent", || came().len() >= passwords).await;
    let overtaken = came();
    let calls = provider.keyed();
    for replica in replicas {
        replica.stop(DECLARED).await;
    }
    assert_hardly_any_marketing_is_in_between(overtaken);
    let of = |kind: char| calls.iter().filter(|(_, id)| id.starts_with(kind)).count();
    assert_eq!(of('n'), 0, "at night nothing is sent");
    assert!(
        of('m') < MARKETING - MARKETING / NIGHT,
        "marketing had a backlog to the end"
    );
    assert_eq!(provider.live().over, 0);
    assert_passwords_have_results(&broker, passwords).await;
    for queue in QUEUES {
        broker.delete(queue).await;
    }
}

/// Returns when each was safe at the broker.
async fn publish_passwords_while_marketing_flows(
    broker: &Broker,
    provider: &Provider,
) -> Vec<Mono> {
    let mut confirmed = Vec::new();
    while confirmed.len() < PASSWORDS && provider.live().unique < MARKETING as u64 / 2 {
        // No two of them at the same point of any cycle.
        sleep(Duration::from_millis(163)).await;
        let number = confirmed.len();
        broker.publish(QUEUES[0], [password(number)]).await;
        confirmed.push(clock::now());
    }
    confirmed
}

fn assert_hardly_any_marketing_is_in_between(mut overtaken: Vec<usize>) {
    overtaken.sort_unstable();
    let p99 = overtaken[(overtaken.len() * 99).div_ceil(100) - 1];
    eprintln!(
        "p50 {}, p99 {p99} of marketing in between",
        overtaken[overtaken.len() / 2]
    );
    assert!(
        p99 < 2 * RATE,
        "{p99} of marketing in between, two seconds are {}",
        2 * RATE
    );
}

async fn assert_passwords_have_results(broker: &Broker, passwords: usize) {
    let results = broker.drain(QUEUES[2]).await;
    let said = |id: &str| {
        results
            .iter()
            .any(|(body, _)| String::from_utf8_lossy(body).contains(id))
    };
    assert!(
        results.len() >= passwords && said("accepted"),
        "{} results",
        results.len()
    );
}
