//! The body of a result without a template: a JSON object.

use std::borrow::Cow;
use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;

use super::Results;
use crate::ends::LeavingMessage;
use sluiced_ports::downstream::Answer;
use sluiced_ports::message::{HeaderValue, Message, header};
use sluiced_ports::queue::Verdict;

impl Results {
    /// The JSON object of a result without a template.
    pub(super) fn default_body(
        &self,
        route: &str,
        verdict: &str,
        message: &Message,
        leaving: &LeavingMessage<'_>,
    ) -> String {
        let mut reason = leaving.is_repeat().then_some("repeat");
        let mut detail = None;
        if let Verdict::Dead { reason: why, .. } = &leaving.verdict {
            reason = Some(why.label());
            let written = leaving.verdict.header(header::DETAIL);
            detail = written.and_then(HeaderValue::as_text);
        }
        let body = DefaultBody {
            message_id: message.id(),
            correlation_id: message.properties.correlation_id.as_deref(),
            route,
            verdict,
            reason,
            detail,
            status: leaving.answer.map(|answer| answer.status),
            attempts: leaving.calls(),
            first_seen: leaving.history.first_seen.to_string(),
            settled: Timestamp::now().to_string(),
            answer: leaving.answer.map(|answer| self.answered(answer)),
        };
        serde_json::to_string(&body).expect("texts and numbers can be written as JSON")
    }

    fn answered<'a>(&'a self, answer: &'a Answer) -> AnswerFields<'a> {
        let named = self.headers.iter().filter_map(|name| {
            let value = answer.headers.get(&name.to_ascii_lowercase())?;
            Some((name.as_str(), value.as_str()))
        });
        AnswerFields {
            headers: named.collect(),
            body: serde_json::from_slice(&answer.body).map_or_else(
                |_| AnswerContent::Text(String::from_utf8_lossy(&answer.body)),
                AnswerContent::Json,
            ),
            whole: answer.is_whole,
        }
    }
}

/// The body of a result without a template.
#[derive(Serialize)]
struct DefaultBody<'a> {
    message_id: Option<&'a str>,
    correlation_id: Option<&'a str>,
    route: &'a str,
    verdict: &'a str,
    reason: Option<&'static str>,
    detail: Option<&'a str>,
    status: Option<u32>,
    attempts: u32,
    first_seen: String,
    settled: String,
    answer: Option<AnswerFields<'a>>,
}

#[derive(Serialize)]
struct AnswerFields<'a> {
    headers: BTreeMap<&'a str, &'a str>,
    body: AnswerContent<'a>,
    whole: bool,
}

/// As the downstream wrote it.
#[derive(Serialize)]
#[serde(untagged)]
enum AnswerContent<'a> {
    Json(&'a RawValue),
    Text(Cow<'a, str>),
}
