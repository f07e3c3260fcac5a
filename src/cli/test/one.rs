//! One test: the message is made, then its request, its keys and costs, and what follows from answers are compared.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, Response, StatusCode};
use serde_json::{Map, Value, json};
use toml::Spanned;

use super::cases::{AnswerCase, Case, Content, Counts, ExpectedNext, Incoming};
use super::compare::{differences, lower_headers};
use crate::cli::trial::rendered::as_comparable_json;
use crate::cli::trial::{MADE_ID, choose_route};
use crate::wire::{Forecast, TestAnswer, Trial};
use sluiced_core::after_call::NextStep;
use sluiced_core::judge::{DeadReason, Outcome};
use sluiced_core::rate::Span;
use sluiced_ports::limits::LimitInputs;
use sluiced_ports::message::{self as message_parts, Message, Properties};
use sluiced_settings::Loaded;

/// What is not as expected: of the message itself, and of each answer by its name.
type CaseResults<'a> = Vec<(Option<&'a Spanned<String>>, Vec<String>)>;

/// The routes that were tried, by their names: a file has many tests of one.
pub(super) type Trials = BTreeMap<String, Trial>;

/// What is wrong with a test itself.
pub(super) struct WrongTest<'a> {
    /// The answer that it is about.
    pub(super) answer: Option<&'a Spanned<String>>,
    pub(super) why: String,
}

impl WrongTest<'_> {
    fn new(why: impl fmt::Display) -> Self {
        Self {
            answer: None,
            why: why.to_string(),
        }
    }
}

/// Runs a test.
pub(super) fn run<'a>(
    case: &'a Case,
    loaded: &Loaded,
    trials: &mut Trials,
) -> Result<CaseResults<'a>, WrongTest<'a>> {
    let route = case.route.as_deref();
    let (name, route) = choose_route(&loaded.settings, route).map_err(WrongTest::new)?;
    let trial = match trials.entry(name.to_owned()) {
        Entry::Occupied(made) => made.into_mut(),
        Entry::Vacant(place) => {
            place.insert(Trial::new(loaded, name, route).map_err(WrongTest::new)?)
        }
    };
    let attempt = case.attempt.map_or(1, |attempt| attempt.get());
    let message = message(&case.message, &route.queue).map_err(WrongTest::new)?;
    let of_message = compare_message(case, trial, &message, attempt).map_err(WrongTest::new)?;
    let mut results = vec![(None, of_message)];
    for answer in &case.answers {
        let given = test_answer(answer).map_err(|why| WrongTest {
            answer: Some(&answer.name),
            why: format!("answer `{}`: {why}", answer.name.get_ref()),
        })?;
        let failures = match trial.foresee(&message, attempt, given) {
            Ok(foreseen) => compare_answer(answer, &foreseen),
            Err(why) => vec![why.to_string()],
        };
        results.push((Some(&answer.name), failures));
    }
    Ok(results)
}

fn message(incoming: &Incoming, queue: &str) -> Result<Message, String> {
    let properties = &incoming.properties;
    let mut headers = message_parts::Headers::new();
    for (name, value) in &incoming.headers {
        headers.insert(
            name.clone(),
            header(value).ok_or_else(|| {
                format!("message.headers.{name}: write a text, a number, true or false")
            })?,
        );
    }
    let routing_key = incoming.routing_key.as_deref();
    Ok(Message {
        body: Bytes::from(incoming.body.bytes()),
        properties: Properties {
            message_id: incoming.id.clone(),
            correlation_id: properties.correlation_id.clone(),
            content_type: properties.content_type.clone(),
            content_encoding: properties.content_encoding.clone(),
            kind: properties.kind.clone(),
            app_id: properties.app_id.clone(),
            reply_to: properties.reply_to.clone(),
            priority: properties.priority,
            timestamp: properties.timestamp,
            expiration: properties.expiration,
        },
        headers,
        exchange: incoming.exchange.clone(),
        routing_key: routing_key.unwrap_or(queue).to_owned(),
        redelivered: incoming.redelivered,
        made_id: incoming.id.is_none().then(|| MADE_ID.to_owned()),
    })
}

fn header(value: &Value) -> Option<message_parts::HeaderValue> {
    use message_parts::HeaderValue;
    match value {
        Value::Bool(value) => Some(HeaderValue::Bool(*value)),
        Value::Number(number) => match number.as_i64() {
            Some(number) => Some(HeaderValue::Int(number)),
            None => number.as_f64().map(HeaderValue::Float),
        },
        Value::String(text) => Some(HeaderValue::Text(text.clone())),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// The request, and what the limits count.
fn compare_message(
    case: &Case,
    trial: &Trial,
    message: &Message,
    attempt: u32,
) -> Result<Vec<String>, String> {
    let inputs = trial.limit_inputs_at(message, attempt);
    let request = trial.request_at(message, attempt);
    let mut found = Vec::new();
    if let Some(expected) = &case.invalid {
        if case.request.is_some() || !case.limits.is_empty() || !case.answers.is_empty() {
            return Err("a message that is invalid has no request, limits or answers".to_owned());
        }
        match inputs.err().or(request.err()) {
            Some(why) if why.to_string().contains(expected) => {}
            Some(why) => found.push(format!("invalid: expected `{expected}`, got `{why}`")),
            None => found.push(format!(
                "invalid: expected `{expected}`, but a call can be made"
            )),
        }
        return Ok(found);
    }
    match &inputs {
        Ok(inputs) => of_limits(case, trial, inputs, &mut found)?,
        Err(why) => found.push(format!("a limit cannot count it: {why}")),
    }
    match (request, &case.request) {
        (Ok(request), Some(expected)) => {
            let real = as_comparable_json(&request);
            differences("request", &lower_headers(expected), Some(&real), &mut found);
        }
        (Ok(_), None) => {}
        (Err(why), _) => found.push(format!("no request can be made of it: {why}")),
    }
    Ok(found)
}

fn of_limits(
    case: &Case,
    trial: &Trial,
    inputs: &LimitInputs,
    found: &mut Vec<String>,
) -> Result<(), String> {
    for (name, counts) in &case.limits {
        let mut limits = trial.route.limits.iter().zip(&inputs.charges);
        let Some((_, charge)) = limits.find(|(limit, _)| limit.name == *name) else {
            return Err(format!("limits.{name}: the route has no such limit"));
        };
        let at = format!("limits.{name}");
        match (counts, charge) {
            (Counts::Whether(is_counted), charge) if *is_counted == charge.is_some() => {}
            (Counts::Whether(false), _) => found.push(format!("{at}: it counts the message")),
            (_, None) => found.push(format!("{at}: it does not count the message")),
            (Counts::Whether(true), Some(_)) => {}
            (Counts::Of(count), Some(charge)) => {
                let real = json!({ "key": charge.key.0, "cost": charge.cost.get() });
                let key = count.key.as_ref().map(|key| ("key", json!(key)));
                let cost = count.cost.map(|cost| ("cost", json!(cost)));
                let expected: Map<String, Value> = key
                    .into_iter()
                    .chain(cost)
                    .map(|(name, value)| (name.to_owned(), value))
                    .collect();
                differences(&at, &Value::Object(expected), Some(&real), found);
            }
        }
    }
    Ok(())
}

/// The answer of the test, as the downstream gets it.
fn test_answer(answer: &AnswerCase) -> Result<TestAnswer, String> {
    match (answer.status, answer.smpp, answer.silence) {
        (Some(status), None, None) => http(answer, status).map(TestAnswer::Http),
        (None, Some(code), None) => Ok(TestAnswer::Smpp(code.0)),
        (None, None, Some(silence)) => Ok(TestAnswer::Silence(silence.into())),
        _ => Err("write one of `status`, `smpp` and `silence`".to_owned()),
    }
}

fn http(answer: &AnswerCase, status: u16) -> Result<Response<Bytes>, String> {
    let status = StatusCode::from_u16(status)
        .map_err(|_| format!("{status} is no status of HTTP: write one from 100 to 999"))?;
    let content: &Content = &answer.body;
    let mut built = Response::new(Bytes::from(content.bytes()));
    *built.status_mut() = status;
    let headers = built.headers_mut();
    for (name, value) in &answer.headers {
        let header = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| format!("headers: `{name}` is no name of a header"))?;
        let value = HeaderValue::from_str(value)
            .map_err(|_| format!("headers.{name}: a header is one line of plain characters"))?;
        headers.append(header, value);
    }
    if content.is_json() && !headers.contains_key(CONTENT_TYPE) {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    Ok(built)
}

/// What follows from an answer.
fn compare_answer(answer: &AnswerCase, foreseen: &Forecast) -> Vec<String> {
    let outcome = foreseen.judgement.outcome;
    let word = |meaning: super::cases::Outcome| meaning.0.word().to_owned();
    let span = |wait| Span(wait).to_string();
    let limit = |name: Option<&str>| name.unwrap_or("no limit").to_owned();
    let (expected_then, real_then) = then_in_words(answer.then, foreseen.follows.next);
    let mut failures = Failures::default();
    failures.compare(
        "outcome",
        answer.outcome.map(word),
        Some(outcome.label().to_owned()),
    );
    failures.compare(
        "wait",
        answer.wait.map(|wait| span(wait.get())),
        asked_wait(outcome).map(span),
    );
    failures.compare(
        "throttles",
        answer.throttles.as_ref().map(|named| limit(named.name())),
        Some(limit(foreseen.throttles.as_deref())),
    );
    failures.compare("then", expected_then, Some(real_then));
    failures.compare(
        "spends_attempt",
        answer.spends_attempt.map(|spends| spends.to_string()),
        Some(foreseen.spends_attempt.to_string()),
    );
    failures.compare("id", answer.id.clone(), foreseen.provider_id.clone());
    for (what, expected, real) in [
        ("used", &answer.used, &foreseen.used),
        ("left", &answer.left, &foreseen.left),
    ] {
        for (limit, units) in expected {
            let real_units = real.iter().find(|(name, _)| name == limit);
            failures.compare(
                &format!("{what}.{limit}"),
                Some(units.to_string()),
                real_units.map(|(_, units)| units.to_string()),
            );
        }
    }
    failures.0
}

/// What is not as expected.
#[derive(Default)]
struct Failures(Vec<String>);

impl Failures {
    fn compare(&mut self, what: &str, expected: Option<String>, real: Option<String>) {
        let Some(expected) = expected else {
            return;
        };
        match real {
            Some(real) if real == expected => {}
            Some(real) => self
                .0
                .push(format!("{what}: expected {expected}, got {real}")),
            None => self
                .0
                .push(format!("{what}: expected {expected}, but there is none")),
        }
    }
}

/// What is expected to follow, and what does. The reason is shown where that is not as expected.
fn then_in_words(expected: Option<ExpectedNext>, next: NextStep) -> (Option<String>, String) {
    let (then, reason) = then(next);
    let real = match reason {
        Some(reason) => format!("{then} ({})", reason.label()),
        None => then.to_string(),
    };
    let expected_words = expected.map(|expected| match expected == then {
        true => real.clone(),
        false => expected.to_string(),
    });
    (expected_words, real)
}

/// How long the answer asks to wait.
const fn asked_wait(outcome: Outcome) -> Option<std::time::Duration> {
    match outcome {
        Outcome::Accepted | Outcome::Permanent => None,
        Outcome::Throttled { wait } | Outcome::Held { wait } => Some(wait),
        Outcome::Transient { wait } => wait,
    }
}

const fn then(next: NextStep) -> (ExpectedNext, Option<DeadReason>) {
    match next {
        NextStep::Done => (ExpectedNext::Done, None),
        NextStep::Dead(reason) => (ExpectedNext::Dead, Some(reason)),
        NextStep::Again { .. } => (ExpectedNext::Again, None),
    }
}
