//! Text made of a message: minijinja templates, compiled once.
//!
//! A template can use `body` (the message's body as JSON), `headers`, `properties`,
//! `routing_key`, `exchange`, `message_id`, `route` and `attempt`. Only what some template names
//! is looked up, and the body is parsed only if some template names `body`: a message that is not
//! JSON passes where nothing asks for its fields.
//!
//! A missing field is an error and never an empty text: a call with a hole in it is worse than a
//! dead letter. So is a `null` that is printed; `| default(...)`, `| tojson` and `is defined`
//! are there for fields that may be missing. Nothing is escaped by itself. Write
//! `{{ body.to | tojson }}` in a JSON body and `{{ body.to | urlencode }}` in a URL.
//!
//! Numbers: integers from -2^63 to 2^64-1 are exact. A larger one cannot be used (it would be
//! rounded silently) but does no harm where no template prints it. Fractions are doubles.

use std::collections::BTreeMap;
use std::fmt;
use std::iter::successors;
use std::ops::Range;

use minijinja::value::{Kwargs, Serde, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, UndefinedBehavior};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::options::Misconfigured;
use crate::ports::downstream::{Facts, Undecodable};
use crate::ports::message::Message;

/// What templates can use.
const NAMES: [&str; 8] = [
    "body",
    "headers",
    "properties",
    "routing_key",
    "exchange",
    "message_id",
    "route",
    "attempt",
];

/// The detail of the error for a printed `null`.
const IS_NULL: &str = "null";
/// The detail of the error for an integer that a double cannot hold.
const TOO_LARGE: &str = "too large";

/// Whether a text is a template and not just itself.
pub(super) fn is_template(text: &str) -> bool {
    first_tag(text).is_some()
}

/// Where the first expression, statement or comment starts.
pub(super) fn first_tag(text: &str) -> Option<usize> {
    ["{{", "{%", "{#"]
        .iter()
        .filter_map(|tag| text.find(tag))
        .min()
}

/// A compiled template, by its name: `url`, `body`, `header x-tenant`.
#[derive(Clone, Debug)]
pub(super) struct Template(String);

/// All compiled templates of a downstream.
pub(super) struct Templates {
    environment: Environment<'static>,
    /// Which of `NAMES` any template uses.
    used: Vec<&'static str>,
}

/// What templates see of one message.
pub(super) struct Context(Value);

impl Templates {
    pub(super) fn new() -> Self {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_formatter(print);
        environment.add_filter("urlencode", urlencode);
        environment.add_filter("tojson", tojson);
        // It prints the whole context, message and all.
        environment.remove_global("debug");
        Self {
            environment,
            used: Vec::new(),
        }
    }

    /// Compiles the template `name`, which is configured as `key`.
    pub(super) fn add(
        &mut self,
        name: &str,
        key: &str,
        source: &str,
    ) -> Result<Template, Misconfigured> {
        self.environment
            .add_template_owned(name.to_owned(), source.to_owned())
            .map_err(|error| Misconfigured::new(key, compile_error(&error)))?;
        let variables = self
            .environment
            .get_template(name)
            .map_err(|error| Misconfigured::new(key, compile_error(&error)))?
            .undeclared_variables(false);
        for variable in variables {
            if let Some(known) = NAMES.iter().find(|known| **known == variable) {
                if !self.used.contains(known) {
                    self.used.push(known);
                }
            } else if !self.environment.globals().any(|(name, _)| name == variable) {
                return Err(Misconfigured::new(
                    key,
                    format_args!(
                        "there is no variable `{variable}`; a template can use {}",
                        NAMES.join(", ")
                    ),
                ));
            }
        }
        Ok(Template(name.to_owned()))
    }

    /// What the templates see of a message: parses its body if one of them wants it.
    pub(super) fn context(
        &self,
        message: &Message,
        facts: Facts<'_>,
    ) -> Result<Context, Undecodable> {
        let mut values = BTreeMap::new();
        for name in &self.used {
            let value = match *name {
                "body" => parse(&message.body)?,
                "headers" => Value::from(Serde(&message.headers)),
                "properties" => Value::from(Serde(&message.properties)),
                "routing_key" => Value::from(message.routing_key.as_str()),
                "exchange" => Value::from(message.exchange.as_str()),
                "route" => Value::from(facts.route),
                "attempt" => Value::from(facts.attempt),
                "message_id" => match &message.properties.message_id {
                    Some(id) => Value::from(id.as_str()),
                    None => continue,
                },
                _ => continue,
            };
            values.insert(*name, value);
        }
        Ok(Context(Value::from(values)))
    }

    /// The text that a template makes of a message.
    pub(super) fn render(
        &self,
        template: &Template,
        context: &Context,
    ) -> Result<String, Undecodable> {
        let undecodable = |why| Undecodable {
            what: template.0.clone(),
            why,
        };
        let compiled = self
            .environment
            .get_template(&template.0)
            .map_err(|error| undecodable(render_error(&error, "")))?;
        compiled
            .render(context.0.clone())
            .map_err(|error| undecodable(render_error(&error, compiled.source())))
    }
}

/// Prints a value, but no `null`: it would read as a word.
fn print(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    if value.is_none() {
        return Err(Error::new(ErrorKind::InvalidOperation, IS_NULL));
    }
    minijinja::escape_formatter(out, state, value)
}

/// Unlike minijinja's own it takes nothing for a missing field, and it also encodes `/`, so that
/// a value can never become more than one segment of a path.
fn urlencode(value: &Value) -> Result<String, Error> {
    if value.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    if value.is_none() {
        return Err(Error::new(ErrorKind::InvalidOperation, IS_NULL));
    }
    if value.kind() == ValueKind::Invalid {
        return Err(Error::new(ErrorKind::InvalidOperation, TOO_LARGE));
    }
    minijinja::filters::urlencode(value).map(|text| text.replace('/', "%2F"))
}

/// Unlike minijinja's own it takes nothing for a missing field; a `null` stays a `null`.
fn tojson(value: &Value, indent: Option<Value>, args: Kwargs) -> Result<Value, Error> {
    if value.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    minijinja::filters::tojson(value, indent, args)
}

/// For the operator who wrote the template.
fn compile_error(error: &Error) -> String {
    let line = error.line().unwrap_or(1);
    match error.detail() {
        Some(detail) => format!("{} in line {line} of the template: {detail}", error.kind()),
        None => format!("{} in line {line} of the template", error.kind()),
    }
}

/// For whoever looks at the dead letter. The template's own text and nothing of the message:
/// details of minijinja's errors can quote values.
fn render_error(error: &Error, source: &str) -> String {
    let part = error
        .range()
        .and_then(|range| tag_around(source, &range))
        .unwrap_or("a part of the template");
    let says = |detail| {
        successors(Some(error as &dyn std::error::Error), |cause| {
            cause.source()
        })
        .filter_map(|cause| cause.downcast_ref::<Error>())
        .any(|cause| cause.detail() == Some(detail))
    };
    match error.kind() {
        ErrorKind::UndefinedError => format!("`{part}` is missing"),
        _ if says(IS_NULL) => format!("`{part}` is null"),
        _ if says(TOO_LARGE) => {
            format!("`{part}` has a number with more digits than can be kept")
        }
        kind => format!("`{part}` cannot be worked out: {kind}"),
    }
}

/// What stands between the `{{` and `}}`, or `{%` and `%}`, around a part of a template.
fn tag_around<'a>(source: &'a str, part: &Range<usize>) -> Option<&'a str> {
    let (before, after) = (source.get(..part.start)?, source.get(part.end..)?);
    let start = before.rfind("{{").max(before.rfind("{%"))? + 2;
    let length = match (after.find("}}"), after.find("%}")) {
        (Some(one), Some(other)) => one.min(other),
        (one, other) => one.or(other)?,
    };
    let text = source.get(start..part.end + length)?;
    Some(text.trim_matches(|c: char| c.is_whitespace() || c == '-'))
}

fn parse(body: &[u8]) -> Result<Value, Undecodable> {
    let undecodable = |error: &serde_json::Error| Undecodable {
        what: "body".to_owned(),
        // The error's own text can quote the body.
        why: format!(
            "is no JSON, which the templates need (line {}, column {})",
            error.line(),
            error.column()
        ),
    };
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = Exact
        .deserialize(&mut json)
        .map_err(|error| undecodable(&error))?;
    json.end().map_err(|error| undecodable(&error))?;
    Ok(value)
}

/// Reads JSON without rounding an integer silently. Nesting is bounded by serde_json (128).
#[derive(Clone, Copy)]
struct Exact;

impl<'de> DeserializeSeed<'de> for Exact {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Exact {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::from(()))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    /// An integer comes as a double only if no 64 bits can hold it: then it may be rounded.
    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        const EXACT: f64 = 9_007_199_254_740_992.0;
        if value.fract() == 0.0 && value.abs() >= EXACT {
            return Ok(Value::from(Error::new(
                ErrorKind::InvalidOperation,
                TOO_LARGE,
            )));
        }
        Ok(Value::from(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Value::from(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut map: BTreeMap<String, Value> = BTreeMap::new();
        while let Some(name) = fields.next_key()? {
            map.insert(name, fields.next_value_seed(self)?);
        }
        Ok(Value::from(map))
    }
}

#[cfg(test)]
mod tests;
