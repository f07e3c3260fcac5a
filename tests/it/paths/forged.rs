//! Headers of ours that a publisher writes count for nothing, and those that a replica wrote count on each way back.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use redis::Commands as _;
use sluiced_ports::limits::message_key;
use sluiced_ports::message::header as known;

use super::{NO_BREAKER, config, header, holds, queue};
use crate::limits::rules::redis_key;
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route};
use crate::support::messages::body;
use crate::support::recorder::{Recorder, Reply};
use crate::support::redis::RedisServer;
use crate::support::wait::eventually;

const FORGED: &str = "headers that only sluiced may write";

fn with(number: u64, headers: &[(&str, AMQPValue)]) -> (Vec<u8>, BasicProperties) {
    let mut table = FieldTable::default();
    for (name, value) in headers {
        table.insert((*name).into(), value.clone());
    }
    let properties = BasicProperties::default()
        .with_message_id(format!("m-{number}").into())
        .with_headers(table);
    (body(number), properties)
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

/// A route with this limit beside the one of the account.
fn limited(name: &str, downstream: &Recorder, limit: &'static str, table: &str) -> Config {
    let mut route = Route::new(name, downstream.address);
    route.limits = vec!["provider", limit];
    route.downstream = NO_BREAKER.to_owned();
    let mut config = config(name, vec![route]);
    config.tables = format!("[limits.{limit}]\n{table}lost_wait = \"0s\"\n");
    config
}

fn series(metric: &str, name: &str) -> String {
    format!("sluiced_{metric}_total{{route=\"{name}\"}}")
}

/// It is published through the default exchange, as copies come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forged_routing_key_moves_a_message_to_no_other_key() {
    let name = "forged-key";
    let broker = queue(name, "quorum").await;
    let downstream = Recorder::accepting().await;
    let table = "kind = \"sliding_log\"\nrate = \"1/1h\"\nkey = \"{{ routing_key }}\"\n";
    let config = limited(name, &downstream, "sender", table);
    let forged = (1..=5).map(|number| {
        let key = format!("other.{number}");
        with(
            number,
            &[
                (known::ROUTING_KEY, text(&key)),
                (known::EXCHANGE, text("")),
            ],
        )
    });
    broker.publish(name, forged).await;
    let mut daemon = Daemon::start(&config);
    let later = format!("sluiced_settled_total{{route=\"{name}\",verdict=\"later\"}}");
    let admin = daemon.admin().await;
    eventually(LONG, "four wait", || {
        let page = crate::support::daemon::get(admin, "/metrics").1;
        page.contains(&format!("{later} 4"))
    })
    .await;
    assert_eq!(daemon.metric(&series("forged", name)).await, 5.0);
    daemon
        .stop(&[NEW_SCHEDULE, FORGED, "nothing is kept on disk"])
        .await;
    assert_eq!(downstream.count(), 1, "they have one key");
}

/// The key is of a message of which it is unknown whether it was accepted. Only an operator may say that it died since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forged_death_allows_no_other_call() {
    let name = "forged-death";
    let broker = queue(name, "quorum").await;
    let downstream = Recorder::accepting().await;
    let table = "kind = \"once\"\nkey = \"{{ message_id }}\"\non_unknown = \"dead_letter\"\n";
    let config = limited(name, &downstream, "repeats", table);
    let mut redis = RedisServer::shared().connection();
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut redis).unwrap();
    let now = seconds * 1_000_000 + micros;
    let key = redis_key(name, "repeats", message_key(Some(name), Some("m-1")));
    let unknown = format!("o {} {} abc0000001", now - 9_000_000, now - 1_000_000);
    () = redis.set(key, unknown).unwrap();
    let died = AMQPValue::LongLongInt(i64::try_from(now).unwrap());
    broker
        .publish(name, [with(1, &[(known::DIED, died)])])
        .await;
    let daemon = Daemon::start(&config);
    let letters = format!("{name}.dead");
    holds(&broker, &letters, 1).await;
    daemon
        .stop(&[
            NEW_SCHEDULE,
            FORGED,
            "dead letter",
            "nothing is kept on disk",
        ])
        .await;
    assert_eq!(downstream.count(), 0);
    let letter = &broker.drain(&letters).await[0];
    assert_eq!(header(&letter.1, known::REASON).as_deref(), Some("unknown"));
}

/// A person moves a dead letter back by hand: its history is believed, and a changed one is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_letter_that_is_moved_by_hand_keeps_its_history_unless_it_is_changed() {
    let name = "forged-moved";
    let broker = queue(name, "quorum").await;
    let downstream = Recorder::start(|_| Reply::status(422)).await;
    let mut route = Route::new(name, downstream.address);
    route.downstream = NO_BREAKER.to_owned();
    route.caller = "{{ attempt }}".to_owned();
    broker.publish(name, [with(1, &[])]).await;
    let mut daemon = Daemon::start(&config(name, vec![route]));
    let letters = format!("{name}.dead");
    holds(&broker, &letters, 1).await;
    let (body, properties) = broker.drain(&letters).await.remove(0);
    broker
        .publish(name, [(body.clone(), properties.clone())])
        .await;
    holds(&broker, &letters, 1).await;
    assert_eq!(daemon.metric(&series("forged", name)).await, 0.0);
    // A publisher that saw it wants more attempts.
    let mut table = properties.headers().clone().unwrap_or_default();
    table.insert(known::ATTEMPTS.into(), AMQPValue::LongLongInt(-5));
    let changed = properties.with_headers(table);
    broker.publish(name, [(body, changed)]).await;
    holds(&broker, &letters, 2).await;
    assert_eq!(daemon.metric(&series("forged", name)).await, 1.0);
    daemon.stop(&[NEW_SCHEDULE, FORGED, "dead letter"]).await;
    let attempts: Vec<String> = downstream
        .calls()
        .iter()
        .map(|call| call.caller.clone())
        .collect();
    assert_eq!(attempts, ["1", "2", "1"]);
}

/// Redis loses the key while a message waits under it: the replica writes it again, and one that starts later believes
/// the copy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_redis_lost_is_written_again() {
    let name = "forged-lost";
    let broker = queue(name, "quorum").await;
    // It waits for longer than the first replica runs.
    let downstream = Recorder::start(|call| match call.repeat {
        0 => Reply::retry_after(500, "20"),
        _ => Reply::status(200),
    })
    .await;
    let redis = RedisServer::start();
    let mut route = Route::new(name, downstream.address);
    route.downstream = NO_BREAKER.to_owned();
    route.caller = "{{ attempt }}".to_owned();
    route.keys = "max_hold = \"100ms\"\n".to_owned();
    let mut config = config(name, vec![route]);
    config.redis = Some(redis.url());
    broker.publish(name, [with(1, &[])]).await;
    let mut first = Daemon::start(&config);
    let later = format!("sluiced_settled_total{{route=\"{name}\",verdict=\"later\"}}");
    let admin = first.admin().await;
    eventually(LONG, "it waits", || {
        let page = crate::support::daemon::get(admin, "/metrics").1;
        page.contains(&format!("{later} 1"))
    })
    .await;
    let key = format!("{name}:{{fleet}}:marks");
    let mut connection = redis.connection();
    let before: String = connection.get(&key).unwrap();
    () = connection.del(&key).unwrap();
    eventually(LONG, "the key is there again", || {
        let now: Option<String> = connection.get(&key).unwrap();
        now.as_ref() == Some(&before)
    })
    .await;
    let known = [NEW_SCHEDULE, "nothing is kept on disk"];
    first.stop(&known).await;
    assert_eq!(downstream.count(), 1, "it waits still");
    let mut second = Daemon::start(&config);
    eventually(LONG, "it comes back", || downstream.count() == 2).await;
    assert_eq!(second.metric(&series("forged", name)).await, 0.0);
    second.stop(&known).await;
    assert_eq!(downstream.calls()[1].caller, "2");
}
