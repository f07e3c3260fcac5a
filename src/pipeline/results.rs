//! Results: what became of a message, for those that wait for it.
//!
//! Problem: the provider's id of a message, or the reason why it was refused, is in the answer to its call, and the
//! publisher of the message is another program. So a route may publish a result for each message that has come to
//! its end: the call was accepted, or the message is dead. The queue publishes it, waits for the confirm, and carries
//! out the verdict after that (`queue::rabbit::session`). Here the result is made.
//!
//! A template that fails for a message loses no result: the body is the default one then. Only without a routing
//! key there is nowhere to publish it.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tracing::warn;

use crate::core::time::StoreTime;
use crate::ports::clock::Clock;
use crate::ports::downstream::{Answer, Facts, Undecodable};
use crate::ports::message::{HeaderValue, Message, Properties, header};
use crate::ports::queue::{Publication, Verdict};
use crate::settings::types::{ResultOn, Results as Settings, Route};
use crate::telemetry::LogLimit;
use crate::template::{About, Context, Template, Templates, WrongTemplate};

use super::history::History;

/// How often a template that fails is logged.
const EVERY: Duration = Duration::from_secs(60);
/// The longest routing key of AMQP, in bytes.
const MAX_KEY: usize = 255;

/// Makes the results of a route.
#[derive(Debug)]
pub struct Results {
    settings: Settings,
    templates: Templates,
    routing_key: Template,
    body: Option<Template>,
    clock: Clock,
    failing: LogLimit,
}

/// The end of a message.
pub(super) struct End<'a> {
    pub(super) message: &'a Message,
    pub(super) history: &'a History,
    pub(super) verdict: &'a Verdict,
    /// What its last call was answered.
    pub(super) answer: Option<&'a Answer>,
}

impl Results {
    /// Compiles the templates; `None`: the route publishes no results.
    ///
    /// # Errors
    /// When a template can never work.
    pub fn of(route: &Route) -> Result<Option<Self>, WrongTemplate> {
        let Some(settings) = route.results.clone() else {
            return Ok(None);
        };
        let mut templates = Templates::about(About::Answer);
        let routing_key = templates.add("routing_key", settings.routing_key.as_str())?;
        let body = settings.body.as_ref();
        let body = body.map(|body| templates.add("body", body.as_str()));
        Ok(Some(Self {
            body: body.transpose()?,
            routing_key,
            templates,
            settings,
            clock: Clock::start(),
            failing: LogLimit::new(EVERY),
        }))
    }

    /// The result of a message that has come to its end, if this end is published.
    pub(super) fn make(&self, route: &str, end: &End<'_>) -> Option<Publication> {
        let verdict = match end.verdict {
            Verdict::Done if end.answer.is_some() && self.is_on(ResultOn::Accepted) => "accepted",
            Verdict::Dead { .. } if self.is_on(ResultOn::Dead) => "dead",
            _ => return None,
        };
        let facts = Facts {
            route,
            attempt: end.history.attempts.max(1),
        };
        let context = self.templates.context_with(end.message, facts, end.answer);
        let key = self.rendered(&self.routing_key, context.as_ref());
        let key = key.and_then(|key| match key.len() {
            1..=MAX_KEY => Ok(key),
            bytes => Err(Undecodable {
                what: "routing_key".to_owned(),
                why: format!("has {bytes} bytes; 1 to {MAX_KEY} are right"),
            }),
        });
        let routing_key = match key {
            Ok(key) => key,
            Err(why) => {
                self.failed(route, &why, "a result has no routing key and is dropped");
                return None;
            }
        };
        let body = self.body.as_ref();
        let body = body.map(|body| self.rendered(body, context.as_ref()));
        let body = body.and_then(|body| match body {
            Ok(body) => Some(body),
            Err(why) => {
                self.failed(route, &why, "a result gets the default body");
                None
            }
        });
        let body = body.unwrap_or_else(|| self.default_body(route, verdict, end));
        let properties = Properties {
            message_id: end.message.id().map(str::to_owned),
            correlation_id: end.message.properties.correlation_id.clone(),
            content_type: Some("application/json".to_owned()),
            kind: Some("sluiced.result".to_owned()),
            ..Properties::default()
        };
        Some(Publication {
            routing_key,
            body: body.into(),
            properties,
            headers: vec![(header::ROUTE, HeaderValue::Text(route.to_owned()))],
        })
    }

    fn is_on(&self, end: ResultOn) -> bool {
        self.settings.on.contains(&end)
    }

    fn rendered(
        &self,
        template: &Template,
        context: Result<&Context, &Undecodable>,
    ) -> Result<String, Undecodable> {
        let context = context.map_err(Undecodable::clone)?;
        self.templates.render(template, context)
    }

    fn failed(&self, route: &str, why: &Undecodable, what: &str) {
        if let Some(more) = self.failing.event(self.clock.now()) {
            warn!(route, %why, "{what}{more}");
        }
    }

    /// The JSON object of a result without a template.
    fn default_body(&self, route: &str, verdict: &str, end: &End<'_>) -> String {
        let (mut reason, mut detail) = (None, None);
        if let Verdict::Dead {
            reason: why,
            headers,
        } = end.verdict
        {
            reason = Some(why.label());
            let found = headers.iter().find(|(name, _)| *name == header::DETAIL);
            detail = found.and_then(|(_, value)| value.as_text());
        }
        // A failed call counts in the history, one that was accepted does not.
        let accepted = u32::from(*end.verdict == Verdict::Done);
        json!({
            "message_id": end.message.id(),
            "correlation_id": end.message.properties.correlation_id,
            "route": route,
            "verdict": verdict,
            "reason": reason,
            "detail": detail,
            "status": end.answer.map(|answer| answer.status),
            "attempts": end.history.attempts + accepted,
            "first_seen": time(end.history.first_seen),
            "settled": Timestamp::now().to_string(),
            "answer": end.answer.map(|answer| self.answer(answer)),
        })
        .to_string()
    }

    fn answer(&self, answer: &Answer) -> Value {
        let body: Value = serde_json::from_slice(&answer.body)
            .unwrap_or_else(|_| String::from_utf8_lossy(&answer.body).into());
        let named = self.settings.headers.iter().filter_map(|name| {
            let value = answer.headers.get(&name.to_ascii_lowercase())?;
            Some((name.clone(), Value::from(value.as_str())))
        });
        json!({ "headers": named.collect::<Map<_, _>>(), "body": body, "whole": answer.is_whole })
    }
}

/// A time of the store as RFC 3339 writes it; nothing where that cannot be written.
fn time(at: StoreTime) -> Option<String> {
    let micros = i64::try_from(at.as_micros()).ok()?;
    Some(Timestamp::from_microsecond(micros).ok()?.to_string())
}
