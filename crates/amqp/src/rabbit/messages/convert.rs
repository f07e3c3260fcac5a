//! Converts AMQP's messages to ours. What is published for them is in [`copies`]; a copy must also fit a frame:
//! [`frame_size`].
//!
//! A publisher may write headers of ours: they count only with a valid mark (`marks`), and are removed otherwise.

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};

use super::marks::{Marked, decides};
use crate::rabbit::frame_filter::found_by;
use sluiced_ports::marks::Marks;
use sluiced_ports::message::{HeaderValue, Headers, Message, Properties, header};

pub(in crate::rabbit) mod copies;
pub(in crate::rabbit) mod frame_size;

/// How often it was returned to a quorum queue.
const RETURNS: &str = "x-delivery-count";

/// What a copy is made of.
#[derive(Debug)]
pub(in crate::rabbit) struct Original {
    pub(in crate::rabbit) body: Bytes,
    properties: BasicProperties,
    exchange: ShortString,
    routing_key: ShortString,
}

impl Original {
    /// Bytes of its body.
    pub(in crate::rabbit) fn size(&self) -> u64 {
        self.body.len() as u64
    }

    /// The id that the publisher gave; an empty one counts as none.
    pub(in crate::rabbit) fn id(&self) -> Option<&str> {
        let id = self.properties.message_id().as_ref();
        id.map(|id| id.as_str()).filter(|id| !id.is_empty())
    }

    /// The exchange and the routing key that it came with.
    pub(in crate::rabbit) fn address(&self) -> [&str; 2] {
        [self.exchange.as_str(), self.routing_key.as_str()]
    }

    /// Whether its publisher gave it an id.
    pub(in crate::rabbit) fn has_id(&self) -> bool {
        self.id().is_some()
    }

    /// Whether it was returned so often that it is to be copied.
    pub(in crate::rabbit) fn was_returned_too_often(&self) -> bool {
        was_returned_too_often(&self.properties)
    }

    /// The id under which a replica keeps the verdict of a message that was set aside.
    pub(in crate::rabbit) fn kept_id(&self) -> Option<&str> {
        let headers = self.properties.headers().as_ref()?;
        match headers.inner().get(header::KEPT)? {
            AMQPValue::LongString(id) => std::str::from_utf8(id.as_bytes()).ok(),
            _ => None,
        }
    }

    /// How often it was set aside with this id.
    pub(in crate::rabbit) fn rounds(&self) -> i64 {
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

    /// Removes those headers of ours that a decision depends on and that no replica wrote. Returns whether there were
    /// any.
    fn remove_forged_headers(&mut self, marks: &Marks) -> bool {
        let Some(headers) = self.properties.headers() else {
            return false;
        };
        let counts = |name: &ShortString| decides(name.as_str()) || is_found_by(name.as_str());
        if !headers.inner().keys().any(counts) {
            return false;
        }
        let trust = self.marked().trust(|name| self.header(name), &marks.keys());
        let found_by_us = self
            .header(header::FOUND_BY)
            .is_some_and(|by| by.as_text() == Some(found_by()));
        let mut was_forged = false;
        let mut believed = headers.inner().clone();
        believed.retain(|name, _| {
            if is_found_by(name.as_str()) {
                // It leaves the process with no copy.
                return false;
            }
            let is_believed =
                trust.believes(name.as_str()) || name.as_str() == header::UNREADABLE && found_by_us;
            was_forged |= !is_believed;
            is_believed
        });
        let table = FieldTable::from(believed);
        self.properties = self.properties.clone().with_headers(table);
        was_forged
    }
}

/// A message that was returned so often goes to the end of its queue as a copy, which has no returns behind it:
/// RabbitMQ 4 drops or dead-letters one after 20 returns, and replicas that crash or freeze return whole
/// prefetches.
const MOST_RETURNS: i64 = 10;

/// Whether a message was returned so often that it is to be copied. Some queues do not count that.
pub(in crate::rabbit) fn was_returned_too_often(properties: &BasicProperties) -> bool {
    let headers = properties.headers().as_ref();
    let returns = headers
        .and_then(|headers| headers.inner().get(RETURNS))
        .map_or(0, |count| readable(count).as_int().unwrap_or(0));
    returns >= MOST_RETURNS
}

/// A message as it came from the broker.
#[derive(Debug)]
pub(in crate::rabbit) struct ReceivedDelivery {
    /// For the pipeline. The body is shared with the original.
    pub(in crate::rabbit) message: Message,
    /// What to keep for a copy.
    pub(in crate::rabbit) original: Original,
    /// The message had headers of ours that no replica wrote. They were removed.
    pub(in crate::rabbit) was_forged: bool,
}

/// A message from a queue that others can publish to: headers of ours count only if a key of the fleet signed them.
pub(in crate::rabbit) fn convert_delivery(
    delivery: lapin::message::Delivery,
    marks: &Marks,
) -> ReceivedDelivery {
    let (mut original, redelivered) = original_of(delivery);
    let was_forged = original.remove_forged_headers(marks);
    ReceivedDelivery {
        message: message_of(&original, redelivered),
        original,
        was_forged,
    }
}

/// For commands that show letters: headers of ours are not verified.
pub(in crate::rabbit) fn convert_unverified(
    delivery: lapin::message::Delivery,
) -> (Message, Original) {
    let (original, redelivered) = original_of(delivery);
    (message_of(&original, redelivered), original)
}

fn original_of(delivery: lapin::message::Delivery) -> (Original, bool) {
    let original = Original {
        body: Bytes::from(delivery.data),
        properties: delivery.properties,
        exchange: delivery.exchange,
        routing_key: delivery.routing_key,
    };
    (original, delivery.redelivered)
}

fn message_of(original: &Original, redelivered: bool) -> Message {
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

/// AMQP's timestamps are seconds since 1970. Some publishers write milliseconds (`Date.now()` of JavaScript), RabbitMQ
/// 3 passes on the milliseconds of AMQP 1.0 unchanged, and some write microseconds or nanoseconds. A number that would
/// be thousands of years ahead is read in the next finer unit, until it is not.
const fn in_seconds(timestamp: u64) -> u64 {
    /// As seconds this is the year 5138, as milliseconds 1973.
    const TOO_LARGE_FOR_SECONDS: u64 = 100_000_000_000;
    let mut seconds = timestamp;
    while seconds >= TOO_LARGE_FOR_SECONDS {
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

/// Whether this header has the secret of a process. A message has the header only inside that process.
fn is_found_by(name: &str) -> bool {
    name == header::FOUND_BY
}

#[cfg(test)]
mod tests;
