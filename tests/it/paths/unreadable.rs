//! Messages that the AMQP client cannot read: they become dead letters, and nothing else is
//! affected.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lapin::BasicProperties;
use sluiced_ports::message::header as known;

use super::{config, header, holds, numbered, queue};
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route};
use crate::support::messages::number;
use crate::support::rabbit::Rabbit;
use crate::support::raw_amqp::{RawMessage, RawPublisher, long, short};
use crate::support::recorder::Recorder;
use crate::support::wait::eventually;

const NAME: &str = "unreadable";
const OTHER: &str = "unreadable-other";
const FANOUT: &str = "unreadable-fanout";
const DEAD: &str = "unreadable.dead";
const RAW: &[u8] = b"\xff\xfe\x00raw";

/// Properties with that table of headers alone.
fn headers(table: &[u8]) -> Vec<u8> {
    [&[0x20, 0][..], &long(table)].concat()
}

/// This many tables in each other.
fn nested(count: usize) -> Vec<u8> {
    let mut table = Vec::new();
    for _ in 0..count {
        table = [&[1, b'k', b'F'][..], &long(&table)].concat();
    }
    headers(&table)
}

/// Properties that end a client's connection, or its process.
fn hostile_properties() -> Vec<Vec<u8>> {
    let text = |flags: [u8; 2]| [&flags[..], &short(RAW)].concat();
    vec![
        text([0x80, 0]),
        text([0x40, 0]),
        // correlation_id, reply_to, message_id, type, app_id
        text([0x04, 0]),
        text([0x02, 0]),
        text([0, 0x80]),
        text([0, 0x20]),
        text([0, 0x08]),
        headers(&[&short(RAW)[..], b"V"].concat()),
        headers(
            &[
                &short(b"deeper")[..],
                b"F",
                &long(&[&short(RAW)[..], b"V"].concat()),
            ]
            .concat(),
        ),
        nested(40),
    ]
}

/// One header of every type that RabbitMQ knows.
fn every_type() -> Vec<u8> {
    let mut table = Vec::new();
    let eight = [0_u8, 1, 2, 3, 4, 5, 6, 7];
    let values: [(u8, Vec<u8>); 16] = [
        (b't', vec![1]),
        (b'b', vec![0xff]),
        (b'B', vec![0xff]),
        (b's', vec![0xff, 0xfe]),
        (b'u', vec![0xff, 0xfe]),
        (b'I', eight[..4].to_vec()),
        (b'i', eight[..4].to_vec()),
        (b'l', eight.to_vec()),
        (b'T', eight.to_vec()),
        (b'f', eight[..4].to_vec()),
        (b'd', eight.to_vec()),
        (b'D', eight[..5].to_vec()),
        (b'S', long(RAW)),
        (b'x', long(RAW)),
        (b'A', long(&[b"V", &b"S"[..], &long(b"text")].concat())),
        (b'V', Vec::new()),
    ];
    for (kind, value) in values {
        table.extend([&short(&[kind])[..], &[kind], &value].concat());
    }
    table.extend(
        [
            &short(b"F")[..],
            b"F",
            &long(&[&short(b"k")[..], b"V"].concat()),
        ]
        .concat(),
    );
    headers(&table)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_read_is_buried_and_stops_nothing() {
    let broker = queue(NAME, "quorum").await;
    broker.declare(OTHER, "classic").await;
    broker.fanout(FANOUT, NAME).await;
    let published = publish_good_and_hostile_messages();
    broker.publish(OTHER, numbered(1, 100)).await;

    let downstream = Recorder::accepting().await;
    let other = Recorder::accepting().await;
    let routes = [
        (Route::new(NAME, downstream.address), "quorum"),
        (Route::new(OTHER, other.address), "classic"),
    ];
    let routes = routes.map(|(mut route, queue_type)| {
        route.keys = format!("queue_type = \"{queue_type}\"\n");
        route
    });
    let mut config = config(NAME, routes.into());
    config.rate = "2000/1s".to_owned();
    let daemon = Daemon::start(&config);
    let all = || downstream.count() >= published.good as usize && other.count() >= 100;
    eventually(LONG, "the good ones are delivered", all).await;
    let letters = u32::try_from(published.hostile.len()).unwrap() + 1;
    holds(&broker, DEAD, letters).await;
    let called: Vec<u64> = downstream.calls().iter().map(|call| call.number).collect();
    let once: BTreeSet<u64> = called.iter().copied().collect();
    assert_eq!(once, (1..=published.good).collect());
    assert_eq!(called.len(), once.len(), "each once");
    for (body, properties) in broker.drain(DEAD).await {
        assert_keeps_its_raw_bytes(number(&body), &properties, &published);
    }
    // To consume, to publish, and to count.
    assert_eq!(daemon.said("connected to RabbitMQ"), 3, "{}", daemon.log());
    daemon.stop(&[NEW_SCHEDULE, "unreadable"]).await;
    holds(&broker, NAME, 0).await;
}

/// What was published: good messages have the numbers from 1 on, and the others those above 1000.
struct Published {
    good: u64,
    /// The properties of those that cannot be read, by their numbers.
    hostile: BTreeMap<u64, Vec<u8>>,
    /// One whose properties are too long to be kept whole.
    deep: (u64, Vec<u8>),
}

/// Every third or so is hostile; some have a routing key that cannot be read.
fn publish_good_and_hostile_messages() -> Published {
    let mut raw = RawPublisher::connect(&Rabbit::shared().url());
    let message = |properties: Vec<u8>, n: u64| RawMessage {
        routing_key: NAME.into(),
        properties,
        body: format!("{{\"n\":{n}}}").into_bytes(),
        ..RawMessage::default()
    };
    let (mut good, mut bad) = (0, 1000);
    let mut hostile = BTreeMap::new();
    for round in 0..20 {
        for properties in hostile_properties() {
            good += 2;
            raw.publish(&message(vec![0, 0], good - 1));
            bad += 1;
            hostile.insert(bad, properties.clone());
            raw.publish(&message(properties, bad));
            raw.publish(&message(every_type(), good));
        }
        bad += 1;
        hostile.insert(bad, vec![0, 0]);
        raw.publish(&RawMessage {
            exchange: FANOUT.to_owned(),
            routing_key: [&[round][..], RAW].concat(),
            ..message(vec![0, 0], bad)
        });
    }
    let deep = nested(18_000);
    bad += 1;
    raw.publish(&message(deep.clone(), bad));
    raw.confirmed();
    Published {
        good,
        hostile,
        deep: (bad, deep),
    }
}

fn assert_keeps_its_raw_bytes(n: u64, properties: &BasicProperties, published: &Published) {
    assert_eq!(
        header(properties, known::REASON).as_deref(),
        Some("unreadable")
    );
    let kept = header(properties, known::RAW_PROPERTIES).expect("the raw bytes");
    let kept = STANDARD.decode(kept).unwrap();
    let (number_of_deep, deep) = &published.deep;
    if n == *number_of_deep {
        assert!(header(properties, known::RAW_CUT).is_some());
        assert!(
            deep.starts_with(&kept) && kept.len() > 90_000,
            "{}",
            kept.len()
        );
        return;
    }
    assert_eq!(kept, published.hostile[&n], "message {n}");
    if kept == [0, 0] {
        let delivery = header(properties, known::RAW_DELIVERY).expect("its delivery");
        let delivery = STANDARD.decode(delivery).unwrap();
        assert!(delivery.windows(RAW.len()).any(|bytes| bytes == RAW));
    }
}

/// If a publisher sets our own header, it is ignored, and its message is sent like any other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forged_mark_makes_no_dead_letter() {
    let name = "unreadable-forged";
    let broker = queue(name, "quorum").await;
    let mut raw = RawPublisher::connect(&Rabbit::shared().url());
    let forged = [
        [&short(known::UNREADABLE.as_bytes())[..], b"V"].concat(),
        [&short(known::UNREADABLE.as_bytes())[..], b"S", &long(RAW)].concat(),
        [
            &short(known::RAW_PROPERTIES.as_bytes())[..],
            b"S",
            &long(b"not base64"),
        ]
        .concat(),
    ];
    for (n, table) in (1..).zip(&forged) {
        raw.publish(&RawMessage {
            routing_key: name.into(),
            properties: headers(table),
            body: format!("{{\"n\":{n}}}").into_bytes(),
            ..RawMessage::default()
        });
    }
    raw.confirmed();
    let downstream = Recorder::accepting().await;
    let mut daemon = Daemon::start(&config(name, vec![Route::new(name, downstream.address)]));
    eventually(LONG, "all are sent", || downstream.count() == 3).await;
    // The third header decides nothing.
    let series = format!("sluiced_forged_total{{route=\"{name}\"}}");
    assert_eq!(daemon.metric(&series).await, 2.0);
    daemon
        .stop(&[NEW_SCHEDULE, "headers that only sluiced may write"])
        .await;
    assert_eq!(broker.counts(name).await, Some((0, 0)));
}
