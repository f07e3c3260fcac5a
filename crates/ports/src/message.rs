//! A message, as the pipeline and the templates see it, from any queue.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Serialize;

/// The headers that sluiced itself writes on messages that wait or that are dead.
///
/// Headers of the broker (such as `x-death`) are removed and never read: only these count. Those that decide something
/// count only if a replica has signed them (`amqp::rabbit::messages::marks`).
pub mod header {
    /// Headers of a history that are removed where they are not written again. A verdict that writes [`ATTEMPTS`]
    /// writes the whole history of its message. So a header of this list that it does not write is out of date, and is
    /// removed from the copy.
    pub const CLEARED_WITH_HISTORY: [&str; 2] = [LAST_STATUS, THROTTLED];
    /// How many calls count against `max_attempts` (an integer). A denial never changes it.
    pub const ATTEMPTS: &str = "x-sluiced-attempts";
    /// The id that sluiced made for a message that came without one: the same on every copy.
    pub const MESSAGE_ID: &str = "x-sluiced-message-id";
    /// The message must not be sent before this time on the store's clock (microseconds since the epoch).
    pub const NOT_BEFORE: &str = "x-sluiced-not-before";
    /// When sluiced first saw the message, on the store's clock (microseconds since the epoch).
    pub const FIRST_SEEN: &str = "x-sluiced-first-seen";
    /// The end of the message's AMQP expiration, on the store's clock (microseconds since the epoch). Kept here
    /// because a wait queue must not expire the message.
    pub const EXPIRES: &str = "x-sluiced-expires";
    /// When it was parked, on the store's clock (microseconds since the epoch): it is not parked again.
    pub const PARKED: &str = "x-sluiced-parked";
    /// A limit denied it before, and it came back through a wait queue (a truth value).
    pub const DENIED_BEFORE: &str = "x-sluiced-waited";
    /// Since when the downstream refuses it while it accepts others, on the store's clock (microseconds since the
    /// epoch).
    pub const THROTTLED: &str = "x-sluiced-throttled";
    /// The broker had handed it out before this copy was made: a replica may have called it (a truth value).
    pub const REDELIVERED: &str = "x-sluiced-redelivered";
    /// Where the message was published to first: queues of ours return it through the default exchange, under the
    /// name of a queue.
    pub const EXCHANGE: &str = "x-sluiced-exchange";
    /// The routing key that it was published with.
    pub const ROUTING_KEY: &str = "x-sluiced-routing-key";
    /// The name of the limit that denied it last, if the route writes `denied_headers`; the next four have
    /// details.
    pub const DENIED_BY: &str = "x-sluiced-denied-by";
    /// The most units that fit at once.
    pub const LIMIT: &str = "x-sluiced-limit";
    /// Units that the limit had left then.
    pub const REMAINING: &str = "x-sluiced-remaining";
    /// How long until it fits, from then (microseconds).
    pub const RETRY_AFTER: &str = "x-sluiced-retry-after";
    /// How long until all of the limit is back, from then (microseconds).
    pub const RESET_AFTER: &str = "x-sluiced-reset-after";
    /// Why it is dead: a `DeadReason` label.
    pub const REASON: &str = "x-sluiced-reason";
    /// What went wrong, as a text for a person.
    pub const DETAIL: &str = "x-sluiced-detail";
    /// The beginning of the downstream's last answer, if `keep_answer` says so.
    pub const ANSWER: &str = "x-sluiced-answer";
    /// The downstream's last status code (an integer).
    pub const LAST_STATUS: &str = "x-sluiced-last-status";
    /// Why a message was set aside: on the copy in the wait queue, and on no other.
    pub const SET_ASIDE: &str = "x-sluiced-set-aside";
    /// The kept id: under it a replica keeps the verdict of a message that was set aside because no queue took its
    /// result or its copy.
    pub const KEPT: &str = "x-sluiced-kept";
    /// How often such a message was set aside: an integer from 1. After 60 rounds a replica that does not know the
    /// verdict calls the message again.
    pub const KEPT_ROUNDS: &str = "x-sluiced-kept-rounds";
    /// When it died, on the store's clock (microseconds since the epoch).
    pub const DIED: &str = "x-sluiced-died";
    /// The route that had it.
    pub const ROUTE: &str = "x-sluiced-route";
    /// The queue it came from, for a replay.
    pub const QUEUE: &str = "x-sluiced-queue";
    /// Of a result: how many results it comes from, this one included. Absent on messages of publishers.
    pub const HOPS: &str = "x-sluiced-hops";
    /// Why its properties cannot be read. The headers `RAW_PROPERTIES` and `RAW_DELIVERY` have the originals.
    pub const UNREADABLE: &str = "x-sluiced-unreadable";
    /// The secret of the process that found that out, as long as the message is in that process.
    pub const FOUND_BY: &str = "x-sluiced-found-by";
    /// The bytes of its properties as they were on the wire, in base64.
    pub const RAW_PROPERTIES: &str = "x-sluiced-raw-properties";
    /// The bytes in `RAW_PROPERTIES` are incomplete, because a frame takes no more (a truth value).
    pub const RAW_CUT: &str = "x-sluiced-raw-cut";
    /// The method that delivered it, with its exchange and routing key, in base64.
    pub const RAW_DELIVERY: &str = "x-sluiced-raw-delivery";
    /// The headers that a copy lost because a frame takes no more.
    pub const SHORTENED: &str = "x-sluiced-shortened";
    /// The number that a copy was published under, by which a returned copy is recognized.
    pub const COPY: &str = "x-sluiced-copy";
    /// The prefix of all the above.
    pub const PREFIX: &str = "x-sluiced-";
}

/// The value of a header, as far as templates and our own bookkeeping need it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum HeaderValue {
    /// A truth value.
    Bool(bool),
    /// Any of AMQP's integers that fits.
    Int(i64),
    /// A float or double.
    Float(f64),
    /// A string, if it is UTF-8.
    Text(String),
    /// Anything else (tables, arrays, bytes): passed on untouched, not readable by templates.
    Opaque,
}

impl HeaderValue {
    /// The text, if it is one.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The number, if it is a whole one (also from a text of digits).
    #[must_use]
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Self::Int(n) => Some(*n),
            Self::Text(text) => text.trim().parse().ok(),
            _ => None,
        }
    }
}

/// Headers by name.
pub type Headers = BTreeMap<String, HeaderValue>;

/// The AMQP properties that decisions and templates use. `None`: the publisher wrote none.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Properties {
    /// `message-id`. An empty one counts as none ([`Message::own_id`]).
    pub message_id: Option<String>,
    /// `correlation-id`. A result has that of its message.
    pub correlation_id: Option<String>,
    /// `content-type`: the media type of the body.
    pub content_type: Option<String>,
    /// `content-encoding`: how the body is compressed, such as `gzip`. Some publishers write a character set here.
    pub content_encoding: Option<String>,
    /// `type`. RabbitMQ writes `amqp-1.0` for a body in sections of AMQP 1.0; a result has `sluiced.result`.
    pub kind: Option<String>,
    /// `app-id`: the program that published the message.
    pub app_id: Option<String>,
    /// `reply-to`: the queue for an answer. A publisher can write the name of any queue.
    pub reply_to: Option<String>,
    /// `priority`, 0 to 255; RabbitMQ's own queues use up to 9. 0 if the publisher wrote none.
    pub priority: u8,
    /// `timestamp`, the publisher's own time of publishing: seconds since the Unix epoch, also where it wrote
    /// milliseconds.
    pub timestamp: Option<u64>,
    /// `expiration`, AMQP's per-message TTL: milliseconds from publishing.
    pub expiration: Option<u64>,
}

/// A message from a queue.
#[derive(Clone, Debug, Default)]
pub struct Message {
    /// The body as it came, still compressed if it was.
    pub body: Bytes,
    /// The properties as they came.
    pub properties: Properties,
    /// All headers; of ours that decide something, only those that a replica signed. Where a command shows a message,
    /// all of them.
    pub headers: Headers,
    /// The exchange that the message was published to first. Empty: the default exchange.
    pub exchange: String,
    /// The routing key that the message was published with first.
    pub routing_key: String,
    /// The broker has handed it out before: a repeat is possible.
    pub redelivered: bool,
    /// The id that was made for it, if its publisher gave none.
    pub made_id: Option<String>,
}

impl Message {
    /// The publisher's id for it; an empty one counts as none.
    #[must_use]
    pub fn own_id(&self) -> Option<&str> {
        let id = self.properties.message_id.as_deref();
        id.filter(|id| !id.is_empty())
    }

    /// The publisher's id, or the one that was made here.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        self.own_id().or(self.made_id.as_deref())
    }
}
