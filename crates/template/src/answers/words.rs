//! What the templates of an operator say that an answer means, and when to come back.

use crate::{About, Template, Templates, WrongLimitTemplate};
use sluiced_core::judge::{Meaning, TemplateOutcome};
use sluiced_ports::downstream::{Answer, Facts};
use sluiced_ports::message::Message;

/// What the templates of an operator say that answers mean.
#[derive(Debug)]
pub struct AnswerTemplates {
    templates: Templates,
    outcome: Option<Template>,
    wait: Option<Template>,
}

/// What they say of one answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerReading {
    /// What the template `outcome` makes of it.
    pub outcome: TemplateOutcome,
    /// Why the template `outcome` failed, if it did. Nothing of the answer.
    pub why: Option<String>,
    /// When to come back, as it stands there. `None`: there is no template `wait`, or it failed.
    pub wait: Option<String>,
}

impl AnswerTemplates {
    /// Compiles the templates `outcome` and `wait` of a downstream.
    ///
    /// # Errors
    /// When one is wrong, with its key.
    pub fn new(outcome: Option<&str>, wait: Option<&str>) -> Result<Self, WrongLimitTemplate> {
        let mut templates = Templates::about(About::Answer);
        let mut compile = |key: &str, text: Option<&str>| {
            let added = text.map(|text| templates.add_key(key.to_owned(), text));
            added.transpose()
        };
        Ok(Self {
            outcome: compile("outcome", outcome)?,
            wait: compile("wait", wait)?,
            templates,
        })
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.outcome.is_none() && self.wait.is_none()
    }

    /// Whether one of them says what an answer means.
    #[must_use]
    pub const fn decides(&self) -> bool {
        self.outcome.is_some()
    }

    /// Reads the answer to a message.
    #[must_use]
    pub fn read(&self, message: &Message, facts: Facts<'_>, answer: &Answer) -> AnswerReading {
        let context = self.templates.context_with(message, facts, Some(answer));
        let text = |template: &Template| match &context {
            Ok(context) => self.templates.render(template, context),
            Err(undecodable) => Err(undecodable.clone()),
        };
        let wait = self.wait.as_ref().and_then(|wait| text(wait).ok());
        let Some(outcome) = &self.outcome else {
            return AnswerReading {
                wait,
                ..AnswerReading::default()
            };
        };
        let rendered = text(outcome).map_err(|undecodable| undecodable.to_string());
        let found = rendered.and_then(|text| meaning(text.trim()));
        let (outcome, why) = match found {
            Ok(Some(meaning)) => (TemplateOutcome::Meaning(meaning), None),
            Ok(None) => (TemplateOutcome::Nothing, None),
            Err(why) => (TemplateOutcome::Failed, Some(why)),
        };
        AnswerReading { outcome, why, wait }
    }
}

/// The meaning that a template names, if it names one.
fn meaning(text: &str) -> Result<Option<Meaning>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let named = Meaning::ALL
        .into_iter()
        .find(|meaning| meaning.word() == text);
    // The text may be content of the answer.
    named.map(Some).ok_or_else(|| {
        "outcome: returns none of accepted, throttled, held, transient and permanent".to_owned()
    })
}
