//! What a call really used, for limits with costs that are known only afterwards.

use std::fmt;
use std::num::NonZeroU32;

use crate::{About, Template, Templates, WrongLimitTemplate};
use sluiced_headers::decimal;
use sluiced_ports::downstream::{Answer, Facts};
use sluiced_ports::message::Message;

/// Where the answers of a route say what calls really used: for limits with costs that are known only afterwards.
pub struct RouteActuals {
    templates: Templates,
    each: Vec<RouteActual>,
}

/// Where an answer says what a call really used of one limit.
struct RouteActual {
    limit: Box<str>,
    template: Template,
    most: Option<NonZeroU32>,
}

impl RouteActuals {
    /// For answers that are not seen.
    pub(super) fn none() -> Self {
        Self {
            templates: Templates::about(About::Answer),
            each: Vec::new(),
        }
    }

    /// Compiles the templates of limits, by their names, each with its `max_actual`, if that is written.
    ///
    /// # Errors
    /// When a template is wrong, which a checked configuration excludes.
    pub fn new<'a>(
        limits: impl Iterator<Item = (&'a str, &'a str, Option<NonZeroU32>)>,
    ) -> Result<Self, WrongLimitTemplate> {
        let mut templates = Templates::about(About::Answer);
        let compile = |(limit, text, most): (&str, &str, Option<NonZeroU32>)| {
            let template = templates.add_key(format!("limits.{limit}.actual"), text)?;
            let limit = Box::from(limit);
            Ok(RouteActual {
                limit,
                template,
                most,
            })
        };
        let each = limits.map(compile).collect::<Result<_, _>>()?;
        Ok(Self { templates, each })
    }

    /// The limits that have one, each with its `max_actual`, if that is written.
    pub fn limits(&self) -> impl Iterator<Item = (&str, Option<NonZeroU32>)> {
        self.each.iter().map(|actual| (&*actual.limit, actual.most))
    }

    /// What the call of a message used, for each of [`limits`](Self::limits). `None`: its answer says no number.
    pub fn read(&self, message: &Message, facts: Facts<'_>, answer: &Answer) -> Vec<Option<u64>> {
        let context = self.templates.context_with(message, facts, Some(answer));
        let read = |actual: &RouteActual| {
            let text = self
                .templates
                .render(&actual.template, context.as_ref().ok()?);
            units(&text.ok()?)
        };
        self.each.iter().map(read).collect()
    }
}

impl fmt::Debug for RouteActuals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.limits()).finish()
    }
}

/// Whole units; a fraction of one counts as one.
fn units(text: &str) -> Option<u64> {
    let (whole, fraction) = decimal(text.trim())?;
    let partial_unit = u64::from(fraction.bytes().any(|b| b != b'0'));
    Some(
        whole
            .parse()
            .unwrap_or(u64::MAX)
            .saturating_add(partial_unit),
    )
}
