//! Results: messages that report what became of another message.
//!
//! Problem: the provider's id of a message, or the reason why it was refused, is in the answer to its call,
//! and the publisher of the message is another program. So a route may publish a result for each message that
//! has ended: the call was accepted, or the message is dead. The result is made here. The queue publishes it,
//! waits for the confirm, and carries out the verdict after that (`amqp::rabbit::session`).
//!
//! If the template of the body fails for a message, the result has the default body. Without a routing key it
//! cannot be published: it is dropped, counted and logged.
//!
//! A result may come to a route as a message again, by a binding or a template that no check sees, and the result
//! of that too, without an end. So a result says how many results it comes from, and after [`MAX_HOPS`] there is
//! no further one.
//!
//! A repeat is a message that was accepted before. The delivery that was called publishes the result. If RabbitMQ
//! redelivers the message (or the original of a copy), the replica may have died before it published. So the result is
//! published again, without the answer. If this process made the call and its session ended before the result was
//! confirmed, the queue publishes the kept result of the call instead (`amqp::rabbit::session::kept`).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tracing::warn;

use sluiced_ports::clock;
use sluiced_ports::downstream::{Facts, UnfitReason};
use sluiced_ports::message::{HeaderValue, Message, Properties, header};
use sluiced_ports::queue::{HeaderPatch, Publication, Verdict};
use sluiced_telemetry::LogLimit;
use sluiced_template::{About, Context, Template, Templates, WrongTemplate};

use crate::ends::LeavingMessage;
use crate::meters::{CIRCLES, NO_ROUTING_KEY, RouteMeters};

mod arrived;
mod body;

/// How often a template that fails is logged.
const LOG_EVERY: Duration = Duration::from_secs(60);
/// The longest routing key of AMQP, in bytes.
const MAX_KEY: usize = 255;
/// A message that comes from this many results has none of its own.
const MAX_HOPS: i64 = 8;

/// What a route publishes about the ends of its messages.
pub struct ResultRules<'a> {
    /// A template over the message and the last answer.
    pub routing_key: &'a str,
    /// Another one; `None`: the body is a JSON object.
    pub body: Option<&'a str>,
    pub of_accepted: bool,
    pub of_dead: bool,
    pub of_receipts: bool,
    /// Messages from phones.
    pub of_inbound: bool,
    /// The largest body of a message, in bytes.
    pub max_body: u64,
    /// Headers of the answer that the JSON object has.
    pub headers: Vec<String>,
    /// Whether a result with this routing key would come to a queue of the route.
    pub comes_back: ComesBack,
}

/// Whether a result with a routing key would come to a queue of its own route.
pub type ComesBack = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// Makes the results of a route.
pub struct Results {
    templates: Templates,
    routing_key: Template,
    body: Option<Template>,
    of_accepted: bool,
    of_dead: bool,
    of_receipts: bool,
    of_inbound: bool,
    max_body: u64,
    headers: Vec<String>,
    comes_back: ComesBack,
    meters: Arc<RouteMeters>,
    failing: LogLimit,
}

impl Results {
    /// Compiles the templates. What is dropped is counted in `meters`.
    ///
    /// # Errors
    /// When a template can never work.
    pub fn new(rules: ResultRules<'_>, meters: &Arc<RouteMeters>) -> Result<Self, WrongTemplate> {
        let mut templates = Templates::about(About::Answer);
        let routing_key = templates.add("routing_key", rules.routing_key)?;
        let body = rules.body.map(|body| templates.add("body", body));
        Ok(Self {
            body: body.transpose()?,
            routing_key,
            templates,
            of_accepted: rules.of_accepted,
            of_dead: rules.of_dead,
            of_receipts: rules.of_receipts,
            of_inbound: rules.of_inbound,
            max_body: rules.max_body,
            headers: rules.headers,
            comes_back: rules.comes_back,
            meters: Arc::clone(meters),
            failing: LogLimit::new(LOG_EVERY),
        })
    }

    /// The result of a message that has ended, if the route publishes this end.
    pub(super) fn make(
        &self,
        route: &str,
        message: &Message,
        leaving: &LeavingMessage<'_>,
    ) -> Option<Publication> {
        let verdict = match leaving.verdict {
            // A publisher's repeat: its first message has the result.
            Verdict::Done if leaving.is_repeat() && !leaving.history.redelivered => return None,
            Verdict::Done if self.of_accepted => "accepted",
            Verdict::Dead { .. } if self.of_dead => "dead",
            _ => return None,
        };
        let hops = hops(message);
        if hops >= MAX_HOPS {
            self.meters.result(CIRCLES);
            if let Some(more) = self.failing.event(clock::now()) {
                warn!(
                    route,
                    hops,
                    "results come back as messages, again and again: this message has no result any more; name a queue in results.routing_key that no route consumes{more}"
                );
            }
            return None;
        }
        let facts = Facts {
            route,
            attempt: leaving.calls().max(1),
            may_repeat: false,
            max_body: self.max_body,
        };
        let context = self.templates.context_with(message, facts, leaving.answer);
        let default = || self.default_body(route, verdict, message, leaving);
        let (routing_key, body, content_type) = self.content(route, context.as_ref(), default)?;
        let properties = Properties {
            message_id: message.id().map(str::to_owned),
            correlation_id: message.properties.correlation_id.clone(),
            content_type,
            kind: Some("sluiced.result".to_owned()),
            ..Properties::default()
        };
        Some(Publication {
            routing_key,
            body: body.into(),
            properties,
            headers: result_headers(route, hops + 1),
            yields_to_call_result: leaving.is_repeat(),
        })
    }

    /// Routing key, body and content type.
    fn content(
        &self,
        route: &str,
        context: Result<&Context, &UnfitReason>,
        default: impl FnOnce() -> String,
    ) -> Option<(String, String, Option<String>)> {
        let rendered = self.rendered(&self.routing_key, context);
        let usable = rendered.and_then(|key| match key.len() {
            // A publisher may write any queue into reply_to.
            1..=MAX_KEY if (self.comes_back)(&key) => Err(UnfitReason {
                what: "routing_key".to_owned(),
                why: "names a queue of this route: the result would come back as a message"
                    .to_owned(),
            }),
            1..=MAX_KEY => Ok(key),
            bytes => Err(UnfitReason {
                what: "routing_key".to_owned(),
                why: format!("has {bytes} bytes; 1 to {MAX_KEY} are right"),
            }),
        });
        let key = match usable {
            Ok(key) => key,
            Err(why) => {
                self.meters.result(NO_ROUTING_KEY);
                self.failed(route, &why, "a result has no routing key and is dropped");
                return None;
            }
        };
        let template = self.body.as_ref();
        let body = template.and_then(|body| match self.rendered(body, context) {
            Ok(body) => Some(body),
            Err(why) => {
                self.failed(route, &why, "a result gets the default body");
                None
            }
        });
        // A template may make any text.
        let content_type = body.is_none().then(|| "application/json".to_owned());
        Some((key, body.unwrap_or_else(default), content_type))
    }

    fn rendered(
        &self,
        template: &Template,
        context: Result<&Context, &UnfitReason>,
    ) -> Result<String, UnfitReason> {
        let context = context.map_err(UnfitReason::clone)?;
        self.templates.render(template, context)
    }

    fn failed(&self, route: &str, why: &UnfitReason, what: &str) {
        if let Some(more) = self.failing.event(clock::now()) {
            warn!(route, %why, "{what}{more}");
        }
    }
}

impl fmt::Debug for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Results")
            .field("of_accepted", &self.of_accepted)
            .field("of_dead", &self.of_dead)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ResultRules<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResultRules")
            .field("routing_key", &self.routing_key)
            .finish_non_exhaustive()
    }
}

/// How many results a message comes from. A publisher may write any number, and only loses results by it.
fn hops(message: &Message) -> i64 {
    let hops = message.headers.get(header::HOPS);
    hops.and_then(HeaderValue::as_int).unwrap_or(0).max(0)
}

fn result_headers(route: &str, hops: i64) -> HeaderPatch {
    vec![
        (header::ROUTE, HeaderValue::Text(route.to_owned())),
        (header::HOPS, HeaderValue::Int(hops)),
    ]
}
