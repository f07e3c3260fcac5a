//! What calls really used, according to the answers of a route: for limits with costs that are known only
//! afterwards.

use std::fmt;

use super::{About, Template, Templates, WrongLabel};
use crate::ports::downstream::{Answer, Facts};
use crate::ports::message::Message;

/// How to read it from the answers of a route.
pub struct RouteActuals {
    templates: Templates,
    each: Vec<(Box<str>, Template)>,
}

impl RouteActuals {
    /// Compiles the templates of limits, by their names.
    ///
    /// # Errors
    /// When a template is wrong, which a checked configuration excludes.
    pub fn new<'a>(limits: impl Iterator<Item = (&'a str, &'a str)>) -> Result<Self, WrongLabel> {
        let mut templates = Templates::about(About::Answer);
        let each = limits.map(|(limit, text)| {
            let key = format!("limits.{limit}.actual");
            match templates.add(&key, text) {
                Ok(template) => Ok((Box::from(limit), template)),
                Err(wrong) => Err(WrongLabel { key, wrong }),
            }
        });
        let each = each.collect::<Result<_, _>>()?;
        Ok(Self { templates, each })
    }

    /// The limits that have one.
    pub fn limits(&self) -> impl Iterator<Item = &str> {
        self.each.iter().map(|(limit, _)| &**limit)
    }

    /// What the call of a message used, for each of [`limits`](Self::limits). `None`: its answer has no
    /// number.
    pub fn read(&self, message: &Message, facts: Facts<'_>, answer: &Answer) -> Vec<Option<u64>> {
        let context = self.templates.context_with(message, facts, Some(answer));
        let read = |(_, template): &(_, Template)| {
            let text = self.templates.render(template, context.as_ref().ok()?);
            units(&text.ok()?)
        };
        self.each.iter().map(read).collect()
    }
}

/// Whole units; a fraction of one counts as one.
fn units(text: &str) -> Option<u64> {
    let (whole, fraction) = text.trim().split_once('.').unwrap_or((text.trim(), "0"));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !is_digits(whole) || !is_digits(fraction) {
        return None;
    }
    let more = u64::from(fraction.bytes().any(|b| b != b'0'));
    Some(whole.parse().unwrap_or(u64::MAX).saturating_add(more))
}

impl fmt::Debug for RouteActuals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.limits()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_say_whole_numbers_or_nothing() {
        let actuals = RouteActuals::new(
            [
                ("tokens", "{{ answer.body.usage.total_tokens }}"),
                ("bytes", "{{ answer.headers['x-bytes'] }}"),
            ]
            .into_iter(),
        )
        .unwrap();
        let read = |body: &str, bytes: &str| {
            let answer = Answer {
                status: 200,
                headers: [("x-bytes".to_owned(), bytes.to_owned())].into(),
                body: body.to_owned().into(),
                is_whole: true,
            };
            let facts = Facts {
                route: "llm",
                attempt: 1,
            };
            actuals.read(&Message::default(), facts, &answer)
        };
        let says = |tokens| format!(r#"{{"usage": {{"total_tokens": {tokens}}}}}"#);
        assert_eq!(read(&says("812"), "0"), [Some(812), Some(0)]);
        assert_eq!(read(&says("812.0"), "7.25"), [Some(812), Some(8)]);
        assert_eq!(read(&says("-3"), "many"), [None, None]);
        assert_eq!(read(&says("null"), ""), [None, None]);
        assert_eq!(
            read("no JSON", "99999999999999999999"),
            [None, Some(u64::MAX)]
        );
    }

    #[test]
    fn a_wrong_template_is_reported_with_its_key() {
        let limits = [("tokens", "{{ anser.status }}")];
        let error = RouteActuals::new(limits.into_iter()).unwrap_err();
        assert_eq!(error.key, "limits.tokens.actual");
    }
}
