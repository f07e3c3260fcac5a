//! The properties of what is published: copies of a message, and results.
//!
//! A copy carries everything that the original had, even what this program cannot read, with two
//! exceptions. Headers that RabbitMQ adds on the way are removed, because they would grow with
//! every round through a wait queue. Properties on which the broker would act (an expiration, a
//! user id, a carbon copy) are removed or moved to a header of ours.

use std::collections::BTreeMap;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};

use super::{Original, RETURNS, readable};
use crate::rabbit::messages::marks::MARK;
use sluiced_ports::marks::MarkKey;
use sluiced_ports::message::{HeaderValue, Properties, header};
use sluiced_ports::queue::{Publication, headers_to_clear};

/// The original's user id. The broker closes a channel that publishes under another user's.
pub(super) const USER_ID: &str = "x-sluiced-user-id";
/// The original's `CC`. The broker would send a copy of each copy there.
pub(super) const CC: &str = "x-sluiced-cc";

/// Headers of ours that a replay keeps: where the message came from, and when it died, for `once` limits. The
/// rest is about earlier rounds.
const LASTING: [&str; 8] = [
    header::EXCHANGE,
    header::ROUTING_KEY,
    USER_ID,
    CC,
    header::MESSAGE_ID,
    header::SHORTENED,
    header::DIED,
    MARK,
];

/// AMQP's value for messages that survive a restart.
pub(super) const PERSISTENT: u8 = 2;

/// The value on the wire; `None` for values that only the original can carry.
fn writable(value: &HeaderValue) -> Option<AMQPValue> {
    Some(match value {
        HeaderValue::Bool(value) => AMQPValue::Boolean(*value),
        HeaderValue::Int(value) => AMQPValue::LongLongInt(*value),
        HeaderValue::Float(value) => AMQPValue::Double(*value),
        HeaderValue::Text(value) => AMQPValue::LongString(value.as_str().into()),
        HeaderValue::Opaque => return None,
    })
}

/// What the broker writes on messages that it returns or dead-letters.
fn is_broker_bookkeeping(name: &str) -> bool {
    name == "x-death"
        || name == RETURNS
        || name == "x-acquired-count"
        || name.starts_with("x-first-death-")
        || name.starts_with("x-last-death-")
}

/// What is true only while the message is set aside: a copy has it only by its patch.
fn is_of_one_wait(name: &str) -> bool {
    [header::SET_ASIDE, header::KEPT, header::KEPT_ROUNDS].contains(&name)
}

/// What each copy carries of the original's headers.
fn carried(original: &Original) -> BTreeMap<ShortString, AMQPValue> {
    let from = &original.properties;
    let mut headers: BTreeMap<ShortString, AMQPValue> = from
        .headers()
        .iter()
        .flatten()
        .filter(|(name, _)| !is_broker_bookkeeping(name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    if let Some(value) = headers.remove("CC") {
        headers.insert(CC.into(), value);
    }
    if let Some(user) = from.user_id() {
        headers.insert(USER_ID.into(), AMQPValue::LongString(user.as_str().into()));
    }
    headers
}

/// The properties of a copy of `original`, with `patch` on its headers, signed with `key`.
pub(in crate::rabbit) fn copy_properties<'a>(
    original: &Original,
    patch: impl IntoIterator<Item = (&'a str, HeaderValue)>,
    key: &MarkKey,
) -> BasicProperties {
    let patch: Vec<_> = patch.into_iter().collect();
    let mut headers = carried(original);
    headers.retain(|name, _| !is_of_one_wait(name.as_str()));
    for name in headers_to_clear(&patch) {
        headers.remove(name);
    }
    let mut first_seen = |name: &str, value: &ShortString| {
        let value = || AMQPValue::LongString(value.as_str().into());
        headers.entry(name.into()).or_insert_with(value);
    };
    first_seen(header::EXCHANGE, &original.exchange);
    first_seen(header::ROUTING_KEY, &original.routing_key);
    for (name, value) in patch {
        debug_assert!(name.starts_with(header::PREFIX), "only headers of ours");
        if let Some(value) = writable(&value) {
            headers.insert(name.into(), value);
        }
    }
    let marks = original
        .marked()
        .sign(|name| headers.get(name).map(readable), key);
    for (name, mark) in marks {
        headers.insert(name.into(), AMQPValue::LongString(mark.into()));
    }
    let from = &original.properties;
    rebuild(from, *from.timestamp()).with_headers(FieldTable::from(headers))
}

/// What a message has apart from how often it was handed out, and without its expiration.
pub(in crate::rabbit) fn same_properties(original: &Original) -> BasicProperties {
    let from = &original.properties;
    let headers = FieldTable::from(carried(original));
    rebuild(from, *from.timestamp()).with_headers(headers)
}

/// The properties of a copy about which nothing changes, for the queue that the original is in. The broker still
/// expires it where it would have expired the original.
pub(in crate::rabbit) fn same_and_expiring(original: &Original) -> BasicProperties {
    expiring(same_properties(original), original)
}

/// The properties of a result.
pub(in crate::rabbit) fn result_properties(result: &Publication) -> BasicProperties {
    let headers: BTreeMap<ShortString, AMQPValue> = result
        .headers
        .iter()
        .filter_map(|(name, value)| Some((ShortString::from(*name), writable(value)?)))
        .collect();
    let mut properties = BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_headers(FieldTable::from(headers));
    let Properties {
        message_id,
        correlation_id,
        content_type,
        kind,
        ..
    } = &result.properties;
    if let Some(id) = message_id {
        properties = properties.with_message_id(id.as_str().into());
    }
    if let Some(id) = correlation_id {
        properties = properties.with_correlation_id(id.as_str().into());
    }
    if let Some(content_type) = content_type {
        properties = properties.with_content_type(content_type.as_str().into());
    }
    if let Some(kind) = kind {
        properties = properties.with_type(kind.as_str().into());
    }
    properties
}

/// The properties of a copy that is published under a number.
pub(in crate::rabbit) fn with_number(properties: BasicProperties, number: u64) -> BasicProperties {
    let mut headers = properties.headers().clone().unwrap_or_default();
    // A channel never has that many deliveries.
    let number = AMQPValue::LongLongInt(i64::try_from(number).unwrap_or(i64::MAX));
    headers.insert(header::COPY.into(), number);
    properties.with_headers(headers)
}

/// The number that a copy was published under.
pub(in crate::rabbit) fn copy_number(properties: &BasicProperties) -> Option<u64> {
    match properties.headers().as_ref()?.inner().get(header::COPY)? {
        AMQPValue::LongLongInt(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

/// The properties of a dead letter that starts afresh in its work queue: no attempt, no age and no
/// expiration counts any more. `timestamp` is the publisher's, or none.
pub(in crate::rabbit) fn fresh_properties(
    original: &Original,
    timestamp: Option<u64>,
) -> BasicProperties {
    let mut headers = carried(original);
    headers.retain(|name, _| outlives_a_replay(name.as_str()));
    rebuild(&original.properties, timestamp).with_headers(FieldTable::from(headers))
}

fn outlives_a_replay(name: &str) -> bool {
    !name.starts_with(header::PREFIX) || LASTING.contains(&name)
}

/// The properties of a copy for the work queue itself: those that the broker acts on stay.
pub(in crate::rabbit) fn returned_properties<'a>(
    original: &Original,
    patch: impl IntoIterator<Item = (&'a str, HeaderValue)>,
    key: &MarkKey,
) -> BasicProperties {
    expiring(copy_properties(original, patch, key), original)
}

/// With the original's time to live.
fn expiring(copy: BasicProperties, original: &Original) -> BasicProperties {
    match original.properties.expiration() {
        Some(expiration) => copy.with_expiration(expiration.clone()),
        None => copy,
    }
}

/// The properties without headers, expiration and user id, and persistent.
pub(super) fn rebuild(from: &BasicProperties, timestamp: Option<u64>) -> BasicProperties {
    type Set<T> = fn(BasicProperties, T) -> BasicProperties;
    let texts: [(&Option<ShortString>, Set<ShortString>); 8] = [
        (from.content_type(), BasicProperties::with_content_type),
        (
            from.content_encoding(),
            BasicProperties::with_content_encoding,
        ),
        (from.correlation_id(), BasicProperties::with_correlation_id),
        (from.reply_to(), BasicProperties::with_reply_to),
        (from.message_id(), BasicProperties::with_message_id),
        (from.kind(), BasicProperties::with_type),
        (from.app_id(), BasicProperties::with_app_id),
        (from.cluster_id(), BasicProperties::with_cluster_id),
    ];
    let mut copy = BasicProperties::default().with_delivery_mode(PERSISTENT);
    for (value, set) in texts {
        if let Some(value) = value {
            copy = set(copy, value.clone());
        }
    }
    if let Some(priority) = from.priority() {
        copy = copy.with_priority(*priority);
    }
    if let Some(timestamp) = timestamp {
        copy = copy.with_timestamp(timestamp);
    }
    copy
}
