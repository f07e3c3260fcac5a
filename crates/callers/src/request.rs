//! What a caller asks for, and the message that it becomes.
//!
//! ```json
//! {"keys": {"sender": "ACME"}, "cost": {"provider": 2}, "wait": "5s", "tenant": "shop-7"}
//! ```
//!
//! All of it may be left out, except the keys of limits that have one. The message has a cost for each limit, so that
//! the limits count it by templates like any other (`{{ body.keys["sender"] }}`). Its AMQP expiration is the wait.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::permits::PermitId;
use sluiced_core::rate::{Span, parse_duration};
use sluiced_ports::message::{Message, Properties};

/// Asking takes a moment, even if the turn is now: a shorter wait would always be over.
const LEAST_WAIT: Duration = Duration::from_millis(100);
/// The wait of a request that names none, unless the longest is shorter.
const WAIT: Duration = Duration::from_secs(1);
/// The longest key, and the longest name of a tenant, in bytes. Each request keeps its own until its permit ends.
const LONGEST: usize = 1_024;
/// The tenant of requests that name none.
const NO_TENANT: &str = "-";

/// A limit, as far as requests name it.
#[derive(Clone, Debug)]
pub struct AskedLimit {
    /// As in the configuration. Requests name it below `keys` and `cost`.
    pub name: String,
    /// Whether a request names a key of it.
    pub key: NamesKey,
    /// The cost of a request that names no cost; at least 1.
    pub cost: NonZeroU32,
    /// The most that a request may cost. `None`: that is in the policy of the limit, which may change.
    pub most: Option<NonZeroU32>,
}

/// Whether requests name a key of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamesKey {
    /// The limit counts all together. A request that names a key of it is wrong (400).
    Never,
    /// Every request names one: a text of 1 to 1024 bytes, or a whole number. Without it a request is wrong (400).
    Always,
    /// Every request names one, or `null`: the limit does not count the request then.
    OrNull,
}

/// What every request of a listener may ask for.
#[derive(Clone, Debug)]
pub(crate) struct AskableLimits {
    pub(crate) limits: Vec<AskedLimit>,
    pub(crate) max_wait: Duration,
}

/// A request as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RequestBody {
    keys: BTreeMap<String, Option<RequestKey>>,
    cost: BTreeMap<String, NonZeroU32>,
    wait: Option<String>,
    tenant: Option<String>,
}

/// A text, or a number that stands for one.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a text or a whole number")]
enum RequestKey {
    Text(String),
    Number(i64),
}

/// The body of the message.
#[derive(Debug, Serialize)]
struct MessageBody<'a> {
    keys: BTreeMap<&'a str, Option<String>>,
    cost: BTreeMap<&'a str, NonZeroU32>,
    tenant: &'a str,
}

/// A request that can be counted.
#[derive(Debug)]
pub(crate) struct PermitRequest {
    body: Bytes,
    /// How long its caller waits at most.
    pub(crate) wait: Duration,
    /// What it costs at each limit that counts it.
    pub(crate) costs: Vec<LimitCost>,
}

/// What a request costs at one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LimitCost {
    pub(crate) limit: String,
    /// `None`: the limit has none.
    pub(crate) key: Option<String>,
    pub(crate) cost: NonZeroU32,
}

impl LimitCost {
    /// For a cost that can never be granted.
    pub(crate) fn costs_more_than(&self, most: u64) -> String {
        let (limit, cost) = (&self.limit, self.cost);
        format!("cost.{limit}: {cost}, and no more than {most} can ever fit")
    }
}

/// Why a request cannot be counted: the field, and what would be right.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct WrongRequest(String);

fn wrong<T>(why: impl Into<String>) -> Result<T, WrongRequest> {
    Err(WrongRequest(why.into()))
}

/// The keys and the costs by the names of limits, and what is taken.
type CountedRequest<'a> = (
    BTreeMap<&'a str, Option<String>>,
    BTreeMap<&'a str, NonZeroU32>,
    Vec<LimitCost>,
);

impl RequestBody {
    fn read(text: &[u8]) -> Result<Self, WrongRequest> {
        let written = match text.trim_ascii() {
            b"" => Ok(Self::default()),
            // A list would be read as the fields in their order.
            [b'[', ..] => return wrong("the request is a list; write an object: {…}"),
            text => serde_json::from_slice(text),
        };
        written.or_else(|why| wrong(format!("the request is not as it should be: {why}")))
    }
}

/// The tenant of a request.
fn tenant(written: Option<&str>) -> Result<&str, WrongRequest> {
    match written.unwrap_or(NO_TENANT) {
        "" => wrong("tenant: it is empty; write a name, or leave it out"),
        long if long.len() > LONGEST => wrong(format!("tenant: write at most {LONGEST} bytes")),
        tenant => Ok(tenant),
    }
}

impl AskableLimits {
    /// Reads a request; an empty one asks for nothing special.
    pub(crate) fn read(&self, text: &[u8]) -> Result<PermitRequest, WrongRequest> {
        let mut written = RequestBody::read(text)?;
        let wait = self.read_wait(written.wait.as_deref())?;
        let (keys, cost, costs) = self.count(&mut written)?;
        let body = MessageBody {
            keys,
            cost,
            tenant: tenant(written.tenant.as_deref())?,
        };
        match serde_json::to_vec(&body) {
            Ok(body) => Ok(PermitRequest {
                body: body.into(),
                wait,
                costs,
            }),
            Err(why) => wrong(why.to_string()),
        }
    }

    /// The key and the cost of a request for each limit, and what it costs at those that count it.
    fn count(&self, written: &mut RequestBody) -> Result<CountedRequest<'_>, WrongRequest> {
        let mut keys = BTreeMap::new();
        let mut cost = BTreeMap::new();
        let mut costs = Vec::new();
        for limit in &self.limits {
            let name = limit.name.as_str();
            let key = limit.key_in(written.keys.remove(name))?;
            let units = written.cost.remove(name).unwrap_or(limit.cost);
            // Without a key it is counted only by limits that have none.
            if key != Some(None) {
                let limit_cost = LimitCost {
                    limit: limit.name.clone(),
                    key: key.clone().flatten(),
                    cost: units,
                };
                if let Some(most) = limit.most.filter(|most| units > *most) {
                    return wrong(limit_cost.costs_more_than(most.get().into()));
                }
                costs.push(limit_cost);
            }
            if let Some(key) = key {
                keys.insert(name, key);
            }
            cost.insert(name, units);
        }
        for (what, unknown) in [
            ("keys", written.keys.keys().next()),
            ("cost", written.cost.keys().next()),
        ] {
            if let Some(unknown) = unknown {
                return wrong(format!("{what}.{unknown}: {}", self.names()));
            }
        }
        if costs.is_empty() {
            return wrong("keys: all are null, so that no limit counts it; name a key");
        }
        Ok((keys, cost, costs))
    }

    fn read_wait(&self, text: Option<&str>) -> Result<Duration, WrongRequest> {
        let Some(text) = text else {
            return Ok(WAIT.min(self.max_wait));
        };
        let wait = match parse_duration(text) {
            Ok(wait) => wait,
            Err(why) => return wrong(format!("wait: `{text}` is {why}")),
        };
        if wait > self.max_wait {
            let most = Span(self.max_wait);
            return wrong(format!(
                "wait: `{text}` is longer than {most}, the max_wait here"
            ));
        }
        Ok(wait.max(LEAST_WAIT))
    }

    /// The limits that a request may name.
    fn names(&self) -> String {
        let names: Vec<_> = self.limits.iter().map(|l| l.name.as_str()).collect();
        format!("no such limit here; there is {}", names.join(", "))
    }
}

impl AskedLimit {
    /// The key that a request names; `None`: the limit has none.
    fn key_in(
        &self,
        written: Option<Option<RequestKey>>,
    ) -> Result<Option<Option<String>>, WrongRequest> {
        let name = &self.name;
        let text = match written {
            Some(Some(RequestKey::Text(text))) => Some(text),
            Some(Some(RequestKey::Number(number))) => Some(number.to_string()),
            Some(None) => None,
            None if self.key == NamesKey::Never => return Ok(None),
            None => {
                return wrong(format!(
                    "keys.{name}: missing, and the limit counts by it; write \"keys\": {{\"{name}\": \"…\"}}"
                ));
            }
        };
        match (self.key, text) {
            (NamesKey::Never, _) => wrong(format!(
                "keys.{name}: the limit counts all together and has no key; leave it out"
            )),
            (_, Some(text)) if text.is_empty() => {
                wrong(format!("keys.{name}: it is empty; write the key"))
            }
            (_, Some(text)) if text.len() > LONGEST => wrong(format!(
                "keys.{name}: it has {} bytes; write at most {LONGEST}",
                text.len()
            )),
            (NamesKey::Always, None) => wrong(format!(
                "keys.{name}: null, and the limit counts every message; write the key"
            )),
            (_, text) => Ok(Some(text)),
        }
    }
}

impl PermitRequest {
    /// The message that waits for the turn. It expires after `left`, what remains of the request's wait.
    pub(crate) fn message(self, id: PermitId, left: Duration) -> Message {
        Message {
            body: self.body,
            properties: Properties {
                message_id: Some(id.to_string()),
                expiration: Some(u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
                ..Properties::default()
            },
            ..Message::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn offer() -> AskableLimits {
        let limit = |name: &str, key, cost| AskedLimit {
            name: name.to_owned(),
            key,
            cost: NonZeroU32::new(cost).expect("a cost"),
            most: NonZeroU32::new(8),
        };
        AskableLimits {
            limits: vec![
                limit("provider", NamesKey::Never, 1),
                limit("sender", NamesKey::Always, 3),
                limit("class", NamesKey::OrNull, 1),
            ],
            max_wait: Duration::from_secs(30),
        }
    }

    fn read(text: &str) -> Result<(Value, Duration), String> {
        let asked = offer().read(text.as_bytes()).map_err(|e| e.to_string())?;
        let wait = asked.wait;
        let body = asked.message(PermitId(1), wait).body;
        Ok((serde_json::from_slice(&body).expect("JSON"), wait))
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        let (body, wait) =
            read(r#"{"keys": {"sender": "ACME", "class": null}}"#).expect("a request");
        let expected = json!({
            "keys": {"sender": "ACME", "class": null},
            "cost": {"provider": 1, "sender": 3, "class": 1},
            "tenant": "-",
        });
        assert_eq!((body, wait), (expected, Duration::from_secs(1)));
    }

    #[test]
    fn keys_costs_wait_and_tenant_are_the_callers() {
        let text = r#"{"keys": {"sender": 4711, "class": "a"}, "cost": {"provider": 2}, "wait": "2s", "tenant": "t"}"#;
        let (body, wait) = read(text).expect("a request");
        assert_eq!(body["keys"]["sender"], "4711");
        assert_eq!(
            (&body["cost"]["provider"], &body["tenant"]),
            (&json!(2), &json!("t"))
        );
        assert_eq!(wait, Duration::from_secs(2));
        let short = r#"{"keys": {"sender": "x", "class": null}, "wait": "0s"}"#;
        assert_eq!(read(short).expect("a request").1, LEAST_WAIT);
    }

    #[test]
    fn a_limit_that_does_not_count_it_is_not_taken_from() {
        let text = br#"{"keys": {"sender": "x", "class": null}}"#;
        let costs = offer().read(text).expect("a request").costs;
        let names: Vec<_> = costs.iter().map(|asked| asked.limit.as_str()).collect();
        assert_eq!(names, ["provider", "sender"]);
        assert_eq!(costs[1].key.as_deref(), Some("x"));
    }

    #[test]
    fn a_request_that_no_limit_counts_is_wrong() {
        let mut offer = offer();
        offer.limits.retain(|limit| limit.key == NamesKey::OrNull);
        let why = offer.read(br#"{"keys": {"class": null}}"#);
        let why = why.expect_err("nothing counts it").to_string();
        assert!(why.contains("no limit counts it"), "{why}");
    }

    #[test]
    fn a_fault_names_its_field_and_what_is_right() {
        for (text, said) in [
            ("", "keys.sender: missing"),
            ("[]", "the request is a list"),
            ("{", "the request is not as it should be"),
            (r#"{"key": {}}"#, "unknown field `key`"),
            (r#"{"keys": {"sender": true}}"#, "a text or a whole number"),
            (
                r#"{"keys": {"sender": "", "class": null}}"#,
                "keys.sender: it is empty",
            ),
            (
                r#"{"keys": {"sender": null, "class": null}}"#,
                "keys.sender: null",
            ),
            (r#"{"keys": {"sender": "x"}}"#, "keys.class: missing"),
            (
                r#"{"keys": {"sender": "x", "class": null, "provider": "y"}}"#,
                "keys.provider: the limit counts all together",
            ),
            (
                r#"{"keys": {"sender": "x", "class": null, "sendr": "y"}}"#,
                "keys.sendr: no such limit here; there is provider, sender, class",
            ),
            (
                r#"{"keys": {"sender": "x", "class": null}, "cost": {"all": 1}}"#,
                "cost.all: no such limit here",
            ),
            (r#"{"cost": {"provider": 0}}"#, "nonzero"),
            (
                r#"{"cost": {"provider": 9}}"#,
                "cost.provider: 9, and no more than 8 can ever fit",
            ),
            (r#"{"wait": "5"}"#, "wait: `5` is "),
            (r#"{"wait": "31s"}"#, "longer than 30s, the max_wait here"),
            (
                r#"{"keys": {"sender": "x", "class": null}, "tenant": ""}"#,
                "tenant: it is empty",
            ),
        ] {
            let why = read(text).expect_err(text);
            assert!(why.contains(said), "{text}: {why}");
        }
        let long = json!({"keys": {"sender": "x".repeat(LONGEST + 1), "class": null}}).to_string();
        let why = read(&long).expect_err("a long key");
        assert!(why.contains("keys.sender: it has 1025 bytes"), "{why}");
    }
}
