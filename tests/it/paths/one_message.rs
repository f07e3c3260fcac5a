//! What happens to a single message: accepted, repeated, dead, or never sent.

mod age;
mod cut;

use std::time::Duration;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use sluiced_ports::message::header as known;

use super::{NO_BREAKER, config, header, holds, micros, numbered, queue, seconds, unix};
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route, get};
use crate::support::messages::{body, number};
use crate::support::recorder::{Recorder, Reply};
use crate::support::wait::{eventually, eventually_async};

const USED_UNITS: &str = "sluiced_used_units_total{limit=\"provider\"}";

/// A route that sends the number of the attempt.
fn route(queue: &str, queue_type: &str, downstream: &Recorder) -> Route {
    let mut route = Route::new(queue, downstream.address);
    route.caller = "attempt {{ attempt }}".to_owned();
    route.downstream = NO_BREAKER.to_owned();
    route.keys = format!("queue_type = \"{queue_type}\"\nmax_attempts = 3\n");
    route
}

/// Properties that must survive every copy.
fn marked() -> BasicProperties {
    let mut headers = FieldTable::default();
    headers.insert("tenant".into(), AMQPValue::LongString("blue".into()));
    BasicProperties::default()
        .with_message_id("m-1".into())
        .with_correlation_id("c-1".into())
        .with_content_type("application/json".into())
        .with_priority(3)
        .with_headers(headers)
}

fn is_marked(properties: &BasicProperties) {
    assert_eq!(header(properties, "tenant").as_deref(), Some("blue"));
    assert_eq!(properties.message_id().as_ref().unwrap().as_str(), "m-1");
    assert_eq!(
        properties.correlation_id().as_ref().unwrap().as_str(),
        "c-1"
    );
    assert_eq!(
        properties.content_type().as_ref().unwrap().as_str(),
        "application/json"
    );
    assert_eq!(*properties.priority(), Some(3));
    assert_eq!(
        header(properties, "x-death"),
        None,
        "no bookkeeping of the broker"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_failures_wait_in_the_ladder_and_pass_at_last_on_classic_queues() {
    repeated("repeat-classic", "classic").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_failures_wait_in_the_ladder_and_pass_at_last_on_quorum_queues() {
    repeated("repeat-quorum", "quorum").await;
}

/// The jitter is full, so the base is long compared with `max_hold`: most waits go through the ladder.
async fn repeated(name: &str, queue_type: &str) {
    let broker = queue(name, queue_type).await;
    let downstream =
        Recorder::start(|call| Reply::status(if call.repeat < 2 { 503 } else { 202 })).await;
    let mut route = route(name, queue_type, &downstream);
    route.keys += "max_hold = \"20ms\"\nretry = { base = \"3s\", max = \"4s\" }\n";
    let mut daemon = Daemon::start(&config(name, vec![route]));
    broker.publish(name, numbered(1, 8)).await;
    eventually(LONG, "all were accepted", || {
        downstream.count_of(|call| call.repeat == 2) == 8
    })
    .await;
    let calls = downstream.calls();
    assert_eq!(calls.len(), 24, "three calls each");
    for call in &calls {
        assert_eq!(call.caller, format!("attempt {}", call.repeat + 1));
    }
    // Settled after they waited; all are acknowledged in the end.
    let later = format!("sluiced_settled_total{{route=\"{name}\",verdict=\"later\"}}");
    eventually_async(LONG, "settled", || {
        let page = get(futures::executor::block_on(daemon.admin()), "/metrics").1;
        let done = format!("sluiced_settled_total{{route=\"{name}\",verdict=\"done\"}} 8");
        async move { page.contains(&done) }
    })
    .await;
    let mut ladder = 0;
    for step in ["1s", "2s", "4s"] {
        let step = broker.counts(&format!("{name}.wait.{step}")).await;
        ladder += u32::from(step.is_some());
    }
    assert!(ladder > 0, "wait queues were declared");
    assert!(
        daemon.metric(&later).await >= 8.0,
        "most waits are in the ladder"
    );
    daemon.stop(&[NEW_SCHEDULE]).await;
    assert_eq!(broker.counts(name).await, Some((0, 0)));
    assert_eq!(
        broker
            .counts(&format!("{name}.dead"))
            .await
            .map_or(0, |counts| counts.0),
        0
    );
}

/// The answer to the first call of each says when to come back. The replica writes that into the copy that waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_comes_back_no_earlier_than_it_was_told_and_hardly_later() {
    let broker = queue("told", "quorum").await;
    broker.publish("told", numbered(1, 6)).await;
    let downstream = Recorder::start(|call| match call.repeat {
        0 => Reply::retry_after(500, &call.number.to_string()),
        _ => Reply::status(202),
    })
    .await;
    let mut route = route("told", "quorum", &downstream);
    route.caller = format!("{{{{ headers['{}'] | default('') }}}}", known::NOT_BEFORE);
    route.keys += "max_hold = \"100ms\"\n";
    let config = config("told", vec![route]);
    let (start, wall) = (tokio::time::Instant::now(), std::time::SystemTime::now());
    let daemon = Daemon::start(&config);
    eventually(LONG, "all came again", || downstream.count() == 12).await;
    let calls = downstream.calls();
    for again in calls.iter().filter(|call| call.repeat == 1) {
        let number = again.number;
        let told: u64 = again.caller.parse().expect("the time in its header");
        let told = std::time::UNIX_EPOCH + Duration::from_micros(told);
        let told = told.duration_since(wall).expect("after the start");
        let first = calls.iter().find(|call| call.number == number);
        let first = first.expect("the first call").at - start;
        assert!(told >= first + seconds(number), "{number}: told {told:?}");
        let came = again.at - start;
        // The broker, the store and the daemon read the same wall clock here; a millisecond is for reading it.
        assert!(
            came + seconds(1) / 1000 * 2 >= told,
            "{number} came at {came:?}, told {told:?}"
        );
        let waited = told - first;
        assert!(
            came < first + waited.mul_f64(1.05) + seconds(2),
            "{number} came at {came:?}, told {told:?}"
        );
    }
    daemon.stop(&[NEW_SCHEDULE]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_that_are_used_up_end_in_the_dead_letter_queue_with_the_story() {
    let broker = queue("used-up", "quorum").await;
    let downstream = Recorder::start(|_| Reply::status(503)).await;
    let mut route = route("used-up", "quorum", &downstream);
    route.keys += "retry = { base = \"1s\", max = \"1s\" }\nmax_hold = \"100ms\"\n";
    let daemon = Daemon::start(&config("used-up", vec![route]));
    broker.publish("used-up", [(body(1), marked())]).await;
    holds(&broker, "used-up.dead", 1).await;
    assert_eq!(downstream.count(), 3);
    let (content, properties) = broker.drain("used-up.dead").await.remove(0);
    assert_eq!(content, body(1), "the body is as it was");
    is_marked(&properties);
    let told = |name| header(&properties, name).unwrap_or_default();
    assert_eq!(told(known::REASON), "attempts_exhausted");
    assert_eq!(told(known::LAST_STATUS), "503");
    assert_eq!(told(known::ATTEMPTS), "3");
    assert_eq!(told(known::ROUTE), "used-up");
    assert_eq!(told(known::QUEUE), "used-up");
    assert!(
        told(known::DETAIL).contains("503"),
        "{}",
        told(known::DETAIL)
    );
    let (seen, died) = (
        micros(&properties, known::FIRST_SEEN),
        micros(&properties, known::DIED),
    );
    assert!(
        seen < died && died / 1_000_000 <= unix() + 1,
        "{seen} {died}"
    );
    daemon.stop(&[NEW_SCHEDULE, "dead letter"]).await;
    assert_eq!(broker.counts("used-up").await, Some((0, 0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_never_pass_is_buried_at_once() {
    for queue_type in ["classic", "quorum"] {
        let name = format!("never-{queue_type}");
        let broker = queue(&name, queue_type).await;
        let downstream = Recorder::start(|_| Reply::status(400)).await;
        let daemon = Daemon::start(&config(&name, vec![route(&name, queue_type, &downstream)]));
        broker.publish(&name, [(body(1), marked())]).await;
        let dead = format!("{name}.dead");
        holds(&broker, &dead, 1).await;
        assert_eq!(downstream.count(), 1);
        let (content, properties) = broker.drain(&dead).await.remove(0);
        assert_eq!(content, body(1));
        is_marked(&properties);
        assert_eq!(
            header(&properties, known::REASON).as_deref(),
            Some("rejected")
        );
        assert_eq!(
            header(&properties, known::LAST_STATUS).as_deref(),
            Some("400")
        );
        assert_eq!(header(&properties, known::ATTEMPTS).as_deref(), Some("1"));
        daemon.stop(&[NEW_SCHEDULE, "dead letter"]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_sent_costs_no_slot() {
    let broker = queue("unsent", "quorum").await;
    let downstream = Recorder::accepting().await;
    let mut route = route("unsent", "quorum", &downstream);
    route.keys += "max_body = \"1KiB\"\nmax_age = \"1h\"\n";
    route.downstream = "body = '{\"n\": {{ body.n }}}'".to_owned();
    let mut daemon = Daemon::start(&config("unsent", vec![route]));
    daemon.ready().await;
    let plain = BasicProperties::default;
    let unsendable = [
        ("undecodable", b"no JSON".to_vec(), plain()),
        (
            "oversized",
            format!("{{\"n\":2,\"x\":\"{}\"}}", "x".repeat(2_000)).into_bytes(),
            plain(),
        ),
        ("expired", body(3), plain().with_timestamp(unix() - 7_200)),
        (
            "expired",
            body(4),
            plain()
                .with_timestamp(unix() - 60)
                .with_expiration("30000".into()),
        ),
    ];
    broker
        .publish(
            "unsent",
            unsendable
                .clone()
                .map(|(_, body, properties)| (body, properties)),
        )
        .await;
    holds(&broker, "unsent.dead", 4).await;
    assert_eq!(daemon.metric(USED_UNITS).await, 0.0, "no slot was used");
    assert_eq!(downstream.count(), 0);
    let mut dead = broker.drain("unsent.dead").await;
    for (reason, content, _) in unsendable {
        let place = dead.iter().position(|(body, _)| *body == content);
        let (_, properties) = dead.remove(place.expect("it is there, as it was"));
        assert_eq!(header(&properties, known::REASON).as_deref(), Some(reason));
        assert_eq!(header(&properties, known::ATTEMPTS).as_deref(), Some("0"));
    }
    broker.publish("unsent", numbered(9, 9)).await;
    eventually(LONG, "the next one passes", || downstream.count() == 1).await;
    let log = daemon.stop(&[NEW_SCHEDULE, "dead letter"]).await;
    for reason in ["undecodable", "oversized", "expired"] {
        let mut lines = log.lines().filter(|line| line.contains("dead letter"));
        let line = lines.find(|line| line.contains(&format!("\"reason\":\"{reason}\"")));
        let line = line.unwrap_or_else(|| panic!("{reason} is not logged in\n{log}"));
        assert!(line.contains("\"route\":\"unsent\""), "{line}");
        // The id that was made for it, because its publisher gave it none.
        assert!(line.contains("\"message_id\":\"") && !line.contains("\"message_id\":\"\""));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_without_an_id_gets_one_that_stays_and_equal_messages_differ() {
    let name = "unnamed";
    let broker = queue(name, "quorum").await;
    let downstream = Recorder::start(|call| {
        let failed = call.place < 2;
        Reply::status(if failed { 503 } else { 202 })
    })
    .await;
    let mut route = route(name, "quorum", &downstream);
    route.caller = "{{ message_id }}".to_owned();
    // Each goes through a wait queue, unless its wait is very short.
    route.keys += "retry = { base = \"1s\", max = \"1s\" }\nmax_hold = \"100ms\"\n";
    let daemon = Daemon::start(&config(name, vec![route]));
    let twice = [1, 1].map(|n| (body(n), BasicProperties::default()));
    broker.publish(name, twice).await;
    eventually(LONG, "each was tried again", || downstream.count() == 4).await;
    daemon.stop(&[NEW_SCHEDULE]).await;
    let mut ids: Vec<_> = downstream
        .calls()
        .into_iter()
        .map(|call| call.caller)
        .collect();
    ids.sort();
    assert!(
        ids[0] == ids[1] && ids[2] == ids[3] && ids[1] != ids[2],
        "{ids:?}"
    );
    assert!(ids.iter().all(|id| id.len() == 36), "{ids:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_is_deleted_is_consumed_again_when_it_is_back() {
    let broker = queue("reborn", "classic").await;
    let downstream = Recorder::accepting().await;
    let mut daemon = Daemon::start(&config(
        "reborn",
        vec![route("reborn", "classic", &downstream)],
    ));
    broker.publish("reborn", numbered(1, 3)).await;
    eventually(LONG, "the first three", || downstream.count() == 3).await;
    broker.delete("reborn").await;
    let address = daemon.admin().await;
    eventually(LONG, "it is missed", || {
        get(address, "/readyz").1.contains("reborn")
    })
    .await;
    broker.declare("reborn", "classic").await;
    broker.publish("reborn", numbered(4, 6)).await;
    eventually(LONG, "three more", || downstream.count() == 6).await;
    daemon.ready().await;
    daemon
        .stop(&[NEW_SCHEDULE, "the queue cannot be consumed"])
        .await;
    let rest = broker.drain("reborn").await;
    assert!(
        rest.is_empty(),
        "{:?}",
        rest.iter()
            .map(|(body, _)| number(body))
            .collect::<Vec<_>>()
    );
}
