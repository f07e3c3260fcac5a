//! Which limit a throttled call was refused for.

use crate::{About, Template, Templates, WrongLimitTemplate};
use sluiced_ports::downstream::{Answer, Facts};
use sluiced_ports::message::Message;

/// What throttled answers of a route say that they throttle.
#[derive(Debug)]
pub struct RouteThrottles {
    templates: Templates,
    /// `None`: nothing says it.
    limit: Option<Template>,
}

impl RouteThrottles {
    /// For answers that are not seen.
    pub(super) fn none() -> Self {
        Self {
            templates: Templates::about(About::Answer),
            limit: None,
        }
    }

    /// Compiles the name of a limit, or a template that returns one, of the route named `route`.
    ///
    /// # Errors
    /// When the template is wrong, which a checked configuration excludes.
    pub fn new(route: &str, text: Option<&str>) -> Result<Self, WrongLimitTemplate> {
        let mut templates = Templates::about(About::Answer);
        let key = || format!("routes.{route}.downstream.throttles");
        let limit = text
            .map(|text| templates.add_key(key(), text))
            .transpose()?;
        Ok(Self { templates, limit })
    }

    /// The name of the limit that the answer to a message was throttled for; `None` if it does not say.
    #[must_use]
    pub fn read(&self, message: &Message, facts: Facts<'_>, answer: &Answer) -> Option<String> {
        let limit = self.limit.as_ref()?;
        let context = self.templates.context_with(message, facts, Some(answer));
        let text = self.templates.render(limit, &context.ok()?).ok()?;
        let name = text.trim();
        (!name.is_empty()).then(|| name.to_owned())
    }
}
