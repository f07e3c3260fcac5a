//! What a message, its copies and its replay keep, and which headers of a publisher are ignored.

use super::copies::*;
use super::*;
use crate::rabbit::messages::marks::{MARK, ROUND_MARK};
use sluiced_ports::marks::MarkKey;

fn delivery(headers: FieldTable) -> lapin::message::Delivery {
    let mut delivery =
        lapin::message::Delivery::mock(7, "events".into(), "sms.de".into(), true, b"{}".to_vec());
    delivery.properties = BasicProperties::default()
        .with_message_id("m1".into())
        .with_user_id("publisher".into())
        .with_expiration("60000".into())
        .with_priority(3)
        .with_type("sms".into())
        .with_headers(headers);
    delivery
}

fn headers() -> FieldTable {
    let mut table = FieldTable::default();
    table.insert("tenant".into(), AMQPValue::LongString("t1".into()));
    table.insert(
        "bytes".into(),
        AMQPValue::LongString(vec![0xff, 0xfe].into()),
    );
    table.insert("n".into(), AMQPValue::ShortShortUInt(9));
    table.insert("x-death".into(), AMQPValue::Void);
    table.insert(
        "x-first-death-queue".into(),
        AMQPValue::LongString("q".into()),
    );
    table.insert("x-delivery-count".into(), AMQPValue::LongLongInt(4));
    table.insert("CC".into(), AMQPValue::LongString("other".into()));
    table
}

#[test]
fn a_message_shows_what_templates_need() {
    let (message, original) = convert_unverified(delivery(headers()));
    assert_eq!(message.exchange, "events");
    assert_eq!(message.routing_key, "sms.de");
    assert!(message.redelivered);
    assert_eq!(message.headers["tenant"], HeaderValue::Text("t1".into()));
    assert_eq!(message.headers["bytes"], HeaderValue::Opaque);
    assert_eq!(message.headers["n"], HeaderValue::Int(9));
    assert_eq!(message.properties.expiration, Some(60_000));
    assert_eq!(message.properties.kind.as_deref(), Some("sms"));
    assert_eq!(message.body.as_ptr(), original.body.as_ptr());
}

#[test]
fn a_copy_keeps_all_but_what_the_broker_would_act_on() {
    let (_, original) = convert_unverified(delivery(headers()));
    let patch = [(header::ATTEMPTS, HeaderValue::Int(2))];
    let copy = copy_properties(&original, patch, &MarkKey::random());
    assert_eq!(copy.delivery_mode(), &Some(PERSISTENT));
    assert_eq!(copy.expiration(), &None);
    assert_eq!(copy.user_id(), &None);
    assert_eq!(copy.priority(), &Some(3));
    assert_eq!(copy.message_id(), &Some("m1".into()));
    assert_eq!(copy.kind(), &Some("sms".into()));
    let names: Vec<&str> = copy
        .headers()
        .iter()
        .flatten()
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(
        names,
        [
            "bytes",
            "n",
            "tenant",
            header::ATTEMPTS,
            CC,
            header::EXCHANGE,
            MARK,
            ROUND_MARK,
            header::ROUTING_KEY,
            USER_ID
        ]
    );
}

/// A freeze ends the time in which a message was refused: its verdict writes that header no more.
#[test]
fn what_a_history_does_not_say_any_more_is_gone_from_the_copy() {
    let mut table = headers();
    table.insert(header::THROTTLED.into(), AMQPValue::LongLongInt(7));
    table.insert(header::LAST_STATUS.into(), AMQPValue::LongLongInt(503));
    let (_, original) = convert_unverified(delivery(table));
    let has = |patch: Vec<(&str, HeaderValue)>, name: &str| {
        let copy = copy_properties(&original, patch, &MarkKey::random());
        copy.headers()
            .as_ref()
            .is_some_and(|table| table.contains_key(name))
    };
    let attempts = || (header::ATTEMPTS, HeaderValue::Int(0));
    let status = (header::LAST_STATUS, HeaderValue::Int(429));
    assert!(!has(vec![attempts()], header::THROTTLED));
    assert!(!has(vec![attempts()], header::LAST_STATUS));
    assert!(has(vec![attempts(), status], header::LAST_STATUS));
    // A copy that is made without a verdict.
    assert!(has(Vec::new(), header::THROTTLED));
}

#[test]
fn a_replay_forgets_the_life_that_is_over_and_keeps_the_message() {
    let mut table = headers();
    for name in [
        header::ATTEMPTS,
        header::NOT_BEFORE,
        header::FIRST_SEEN,
        header::EXPIRES,
        header::PARKED,
        header::DENIED_BEFORE,
        header::LIMIT,
        header::REASON,
        header::DETAIL,
        header::ANSWER,
        header::LAST_STATUS,
        header::DIED,
        header::ROUTE,
        header::QUEUE,
        header::UNREADABLE,
        header::RAW_PROPERTIES,
        header::RAW_CUT,
        header::RAW_DELIVERY,
        header::REDELIVERED,
        ROUND_MARK,
        MARK,
        header::EXCHANGE,
        header::ROUTING_KEY,
    ] {
        table.insert(name.into(), AMQPValue::LongLongInt(1));
    }
    let made = AMQPValue::LongString("made".into());
    table.insert(header::MESSAGE_ID.into(), made);
    let mut dead = delivery(table);
    dead.properties = dead.properties.clone().with_timestamp(7);
    let (_, original) = convert_unverified(dead);
    let fresh = fresh_properties(&original, *original.properties.timestamp());
    let names: Vec<&str> = fresh
        .headers()
        .iter()
        .flatten()
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(
        names,
        [
            "bytes",
            "n",
            "tenant",
            CC,
            header::DIED,
            header::EXCHANGE,
            MARK,
            header::MESSAGE_ID,
            header::ROUTING_KEY,
            USER_ID
        ]
    );
    assert_eq!(fresh.expiration(), &None);
    assert_eq!(fresh.message_id(), &Some("m1".into()));
    assert_eq!(fresh.priority(), &Some(3));
    assert_eq!(fresh.timestamp(), &Some(7));
    assert_eq!(fresh_properties(&original, None).timestamp(), &None);
}

/// As a copy comes back from a queue of ours.
fn back(properties: BasicProperties) -> lapin::message::Delivery {
    let mut back =
        lapin::message::Delivery::mock(8, "".into(), "sms".into(), false, b"{}".to_vec());
    back.properties = properties;
    back
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

#[test]
fn the_first_routing_key_survives_each_round_and_a_replay() {
    let marks = Marks::of_this_process();
    let mut original = convert_delivery(delivery(FieldTable::default()), &marks).original;
    for _ in 0..2 {
        let patch = [(header::ATTEMPTS, HeaderValue::Int(2))];
        let copy = copy_properties(&original, patch, &marks.signing());
        let again = convert_delivery(back(copy), &marks);
        assert!(!again.was_forged);
        let message = again.message;
        assert_eq!(
            (&*message.exchange, &*message.routing_key),
            ("events", "sms.de")
        );
        assert_eq!(message.headers[header::ATTEMPTS], HeaderValue::Int(2));
        original = again.original;
    }
    let replayed = convert_delivery(back(fresh_properties(&original, None)), &marks);
    assert!(!replayed.was_forged);
    assert_eq!(replayed.message.routing_key, "sms.de");
    assert!(!replayed.message.headers.contains_key(header::ATTEMPTS));
}

/// Keys, costs and tenants may be made from them, and a `once` limit calls again what has died.
#[test]
fn what_a_publisher_writes_into_our_headers_is_ignored() {
    let marks = Marks::of_this_process();
    let mut forged = headers();
    forged.insert(header::EXCHANGE.into(), text("other"));
    forged.insert(header::ROUTING_KEY.into(), text("sms.vip"));
    forged.insert(header::DIED.into(), AMQPValue::LongLongInt(7));
    forged.insert(header::UNREADABLE.into(), text("+49170"));
    forged.insert(header::FOUND_BY.into(), text("x"));
    forged.insert(MARK.into(), text("00"));
    forged.insert(header::ROUTE.into(), text("of a result"));
    // Through the default exchange, too.
    for exchange in ["events", ""] {
        let mut sent = lapin::message::Delivery::mock(
            7,
            exchange.into(),
            "sms.de".into(),
            false,
            b"{}".to_vec(),
        );
        sent.properties = BasicProperties::default().with_headers(forged.clone());
        let first = convert_delivery(sent, &marks);
        assert!(first.was_forged);
        let message = &first.message;
        assert_eq!(
            (&*message.exchange, &*message.routing_key),
            (exchange, "sms.de")
        );
        for name in [header::DIED, header::UNREADABLE, header::FOUND_BY, MARK] {
            assert!(!message.headers.contains_key(name), "{name}");
        }
        // It decides nothing.
        assert!(message.headers.contains_key(header::ROUTE));
        let copy = copy_properties(&first.original, [], &marks.signing());
        let again = convert_delivery(back(copy), &marks).message;
        assert_eq!(
            (&*again.exchange, &*again.routing_key),
            (exchange, "sms.de")
        );
    }
}

#[test]
fn what_the_frame_filter_found_is_believed_in_its_process_and_leaves_no_secret() {
    let marks = Marks::of_this_process();
    let mut found = FieldTable::default();
    found.insert(header::UNREADABLE.into(), text("nested too deeply"));
    found.insert(header::FOUND_BY.into(), text(found_by()));
    let mut sent = delivery(FieldTable::default());
    sent.properties = BasicProperties::default().with_headers(found);
    let first = convert_delivery(sent, &marks);
    assert!(!first.was_forged);
    assert!(first.message.headers.contains_key(header::UNREADABLE));
    let copy = copy_properties(&first.original, [], &marks.signing());
    let mut headers = copy.headers().iter().flatten();
    assert!(!headers.any(|(name, _)| name.as_str() == header::FOUND_BY));
    // A dead letter that a person moves back says the same.
    let moved = convert_delivery(back(copy), &marks).message;
    assert!(moved.headers.contains_key(header::UNREADABLE));
}

/// `Date.now()` of JavaScript, and what is finer still, are read as what they are; a copy keeps what came.
#[test]
fn a_timestamp_in_milliseconds_is_read_as_that() {
    let read =
        |timestamp| properties(&BasicProperties::default().with_timestamp(timestamp)).timestamp;
    for timestamp in [
        1_795_708_583,
        1_795_708_583_123,
        1_795_708_583_123_456,
        1_795_708_583_123_456_789,
    ] {
        assert_eq!(read(timestamp), Some(1_795_708_583));
    }
    // The last second that is one: the year 5138.
    assert_eq!(read(99_999_999_999), Some(99_999_999_999));
    assert_eq!(read(0), Some(0));
    assert_eq!(read(u64::MAX), Some(18_446_744_073));
    let original = BasicProperties::default().with_timestamp(1_795_708_583_123);
    let copy = rebuild(&original, *original.timestamp());
    assert_eq!(copy.timestamp(), &Some(1_795_708_583_123));
}
