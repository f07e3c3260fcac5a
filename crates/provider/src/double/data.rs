//! The form of a double's file. `title`, `date`, `table` and `fact` are for `docs/providers.md`, which is made of them.

use std::collections::BTreeMap;

use minijinja::Environment;
use serde::Deserialize;

use sluiced_settings::text::RateText;

/// Why a file is no double.
#[derive(Debug, thiserror::Error)]
pub enum DoubleError {
    /// The file has not the form of a double.
    #[error("{0}")]
    Form(toml::de::Error),
    /// An expression or a text cannot be read.
    #[error("{place}: {why}")]
    Expression {
        /// Where it stands.
        place: String,
        /// What is wrong with it.
        why: minijinja::Error,
    },
    /// A limit has neither `rate` nor `at_once`, or both.
    #[error("limit {0}: write one of `rate` and `at_once`")]
    Limit(String),
}

/// A file of `doubles/`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Data {
    #[serde(rename = "title")]
    _title: String,
    #[serde(rename = "date")]
    _date: String,
    #[serde(rename = "table")]
    _table: toml::Table,
    #[serde(rename = "fact")]
    _facts: Vec<toml::Table>,
    #[serde(default)]
    pub(super) answer: Vec<AnswerRule>,
    #[serde(default)]
    pub(super) limit: Vec<DoubleLimit>,
    #[serde(default)]
    pub(super) accepted: ReplyTemplate,
    pub(super) idempotency: Option<Idempotency>,
    pub(super) fleet: Option<FleetTest>,
}

/// An answer to calls that hold something.
#[derive(Debug, Deserialize)]
pub(super) struct AnswerRule {
    pub(super) name: String,
    /// An expression.
    pub(super) when: String,
    #[serde(flatten)]
    pub(super) reply: ReplyTemplate,
}

/// A limit, and how it refuses.
#[derive(Debug, Deserialize)]
pub(super) struct DoubleLimit {
    pub(super) name: String,
    /// This many units in any window.
    pub(super) rate: Option<RateText>,
    /// This many calls at a time.
    pub(super) at_once: Option<u32>,
    /// An expression; `None`: all calls together.
    pub(super) key: Option<String>,
    /// An expression; `None`: 1.
    pub(super) cost: Option<String>,
    #[serde(flatten)]
    pub(super) reply: ReplyTemplate,
}

/// What is answered; the values are texts with expressions in them.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ReplyTemplate {
    pub(super) status: u16,
    #[serde(default)]
    pub(super) headers: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) body: String,
}

/// How a repeat is known.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Idempotency {
    /// An expression.
    pub(super) key: String,
}

/// A test with a fleet.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FleetTest {
    /// The path of the calls; `*` is any segment.
    pub url: String,
    /// The body of message `n`, from 0.
    pub message: String,
    /// The headers of a message.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// The body of a message that is refused for good.
    pub bad: String,
    /// The headers of a message that is refused for good; absent: those of the other messages.
    pub bad_headers: Option<BTreeMap<String, String>>,
    /// How the detail of its dead letter begins.
    pub dead_reason: String,
    /// The id of a message in its result begins like this.
    #[serde(default)]
    pub id: String,
    /// What stands in the files of secrets, by the key that names them.
    #[serde(default)]
    pub credentials: BTreeMap<String, String>,
}

impl FleetTest {
    /// A text of the file for message `n`.
    ///
    /// # Errors
    /// When it has a fault.
    pub fn render(text: &str, n: u32) -> Result<String, minijinja::Error> {
        Environment::new().render_str(text, minijinja::context! { n })
    }
}

impl Data {
    pub(super) fn check(&self, env: &Environment<'_>) -> Result<(), DoubleError> {
        let wrong = |place: String| move |why| DoubleError::Expression { place, why };
        let expression = |place: String, text: &str| {
            env.compile_expression(text).map(drop).map_err(wrong(place))
        };
        let reply = |place: &str, reply: &ReplyTemplate| {
            let texts = reply.headers.values().chain([&reply.body]);
            texts.into_iter().try_for_each(|text| {
                env.template_from_str(text)
                    .map(drop)
                    .map_err(wrong(place.to_owned()))
            })
        };
        for answer in &self.answer {
            let place = format!("answer {}", answer.name);
            reply(&place, &answer.reply)?;
            expression(place, &answer.when)?;
        }
        for limit in &self.limit {
            if limit.rate.is_some() == limit.at_once.is_some() {
                return Err(DoubleError::Limit(limit.name.clone()));
            }
            let place = format!("limit {}", limit.name);
            reply(&place, &limit.reply)?;
            for text in [&limit.key, &limit.cost].into_iter().flatten() {
                expression(place.clone(), text)?;
            }
        }
        if let Some(idempotency) = &self.idempotency {
            expression("idempotency".to_owned(), &idempotency.key)?;
        }
        reply("accepted", &self.accepted)
    }
}
