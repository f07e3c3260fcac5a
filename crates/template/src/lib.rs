//! Text made from a message: minijinja templates, compiled once.
//!
//! Problem: messages are as others wrote them, and a call, a key or a cost that is made of them must be right or not be made
//! at all.
//!
//! A template can use `body` (the message's body as JSON), `headers`, `properties`, `routing_key`,
//! `exchange`, `message_id`, `route` and `attempt`; one about a call that was made also `answer`, with
//! `status`, `headers` and `body`; those of signatures what `sent` lists; those of a call `secret`, with the names of the
//! table `[secrets]` (`secret`). Only variables that some template
//! names are looked up, and the body is parsed only if some template names `body`. So a message that is not
//! JSON is no problem if no template uses its fields. `message_id` is the publisher's, otherwise the one that
//! the pipeline made for the message.
//!
//! A missing field is an error and never an empty text: a call with a gap in it is worse than a dead letter.
//! A printed `null` is an error, too. In an `if` a missing field is false, except where a limit would count
//! by it. `| default(...)`, `| tojson` and `is defined` are for fields that may be missing. Nothing is
//! escaped automatically. Write `{{ body.to | tojson }}` in a JSON body and `{{ body.to | urlencode }}` in a
//! URL.
//!
//! Besides minijinja's filters there are `sms_segments`, `pointer` and `host`. Templates are checked when
//! they are compiled: a variable or a filter that does not exist is found then.
//!
//! Numbers: integers from -2^63 to 2^64-1 are exact. A larger one cannot be used (it would be
//! rounded silently) but does no harm if no template prints it. Fractions are doubles.
//!
//! A body in which an object has two members with one name is refused, because the downstream may read the
//! other one (`json`).
//!
//! **Public API**: `Templates` compiles and renders; `RouteLabels` makes keys and costs of a message; `content` undoes what is
//! around a body; `sms` cuts texts into segments.
//!
//! **May know**: `core`, `headers`, `ports`.

mod answers;
pub mod content;
mod fault;
mod filters;
mod json;
mod labels;
mod secret;
mod sent;
pub mod sms;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use minijinja::value::{Serde, Value};
use minijinja::{AutoEscape, Environment, Error, UndefinedBehavior};

pub use self::answers::{
    AnswerWords, Heard, QuotaIn, RouteActuals, RouteFigures, RouteQuotas, RouteThrottles, Said,
};
pub use self::fault::{WrongLabel, WrongTemplate, says_none};
use self::fault::{is_null, render_error, unreadable};
pub use self::labels::{
    CostOf, LabelCounting, MAX_PRIORITY, OwnRules, RouteLabels, SegmentCounting,
};
use self::secret::{SECRET, is_secret, names_in};
pub use self::secret::{SecretValues, secrets_in};
pub use self::sent::Sent;
use self::sent::{REQUEST_NAMES, SIGNATURE_NAMES};
use sluiced_ports::downstream::{Answer, Facts, Undecodable};
use sluiced_ports::message::Message;

/// The variables of every template.
pub const NAMES: [&str; 8] = [
    "body",
    "headers",
    "properties",
    "routing_key",
    "exchange",
    "message_id",
    "route",
    "attempt",
];

/// The fields of `answer`.
const ANSWER_FIELDS: [&str; 3] = ["answer.status", "answer.headers", "answer.body"];

/// What a template is about, which decides what it may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// A message before its call.
    Message,
    /// A message before its call, with the secrets that the call needs.
    Call,
    /// A message and the answer to its call. Where there was no answer, `answer` is undefined.
    Answer,
    /// A message and the request that was made from it, which will be signed.
    Request,
    /// A message, the request that was made from it, and its signature.
    Signature,
}

impl About {
    /// The variables that it may name.
    pub fn names(self) -> impl Iterator<Item = &'static str> + Clone {
        let more: [&'static [&'static str]; 3] = match self {
            Self::Message => [&[], &[], &[]],
            Self::Call => [&[SECRET], &[], &[]],
            Self::Answer => [&["answer"], &[], &[]],
            Self::Request => [&[SECRET], &REQUEST_NAMES, &[]],
            Self::Signature => [&[SECRET], &REQUEST_NAMES, &SIGNATURE_NAMES],
        };
        NAMES.iter().chain(more.into_iter().flatten()).copied()
    }

    /// The variables that it may name, with the fields of an answer.
    pub fn fields(self) -> impl Iterator<Item = &'static str> + Clone {
        let fields: &[_] = match self {
            Self::Answer => &ANSWER_FIELDS,
            _ => &[],
        };
        self.names().chain(fields.iter().copied())
    }
}

/// Whether a text is a template and not just itself.
#[must_use]
pub fn is_template(text: &str) -> bool {
    first_tag(text).is_some()
}

/// Where the first expression, statement or comment starts.
#[must_use]
pub fn first_tag(text: &str) -> Option<usize> {
    ["{{", "{%", "{#"]
        .iter()
        .filter_map(|tag| text.find(tag))
        .min()
}

/// A compiled template, by its name: `url`, `body`, `header x-tenant`.
#[derive(Clone, Debug)]
pub struct Template(String);

/// Compiled templates for the same messages.
pub struct Templates {
    environment: Environment<'static>,
    about: About,
    /// Which variables any template uses.
    used: Vec<&'static str>,
    /// Which secrets any template names.
    secrets: BTreeSet<String>,
}

/// Everything that is wrong with a template: unknown variables by name, then filters.
#[must_use]
pub fn check(source: &str, about: About) -> Vec<WrongTemplate> {
    let mut templates = Templates::about(about);
    let compiled = templates
        .environment
        .add_template_owned(CHECKED.to_owned(), source.to_owned())
        .and_then(|()| templates.variables(CHECKED));
    match compiled {
        Err(error) => vec![unreadable(&error)],
        Ok(variables) => variables
            .into_iter()
            .filter(|name| !about.fields().any(|known| known == name))
            .map(|name| WrongTemplate::Variable { name, about })
            .chain(secret::misnamed(&templates.environment, CHECKED))
            .chain(fault::misused(&templates.environment, source))
            .collect(),
    }
}

/// The name of a template that is only checked.
const CHECKED: &str = "template";

/// The variables of one message.
pub struct Context(Value);

impl Template {
    /// What errors call it.
    fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Templates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Templates")
            .field("used", &self.used)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Context {
    /// Shows nothing of a message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Context(..)")
    }
}

impl Default for Templates {
    fn default() -> Self {
        Self::new()
    }
}

impl Templates {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self::about(About::Message)
    }

    /// None yet, for templates about this.
    #[must_use]
    pub fn about(about: About) -> Self {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::SemiStrict);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_formatter(filters::print);
        environment.add_filter("urlencode", filters::urlencode);
        environment.add_filter("tojson", filters::tojson);
        environment.add_filter("pointer", filters::pointer);
        environment.add_filter("host", filters::host);
        environment.add_filter("sms_segments", filters::sms_segments);
        // It prints the whole context, message and all.
        environment.remove_global("debug");
        Self {
            environment,
            about,
            used: Vec::new(),
            secrets: BTreeSet::new(),
        }
    }

    /// None yet, for keys and costs of limits. A missing field is an error even in an `if`: a message without
    /// its field must not pass uncounted.
    #[must_use]
    pub fn of_limits() -> Self {
        let mut templates = Self::new();
        templates
            .environment
            .set_undefined_behavior(UndefinedBehavior::Strict);
        templates
    }

    /// Compiles the template that errors call `name`. The same name again replaces it.
    ///
    /// # Errors
    /// The first fault that [`check`] finds.
    pub fn add(&mut self, name: &str, source: &str) -> Result<Template, WrongTemplate> {
        self.environment
            .add_template_owned(name.to_owned(), source.to_owned())
            .map_err(|error| unreadable(&error))?;
        let variables = self.variables(name).map_err(|error| unreadable(&error))?;
        if let Some(wrong) = fault::misused(&self.environment, source).into_iter().next() {
            return Err(wrong);
        }
        for variable in variables {
            let known = self.about.fields().find(|known| *known == variable);
            let Some(known) = known else {
                return Err(WrongTemplate::Variable {
                    name: variable,
                    about: self.about,
                });
            };
            if !self.used.contains(&known) {
                self.used.push(known);
            }
        }
        if let Some(wrong) = secret::misnamed(&self.environment, name).next() {
            return Err(wrong);
        }
        self.secrets.extend(names_in(&self.environment, name));
        Ok(Template(name.to_owned()))
    }

    /// Compiles the template of a key of the configuration, and names it after that.
    fn add_key(&mut self, key: String, source: &str) -> Result<Template, WrongLabel> {
        let added = self.add(&key, source);
        added.map_err(|wrong| WrongLabel { key, wrong })
    }

    /// Whether any of them names this variable.
    #[must_use]
    pub fn uses(&self, name: &str) -> bool {
        self.used.contains(&name)
    }

    /// The secrets that they name.
    #[must_use]
    pub const fn secrets(&self) -> &BTreeSet<String> {
        &self.secrets
    }

    /// Whether this template names a secret.
    #[must_use]
    pub fn is_secret(&self, template: &Template) -> bool {
        is_secret(&self.environment, template.name())
    }

    /// Whether this template uses a variable.
    pub fn takes(&self, template: &Template, variable: &str) -> bool {
        let variables = self.variables(template.name());
        variables.is_ok_and(|all| all.iter().any(|one| one == variable))
    }

    /// The variables that a template takes from its context, and the fields of `answer` that it uses, in
    /// order. A field that is looked up as an index is not found.
    fn variables(&self, name: &str) -> Result<Vec<String>, Error> {
        let template = self.environment.get_template(name)?;
        let mut variables: Vec<_> = template
            .undeclared_variables(false)
            .into_iter()
            .filter(|variable| !self.environment.globals().any(|(name, _)| name == variable))
            .collect();
        if self.about == About::Answer {
            let nested = template.undeclared_variables(true);
            let fields = nested.iter().filter_map(|path| {
                let field = path.strip_prefix("answer.")?;
                Some(format!("answer.{}", field.split('.').next()?))
            });
            variables.extend(fields);
        }
        variables.sort();
        variables.dedup();
        Ok(variables)
    }

    /// The context of a message: parses its body if a template needs it.
    ///
    /// # Errors
    /// When a template needs the body and it is no JSON.
    pub fn context(&self, message: &Message, facts: Facts<'_>) -> Result<Context, Undecodable> {
        self.context_with(message, facts, None)
    }

    /// The context of a message and the answer to its call, if there was one.
    ///
    /// # Errors
    /// When a template needs the body of the message and it is no JSON. The body of an answer that is no JSON
    /// is a text.
    pub fn context_with(
        &self,
        message: &Message,
        facts: Facts<'_>,
        answer: Option<&Answer>,
    ) -> Result<Context, Undecodable> {
        let mut values = BTreeMap::new();
        for name in &self.used {
            let value = match *name {
                "body" => self.body_of(message, facts)?,
                "headers" => Value::from(Serde(&message.headers)),
                "properties" => Value::from(Serde(&message.properties)),
                "routing_key" => Value::from(message.routing_key.as_str()),
                "exchange" => Value::from(message.exchange.as_str()),
                "route" => Value::from(facts.route),
                "attempt" => Value::from(facts.attempt),
                "answer" => match answer {
                    Some(answer) => answered(answer),
                    None => continue,
                },
                "message_id" => match message.id() {
                    Some(id) => Value::from(id),
                    None => continue,
                },
                _ => continue,
            };
            values.insert(*name, value);
        }
        Ok(Context(Value::from(values)))
    }

    /// The body of a message. Once it was called, templates about the answer take the last of two members.
    fn body_of(&self, message: &Message, facts: Facts<'_>) -> Result<Value, Undecodable> {
        let body = content::read(message, facts.max_body)?;
        let read = match self.about {
            About::Answer => json::answer(&body),
            _ => json::message(&body),
        };
        read.map_err(|unread| {
            let looks_like = content::looks_like(&body).filter(|_| unread.twice.is_none());
            let looks_like = looks_like.map(|form| format!("; it looks like {form}"));
            Undecodable {
                what: "body".to_owned(),
                why: self.unread(&unread) + &looks_like.unwrap_or_default(),
            }
        })
    }

    /// Why a body cannot be read. The name of a member is shown only if a template has it: others may be
    /// content.
    fn unread(&self, unread: &json::Unread) -> String {
        let json::Unread {
            twice,
            line,
            column,
        } = unread;
        let Some(name) = twice else {
            return format!("is no JSON, which the templates need (line {line}, column {column})");
        };
        let is_ours = self.environment.templates().any(|(_, template)| {
            let paths = template.undeclared_variables(true);
            paths
                .iter()
                .any(|path| path.split('.').any(|part| part == name))
        });
        let member = match is_ours {
            true => format!("the member `{name}`"),
            false => "a member".to_owned(),
        };
        format!(
            "has {member} twice in one object (line {line}, column {column}), and the downstream could read the other one"
        )
    }

    /// Whether a template prints a `null` for a message.
    fn gives_none(&self, template: &Template, context: &Context) -> bool {
        let compiled = self.environment.get_template(&template.0);
        let rendered = compiled.and_then(|compiled| compiled.render(context.0.clone()));
        rendered.is_err_and(|error| is_null(&error))
    }

    /// The text that a template makes from a message.
    ///
    /// # Errors
    /// When the message lacks what the template needs.
    pub fn render(&self, template: &Template, context: &Context) -> Result<String, Undecodable> {
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

/// The variables of an answer.
fn answered(answer: &Answer) -> Value {
    let body = json::answer(&answer.body)
        .unwrap_or_else(|_| Value::from(String::from_utf8_lossy(&answer.body)));
    let headers = Value::from(Serde(&answer.headers));
    let fields = [
        ("status", Value::from(answer.status)),
        ("headers", headers),
        ("body", body),
    ];
    Value::from(BTreeMap::from(fields))
}

#[cfg(test)]
mod tests;
