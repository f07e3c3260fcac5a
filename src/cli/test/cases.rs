//! The file of tests: which messages come, what is expected of their calls, and of answers to these.
//!
//! What is written is compared, what is not written is not looked at. So a test says only what it is about, and stays
//! right when something else of the configuration changes.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;

use serde::Deserialize;
use serde_json::Value;
use toml::Spanned;

use sluiced_core::judge::{Meaning, Silence};
use sluiced_pdu::CommandStatus;
use sluiced_settings::text::Length;

/// All tests of a file.
#[derive(Debug, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "the tests of a file, each under [[test]]"
)]
pub(super) struct Cases {
    #[serde(default)]
    pub(super) test: Vec<Case>,
}

/// One message.
#[derive(Debug, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a test: write [[test]] and its keys below"
)]
pub(super) struct Case {
    /// What it shows; each has another name.
    pub(super) name: Spanned<String>,
    /// The message's route; left out: the only one.
    pub(super) route: Option<String>,
    /// The number of the call, from 1; left out: the first.
    pub(super) attempt: Option<NonZeroU32>,
    #[serde(default)]
    pub(super) message: Incoming,
    /// What the call would send.
    pub(super) request: Option<Value>,
    /// What its limits count, by their names.
    #[serde(default)]
    pub(super) limits: BTreeMap<String, Counts>,
    /// The message would be a dead letter without a call, with this text in the reason.
    pub(super) invalid: Option<String>,
    /// What follows from each of these answers.
    #[serde(default)]
    pub(super) answers: Vec<AnswerCase>,
}

/// A message, as it comes from its queue.
#[derive(Debug, Default, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a message: write [test.message] and its keys below"
)]
pub(super) struct Incoming {
    pub(super) id: Option<String>,
    #[serde(default)]
    pub(super) body: Content,
    #[serde(default)]
    pub(super) headers: BTreeMap<String, Value>,
    #[serde(default)]
    pub(super) properties: Properties,
    /// Left out: the queue of the route.
    pub(super) routing_key: Option<String>,
    #[serde(default)]
    pub(super) exchange: String,
    #[serde(default)]
    pub(super) redelivered: bool,
}

/// Properties of AMQP.
#[derive(Debug, Default, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "the properties of a message, such as { priority = 5 }"
)]
pub(super) struct Properties {
    pub(super) content_type: Option<String>,
    pub(super) content_encoding: Option<String>,
    pub(super) correlation_id: Option<String>,
    pub(super) reply_to: Option<String>,
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    pub(super) app_id: Option<String>,
    #[serde(default)]
    pub(super) priority: u8,
    /// Seconds since 1970.
    pub(super) timestamp: Option<u64>,
    /// Milliseconds.
    pub(super) expiration: Option<u64>,
}

/// A body: a text as it is, anything else as JSON.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(transparent)]
pub(super) struct Content(Value);

impl Content {
    pub(super) fn bytes(&self) -> Vec<u8> {
        match &self.0 {
            Value::Null => Vec::new(),
            Value::String(text) => text.clone().into_bytes(),
            other => other.to_string().into_bytes(),
        }
    }

    pub(super) const fn is_json(&self) -> bool {
        !matches!(self.0, Value::Null | Value::String(_))
    }
}

/// What a limit counts of a message.
#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "write the key and the cost, such as { key = \"ACME\", cost = 2 }, or false if the limit does not count the message"
)]
pub(super) enum Counts {
    Whether(bool),
    Of(Count),
}

/// What is compared of it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Count {
    pub(super) key: Option<String>,
    pub(super) cost: Option<u32>,
}

/// An answer, and what follows from it.
#[derive(Debug, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "an answer: write [[test.answers]] and its keys below"
)]
pub(super) struct AnswerCase {
    /// Unique among the answers of the test.
    pub(super) name: Spanned<String>,
    /// Of HTTP.
    pub(super) status: Option<u16>,
    #[serde(default)]
    pub(super) headers: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) body: Content,
    /// Of SMPP, to each part.
    pub(super) smpp: Option<Code>,
    /// There is no answer.
    pub(super) silence: Option<Silent>,
    pub(super) outcome: Option<Outcome>,
    /// How long the answer asks to wait.
    pub(super) wait: Option<Length>,
    /// The limit that the answer names, or `false`: none.
    pub(super) throttles: Option<NamedLimit>,
    pub(super) then: Option<ExpectedNext>,
    pub(super) spends_attempt: Option<bool>,
    /// What `journal_id` makes of it.
    pub(super) id: Option<String>,
    /// What it says that the call used, by the names of limits.
    #[serde(default)]
    pub(super) used: BTreeMap<String, u64>,
    /// What it says that is left of the provider's quotas, by the names of limits.
    #[serde(default)]
    pub(super) left: BTreeMap<String, u64>,
}

/// A limit that an answer names.
#[derive(Debug, Deserialize)]
#[serde(try_from = "Value")]
pub(super) struct NamedLimit(Option<String>);

impl NamedLimit {
    /// `None`: it names none.
    pub(super) fn name(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

impl TryFrom<Value> for NamedLimit {
    type Error = &'static str;

    fn try_from(value: Value) -> Result<Self, &'static str> {
        match value {
            Value::Bool(false) => Ok(Self(None)),
            Value::String(name) if !name.is_empty() => Ok(Self(Some(name))),
            _ => Err("write the name of a limit, or false if the answer names none"),
        }
    }
}

/// The status of SMPP: a name or a number.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "Value")]
pub(super) struct Code(pub(super) CommandStatus);

impl TryFrom<Value> for Code {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let text = match value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        let wrong = |_| {
            format!(
                "`{text}` is no status of SMPP; write a name such as \"ESME_RTHROTTLED\", or a number such as \"0x58\""
            )
        };
        text.parse().map(Self).map_err(wrong)
    }
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Silent {
    /// None came in time: the message may have been taken.
    Timeout,
    /// There was no connection.
    Connection,
}

impl From<Silent> for Silence {
    fn from(silent: Silent) -> Self {
        match silent {
            Silent::Timeout => Self::Timeout,
            Silent::Connection => Self::Connection,
        }
    }
}

/// The meaning of an answer, in the words of the configuration.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Outcome(pub(super) Meaning);

impl TryFrom<String> for Outcome {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let named = Meaning::ALL.iter().find(|meaning| meaning.word() == text);
        named.copied().map(Self).ok_or_else(|| {
            let outcomes = Meaning::ALL.map(Meaning::word).join(", ");
            format!("`{text}` is no outcome; write one of {outcomes}")
        })
    }
}

/// What becomes of a message.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(super) enum ExpectedNext {
    Done,
    Again,
    Dead,
}

impl fmt::Display for ExpectedNext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Done => "done",
            Self::Again => "again",
            Self::Dead => "dead",
        })
    }
}
