//! What the headers of a dead letter say.

use serde_json::{Map, Value, json};

use super::text::{time, time_micros};
use crate::core::time::StoreTime;
use crate::ports::message::{HeaderValue, Message, header};

/// A dead letter, by the headers that sluiced wrote on it. Each is absent on one that came otherwise.
#[derive(Clone, Copy, Debug)]
pub(super) struct LetterFacts<'a>(pub(super) &'a Message);

impl<'a> LetterFacts<'a> {
    fn text(self, name: &str) -> Option<&'a str> {
        self.0.headers.get(name).and_then(HeaderValue::as_text)
    }

    fn number(self, name: &str) -> Option<i64> {
        self.0.headers.get(name).and_then(HeaderValue::as_int)
    }

    fn time(self, name: &str) -> Option<StoreTime> {
        let micros = u64::try_from(self.number(name)?).ok()?;
        Some(StoreTime::from_micros(micros))
    }

    pub(super) fn reason(self) -> Option<&'a str> {
        self.text(header::REASON)
    }

    pub(super) fn detail(self) -> Option<&'a str> {
        self.text(header::DETAIL)
    }

    pub(super) fn status(self) -> Option<i64> {
        self.number(header::LAST_STATUS)
    }

    pub(super) fn attempts(self) -> Option<i64> {
        self.number(header::ATTEMPTS)
    }

    pub(super) fn route(self) -> Option<&'a str> {
        self.text(header::ROUTE)
    }

    /// The work queue that it came from.
    pub(super) fn queue(self) -> Option<&'a str> {
        self.text(header::QUEUE)
    }

    pub(super) fn died(self) -> Option<StoreTime> {
        self.time(header::DIED)
    }

    pub(super) fn first_seen(self) -> Option<StoreTime> {
        self.time(header::FIRST_SEEN)
    }

    pub(super) fn expires(self) -> Option<StoreTime> {
        self.time(header::EXPIRES)
    }

    pub(super) fn unreadable(self) -> Option<&'a str> {
        let mark = self.0.headers.get(header::UNREADABLE)?;
        Some(mark.as_text().unwrap_or("its properties cannot be read"))
    }

    /// Its publisher's, or the one that was made for it.
    pub(super) fn id(self) -> Option<&'a str> {
        self.0.id()
    }

    /// All of it but the body, for programs.
    pub(super) fn as_json(self, number: u64) -> Value {
        json!({
            "number": number,
            "message_id": self.id(),
            "reason": self.reason(),
            "detail": self.detail(),
            "last_status": self.status(),
            "attempts": self.attempts(),
            "route": self.route(),
            "queue": self.queue(),
            "died": self.died().map(time_micros),
            "died_us": self.died().map(StoreTime::as_micros),
            "first_seen": self.first_seen().map(time_micros),
            "expires": self.expires().map(time_micros),
            "unreadable": self.unreadable(),
            "bytes": self.0.body.len(),
        })
    }

    /// The headers, its own and those of ours.
    pub(super) fn headers_as_json(self) -> Value {
        let headers = self.0.headers.iter();
        let pairs = headers.map(|(name, value)| {
            let value = match value {
                HeaderValue::Bool(value) => json!(value),
                HeaderValue::Int(value) => json!(value),
                HeaderValue::Float(value) => json!(value),
                HeaderValue::Text(text) => json!(text),
                HeaderValue::Opaque => Value::Null,
            };
            (name.clone(), value)
        });
        Value::Object(pairs.collect::<Map<_, _>>())
    }

    /// The publisher's time of publishing.
    pub(super) fn published(self) -> Option<String> {
        self.0.properties.timestamp.map(time)
    }
}
