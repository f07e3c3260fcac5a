//! The variables of one message.
//!
//! Only what some template names is looked up: the body is parsed for templates that name it, and a message that is no
//! JSON is no problem for others.

use std::collections::BTreeMap;
use std::fmt;

use minijinja::value::{Serde, Value};

use super::{About, Templates, content, json};
use sluiced_ports::downstream::{Answer, Facts, UnfitReason};
use sluiced_ports::message::Message;

/// The variables of one message.
pub struct Context(pub(super) Value);

impl fmt::Debug for Context {
    /// Shows nothing of a message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Context(..)")
    }
}

impl Templates {
    /// The context of a message: parses its body if a template needs it.
    ///
    /// # Errors
    /// When a template needs the body and it is no JSON.
    pub fn context(&self, message: &Message, facts: Facts<'_>) -> Result<Context, UnfitReason> {
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
    ) -> Result<Context, UnfitReason> {
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

    /// The body of a message. Two members with one name are an error before the call. After the call the last one
    /// counts.
    fn body_of(&self, message: &Message, facts: Facts<'_>) -> Result<Value, UnfitReason> {
        let body = content::read(message, facts.max_body)?;
        let read = match self.about {
            About::Answer => json::answer(&body),
            _ => json::message(&body),
        };
        read.map_err(|unread| {
            let form = content::looks_like(&body).filter(|_| unread.twice.is_none());
            let looks_like = form.map(|form| format!("; it looks like {form}"));
            UnfitReason {
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
