//! Converts AMQP's messages to ours, and back when a copy is published.
//!
//! A publisher may write headers of ours: they count only with a valid mark (`marks`), and are removed otherwise.
//!
//! A copy carries everything that the original had, even what this program cannot read, with two
//! exceptions. Headers that RabbitMQ adds on the way are removed, because they would grow with
//! every round through a wait queue. Properties on which the broker would act (an expiration, a
//! user id, a carbon copy) are removed or moved to a header of ours.
//!
//! A copy must also fit a frame: [`frame_size`].

use std::collections::BTreeMap;

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};

use super::frame_filter::found_by;
use super::marks::{MARK, Marked, decides};
use sluiced_ports::marks::{MarkKey, Marks};
use sluiced_ports::message::{HeaderValue, Headers, Message, Properties, header};
use sluiced_ports::queue::Publication;

pub(super) mod frame_size;

/// The original's user id. The broker closes a channel that publishes under another user's.
const USER_ID: &str = "x-sluiced-user-id";
/// The original's `CC`. The broker would send a copy of each copy there.
const CC: &str = "x-sluiced-cc";

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

/// How often it was returned to a quorum queue.
const RETURNS: &str = "x-delivery-count";

/// AMQP's value for messages that survive a restart.
const PERSISTENT: u8 = 2;

/// What a copy is made of.
#[derive(Debug)]
pub(super) struct Original {
    pub(super) body: Bytes,
    properties: BasicProperties,
    exchange: ShortString,
    routing_key: ShortString,
}

impl Original {
    /// Bytes of its body.
    pub(super) fn size(&self) -> u64 {
        self.body.len() as u64
    }

    /// Its publisher's id; an empty one counts as none.
    pub(super) fn id(&self) -> Option<&str> {
        let id = self.properties.message_id().as_ref();
        id.map(|id| id.as_str()).filter(|id| !id.is_empty())
    }

    /// The exchange and the routing key that it came with.
    pub(super) fn address(&self) -> [&str; 2] {
        [self.exchange.as_str(), self.routing_key.as_str()]
    }

    /// Whether its publisher gave it an id.
    pub(super) fn has_id(&self) -> bool {
        self.id().is_some()
    }

    /// Whether it was returned so often that it is to be copied.
    pub(super) fn is_worn(&self) -> bool {
        is_worn(&self.properties)
    }

    /// The mark of a message that was set aside because its verdict had no place.
    pub(super) fn mark(&self) -> Option<&str> {
        let headers = self.properties.headers().as_ref()?;
        match headers.inner().get(header::KEPT)? {
            AMQPValue::LongString(mark) => std::str::from_utf8(mark.as_bytes()).ok(),
            _ => None,
        }
    }

    /// How often it was set aside with this mark.
    pub(super) fn rounds(&self) -> i64 {
        let headers = self.properties.headers().as_ref();
        let rounds = headers.and_then(|headers| headers.inner().get(header::KEPT_ROUNDS));
        rounds.map_or(0, |rounds| readable(rounds).as_int().unwrap_or(0))
    }

    /// What its marks are about.
    fn marked(&self) -> Marked<'_> {
        let id = self.properties.message_id().as_ref();
        Marked {
            id: id.map(|id| id.as_str()),
            body: &self.body,
        }
    }

    fn header(&self, name: &str) -> Option<HeaderValue> {
        let headers = self.properties.headers().as_ref()?;
        headers.inner().get(name).map(readable)
    }

    /// Removes headers of ours that no replica wrote. Returns whether there were any.
    fn doubt(&mut self, marks: &Marks) -> bool {
        let Some(headers) = self.properties.headers() else {
            return false;
        };
        let counts = |name: &ShortString| decides(name.as_str()) || is_found_by(name.as_str());
        if !headers.inner().keys().any(counts) {
            return false;
        }
        let trust = self.marked().trust(|name| self.header(name), &marks.keys());
        let found_by_us = self.header(header::FOUND_BY);
        let found_by_us = found_by_us.is_some_and(|by| by.as_text() == Some(found_by()));
        let mut was_forged = false;
        let mut headers = headers.inner().clone();
        headers.retain(|name, _| {
            if is_found_by(name.as_str()) {
                // It leaves the process with no copy.
                return false;
            }
            let believed =
                trust.believes(name.as_str()) || name.as_str() == header::UNREADABLE && found_by_us;
            was_forged |= !believed;
            believed
        });
        let headers = FieldTable::from(headers);
        self.properties = self.properties.clone().with_headers(headers);
        was_forged
    }
}

/// A message that was returned so often goes to the end of its queue as a copy, which has no returns behind it:
/// RabbitMQ 4 drops or dead-letters one after 20 returns, and replicas that crash or freeze return whole
/// prefetches.
const WORN: i64 = 10;

/// Whether a message was returned so often that it is to be copied. Some queues do not count that.
pub(super) fn is_worn(properties: &BasicProperties) -> bool {
    let headers = properties.headers().as_ref();
    let returns = headers
        .and_then(|headers| headers.inner().get(RETURNS))
        .map_or(0, |count| readable(count).as_int().unwrap_or(0));
    returns >= WORN
}

/// A message as it came from the broker.
#[derive(Debug)]
pub(super) struct Arrived {
    /// For the pipeline. The body is shared with the original.
    pub(super) message: Message,
    /// What to keep for a copy.
    pub(super) original: Original,
    /// It had headers of ours that no replica wrote. They were removed.
    pub(super) was_forged: bool,
}

/// A message from a queue that others can publish to: headers of ours count only if a key of the fleet signed them.
pub(super) fn arrived(delivery: lapin::message::Delivery, marks: &Marks) -> Arrived {
    let (mut original, redelivered) = taken(delivery);
    let was_forged = original.doubt(marks);
    Arrived {
        message: shown(&original, redelivered),
        original,
        was_forged,
    }
}

/// A message as it is, for people.
pub(super) fn message(delivery: lapin::message::Delivery) -> (Message, Original) {
    let (original, redelivered) = taken(delivery);
    (shown(&original, redelivered), original)
}

fn taken(delivery: lapin::message::Delivery) -> (Original, bool) {
    let original = Original {
        body: Bytes::from(delivery.data),
        properties: delivery.properties,
        exchange: delivery.exchange,
        routing_key: delivery.routing_key,
    };
    (original, delivery.redelivered)
}

fn shown(original: &Original, redelivered: bool) -> Message {
    let headers: Headers = original
        .properties
        .headers()
        .iter()
        .flatten()
        .map(|(name, value)| (name.as_str().to_owned(), readable(value)))
        .collect();
    let first = |name: &str, now: &ShortString| match headers.get(name) {
        Some(HeaderValue::Text(text)) => text.clone(),
        _ => now.as_str().to_owned(),
    };
    Message {
        body: original.body.clone(),
        properties: properties(&original.properties),
        exchange: first(header::EXCHANGE, &original.exchange),
        routing_key: first(header::ROUTING_KEY, &original.routing_key),
        redelivered,
        headers,
        made_id: None,
    }
}

fn properties(from: &BasicProperties) -> Properties {
    let text = |value: &Option<ShortString>| value.as_ref().map(|text| text.as_str().to_owned());
    Properties {
        message_id: text(from.message_id()),
        correlation_id: text(from.correlation_id()),
        content_type: text(from.content_type()),
        content_encoding: text(from.content_encoding()),
        kind: text(from.kind()),
        app_id: text(from.app_id()),
        reply_to: text(from.reply_to()),
        priority: from.priority().unwrap_or(0),
        timestamp: from.timestamp().map(in_seconds),
        expiration: from
            .expiration()
            .as_ref()
            .and_then(|text| text.as_str().parse().ok()),
    }
}

/// AMQP's timestamps are seconds since 1970. Some publishers write milliseconds (`Date.now()` of JavaScript), RabbitMQ 3
/// passes on those of AMQP 1.0 as they are, and some write less: what would be thousands of years ahead is read as that.
const fn in_seconds(timestamp: u64) -> u64 {
    /// As seconds this is the year 5138, as milliseconds 1973.
    const NONE: u64 = 100_000_000_000;
    let mut seconds = timestamp;
    while seconds >= NONE {
        seconds /= 1_000;
    }
    seconds
}

fn readable(value: &AMQPValue) -> HeaderValue {
    match value {
        AMQPValue::Boolean(value) => HeaderValue::Bool(*value),
        AMQPValue::ShortShortInt(value) => HeaderValue::Int((*value).into()),
        AMQPValue::ShortShortUInt(value) => HeaderValue::Int((*value).into()),
        AMQPValue::ShortInt(value) => HeaderValue::Int((*value).into()),
        AMQPValue::ShortUInt(value) => HeaderValue::Int((*value).into()),
        AMQPValue::LongInt(value) => HeaderValue::Int((*value).into()),
        AMQPValue::LongUInt(value) => HeaderValue::Int((*value).into()),
        AMQPValue::LongLongInt(value) => HeaderValue::Int(*value),
        AMQPValue::Timestamp(value) => {
            i64::try_from(*value).map_or(HeaderValue::Opaque, HeaderValue::Int)
        }
        AMQPValue::Float(value) => HeaderValue::Float((*value).into()),
        AMQPValue::Double(value) => HeaderValue::Float(*value),
        AMQPValue::ShortString(value) => HeaderValue::Text(value.as_str().to_owned()),
        AMQPValue::LongString(value) => std::str::from_utf8(value.as_bytes())
            .map_or(HeaderValue::Opaque, |text| {
                HeaderValue::Text(text.to_owned())
            }),
        _ => HeaderValue::Opaque,
    }
}

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

/// Whether it is the secret of a process, which a message has only inside of it.
fn is_found_by(name: &str) -> bool {
    name == header::FOUND_BY
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
pub(super) fn copy_properties<'a>(
    original: &Original,
    patch: impl IntoIterator<Item = (&'a str, HeaderValue)>,
    key: &MarkKey,
) -> BasicProperties {
    let mut headers = carried(original);
    headers.retain(|name, _| !is_of_one_wait(name.as_str()));
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
pub(super) fn same_properties(original: &Original) -> BasicProperties {
    let from = &original.properties;
    let headers = FieldTable::from(carried(original));
    rebuild(from, *from.timestamp()).with_headers(headers)
}

/// The properties of a copy about which nothing changes, for the queue that the original is in. The broker still expires it
/// where it would have expired the original.
pub(super) fn same_and_expiring(original: &Original) -> BasicProperties {
    expiring(same_properties(original), original)
}

/// The properties of a result.
pub(super) fn result_properties(result: &Publication) -> BasicProperties {
    let headers = result.headers.iter().filter_map(|(name, value)| {
        let value = writable(value)?;
        Some((ShortString::from(*name), value))
    });
    let headers: BTreeMap<ShortString, AMQPValue> = headers.collect();
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
pub(super) fn numbered(properties: BasicProperties, number: u64) -> BasicProperties {
    let mut headers = properties.headers().clone().unwrap_or_default();
    // A channel never has that many deliveries.
    let number = AMQPValue::LongLongInt(i64::try_from(number).unwrap_or(i64::MAX));
    headers.insert(header::COPY.into(), number);
    properties.with_headers(headers)
}

/// The number that a copy was published under.
pub(super) fn copy_number(properties: &BasicProperties) -> Option<u64> {
    match properties.headers().as_ref()?.inner().get(header::COPY)? {
        AMQPValue::LongLongInt(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

/// The properties of a dead letter that starts afresh in its work queue: no attempt, no age and no
/// expiration counts any more. `timestamp` is the publisher's, or none.
pub(super) fn fresh_properties(original: &Original, timestamp: Option<u64>) -> BasicProperties {
    let mut headers = carried(original);
    headers.retain(|name, _| outlives_a_replay(name.as_str()));
    rebuild(&original.properties, timestamp).with_headers(FieldTable::from(headers))
}

fn outlives_a_replay(name: &str) -> bool {
    !name.starts_with(header::PREFIX) || LASTING.contains(&name)
}

/// The properties of a copy for the work queue itself: those that the broker acts on stay.
pub(super) fn returned_properties<'a>(
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
fn rebuild(from: &BasicProperties, timestamp: Option<u64>) -> BasicProperties {
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

#[cfg(test)]
mod tests;
